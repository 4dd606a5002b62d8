r"""What a trained projector is for: project images of any kind, score them, fill in gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .apps.projector import Projection
from .data import read_images
from .pictures import image_grid
from .runs import Opened, opened
from .sampling import place, read_for, written

__all__ = ["project", "projector_of", "usualness"]


def projector_of(run: str | Path) -> Opened:
    """A run that holds a projector."""
    one = opened(run)
    if not isinstance(one.model, Projection):
        raise ValueError(f"{run}: expected a projector, but the run holds {one.app.name}.")
    return one


def usualness(model: Projection, score: Tensor) -> Tensor:
    """Share of held-out data with a score at least as high, (n,)."""
    return (model.usual >= score[:, None]).double().mean(1)


@torch.no_grad()
def project(
    run: str | Path,
    images: Sequence[str | Path],
    rank: int | None = None,
    known: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Each image, its projection, the projection of that, and what is left over, as one picture.

    With ``known``, an image that is white where pixels are known, the others are filled in.
    """
    one = projector_of(run)
    model: Projection = one.model
    x, notes = read_for(one, images)
    f = model(rank)
    rows: list[Tensor]
    if known is not None:
        mask = _mask(known, model)
        rows = [x * mask, model.inpaint(x, mask, rank=rank)]
        labels = ["known", "filled in"]
        once = f(rows[1])
        twice = f(once)
    else:
        once = f(x)
        twice = f(once)
        rows, labels = [x, once, twice], ["x", "f(x)", "f(f(x))"]
    scores = model.score(x, rank)
    shares = usualness(model, scores) if rank is None else None
    out = out or place(one, "projected.png")
    written(out)
    columns = [f"{s:.3g}" for s in scores.tolist()]
    image_grid(out, rows, labels, columns, f"{one.folder.name}: rank {f.rank()}; above, the score")
    return {
        "rank": f.rank(),
        "idempotency_error": float((twice - once).abs().max()),
        "scores": {
            str(path): {"score": scores[i].item()}
            | ({} if shares is None else {"share_of_data_above": shares[i].item()})
            for i, path in enumerate(images)
        },
        "notes": notes,
        "files": [out],
    }


def _mask(path: Path, model: Projection) -> Tensor:
    _, H, W = model.target.shape
    found, _ = read_images([path], (1, H, W))
    return (found[0] > 0.5).to(model._like())
