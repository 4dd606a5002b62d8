"""The commands of dynamics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..command import JsonFlag, RootOption, answer, new_commands

__all__ = ["commands"]

commands = new_commands()


@commands.command()
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
    """Give states at any times, before or after a start; modes may be left out or damped.

    Example: linearizer simulate runs/dynamics-pendulum --start "1.0, 0.0" --times 0:10:0.1
    """
    from . import use

    result = use.simulate(run, start, times, drop or (), out, plot, data_root, damp or ())
    time, state = result["last"]
    shown = ", ".join(f"{v:.5g}" for v in state)
    answer(result, f"{result['rows']} states; at {time:g}: {shown}", as_json)
