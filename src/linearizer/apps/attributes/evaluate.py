r"""Accuracy of a classifier, and what its linear algebra buys: erasure, edits, its null space."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.kinds import Data, Part
from ...metrics.images import roc_auc
from ...metrics.regression import Affine, fit_linearly, fit_ridge
from ...runs.pictures import image_grid
from ..base import Run, Say, Yardstick
from ..readout.model import linear_config
from ..readout.use import class_gap, edit_images, eraser, label_batches, vary_points
from .model import Attributes

__all__ = [
    "accuracies",
    "choose_shown",
    "evaluate",
    "gather",
    "in_batches",
    "measure_edits",
    "measure_erasure",
    "measure_null_space",
    "plain",
    "yardstick",
]

#: What is erased and edited where the names are those of CelebA; else the first of the names.
SHOWN = ("Smiling", "Eyeglasses", "Male", "Blond_Hair", "Young")
#: Images that probes are fitted to, at most; and that choose their ridge, or test them.
PROBED, HELD_OUT = 8000, 2000
#: Images that the linear yardstick on pixels is fitted to.
FITTED = 4000
RIDGES = (1e-3, 1e-2, 1e-1)


@torch.no_grad()
def yardstick(model: Attributes, data: Data) -> Yardstick:
    """Return the accuracy of a ridge regression from pixels on validation images."""
    x, y = gather(model, data.val, HELD_OUT)
    found = accuracies(_fit_probe(model, data)(x), y, model.config.kind)
    return Yardstick("a linear probe of the pixels", {"accuracy": found["accuracy"]})


@torch.no_grad()
def plain(model: Attributes, data: Data) -> Attributes:
    """Return the linear probe of the pixels as a model."""
    found = Attributes(linear_config(model.config))
    found.initialize(data.train.batch(torch.arange(min(1024, len(data.train)))))
    centre, weight, level = _fit_probe(model, data)
    if model.config.kind == "classes":  # scores of 0 and 1
        weight, level = weight / 2, (level + 1) / 2
    found.read.become(Affine(centre, weight, level))
    return found


def _fit_probe(model: Attributes, data: Data) -> Affine:
    """Fit scores of −1 and 1 to the pixels."""
    (x, y), (x_val, y_val) = gather(model, data.train, FITTED), gather(model, data.val, HELD_OUT)
    return fit_linearly(x, 2 * y - 1, x_val, 2 * y_val - 1)


def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure a classifier on test images, beside the majority and a linear map of the pixels."""
    model: Attributes = run.model
    kind, f = model.config.kind, model()
    x, y = gather(model, data.test, n or len(data.test))
    scores = in_batches(model.read.outputs_of, x)
    shares = _label_shares(model, data.train)
    say("linear regression from pixels")
    linear = _fit_probe(model, data)(x)
    usual = shares.expand_as(y) - (0.5 if kind == "attributes" else 0.0)
    result: dict[str, Any] = {
        "images": len(x),
        "parameters": sum(p.numel() for p in model.parameters()),
        "core": list(f.operator.shape),
        "rank": f.rank(),
        "linearizer": accuracies(scores, y, kind),
        "majority": accuracies(usual, y, kind),
        "linear_on_pixels": accuracies(linear, y, kind),
    }
    if kind == "attributes":
        columns = {"linearizer": scores, "majority": usual, "linear_on_pixels": linear}
        each = {c: ((s > 0) == (y > 0.5)).double().mean(0).tolist() for c, s in columns.items()}
        result["accuracy_of_each"] = {
            name: {c: values[k] for c, values in each.items()}
            for k, name in enumerate(model.output_names)
        }
    shown = choose_shown(model)
    say("erasure")
    result["erasure"] = measure_erasure(model, data, shown, min(PROBED, n or PROBED))
    result["pictures"] = [folder / "erased.png"]
    _draw_erased(model, data, x, y, shown, folder / "erased.png")
    if kind == "attributes":
        say("edits")
        result["edits"] = measure_edits(model, x[:500], y[:500], shown)
        result["pictures"].append(folder / "edits.png")
        _draw_edits(model, x[:8], y[:8], shown, folder / "edits.png")
    say("null space")
    result["null_space"] = measure_null_space(model, x[:200])
    return result


def choose_shown(model: Attributes) -> list[int]:
    """Return the numbers of the outputs that are erased and edited."""
    names = model.output_names
    return [names.index(name) for name in SHOWN if name in names] or list(range(len(names)))[:5]


