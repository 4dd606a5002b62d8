"""The commands of forecasters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..command import JsonFlag, answer, new_commands

__all__ = ["commands"]

commands = new_commands()


@commands.command()
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
            "--fill",
            "--missing",
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
    from . import use

    result = use.forecast(run, table, out, plot, coverage, missing, sentinel)
    text = (
        f"{result['horizon']} rows, {result['first']} to {result['last']}, from the last "
        f"{result['look_back']}; {result['coverage']:.0%} intervals"
    )
    answer(result, text, as_json)
