"""What dynamics can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .base import JsonFlag, RootOption, answer, app, evaluate_app, note, paged, print_json, wrote


@app.command()
def simulate(
    run: Annotated[str, typer.Argument(help="A run folder of dynamics.")],
    start: Annotated[
        str,
        typer.Option(help="the numbers of a state with commas between, or test:0 for a test state"),
    ],
    times: Annotated[
        str, typer.Option(help="FIRST:LAST:STEP or times with commas between; may be negative")
    ],
    drop: Annotated[
        list[int] | None, typer.Option(help="number of a mode to leave out; may be repeated")
    ] = None,
    damp: Annotated[
        list[str] | None,
        typer.Option(help="MODE=RATE: let a mode decay by that much faster; may be repeated"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV or NPZ to write", show_default="in RUN/samples"),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="also draw it, as a PNG beside the file")
    ] = False,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """States at any times, before or after a start, all at once; modes may be left out or damped.

    Example: linearizer simulate runs/dynamics-pendulum --start "1.0, 0.0" --times 0:10:0.1
    """
    from .. import simulating

    result = simulating.simulate(run, start, times, drop or (), out, plot, data_root, damp or ())
    time, state = result["last"]
    shown = ", ".join(f"{v:.5g}" for v in state)
    answer(result, f"{result['rows']} states; at {time:g}: {shown}", as_json)


@evaluate_app.command("dynamics")
def evaluate_dynamics(
    run: Annotated[str, typer.Argument(help="A run folder of dynamics of a known system.")],
    minutes: Annotated[
        float, typer.Option(min=0, help="train the neural ODE for this long; 0 leaves it out")
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Error up to ten times the training horizon, beside DMD, EDMD and a neural ODE; times.

    Example: linearizer evaluate dynamics runs/dynamics-pendulum
    """
    from .. import evaluation

    result = paged(evaluation.dynamics(run, out, data_root, note, minutes))
    if as_json:
        print_json(result)
        return
    for name, row in result["error"].items():
        at = ", ".join(f"{k} {v:.3g}" for k, v in row.items())
        typer.echo(f"{name}: {at}")
    for name, why in result["skipped"].items():
        typer.echo(f"{name}: not measured, {why}")
    for name, row in result["rollout_seconds"].items():
        typer.echo(f"1,000 states in {row * 1e3:.3g} ms: {name}")
    wrote(result["files"])
