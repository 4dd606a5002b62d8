"""The commands of attributes and distill."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from ..command import (
    JsonFlag,
    PngOption,
    RootOption,
    answer,
    new_commands,
    note,
    print_json,
)

__all__ = ["commands"]

commands = new_commands()

ReadArgument = Annotated[
    str, typer.Argument(help="A run folder of attributes or distill, or the name of a shipped one.")
]
ImagesArgument = Annotated[list[str], typer.Argument(help="Image files.")]


@commands.command()
def read(
    run: ReadArgument,
    images: ImagesArgument,
    as_json: JsonFlag = False,
) -> None:
    """Print the scores of images: which class they are of, which attributes they have.

    Example: linearizer read celeba-attributes face.png
    """
    from . import use

    result = use.read(run, images)
    if as_json:
        print_json(result)
        return
    for line in result["notes"]:
        note(line)
    for row in result["images"]:
        if "holds" in row:
            sure = f" ({row['probability']:.1%})" if "probability" in row else ""
            text = f"{', '.join(row['holds']) or 'nothing'}{sure}"
        else:
            text = " ".join(f"{v:.3g}" for v in row["scores"].values())
        typer.echo(f"{row['image']}: {text}")


WishOption = Annotated[
    list[str],
    typer.Option(
        "--wish", "-w", help="names with commas: NAME, -NAME, or NAME=SCORE; may be repeated"
    ),
]


@commands.command()
def imagine(
    run: ReadArgument,
    wish: WishOption,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the image of least norm that has the wanted scores, f†(y).

    Example: linearizer imagine celeba-attributes -w "Male, Eyeglasses" -w "Blond_Hair, Smiling"
    """
    from . import use

    result = use.imagine(run, wish, out)
    answer(result, f"scores reached to {result['score_error']:.0e}", as_json)


@commands.command()
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
    from . import use

    result = use.edit(run, images, wish, strength, hold, out)
    how = "held to" if result["others_held"] else "follow, by at most"
    others = f"{how} {result['largest_change_of_another_score']:.2g}"
    text = f"scores reached to {result['score_error']:.0e}; other scores {others}"
    answer(result, text, as_json)


@commands.command()
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
    from . import use

    result = use.vary(run, images, n, amount, seed, out)
    text = (
        f"null space of dimension {result['dimension_of_null_space']:,}: scores change by at most "
        f"{result['largest_change_of_a_score']:.0e}, pixels by {result['pixel_change']:.2f}"
    )
    answer(result, text, as_json)


@commands.command()
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
    from . import use

    result = use.erase(run, name, images, out, data_root)
    text = f"erasing twice differs from once by {result['idempotency_error']:.0e}"
    answer(result, text, as_json)
