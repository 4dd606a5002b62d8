"""The paper again, and a tour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from .base import JsonFlag, RootOption, answer, app, note, wrote


@app.command()
def reproduce(
    experiments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="flow, projector, style, disentangle, attributes, weather, or all [default: all]",
        ),
    ] = None,
    scale: Annotated[
        Literal["here", "paper", "tiny"],
        typer.Option(help="as the shipped models; the paper's settings, for a GPU; or to try it"),
    ] = "here",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="page to write",
            show_default="FOLDER/results.md; docs/results.md once all six are in FOLDER",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="for runs and numbers", show_default="runs/reproduce[-SCALE]"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="only write the page of the JSON files in this folder"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="of every training", show_default="as the presets")
    ] = None,
    data_root: RootOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Do the paper's experiments again, and write its numbers beside ours.

    A stopped reproduction goes on where it was, with the same command.

    Example: linearizer reproduce weather --out weather.md
    """
    from .. import reproduce as again
    from ..training import Interrupted

    if source is not None:
        if experiments or folder or steps or scale != "here":
            raise ValueError("reproduce: --from runs nothing. Leave the other settings out.")
        result = again.compare(source, out)
        result["problems"] = {}
    else:
        say: Callable[[str], None] = (lambda text: None) if quiet else note
        try:
            result = again.reproduce(
                experiments or ("all",), scale, folder, out, data_root, steps, say, not quiet
            )
        except Interrupted as stop:
            note(f"{stop}; the same command goes on from there")
            raise typer.Exit(128 + stop.signal_number) from None
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    answer(result, counts, as_json)
    for part, problem in result["problems"].items():
        typer.echo(f"linearizer: {part} was not done. {problem}", err=True)
    if result["problems"]:
        raise typer.Exit(2)


@app.command()
def quickstart(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="folder for pictures and numbers")
    ] = Path("runs/quickstart"),
    steps: Annotated[int, typer.Option(min=1, help="training steps, in each of two stages")] = 1500,
    seed: Annotated[int, typer.Option(help="seed of weights and training")] = 0,
) -> None:
    """Train a one-step flow on real digits in two minutes: sample, encode, interpolate, certify.

    Example: linearizer quickstart --out runs/quickstart
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"quickstart: --out needs a folder, but {folder} is a file.")
    from .. import quickstart as tour

    result = tour.run(folder, steps, seed)
    n = result.numbers
    typer.echo(
        f"trained in {n['training_seconds']:.0f} s; one step equals 1,000 to "
        f"{n['one_against_1000_steps_mse']:.0e} (mean square) and takes 1/"
        f"{n['loop_over_one_step_seconds']:.0f} of the time; held-out digits come back at "
        f"{n['reconstruction_psnr']:.1f} dB from {n['rank']:.0f} numbers\n"
        f"largest error of a law: {n['worst_law_float64']:.0e} in float64, "
        f"{n['worst_law_float32']:.0e} in float32"
    )
    if failed := int(n["laws_failed_float64"] + n["laws_failed_float32"]):
        typer.echo(f"{failed} laws fail their tolerance: see certificate.txt")
    wrote(result.files)
