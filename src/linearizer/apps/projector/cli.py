"""The commands of a projector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..command import JsonFlag, PngOption, answer, new_commands, run_first

__all__ = ["commands"]

commands = new_commands()


@commands.command()
def project(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] IMAGES...",
            help="Image files of any size, colour or grey; before them, if you like, a run folder "
            "of a projector or the name of a shipped one [default: mnist-projector].",
        ),
    ],
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="keep this many directions", show_default="as trained"),
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="say how unlike the data each image is")
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            help="image, white where pixels are known: fill in the others", show_default="no"
        ),
    ] = None,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Project images onto what a model knows: f(x), and f(f(x)) = f(x).

    Example: linearizer project scribble.png photo.jpg --score -o grid.png
    """
    from . import use

    run, images = run_first(inputs, "mnist-projector")
    result = use.project(run, images, rank, known, out)
    error = f"{result['idempotency_error']:.0e}"
    lines = [f"rank {result['rank']}; f(f(x)) differs from f(x) by at most {error}"]
    if score:
        for row in result["scores"]:
            share = row.get("share_of_data_above")
            among = "" if share is None else f"; {share:.0%} of held-out data score as high"
            lines.append(f"{row['image']}: score {row['score']:.3g}{among}")
    answer(result, "\n".join(lines), as_json)
