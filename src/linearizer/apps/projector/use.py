r"""What a trained projector is for: project images of any kind, score them, fill in gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .apps.projector import Projection, complement
from .data import read_images
from .pictures import image_grid
from .runs import Opened, opened
from .sampling import bordered, place, read_for, written

__all__ = ["Projected", "project", "projected", "projector_of", "usualness"]


def projector_of(run: str | Path) -> Opened:
    """A run that holds a projector."""
    one = opened(run)
    if not isinstance(one.model, Projection):
        raise ValueError(f"{run}: expected a projector, but the run holds {one.app.name}.")
    return one


def usualness(model: Projection, score: Tensor) -> Tensor:
    """Share of held-out data with a score at least as high, (n,)."""
    return (model.usual >= score[:, None]).double().mean(1)


class Projected(NamedTuple):
    """What a projector makes of images, (n, …) each."""

    once: Tensor  #: f(x)
    twice: Tensor  #: f(f(x))
    score: Tensor  #: ‖(I − Λ) g(x)‖
    share: Tensor | None  #: of held-out data with a score at least as high; at the trained rank


@torch.no_grad()
def projected(model: Projection, x: Tensor, rank: int | None = None) -> Projected:
    """f(x), f(f(x)) and the score of x, with g(x) taken once."""
    f, parts = model(rank), []
    rest = complement(f).operator
    for part in x.split(250):
        z = f.source.coordinates(part)
        once = f.target.points(f.operator(z))
        parts.append((once, f(once), rest(z).norm(dim=1)))
    once, twice, score = (torch.cat(column) for column in zip(*parts, strict=True))
    return Projected(once, twice, score, usualness(model, score) if rank is None else None)


@torch.no_grad()
def project(
    run: str | Path,
    images: Sequence[str | Path],
    rank: int | None = None,
    known: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Each image, its projection and the projection of that, as one picture, and its score.

    With ``known``, an image that is white where pixels are known, the others are filled in.
    """
    one = projector_of(run)
    model: Projection = one.model
    x, notes = read_for(one, images)
    f = model(rank)

    def each(g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return torch.cat([g(part) for part in x.split(250)])

    if known is None:
        rows, labels = [x], ["x"]
    else:
        mask, more = _mask(known, one)
        notes = [*notes, *more]
        rows = [x * mask, each(lambda part: model.inpaint(part, mask, rank=rank), x)]
        labels = ["known", "filled in"]
    once, twice, scores, shares = projected(model, rows[-1], rank)
    rows, labels = [*rows, once, twice], [*labels, "f(x)", "f(f(x))"]
    out = out or place(one, "projected.png")
    written(out)
    columns = [f"{s:.3g}" for s in scores.tolist()]
    image_grid(out, rows, labels, columns, f"{one.folder.name}: rank {f.rank()}; above, the score")
    return {
        "rank": f.rank(),
        "idempotency_error": float((twice - once).abs().max()),
        "scores": [
            {"image": str(path), "score": scores[i].item()}
            | ({} if shares is None else {"share_of_data_above": shares[i].item()})
            for i, path in enumerate(images)
        ],
        "notes": notes,
        "files": [out],
    }


def _mask(path: Path, one: Opened) -> tuple[Tensor, list[str]]:
    """True where the image is white, and its border where it gets one."""
    _, H, W = one.model.target.shape
    side = bordered(one)
    found, notes = read_images([path], (1, H, W), side)
    known = found[0] > 0.5
    if side is not None and any("border" in note for note in notes):
        inner = torch.zeros(1, H, W, dtype=torch.bool)
        at = (H - side) // 2
        inner[:, at : at + side, at : at + side] = True
        known |= ~inner
    return known, notes
