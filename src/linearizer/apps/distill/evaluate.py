r"""How well the student gives what its teacher gives: R² of each output on test samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.kinds import Data, Part
from ...metrics.regression import Affine, fit_linearly, r_squared
from ..base import Run, Say, Yardstick
from ..readout.model import linear_config
from .model import Student, preview

__all__ = ["evaluate", "plain", "yardstick"]

#: Samples that the linear yardstick is fitted to, and that choose its ridge.
FITTED, CHOOSING = 4000, 1000


@torch.no_grad()
def yardstick(model: Student, data: Data) -> Yardstick:
    """Return R² of ridge regression from the inputs on validation samples."""
    x, y = _gather(data.val, CHOOSING)
    gap = (_fit_ridge(data)(x) - y) / model.spread
    return Yardstick("ridge regression", {"R2": float(1 - gap.square().mean())})


@torch.no_grad()
def plain(model: Student, data: Data) -> Student:
    """Return the ridge regression from the inputs as a model."""
    found = Student(linear_config(model.config))
    found.mean.copy_(model.mean)
    found.spread.copy_(model.spread)
    found.initialize(data.train.batch(torch.arange(min(1024, len(data.train)))))
    found.read.become(_fit_ridge(data))
    return found


def _fit_ridge(data: Data) -> Affine:
    return fit_linearly(*_gather(data.train, FITTED), *_gather(data.val, CHOOSING))


def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure R² of each output on test samples, beside ridge regression from the inputs."""
    model: Student = run.model
    x, y = _gather(data.test, n or len(data.test))
    say("linear regression from the inputs")
    outputs = torch.cat([model.read.outputs_of(part.to(model.spread)) for part in x.split(500)])
    result: dict[str, Any] = {
        "samples": len(x),
        "parameters": sum(p.numel() for p in model.parameters()),
        "core": list(model().operator.shape),
        "linearizer": _summarize(outputs, y),
        "linear_regression": _summarize(_fit_ridge(data)(x), y),
        "largest_error": float((outputs - y).abs().max()),
    }
    path = folder / "distill.png"
    preview(model, data, path)
    result["pictures"] = [path] if path.exists() else []
    return result


def _gather(part: Part, count: int) -> tuple[Tensor, Tensor]:
    """Return the first samples of a part, and what the teacher gives for them."""
    batches = [part.batch(i) for i in torch.arange(min(count, len(part))).split(500)]
    return torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])


def _summarize(predicted: Tensor, y: Tensor) -> dict[str, Any]:
    r2 = r_squared(predicted, y)
    return {"r2": float(r2.mean()), "least_r2": float(r2.min()), "r2_of_each": r2.tolist()}
