"""The commands of styles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ..command import JsonFlag, RootOption, TensorOption, answer, new_commands, note, run_first

__all__ = ["commands"]

commands = new_commands()

style_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(
    style_app,
    name="style",
    help="List the styles of a model, and add new ones without training.\n\n"
    "Example: linearizer style list",
)

StyleArgument = Annotated[
    str, typer.Argument(help="A run folder of a style model, or the name of a shipped one.")
]


@commands.command()
def stylize(
    inputs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[RUN] [PHOTOS]...",
            help="Photos of any size; before them, if you like, a run folder of a style model or "
            "the name of a shipped one [default: styles]. Without photos, one of scikit-learn's.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="a style, or a sum such as '0.6*candy + 0.4*mosaic'",
            show_default="the model's first",
        ),
    ] = None,
    strength: Annotated[
        float, typer.Option(help="0 leaves the photo, 1 is the style, more exaggerates it")
    ] = 1.0,
    strip: Annotated[
        Optional[tuple[str, str]],  # noqa: UP045
        typer.Option(help="a row of pictures from one style to another", show_default="no"),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="the photo of a picture in this style, by f†")
    ] = False,
    times: Annotated[int, typer.Option(min=1, help="apply it again to its own result")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="file, or folder for several", show_default="PHOTO-STYLE.png"
        ),
    ] = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Render photos in a style, or a blend of styles: f(x) = g_y⁻¹(A g_x(x)), A = Σ wᵢ Aᵢ.

    Example: linearizer stylize photo.jpg --style "0.6*candy + 0.4*mosaic" --strength 0.8 -o out.png
    """
    from ...training.progress import Transfer
    from . import use

    run, photos = run_first(inputs, "styles", bare=True) if inputs else ("styles", [])
    if strip is not None:
        if len(photos) > 1 or undo or style is not None or tensor is not None:
            raise ValueError(
                "stylize: --strip takes one photo, and no --style, --undo or --tensor."
            )
        result = use.draw_strip(run, photos[0] if photos else None, *strip, strength, out)
        answer(result, "", as_json)
        return
    with Transfer("tiles") as transfer:
        result = use.stylize(
            run, photos, style, strength, undo, times, out, tensor, note, transfer.update
        )
    parts = " + ".join(f"{w:g}*{name}" for name, w in result["style"].items())
    condition = result["condition_number"] or float("inf")
    answer(result, f"{parts}, strength {strength:g}; condition number {condition:.2g}", as_json)


@style_app.command("list")
def list_styles(run: StyleArgument = "styles", as_json: JsonFlag = False) -> None:
    """List the styles that a model knows.

    Example: linearizer style list
    """
    from . import use

    result = use.list_styles(run)
    rows = result["styles"].items()
    text = "\n".join(
        f"{name:16} {row['numbers']:,} numbers, condition number {row['condition_number']:.2g}"
        for name, row in rows
    )
    answer(result, text, as_json)


@style_app.command("add")
def add_style(
    run: StyleArgument,
    name: Annotated[str, typer.Argument(help="What to call the new style.")],
    pair: Annotated[
        Optional[tuple[Path, Path]],  # noqa: UP045
        typer.Option("--from", help="a photo, and the same photo in the style", show_default=False),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            help="or the weights of a style network, asked for a few photos", show_default=False
        ),
    ] = None,
    content: Annotated[str, typer.Option(help="photos for it: bsds500, a folder or zip")] = (
        "bsds500"
    ),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="folder for a copy of the model", show_default="RUN"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a style by least squares, with g as it is: seconds, and no training.

    Example: linearizer style add styles mine --from before.png after.png -o runs/my-styles
    """
    from . import use

    result = use.add_style(run, name, pair, teacher, content, out, data_root)
    again = " (replaced)" if result["replaced"] else ""
    several = "s" if result["pairs"] > 1 else ""
    text = (
        f"{name}{again}: fitted to {result['pairs']} pair{several}, "
        f"{result['psnr']:.1f} dB there; condition number {result['condition_number']:.2g}"
    )
    answer(result, text, as_json)
