"""The command for a first look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..apps.command import list_files
from .base import app


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
    list_files(result.files)
