r"""The page of styles: a photo in a blend, and undone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...data.images import pixels_of_photo
from ...data.stylised import shrink
from ...metrics.images import psnr
from ..base import Run
from ..page import (
    Asked,
    Desk,
    Given,
    Image,
    Name,
    Number,
    Page,
    Picture,
    Refusal,
    Request,
    Tab,
    at_most,
    decode_image,
    encode_image,
    number,
)
from .model import PHOTO, Style
from .use import example_photo, render

__all__ = ["PAGE"]

#: Longer side of the example photo.
EXAMPLE_SIDE = 640
#: Longer side of a picture whose style is undone at most: f† has a matrix for each frequency.
UNDONE_SIDE = 384


class AskPhoto(Asked):
    """Nothing has to be said."""


class Photo(Given):
    image: Picture
    title: str


class Stylize(Asked):
    model: Name
    image: Image
    mix: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[float, Field(ge=-100, le=100)]],
        Field(min_length=1, max_length=100, examples=[{"candy": 0.6, "mosaic": 0.4}]),
        BeforeValidator(lambda given: at_most(given, 100, "styles")),
    ]
    strength: float = Field(1.0, ge=-100, le=100)
    size: int = Field(256, ge=64, le=1024)
    undo: bool = False


class Stylized(Given):
    image: Picture
    photo: Picture
    undone: Picture | None
    undone_psnr: Number
    milliseconds: float


def describe(desk: Desk, id: str, run: Run) -> dict[str, Any]:
    """The styles to mix, and the side up to which they are undone."""
    styles = [name for name in run.model.names if name != PHOTO]
    return {"styles": styles, "undone_side": UNDONE_SIDE}


def photo(desk: Desk, a: AskPhoto) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        pixels, title = example_photo()
        return {"image": encode_image(shrink(pixels.float() / 255, EXAMPLE_SIDE)), "title": title}

    return desk.keep("", "photo", make)


def stylize(desk: Desk, a: Stylize) -> dict[str, Any]:
    picture = decode_image(a.image, desk.limits)
    if a.undo and a.size > UNDONE_SIDE:
        raise Refusal(
            422, f"stylize: to undo a style, expected a size up to {UNDONE_SIDE}, got {a.size}."
        )
    model: Style = desk.open(a.model, "style").model
    photo = shrink(pixels_of_photo(picture).to(model.plain) / 255, a.size)
    # Sides that divide: what is padded and cut off again could not be undone.
    H, W = (max(1, side // model.multiple) * model.multiple for side in photo.shape[1:])
    photo = photo[:, :H, :W]
    kernel = model.blend(a.mix, a.strength)
    begun = time.perf_counter()
    made = render(model, kernel, photo)
    elapsed = time.perf_counter() - begun
    undone = render(model, kernel, made, undo=True) if a.undo else None
    close = None if undone is None else psnr(undone.clamp(0, 1)[None], photo[None])[0]
    return {
        "image": encode_image(made),
        "photo": encode_image(photo),
        "undone": None if undone is None else encode_image(undone),
        "undone_psnr": number(close),
        "milliseconds": 1e3 * elapsed,
    }


PAGE = Page(
    tabs=(Tab("style", "Style", "A = Σ w<sub>i</sub>A<sub>i</sub>"),),
    folder=Path(__file__).parent,
    requests=(
        Request("photo", "A photo to try styles on", AskPhoto, Photo, photo),
        Request("stylize", "A photo in a blend of styles", Stylize, Stylized, stylize, "images"),
    ),
    describe=describe,
)
