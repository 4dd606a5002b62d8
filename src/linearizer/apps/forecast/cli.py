"""What a forecaster can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .base import JsonFlag, RootOption, answer, app, evaluate_app, note, paged, print_json, wrote


@app.command()
def forecast(
    run: Annotated[str, typer.Argument(help="A run folder of a forecaster.")],
    table: Annotated[
        Path, typer.Option("--csv", help="CSV file that ends with the last known row")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file to write", show_default="TABLE-forecast.csv"),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="also draw it, as a PNG beside the CSV file")
    ] = False,
    coverage: Annotated[
        float, typer.Option(help="probability that an interval holds the truth")
    ] = 0.9,
    missing: Annotated[
        str | None,
        typer.Option(
            help="what becomes of empty cells: error, interpolate, previous or drop",
            show_default="as in training",
        ),
    ] = None,
    sentinel: Annotated[
        str | None,
        typer.Option(
            help="numbers that mean missing, with commas between", show_default="as in training"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Forecast the rows after those of a table, with lower and upper bounds, in its own units.

    Example: linearizer forecast runs/forecast-my --csv recent.csv -o forecast.csv --plot
    """
    from .. import forecasting

    result = forecasting.forecast(run, table, out, plot, coverage, missing, sentinel)
    text = (f"{result['horizon']} rows, {result['first']} to {result['last']}, from the last "
            f"{result['look_back']}; {result['coverage']:.0%} intervals")  # fmt: skip
    answer(result, text, as_json)


@evaluate_app.command("forecast")
def evaluate_forecast(
    run: Annotated[str, typer.Argument(help="A run folder of a forecaster.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Errors on the last fifth of a run's own table, beside simple rows; coverage of intervals.

    Example: linearizer evaluate forecast runs/forecast-my
    """
    from .. import evaluation

    result = paged(evaluation.forecast(run, out, data_root, note))
    lines = [
        f"{name}: MSE {e['mse']:.4g}, MAE {e['mae']:.4g}" for name, e in result["errors"].items()
    ]
    held = result["intervals"]
    lines.append(f"{held['nominal']:.0%} intervals hold {held['coverage']:.1%} of the true values")
    answer(result, "\n".join(lines), as_json)


@evaluate_app.command("weather")
def evaluate_weather(
    horizons: Annotated[str, typer.Option(help="with commas between")] = "96,192,336,720",
    rows: Annotated[
        str, typer.Option(help="rows of the table, with commas between", show_default="all")
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=0, help="longest training of a baseline, in CPU minutes")
    ] = 2.0,
    look_back: Annotated[
        int, typer.Option(min=2, help="rows of the past; published rows have 96, or say which")
    ] = 96,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder for table, plots and runs")
    ] = Path("runs/weather"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Train and measure all forecasters on the weather benchmark, beside published numbers.

    Example: linearizer evaluate weather --horizons 96 --rows "last value,ridge,strict,daily"
    """
    from .. import evaluation

    result = paged(evaluation.weather(horizons, rows, minutes, out, data_root, note, look_back))
    if as_json:
        print_json(result)
        return
    typer.echo(evaluation.weather_table(result))
    wrote(result["files"])
