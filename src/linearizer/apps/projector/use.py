r"""What a trained projector is for: project images of any kind, score them, fill in gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...data import read_images
from ...runs.pictures import image_grid
from ...runs.store import open_run
from ..base import Run
from ..images import border_of, make_parent, picture_path, read_images_for
from .model import Projection, complement

__all__ = ["Projections", "open_projector", "project", "project_images", "usualness"]


def open_projector(run: str | Path | Run) -> Run:
    """Open a run that holds a projector, and refuse any other."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, Projection):
        held = opened.app.name
        raise ValueError(f"{opened.folder}: expected a projector, but the run holds {held}.")
    return opened


def usualness(model: Projection, score: Tensor) -> Tensor:
    """Return the share of held-out data with a score at least as high, (n,)."""
    return (model.usual >= score[:, None]).double().mean(1)


class Projections(NamedTuple):
    """What a projector makes of images, (n, …) each."""

    once: Tensor  #: f(x)
    twice: Tensor  #: f(f(x))
    score: Tensor  #: ‖(I − Λ) g(x)‖
    share: Tensor | None  #: of held-out data with a score at least as high; at the trained rank


@torch.no_grad()
def project_images(model: Projection, x: Tensor, rank: int | None = None) -> Projections:
    """Return f(x), f(f(x)) and the score of x, with g(x) taken once."""
    f, parts = model(rank), []
    rest = complement(f).operator
    for part in x.split(250):
        z = f.source.coordinates(part)
        once = f.target.points(f.operator(z))
        parts.append((once, f(once), rest(z).norm(dim=1)))
    once, twice, score = (torch.cat(column) for column in zip(*parts, strict=True))
    return Projections(once, twice, score, usualness(model, score) if rank is None else None)


@torch.no_grad()
def project(
    run: str | Path | Run,
    images: Sequence[str | Path],
    rank: int | None = None,
    known: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Draw each image, its projection and the projection of that, and return its score.

    With ``known``, an image that is white where pixels are known, the others are filled in.
    """
    run = open_projector(run)
    model: Projection = run.model
    x, notes = read_images_for(run, images)
    rows, labels = [x], ["x"]
    if known is not None:
        mask, more = _read_mask(known, run)
        notes = [*notes, *more]
        filled = torch.cat([model.inpaint(part, mask, rank=rank) for part in x.split(250)])
        rows, labels = [x * mask, filled], ["known", "filled in"]
    once, twice, scores, shares = project_images(model, rows[-1], rank)
    rows, labels = [*rows, once, twice], [*labels, "f(x)", "f(f(x))"]
    out = make_parent(out or picture_path(run, "projected.png"))
    kept = model(rank).rank()
    columns = [f"{s:.3g}" for s in scores.tolist()]
    image_grid(out, rows, labels, columns, f"{run.folder.name}: rank {kept}; above, the score")
    return {
        "rank": kept,
        "idempotency_error": float((twice - once).abs().max()),
        "scores": [
            {"image": str(path), "score": scores[i].item()}
            | ({} if shares is None else {"share_of_data_above": shares[i].item()})
            for i, path in enumerate(images)
        ],
        "notes": notes,
        "files": [out],
    }


def _read_mask(path: Path, run: Run) -> tuple[Tensor, list[str]]:
    """Read where an image is white; the border is known where the image gets one."""
    _, H, W = run.model.target.shape
    side = border_of(run)
    found, notes = read_images([path], (1, H, W), side)
    known = found[0] > 0.5
    if side is not None and any("border" in note for note in notes):
        inner = torch.zeros(1, H, W, dtype=torch.bool)
        at = (H - side) // 2
        inner[:, at : at + side, at : at + side] = True
        known |= ~inner
    return known, notes
