r"""The page of a projector: draw, project once and twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pydantic import Field

from ..base import Run
from ..images import read_images_for
from ..page import (
    Asked,
    Desk,
    Given,
    Image,
    Name,
    Number,
    Page,
    Picture,
    Request,
    Tab,
    decode_image,
    encode_image,
    number,
)
from .model import Projection
from .use import project_images

__all__ = ["PAGE"]


class Project(Asked):
    model: Name
    image: Image
    rank: int | None = Field(None, ge=0, le=1_000_000)


class Projected(Given):
    input: Picture
    image: Picture
    again: Picture
    difference: Number
    score: Number
    usual: Number
    rank: int
    milliseconds: float


def describe(desk: Desk, id: str, run: Run) -> dict[str, Any]:
    """Return the ranks to choose from."""
    usual, largest = run.model().rank(), run.model.largest
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    return {"ranks": sorted({*powers, usual, largest}), "rank": usual}


def project(desk: Desk, a: Project) -> dict[str, Any]:
    picture = decode_image(a.image, desk.limits)
    run = desk.open(a.model, "projector")
    model: Projection = run.model
    x, _ = read_images_for(run, [picture])
    usual = int((model.logits > 0).sum())
    rank = None if a.rank == usual else a.rank
    begun = time.perf_counter()
    made = project_images(model, x, rank)
    elapsed = time.perf_counter() - begun
    return {
        "input": encode_image(x[0]),
        "image": encode_image(made.once[0]),
        "again": encode_image(made.twice[0]),
        "difference": number((made.twice - made.once).abs().max()),
        "score": number(made.score[0]),
        "usual": None if made.share is None else number(made.share[0]),
        "rank": usual if rank is None else rank,
        "milliseconds": 1e3 * elapsed,
    }


PAGE = Page(
    tabs=(Tab("project", "Project", "f(f(x)) = f(x)"),),
    folder=Path(__file__).parent,
    requests=(Request("project", "Project once and twice", Project, Projected, project, "images"),),
    describe=describe,
)
