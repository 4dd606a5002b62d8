"""Classifiers and distilled networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

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
    wrote,
)
from .training import execute

ReadArgument = Annotated[
    str, typer.Argument(help="A run folder of attributes or a distilled network, or a shipped one.")
]
ImagesArgument = Annotated[list[str], typer.Argument(help="Image files.")]


@app.command()
def distill(
    network: Annotated[
        str,
        typer.Argument(
            help="An .onnx or .pt2 file, FILE.py:NAME or MODULE:NAME of a torch module (which runs "
            "that code), or an encoder of a VAE: vae, factor, betah, betab, btcvae."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(help="images (a name or a folder), or samples in a .npy, .npz or .csv file"),
    ],
    size: Annotated[
        int | None, typer.Option(min=1, help="side of the images", show_default="their own")
    ] = None,
    same: Annotated[
        bool,
        typer.Option(
            "--same",
            help="start as the network, with its own layers inside g: for images, and for encoders "
            "and torch modules that are chains of layers",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="training steps", show_default="2000, with --same 300"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of weights and order of samples")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="run folder", show_default="runs/distilled-NETWORK"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out, if it has one")
    ] = False,
    data_root: RootOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a Linearizer of a network that you have, from its outputs on data.

    `linearizer train disentangle --teacher NETWORK` is the same with every setting as a flag.

    Example: linearizer distill mine.onnx --data my/images --size 64
    """
    from .. import runs

    chosen: dict[str, Any] = {"teacher": network, "name": data}
    if size is not None:
        chosen["size"] = size
    training = {"seed": seed, **({} if steps is None else {"steps": steps})}
    flags = {"data": chosen, "training": training}
    plan = runs.plan("disentangle", preset="same" if same else None, flags=flags)
    out = out or Path("runs") / f"distilled-{Path(network.partition('#')[0]).stem.split(':')[0]}"
    execute(plan, out, data_root, resume, quiet, as_json)


@app.command()
def read(
    run: ReadArgument,
    images: ImagesArgument,
    as_json: JsonFlag = False,
) -> None:
    """Print the scores of images: which class they are of, which attributes they have.

    Example: linearizer read celeba-attributes face.png
    """
    from .. import reading

    result = reading.read(run, images)
    lines = []
    for row in result["images"]:
        if "holds" in row:
            sure = f" ({row['probability']:.1%})" if "probability" in row else ""
            lines.append(f"{row['image']}: {', '.join(row['holds']) or 'nothing'}{sure}")
        else:
            numbers = " ".join(f"{v:.3g}" for v in row["scores"].values())
            lines.append(f"{row['image']}: {numbers}")
    if as_json:
        print_json(result)
        return
    for line in result["notes"]:
        note(line)
    typer.echo("\n".join(lines))


WishOption = Annotated[
    list[str],
    typer.Option(
        "--wish", "-w", help="names with commas: NAME, -NAME, or NAME=SCORE; may be repeated"
    ),
]


