r"""How good a projector is: idempotency, reconstruction, projected noise, anomalies and gaps."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.files import root_folder
from ...data.images import pixels_of, zip_pictures
from ...data.kinds import Data
from ...metrics.images import digit_classifier, psnr, roc_auc
from ...runs.pictures import image_grid
from ...training.draws import Draw
from ..base import Run, Say
from ..images import (
    Map,
    measure_psnr,
    principal_axes,
    project_onto,
    stack_images,
    stack_test_images,
)
from .model import Projection, draw_strokes, join, meet

__all__ = [
    "draw_projections",
    "evaluate",
    "evaluate_alone",
    "has_digits",
    "judge_digits",
    "make_inputs",
    "measure_idempotency",
    "time_map",
]


@torch.no_grad()
def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure a projector on at most n test images."""
    model: Projection = run.model
    x = stack_test_images(data, n)
    inputs, notes = make_inputs(x)
    f = model()
    result: dict[str, Any] = {
        "notes": notes,
        "shape": list(x.shape[1:]),
        "g": model.config.g,
        "rank": f.rank(),
        "dim": model.target.dim,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    say("idempotency")
    result |= _measure_all_idempotency(model, inputs)
    say("reconstruction")
    result["reconstruction"] = measure_psnr(f, x)
    result["reconstruction_by_rank"] = _measure_ranks(model, data, x)
    if has_digits(data.name, x):
        as_they_are = judge_digits(lambda x: x, {"data": x})["data"]
        result["projected"] = {"test digits as they are": as_they_are, **judge_digits(f, inputs)}
    say("anomalies")
    result["anomaly_roc_auc"] = _measure_anomalies(model, x, inputs)
    say("gaps")
    result["gaps"] = _measure_gaps(model, x[:1000], stack_images(data.train, 10_000))
    pictures = [folder / "projector.png", folder / "ranks.png"]
    if (classes := _choose_classes(data)) is not None:
        pictures.append(folder / "meet-and-join.png")
        result["meet_and_join"] = _measure_lattice(model, data, classes, pictures[-1])
    result["seconds_per_image"] = time_map(f, x)
    title = f"{run.folder.name}: rank {f.rank()} of {model.target.dim}"
    draw_projections(f, inputs, title, pictures[0])
    _draw_ranks(model, x[:10], pictures[1])
    return {**result, "pictures": pictures}


@torch.no_grad()
def evaluate_alone(run: Run, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure what needs no images: that f(f(x)) = f(x) of noise of every size."""
    model: Projection = run.model
    blank = torch.zeros(min(n or 200, 1000), *model.target.shape)
    inputs, notes = make_inputs(blank)
    inputs = {k: v for k, v in inputs.items() if k not in ("data", "inverted", "shuffled")}
    say("idempotency")
    f = model()
    path = folder / "projector.png"
    draw_projections(f, inputs, f"{run.folder.name}: rank {f.rank()}", path)
    found = {"rank": f.rank(), **_measure_all_idempotency(model, inputs)}
    return {"notes": notes, **found, "pictures": [path]}


def make_inputs(x: Tensor) -> tuple[dict[str, Tensor], list[str]]:
    """Return inputs of every kind, at most 1,000 each, and a note on what is missing."""
    x, draw = x[:1000], Draw(11)
    order = draw.uniform(x[:, 0].flatten(1)).argsort(1)
    shuffled = x.flatten(2).gather(2, order[:, None].expand(-1, x.shape[1], -1)).reshape_as(x)
    inputs = {
        "data": x,
        "noise 0.1": 0.1 * draw.normal(x),
        "noise 1": draw.normal(x),
        "noise 10": 10 * draw.normal(x),
        "uniform": draw.uniform(x),
        "inverted": 1 - x,
        "shuffled": shuffled,
        "scribbles": draw_strokes(x, draw, 3),
        "zero": torch.zeros_like(x[:1]),
    }
    path = root_folder(None) / "bsds500" / "bsds500_images.zip"
    if not path.exists():
        return inputs, [f"no photos: {path.name} is not in the data root"]
    pictures = [p for name, p in sorted(zip_pictures(path).items()) if name.startswith("test")]
    inputs["photos"] = torch.stack([pixels_of(p, x.shape[-1], x.shape[1]) for p in pictures])
    return inputs, []


def measure_idempotency(f: Map, inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest |f(f(x)) − f(x)| over each kind of input."""
    rows = {}
    for name, x in inputs.items():
        once = [f(part) for part in x.split(250)]
        rows[name] = max(float((f(part) - part).abs().max()) for part in once)
    return rows


def _measure_all_idempotency(model: Projection, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Measure it in both precisions, and at other ranks."""
    f, double = model(), copy.deepcopy(model).double()
    some = {name: these[:100] for name, these in inputs.items()}
    exact = {name: these.double() for name, these in some.items()}
    rank, most = f.rank(), model.largest
    ranks = {1, rank // 2, rank + 1, (rank + most) // 2, most}
    return {
        "idempotency_float32": measure_idempotency(f, inputs),
        "idempotency_float64": measure_idempotency(double(), exact),
        "idempotency_at_other_ranks": {
            str(k): {
                "float32": max(measure_idempotency(model(k), some).values()),
                "float64": max(measure_idempotency(double(k), exact).values()),
            }
            for k in sorted(ranks & set(range(1, most + 1)))
        },
    }


def _measure_ranks(model: Projection, data: Data, x: Tensor) -> dict[str, Any]:
    """Return the PSNR at other ranks of the same network, beside principal components."""
    top = int((model.logits > 0).sum())
    most = model.largest if model.config.g == "subspace" else top
    ranks = sorted({*(k for k in (2, 4, 8, 16, 32, 64, 128, 256, 512) if k <= most), top, most})
    mean, axes = principal_axes(data.train, most)
    return {
        str(k): {
            "psnr": measure_psnr(model(k), x)["psnr_mean_over_images"],
            "pca_psnr": float(psnr(project_onto(x, mean, axes[:, :k]).clamp(0, 1), x).mean()),
        }
        for k in ranks
    }


def has_digits(name: str, x: Tensor) -> bool:
    """Return whether our digit classifier can judge images of these data."""
    return name == "mnist" and x.shape[1:] == (1, 32, 32)


def judge_digits(f: Map, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the digit classifier says of projections."""
    rows = {}
    for name, x in inputs.items():
        y = torch.cat([f(p) for p in x.split(500)]).clamp(0, 1)
        best, label = torch.softmax(digit_classifier()(y), 1).max(1)
        rows[name] = {
            "share_confident": float((best > 0.9).double().mean()),
            "classes": torch.bincount(label, minlength=10).tolist(),
        }
    return rows


def _measure_anomalies(
    model: Projection, x: Tensor, inputs: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return the ROC-AUC of ‖(I − Λ) g(x)‖: test images against everything else."""
    usual = model.score(x[1000:3000] if len(x) >= 3000 else x)
    known, draw = inputs["data"], Draw(5)
    half = known.clone()
    half[..., : half.shape[-2] // 2, :] = 0
    others = {
        **{name: these for name, these in inputs.items() if name not in ("data", "zero")},
        "data with noise 0.2": known + 0.2 * draw.normal(known),
        "data with a stroke": torch.maximum(known, draw_strokes(known, draw, 1)),
        "data turned by 90°": known.rot90(1, (2, 3)),
        "data without the upper half": half,
    }
    return {name: roc_auc(model.score(these), usual) for name, these in others.items()}


def _measure_gaps(model: Projection, x: Tensor, train: Tensor) -> dict[str, Any]:
    """Return the PSNR on unknown pixels: the lower half, or a square in the middle."""
    H, W = x.shape[-2:]
    rows: dict[str, Any] = {}
    for name, place in (
        ("lower half", (..., slice(H // 2, H), slice(0, W))),
        ("middle square", (..., slice(H // 4, 3 * H // 4), slice(W // 4, 3 * W // 4))),
    ):
        known = torch.ones(1, H, W, dtype=torch.bool)
        known[place] = False
        ways = {
            "mean image": train.mean(0, keepdim=True).expand_as(x),
            "one projection": model()(x * known),
            "back-projection": model.inpaint(x, known),
        }
        rows[name] = {
            way: float(psnr(y.clamp(0, 1)[place], x[place]).mean()) for way, y in ways.items()
        }
    return rows


def _choose_classes(data: Data) -> tuple[int, int] | None:
    """Return two classes with images to train and test on, 3 and 8 where there are ten."""
    found: list[Any] = [getattr(part, "labels", None) for part in (data.train, data.test)]
    if any(labels is None or labels.ndim != 1 for labels in found):
        return None
    both = [i for i in found[0].unique().tolist() if bool((found[1] == i).any())]
    if len(both) < 2:
        return None
    return (3, 8) if len(both) == 10 else (both[0], both[1])


def _measure_lattice(
    model: Projection, data: Data, classes: tuple[int, int], path: Path
) -> dict[str, Any]:
    """Measure two classes with a mask each over one g, and their meet and join."""

    def images_of(part: Any, label: int, most: int) -> Tensor:
        return part.batch((part.labels == label).nonzero()[:most, 0]).x

    names = data.train.names or tuple("0123456789")
    rank = int((model.logits > 0).sum()) // 2
    first, second = (model.onto(images_of(data.train, i, 500), rank) for i in classes)
    maps = {
        **{f"P({names[i]})": f for i, f in zip(classes, (first, second), strict=True)},
        "meet": meet(first, second),
        "join": join(first, second),
    }
    test = {names[i]: images_of(data.test, i, 300) for i in classes}
    rows: dict[str, Any] = {}
    for name, f in maps.items():
        rows[name] = {"rank": f.rank()}
        for label, x in test.items():
            rows[name][f"psnr of {label}"] = float(psnr(f(x).clamp(0, 1), x).mean())
    shown = torch.cat([x[:6] for x in test.values()])
    title = f"Projectors of two classes over one g, rank {rank} each"
    image_grid(path, [shown, *(f(shown) for f in maps.values())], ["x", *maps], [], title)
    return rows


def time_map(f: Map, x: Tensor) -> dict[str, float]:
    """Return seconds for each image, alone and in a batch."""
    rows = {}
    for batch in (1, 64):
        some = x[:batch]
        f(some)  # not timed: the first call is slower
        begun = time.perf_counter()
        for _ in range(10):
            f(some)
        rows[f"batch {batch}"] = (time.perf_counter() - begun) / 10 / len(some)
    return rows


def draw_projections(f: Map, inputs: Mapping[str, Tensor], title: str, path: Path) -> None:
    """Draw a few inputs of each kind above what f makes of them."""
    some = {name: x[:12] for name, x in inputs.items() if name != "zero"}
    rows = [row for x in some.values() for row in (x, f(x))]
    labels = [label for name in some for label in (name, "f(·)")]
    image_grid(path, rows, labels, [], title)


def _draw_ranks(model: Projection, x: Tensor, path: Path) -> None:
    ranks = [k for k in (2, 4, 8, 16, 32, 64, 128, 256) if k <= model.largest]
    labels = ["x", *(f"rank {k}" for k in ranks)]
    image_grid(path, [x, *(model(k)(x) for k in ranks)], labels, [], "One network, other ranks")