def gather(model: Attributes, part: Part, count: int) -> tuple[Tensor, Tensor]:
    """Return the first images of a part and their 0/1 labels (n, names)."""
    x, y = zip(*label_batches(model, part, count), strict=True)
    return torch.cat(x), torch.cat(y)


def in_batches(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply f to some images at a time."""
    return torch.cat([f(part) for part in x.split(250)])


def _label_shares(model: Attributes, part: Part) -> Tensor:
    """Return the share of the training images that has each name."""
    labels = torch.cat([y for _, y in label_batches(model, part, len(part))])
    return labels.double().mean(0)


def accuracies(scores: Tensor, y: Tensor, kind: str) -> dict[str, float]:
    r"""Return accuracy and balanced accuracy of scores (n, k) for 0/1 labels (n, k).

    Attributes: means over the k of those at score > 0; an attribute without both kinds of images
    does not count for the balanced one. Classes: of the largest score.
    """
    if kind == "classes":
        found, true = scores.argmax(1), y.argmax(1)
        right = (found == true).double()
        of_each = [right[true == k].mean() for k in true.unique()]
        return {"accuracy": float(right.mean()), "balanced": float(torch.stack(of_each).mean())}
    found, true = scores > 0, y > 0.5
    right = (found == true).double()
    hits = (right * true).sum(0) / true.sum(0)
    rejections = (right * ~true).sum(0) / (~true).sum(0)
    both = (hits + rejections) / 2
    return {"accuracy": float(right.mean()), "balanced": float(both.nanmean())}


# -- erasure -----------------------------------------------------------------------------------


def measure_erasure(
    model: Attributes, data: Data, index: Sequence[int], count: int = PROBED
) -> dict[str, Any]:
    r"""Measure linear probes of all coordinates before and after each attribute is erased.

    The projector is of all training images, as a user's is, whose means with and without are then
    equal, so that probes of all of them are constants; probes here are trained on one half. The
    fresh columns have the projector of the other half instead, which tells how well erasure
    carries over to images that it has not seen. Numbers are of test images. The ridge is the one
    that does best on validation images before anything is erased.
    """
    few = min(count, HELD_OUT)
    train, val, test = (
        _coordinates(model, part, most)
        for part, most in ((data.train, count), (data.val, few), (data.test, few))
    )
    half = len(train[0]) // 2
    first, fresh = ((train[0][part], train[1][part]) for part in (slice(half), slice(half, None)))
    fits = fit_ridge(fresh[0], 2 * fresh[1] - 1, RIDGES)
    values = [float(_right(fit(val[0]), val[1]).mean()) for fit in fits]
    best = values.index(max(values))
    before = fits[best](test[0])
    rows = {}
    for k in index:
        holds = [y[:, k] > 0.5 for _, y in (first, fresh, test)]
        if any(bool(v.all()) or not bool(v.any()) for v in holds):
            continue  # a small data set may lack one kind
        parts = (train, first, fresh, test)
        rows[model.output_names[k]] = _erase_one(model, k, parts, RIDGES[best], before)
    return {
        "columns": "before, after",
        "ridge": RIDGES[best],
        "images": [len(train[0]), len(fresh[0])],
        "of_each": rows,
    }


Coordinates = tuple[Tensor, Tensor]


def _erase_one(
    model: Attributes,
    k: int,
    parts: tuple[Coordinates, Coordinates, Coordinates, Coordinates],
    ridge: float,
    before: Tensor,
) -> dict[str, Any]:
    """Measure the erasure of one attribute; ``before`` is what probes say of the test images."""
    f, names = model(), model.output_names
    (train, train_y), (first, first_y), (fresh, fresh_y), (test, test_y) = parts
    cut = model.read.width if model.read.encodes else 0
    holds, signs = test_y[:, k] > 0.5, 2 * fresh_y - 1
    gap = _gap(train, train_y[:, k] > 0.5)
    P = eraser(f, gap, cut).operator
    P_half = eraser(f, _gap(first, first_y[:, k] > 0.5), cut).operator
    z = P(test)
    after = fit_ridge(P(fresh), signs, [ridge])[0](z)
    carried = fit_ridge(P_half(fresh), signs, [ridge])[0](P_half(test))
    own, read = (f.target.points(f.operator(part)) for part in (test, z))
    auc = [roc_auc(s[holds, k], s[~holds, k]) for s in (before, after, carried, own, read)]
    right = [_right(s, test_y) for s in (before, after, carried)]
    others = [i for i in range(len(names)) if i != k]
    change = (right[1] - right[0])[others]
    return {
        "probe_roc_auc": [auc[0], auc[1]],
        "probe_accuracy": [float(right[0][k]), float(right[1][k])],
        "majority": float(((train_y[:, k].double().mean() > 0.5) == holds).double().mean()),
        "gap_of_means_left": float(_gap(P(train), train_y[:, k] > 0.5).norm() / gap.norm()),
        "fresh_probe_roc_auc": [auc[0], auc[2]],
        "fresh_probe_accuracy": [float(right[0][k]), float(right[2][k])],
        "own_score_roc_auc": [auc[3], auc[4]],
        "others_probe_accuracy": [float(r[others].mean()) for r in right[:2]],
        "largest_loss_of_another": [names[others[int(change.argmin())]], float(change.min())],
    }


def _right(scores: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy of each column of scores (n, k)."""
    return ((scores > 0) == (y > 0.5)).double().mean(0)


def _gap(z: Tensor, holds: Tensor) -> Tensor:
    """Return the difference of the mean coordinates with and without, (1, dim)."""
    return (z[holds].double().mean(0) - z[~holds].double().mean(0))[None]


def _coordinates(model: Attributes, part: Part, count: int) -> Coordinates:
    space = model.read.source
    pairs = [(space.coordinates(x), y) for x, y in label_batches(model, part, count)]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


# -- edits and the null space ------------------------------------------------------------------


def measure_edits(
    model: Attributes, x: Tensor, y: Tensor, index: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Put each attribute on images without it: measure scores reached and pixels changed."""
    rows: dict[str, dict[str, Any]] = {}
    scores = in_batches(model.read.outputs_of, x)
    for k in index:
        name = model.output_names[k]
        lacks = (y[:, k] < 0.5) & (scores[:, k] < 0)
        if not bool(lacks.any()):
            continue
        some = x[lacks]
        rows[name] = {"images": len(some)}
        for way in ("follow", "hold") if model.read.separate else ("hold",):
            made = [edit_images(model, p, name, hold=way == "hold") for p in some.split(100)]
            change = torch.cat([part.image for part in made]) - some
            rows[name][way] = {
                "score_error": max(float(part.error) for part in made),
                "pixel_change": float(change.square().mean().sqrt()),
            }
    return rows


def measure_null_space(model: Attributes, x: Tensor, amount: float = 0.7) -> dict[str, Any]:
    """Measure variations that f cannot see, as ``linearizer vary`` makes them."""
    f, width = model(), model.read.width
    noise = torch.randn(len(x), width, generator=torch.Generator().manual_seed(0))
    made = vary_points(f, x, noise, amount)
    exact, some = copy.deepcopy(model).double()(), x[:20].double()
    gap = exact(vary_points(exact, some, noise[:20].double(), amount)) - exact(some)
    return {
        "dimension": f.source.dim - f.rank(),
        "amount": amount,
        "largest_change_of_a_score": float((in_batches(f, made) - in_batches(f, x)).abs().max()),
        "largest_change_float64": float(gap.abs().max()),
        "pixel_change": float((made - x).square().mean().sqrt()),
    }


def _draw_edits(model: Attributes, x: Tensor, y: Tensor, index: Sequence[int], path: Path) -> None:
    rows, labels = [x], ["x"]
    for k in index:
        name = model.output_names[k]
        more, less = (edit_images(model, x, wish).image for wish in (name, f"-{name}"))
        rows.append(torch.where((y[:, k] > 0.5)[:, None, None, None], less, more))
        labels.append(f"± {name}")
    title = "Each attribute put on images without it, and taken from others"
    image_grid(path, rows, labels, [""] * len(x), title, cell=1.0)


def _draw_erased(
    model: Attributes, data: Data, x: Tensor, y: Tensor, index: Sequence[int], path: Path
) -> None:
    f, names = model(), model.output_names
    gaps = class_gap(f, label_batches(model, data.train, PROBED), index)
    holds = y[:, index[0]] > 0.5
    some = torch.cat([x[holds][:5], x[~holds][:5]])
    cut = model.read.width if model.read.encodes else 0
    rows = [some, *(eraser(f, gap[None], cut)(some) for gap in gaps)]
    labels = ["x", *(f"no {names[i]}" for i in index)]
    image_grid(path, rows, labels, [""] * len(some), "Erasure by projection", cell=0.9)