@app.command()
def imagine(
    run: ReadArgument,
    wish: WishOption,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the image of least norm that has the wanted scores, f†(y).

    Example: linearizer imagine celeba-attributes -w "Male, Eyeglasses" -w "Blond_Hair, Smiling"
    """
    from .. import reading

    result = reading.imagine(run, wish, out)
    answer(result, f"scores reached to {result['score_error']:.0e}", as_json)


@app.command()
def edit(
    run: ReadArgument,
    images: ImagesArgument,
    wish: WishOption,
    strength: Annotated[float, typer.Option(help="1 reaches the wanted scores")] = 1.0,
    hold: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            "--hold/--follow",
            help="keep all other scores, or let them follow as they do in the data",
            show_default="follow, where the outputs are separate",
        ),
    ] = None,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change images as little as gives them the wanted scores, x ⊕ f†(y ⊖ f(x)).

    Example: linearizer edit celeba-attributes face.png -w Eyeglasses -w -Smiling
    """
    from .. import reading

    result = reading.edit(run, images, wish, strength, hold, out)
    answer(
        result,
        f"scores reached to {result['score_error']:.0e}; other scores "
        + ("held to " if result["others_held"] else "follow, by at most ")
        + f"{result['largest_change_of_another_score']:.2g}",
        as_json,
    )


@app.command()
def vary(
    run: ReadArgument,
    images: ImagesArgument,
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="variations of each image")] = 6,
    amount: Annotated[
        float, typer.Option(min=0, max=1, help="how much of what the map cannot see is replaced")
    ] = 0.7,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the variations")] = 0,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change images in the null space of the map: other pixels, the very same scores.

    Example: linearizer vary celeba-attributes face.png -n 6
    """
    from .. import reading

    result = reading.vary(run, images, n, amount, seed, out)
    answer(
        result,
        f"null space of dimension {result['dimension_of_null_space']:,}: scores change by at most "
        f"{result['largest_change_of_a_score']:.0e}, pixels by {result['pixel_change']:.2f}",
        as_json,
    )


@app.command()
def erase(
    run: ReadArgument,
    images: ImagesArgument,
    name: Annotated[
        list[str], typer.Option("--name", "-a", help="attribute or class; may be repeated")
    ],
    out: PngOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Project images onto what no linear probe can tell an attribute from; needs the run's data.

    Example: linearizer erase celeba-attributes face.png -a Smiling
    """
    from .. import reading

    result = reading.erase(run, name, images, out, data_root)
    answer(result, f"erasing twice differs from once by {result['idempotency_error']:.0e}",
            as_json)  # fmt: skip


@evaluate_app.command("attributes")
def evaluate_attributes(
    run: ReadArgument = "celeba-attributes",
    baseline_minutes: Annotated[
        float, typer.Option(min=0, help="train a ResNet-18 for this long, to compare")
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Accuracy of a classifier beside the majority's; erasure, edits and null space.

    Example: linearizer evaluate attributes celeba-attributes --baseline-minutes 30
    """
    from .. import evaluation

    result = paged(evaluation.attributes(run, out, data_root, note, baseline_minutes))
    if as_json:
        print_json(result)
        return
    for who in ("linearizer", "resnet18", "majority"):
        if who in result:
            row = result[who]
            typer.echo(f"{who}: accuracy {row['accuracy']:.2%}, balanced {row['balanced']:.2%}")
    if "paper" in result:
        typer.echo(f"paper, full training set: linearizer {result['paper']['linearizer']:.1%}, "
                   f"ResNet-50 {result['paper']['resnet50']:.1%}")  # fmt: skip
    for name, row in result["erasure"]["of_each"].items():
        before, after = row["probe_roc_auc"]
        kept, left = row["others_probe_accuracy"]
        typer.echo(f"{name} erased: ROC-AUC of a probe {before:.3f} → {after:.3f}; accuracy of the "
                   f"others' probes {kept:.2%} → {left:.2%}")  # fmt: skip
    for section in ("edits", "null_space"):
        for key, value in result.get(section, {}).items():
            typer.echo(f"{section.replace('_', ' ')}, {key}: {json.dumps(value)}")
    wrote(result["files"])


@evaluate_app.command("disentanglement")
def evaluate_disentanglement(
    encoder: Annotated[
        str | None,
        typer.Option(
            help="one network (as `distill` takes them) or run folder",
            show_default="all rows of the paper's table",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many, from 0 on")] = 10,
    distillations: Annotated[
        int, typer.Option(min=1, help="of each teacher, which the seeds take in turn")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="of each distillation", show_default="as the preset")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder of the table and of the trained models")
    ] = Path("runs/disentanglement"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """FactorVAE, SAP and DCI scores on dSprites: teachers and what is distilled from them.

    What is missing is trained first; a stopped table goes on where it was.

    Example: linearizer evaluate disentanglement --encoder betah --seeds 3
    """
    from .. import evaluation

    if encoder is not None:
        result = paged(evaluation.disentanglement_of(encoder, seeds, out, data_root, note))
    else:
        result = paged(
            evaluation.disentanglement(seeds, out, data_root, note, steps, distillations)
        )
    if as_json:
        print_json(result)
        return
    typer.echo(result["table"])
    wrote(result["files"])
