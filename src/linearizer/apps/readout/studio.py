r"""The page of what reads images: scores, and the nearest image with wanted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

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
    Seed,
    Tab,
    decode_image,
    encode_image,
    number,
    numbers,
)
from .use import edit_images, load_images

__all__ = ["PAGE"]


class Edit(Asked):
    model: Name
    image: Image | None = None
    seed: Seed = 0
    wish: str = Field(min_length=1, max_length=1000, examples=["Eyeglasses, -Smiling"])
    strength: float = Field(1.0, ge=-100, le=100)


class Edited(Given):
    image: Picture
    edited: Picture
    scores: dict[str, Number]
    edited_scores: dict[str, Number]
    score_error: Number


def _sampler(desk: Desk, run: Run) -> str | None:
    """The shipped model that makes images of the data and size that a readout is for."""
    return desk.sampler(run.data_name, tuple(run.model.read.source.shape))


def describe(desk: Desk, id: str, run: Run) -> dict[str, Any]:
    """The names of the outputs, and what makes images to edit."""
    names = run.model.output_names
    return {"names": names, "kind": run.model.output_kind, "generator": _sampler(desk, run)}


def edit(desk: Desk, a: Edit) -> dict[str, Any]:
    run = desk.open(a.model, "attributes,distill")
    if a.image is not None:
        x, _ = load_images(run, [decode_image(a.image, desk.limits)])
    else:
        x = _sample_for(desk, run, a.seed)
    made = edit_images(run.model, x, a.wish, a.strength)
    names = run.model.output_names
    return {
        "image": encode_image(x[0]),
        "edited": encode_image(made.image[0]),
        "scores": dict(zip(names, numbers(made.scores[0]), strict=True)),
        "edited_scores": dict(zip(names, numbers(made.edited_scores[0]), strict=True)),
        "score_error": number(made.error),
    }


def _sample_for(desk: Desk, run: Run, seed: int) -> Tensor:
    """An image that a shipped model makes, of the kind and size that a readout takes."""
    id = _sampler(desk, run)
    if id is None:
        shape = tuple(run.model.read.source.shape)
        raise Refusal(422, f"image: no shipped flow makes such images {shape}. Give an image.")
    return desk.sample(id, 1, seed).clamp(0, 1).to(run.model.read.weight)


PAGE = Page(
    tabs=(Tab("edit", "Edit", "x ⊕ f<sup>†</sup>(y ⊖ f(x))"),),
    folder=Path(__file__).parent,
    requests=(
        Request("edit", "The nearest image with wanted scores", Edit, Edited, edit, "images"),
    ),
    describe=describe,
    reach=lambda run: 3.0 if run.model.read.encodes else None,
)
