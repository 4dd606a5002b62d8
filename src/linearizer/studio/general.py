r"""What can be asked of any model: its facts, its spectrum, its laws, and f of a point."""

from __future__ import annotations

import copy
import math
import threading
import time
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..apps.base import Run
from ..apps.page import Refusal, encode_image, number, numbers
from ..bijections import Flatten
from ..certificate import Law
from ..linearizer import Linearizer
from ..operators import UnsupportedError
from ..runs import pictures
from ..runs.algebra import draw_points
from ..spaces import Space
from .desk import Desk

__all__ = ["Models", "apply", "certify", "facts", "spectrum"]

#: Coordinates of a map of which all singular values are asked for, and its rank.
EXACT = 20_000
#: Coordinates of all the points on which laws are measured, and the fewest points for them.
WORK, FEWEST = 36_864, 3
#: Singular values that are listed, of a small map and of a large one.
VALUES, FEW = 512, 64
#: Seconds for which a list of the runs is taken for the present one.
FRESH = 1.0


class Models:
    """The list of models; one thread reads the folder, others take what it has found."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.lock = desk, threading.Lock()
        self.rows: list[dict[str, Any]] = []
        self.old = -math.inf

    def list(self) -> dict[str, Any]:
        """Answer ``/api/models``."""
        with self.lock:
            if time.monotonic() >= self.old:
                self.rows = self.desk.catalogue.rows()
                self.old = time.monotonic() + FRESH
            rows = self.rows
        limits = self.desk.limits
        bounds = {name: getattr(limits, name) for name in ("upload_bytes", "image_side", "samples")}
        return {"version": __version__, "models": rows, "limits": bounds}


def map_of(desk: Desk, id: str) -> Linearizer:
    """Return the map of a model, which is kept like the model itself."""

    def make() -> Linearizer:
        run = desk.open(id)
        return run.app.linearizer(run.model)

    return desk.keep(id, "map", make)


def facts(desk: Desk, id: str) -> dict[str, Any]:
    """Answer ``/api/model``; a page adds what only its models have."""
    run = desk.open(id)
    f = map_of(desk, id)
    page = run.app.page
    return {
        "id": id,
        "app": run.app.name,
        "config": run.model.config.model_dump(mode="json"),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "rank": None if f.source.dim > EXACT else _rank(f),
        "dim": f.source.dim,
        **({} if page is None else page.describe(desk, id, run)),
    }


def apply(desk: Desk, id: str, seed: int) -> dict[str, Any]:
    r"""Answer ``/api/apply``: a point x (noise, or g⁻¹(z) of normal z), f(x) and f†(f(x))."""
    f = map_of(desk, id)
    x = draw_points(f, 1, seed, desk.open(id))
    y = f(x)
    back = f.pinv()(y)
    points = {"x": (x, f.source), "y": (y, f.target), "back": (back, f.source)}
    return {
        "pictures": {
            name: encode_image(point[0]) if _is_image(space) else None
            for name, (point, space) in points.items()
        },
        "values": {name: numbers(point.flatten()[:64]) for name, (point, _) in points.items()},
        "again": number((f(back) - y).abs().max()),
    }


def _is_image(space: Space) -> bool:
    return len(space.shape) == 3 and space.shape[0] in (1, 3)


def spectrum(desk: Desk, id: str, k: int) -> dict[str, Any]:
    """Answer ``/api/spectrum``."""
    run = desk.open(id)
    f = map_of(desk, id)
    limit = FEW if f.source.dim > EXACT else VALUES
    values, eigenvalues = pictures.values_of(f, limit)
    k = min(k, len(values))
    svd = f.svd(max(k, 1))
    reach = None if run.app.page is None else run.app.page.reach(run)
    # Of a list that is cut, what is left out is known only behind a zero.
    cut = limit <= len(values) < min(f.operator.shape) and float(values[-1]) > 0
    rank = None if cut else _rank(f)
    # What makes samples starts from noise, of which there is nothing to see.
    sources = [None] * k if run.app.sample else [_strip(f.source, v, reach) for v in svd.V[:k]]
    targets = [_strip(f.target, u, reach) for u in svd.U[:k]]
    shown = zip(sources, targets, svd.S[:k].tolist(), strict=True)
    return {
        "singular_values": numbers(values),
        "eigenvalues": None
        if eigenvalues is None
        else [[number(v.real), number(v.imag)] for v in eigenvalues.tolist()],
        "vectors": [{"source": a, "target": b, "value": number(c)} for a, b, c in shown],
        "frames": len(pictures.amounts(f.source, reach)),
        "condition": number(values[0] / values[rank - 1]) if rank else None,
        "rank": rank,
    }


def _rank(f: Linearizer) -> int | None:
    """Return the rank by the operator's own tolerance, or None where it has no such rule."""
    try:
        return f.rank()
    except UnsupportedError:
        return None


def certify(desk: Desk, id: str, n: int) -> dict[str, Any]:
    """Answer ``/api/certify``: on ``n`` points, or as many fewer as are no more than ``WORK``."""
    dim = max(map_of(desk, id).operator.shape)
    if (most := WORK // dim) < FEWEST:
        raise Refusal(
            422,
            f"{id}: expected a map of at most {WORK // FEWEST:,} coordinates, got {dim:,}. Measure "
            "its laws with linearizer certify.",
        )
    n = min(n, most)
    return desk.keep(id, f"certificate {n}", lambda: _certify(desk.open(id), n))


@torch.no_grad()
def _certify(run: Run, n: int) -> dict[str, Any]:
    f = run.app.linearizer(copy.deepcopy(run.model).double())
    found = f.certify(draw_points(f, n, run=run))
    return {
        "points": found.points,
        "dtype": found.dtype,
        "passed": found.passed,
        "complete": found.complete,
        "measured": found.measured,
        "condition": {name: number(value) for name, value in found.condition.items()},
        "digits": found.digits,
        "laws": [_law(law) for law in found.laws],
        "worst": number(found.worst),
    }


def _law(law: Law) -> dict[str, Any]:
    return {
        "law": law.name,
        "formula": law.formula,
        "error": number(law.error),
        "tolerance": number(law.tolerance),
        "verdict": law.verdict,
        "note": law.note,
    }


def _strip(space: Space, vector: Tensor, reach: float | None) -> str | None:
    """Draw c ⊙ v for a few c beside each other, where points are images."""
    if not _is_image(space):
        return None
    steps = pictures.amounts(space, reach)
    row = [space.scale(c, vector[None])[0] for c in steps]
    if isinstance(space.g, Flatten):  # noise: grey is none, as its pixels are of both signs
        most = max(map(abs, steps)) * vector.abs().max()
        row = [0.5 + 0.5 * image / most for image in row]
    return encode_image(torch.cat(row, 2))
