"""What a projector can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .base import (
    JsonFlag,
    PngOption,
    RootOption,
    answer,
    app,
    evaluate_app,
    note,
    paged,
    print_json,
    run_first,
    wrote,
)


@app.command()
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
    from .. import projecting

    run, images = run_first(inputs, "mnist-projector")
    result = projecting.project(run, images, rank, known, out)
    lines = [f"rank {result['rank']}; f(f(x)) differs from f(x) by at most "
             f"{result['idempotency_error']:.0e}"]  # fmt: skip
    if score:
        for row in result["scores"]:
            share = row.get("share_of_data_above")
            among = "" if share is None else f"; {share:.0%} of held-out data score as high"
            lines.append(f"{row['image']}: score {row['score']:.3g}{among}")
    answer(result, "\n".join(lines), as_json)


@evaluate_app.command("projector")
def evaluate_projector(
    run: Annotated[
        str, typer.Argument(help="A run folder of a projector, or the name of a shipped one.")
    ] = "mnist-projector",
    baseline_minutes: Annotated[
        float,
        typer.Option(min=0, help="train an autoencoder and an IGN for this long, to compare"),
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Idempotency, reconstruction, projected noise, anomalies and gaps of a projector.

    Example: linearizer evaluate projector mnist-projector
    """
    from .. import evaluation

    result = paged(evaluation.projector(run, out, data_root, note, baseline_minutes))
    if as_json:
        print_json(result)
        return
    for precision in ("float32", "float64"):
        rows = result[f"idempotency_{precision}"]
        worst = max(rows, key=rows.get)
        typer.echo(f"|f(f(x)) − f(x)| in {precision}: at most {rows[worst]:.1e} ({worst})")
    typer.echo(f"rank {result['rank']} of {result['dim']}: test images at "
               f"{result['reconstruction']['psnr_mean_over_images']:.2f} dB")  # fmt: skip
    for section in ("reconstruction_by_rank", "projected", "anomaly_roc_auc", "gaps",
                    "meet_and_join", "baselines"):  # fmt: skip
        for key, value in result.get(section, {}).items():
            typer.echo(f"{section.replace('_', ' ')}, {key}: {json.dumps(value)}")
    wrote(result["files"])
