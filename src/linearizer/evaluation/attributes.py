r"""Accuracy of a classifier, and what its linear algebra buys: erasure, edits, its null space."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..apps.attributes import Attributes, augmented, score_loss
from ..baselines import ResNet18, train_for
from ..checkpoint import fill, read_tensors, tensors_of, write_tensors
from ..draws import Draw
from ..metrics import roc_auc
from ..pictures import image_grid
from ..reading import (
    class_gap,
    eraser,
    held,
    labelled,
    readout_of,
    variations,
    wished,
)
from ..runs import run_data
from ..training import Training
from .tables import Say, result_folder, write_table

__all__ = ["attributes", "linear_probes"]

#: What is erased and edited where the names are those of CelebA; else the first of the names.
SHOWN = ("Smiling", "Eyeglasses", "Male", "Blond_Hair", "Young")
#: The paper's accuracies on CelebA, with the full training set.
PAPER = {"linearizer": 0.876, "resnet50": 0.861}
#: Images that probes are trained on, at most.
PROBED = 8000

Judge = Callable[[Tensor], Tensor]


@torch.no_grad()
def attributes(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    baseline_minutes: float = 0.0,
) -> dict[str, Any]:
    """Measure a classifier, beside a ResNet-18 where minutes are given."""
    one = readout_of(run)
    model = one.model
    if not isinstance(model, Attributes):
        raise ValueError(f"{run}: expected attributes, but the run holds {one.app.name}.")
    folder = result_folder(one, out)
    source = run_data(one, root)
    names, f = model.config.names, model()
    x, y = _gathered(model, source.test)
    say(f"{source.name}: {len(x):,} test images, {len(names)} outputs")
    scores = _each(model.read.outputs_of, x)
    train_y = torch.cat([m for _, m in labelled(model, source.train, len(source.train))])
    kind = model.config.kind
    result: dict[str, Any] = {
        "run": one.folder.name,
        "data": {"name": source.name, "shape": list(x.shape[1:]), "test_images": len(x),
                 "train_images": len(source.train), "notes": list(source.notes)},
        "parameters": sum(p.numel() for p in model.parameters()),
        "core": list(f.operator.shape),
        "rank": f.rank(),
        "linearizer": accuracies(scores, y, kind),
        "majority": accuracies(train_y.double().mean(0).expand_as(y) - _cut(kind), y, kind),
    }  # fmt: skip
    if source.name == "celeba":
        result["paper"] = PAPER
    if kind == "attributes":
        result["accuracy_of_each"] = {
            name: {"linearizer": value, "majority": base}
            for name, value, base in zip(
                names,
                ((scores > 0) == (y > 0)).double().mean(0).tolist(),
                _majority_of_each(train_y, y),
                strict=True,
            )
        }
    judge: Judge | None = None
    if baseline_minutes > 0:
        say(f"ResNet-18, {baseline_minutes:g} minutes")
        judge, row = _baseline(model, source, baseline_minutes, folder / "resnet18.safetensors")
        result["resnet18"] = {**accuracies(_each(judge, x), y, kind), **row}
    shown = [n for n in SHOWN if n in names] or list(names[:5])
    index = [names.index(n) for n in shown]
    files = []
    say("erasure")
    result["erasure"] = erasure(model, source, index)
    if kind == "attributes":
        say("edits")
        result["edits"] = _edits(model, x[:500], y[:500], shown, judge)
        files.append(folder / "edits.png")
        _edit_picture(model, x, y, shown, files[-1])
    say("null space")
    result["null_space"] = _null_space(model, x[:200], judge)
    files.append(folder / "erased.png")
    _erased_picture(model, source, x, y, index, files[-1])
    return write_table(result, folder / "attributes.json", files)


def _gathered(model: Attributes, part: Any) -> tuple[Tensor, Tensor]:
    pairs = list(labelled(model, part, len(part)))
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _each(f: Judge, x: Tensor) -> Tensor:
    return torch.cat([f(part) for part in x.split(250)])


def _cut(kind: str) -> float:
    """What a share of the images must exceed for the majority to hold it."""
    return 0.5 if kind == "attributes" else 0.0


def accuracies(scores: Tensor, y: Tensor, kind: str) -> dict[str, float]:
    r"""Accuracy and balanced accuracy of scores (n, k) for 0/1 labels (n, k).

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


def _majority_of_each(train: Tensor, test: Tensor) -> list[float]:
    usual = train.double().mean(0) > 0.5
    return (usual == (test > 0.5)).double().mean(0).tolist()


def _baseline(
    model: Attributes, source: Any, minutes: float, path: Path
) -> tuple[Judge, dict[str, Any]]:
    """A ResNet-18 on the same images, augmented alike; kept, and read again for the same time."""
    config = model.config
    torch.manual_seed(0)
    net = ResNet18(config.shape[0], len(config.names)).float()
    key = {"minutes": minutes, "train_images": len(source.train)}
    if path.exists():
        tensors, about = read_tensors(path)
        if all(about.get(k) == v for k, v in key.items()):
            return fill(net, tensors, str(path)).eval(), about["row"]

    def loss(net: Any, batch: Any, draw: Draw) -> dict[str, Tensor]:
        x = augmented(batch.x, config, draw)
        return {"scores": score_loss(net(x), batch.y, config.kind)}

    training = Training(batch=64, rate=1e-3, warmup=100, weight_decay=0.05, checkpoint_every=10**6)
    with torch.enable_grad():
        row = train_for(60 * minutes, net, loss, source.train, training)
    row["parameters"] = sum(p.numel() for p in net.parameters())
    write_tensors(path, tensors_of(net), {**key, "row": row})
    return net.eval(), row


# -- erasure -----------------------------------------------------------------------------------


def linear_probes(train: Tensor, y: Tensor, tests: Sequence[Tensor], ridge: float) -> list[Tensor]:
    r"""Least-squares probes of ±1 labels y (n, k) from coordinates (n, d): what they say of tests.

    Minimises ‖Zw + b − y‖²/n + ridge·‖w‖²; by the smaller of ZᵀZ and ZZᵀ.
    """
    mean, level = train.double().mean(0), y.double().mean(0)
    Z, labels = train.double() - mean, y.double() - level
    n, d = Z.shape
    if n < d:
        K = Z @ Z.mT
        K.diagonal().add_(n * ridge)
        w = Z.mT @ torch.cholesky_solve(labels, torch.linalg.cholesky(K))
    else:
        K = Z.mT @ Z
        K.diagonal().add_(n * ridge)
        w = torch.cholesky_solve(Z.mT @ labels, torch.linalg.cholesky(K))
    return [(t.double() - mean) @ w + level for t in tests]


def erasure(model: Attributes, source: Any, index: Sequence[int]) -> dict[str, Any]:
    r"""Linear probes of all coordinates before and after each attribute is erased.

    The projector is of all training images, as a user's is, whose means with and without are then
    equal, so that probes of all of them are constants; probes here are trained on one half. The
    fresh columns have the projector of the other half instead, which tells how well erasure
    carries over to images that it has not seen. Numbers are of test images. The ridge is the one
    that does best on validation images before anything is erased.
    """
    f, names = model(), model.config.names
    cut = model.read.width if model.read.encodes else 0
    all_z, all_y = _coordinates(model, source.train, PROBED)
    half = len(all_z) // 2
    train, y, fresh, fresh_y = all_z[:half], all_y[:half], all_z[half:], all_y[half:]
    val, val_y = _coordinates(model, source.val, 2000)
    test, test_y = _coordinates(model, source.test, 2000)
    fresh_signs = 2 * fresh_y.double() - 1

    def accuracy(scores: Tensor, y: Tensor) -> Tensor:
        return ((scores > 0) == (y > 0.5)).double().mean(0)

    ridges = (1e-3, 1e-2, 1e-1)
    values = [
        float(accuracy(linear_probes(fresh, fresh_signs, [val], r)[0], val_y).mean())
        for r in ridges
    ]
    ridge = ridges[values.index(max(values))]
    before = linear_probes(fresh, fresh_signs, [test], ridge)[0]
    own = f.target.points(f.operator(test))
    base = _majority_of_each(all_y, test_y)
    rows = {}
    for k in index:
        true = test_y[:, k] > 0.5
        kinds = [(v[:, k] > 0.5) for v in (y, fresh_y, test_y)]
        if any(bool(v.all()) or not bool(v.any()) for v in kinds):
            continue  # a small data set may lack one kind

        def auc(scores: Tensor, true: Tensor = true, k: int = k) -> float:
            return roc_auc(scores[true, k], scores[~true, k])

        gap = _gap(all_z, all_y[:, k] > 0.5)
        P, P_half = (eraser(f, d, cut).operator for d in (gap, _gap(train, kinds[0])))
        z = P(test)
        after = linear_probes(P(fresh), fresh_signs, [z], ridge)[0]
        carried = linear_probes(P_half(fresh), fresh_signs, [P_half(test)], ridge)[0]
        read = f.target.points(f.operator(z))
        others = [i for i in range(len(names)) if i != k]
        change = (accuracy(after, test_y) - accuracy(before, test_y))[others]
        worst = others[int(change.argmin())]
        rows[names[k]] = {
            "probe_roc_auc": [auc(before), auc(after)],
            "probe_accuracy": [float(accuracy(s, test_y)[k]) for s in (before, after)],
            "majority": base[k],
            "gap_of_means_left": float(_gap(P(all_z), all_y[:, k] > 0.5).norm() / gap.norm()),
            "fresh_probe_roc_auc": [auc(before), auc(carried)],
            "fresh_probe_accuracy": [float(accuracy(s, test_y)[k]) for s in (before, carried)],
            "own_score_roc_auc": [auc(own), auc(read)],
            "others_probe_accuracy": [
                float(accuracy(s, test_y)[others].mean()) for s in (before, after)
            ],
            "largest_loss_of_another": [names[worst], float(change.min())],
        }
    return {"columns": "before, after", "ridge": ridge, "images": [len(all_z), len(fresh)],
            "of_each": rows}  # fmt: skip


def _gap(z: Tensor, holds: Tensor) -> Tensor:
    """The difference of the mean coordinates with and without, (1, dim)."""
    return (z[holds].double().mean(0) - z[~holds].double().mean(0))[None]


def _coordinates(model: Attributes, part: Any, count: int) -> tuple[Tensor, Tensor]:
    space = model.read.source
    pairs = [(space.coordinates(x), y) for x, y in labelled(model, part, count)]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


# -- edits and the null space ------------------------------------------------------------------


def _edits(
    model: Attributes, x: Tensor, y: Tensor, shown: Sequence[str], judge: Judge | None
) -> dict[str, Any]:
    """Each attribute put on images without it: scores reached, and what another network sees."""
    f = model()
    rows: dict[str, Any] = {}
    before = _each(f, x)
    for name in shown:
        k = model.config.names.index(name)
        lacks = (y[:, k] < 0.5) & (before[:, k] < 0)
        if not bool(lacks.any()):
            continue
        some = x[lacks]
        old = None if judge is None else _each(judge, some)
        rows[name] = {"images": int(lacks.sum())}
        for way in ("follow", "hold") if model.read.separate else ("hold",):
            if way == "hold":
                h, wanted = f, held(model, name, before[lacks])
            else:
                h, wanted = wished(model, name)
                wanted = wanted.expand(len(some), -1)
            parts = zip(some.split(100), wanted.split(100), strict=True)
            made = torch.cat([h.back_project(a, b) for a, b in parts])
            row = {
                "score_error": float((_each(h, made) - wanted).abs().max()),
                "pixel_change": float((made - some).square().mean().sqrt()),
            }
            if judge is not None and old is not None:
                new = _each(judge, made.clamp(0, 1))
                others = [i for i in range(y.shape[1]) if i != k]
                row["resnet18_saw_it"] = float((old[:, k] > 0).double().mean())
                row["resnet18_sees_it"] = float((new[:, k] > 0).double().mean())
                unchanged = ((old > 0) == (new > 0))[:, others]
                row["resnet18_others_unchanged"] = float(unchanged.double().mean())
            rows[name][way] = row
    return rows


def _null_space(model: Attributes, x: Tensor, judge: Judge | None) -> dict[str, Any]:
    """Variations that f cannot see, as ``linearizer vary`` makes them, with half of each kept."""
    amount = 0.7
    f, width = model(), model.read.width
    noise = torch.randn(len(x), width, generator=torch.Generator().manual_seed(0))
    made = variations(f, x, noise, amount)
    exact, some = copy.deepcopy(model).double()(), x[:20].double()
    gap = exact(variations(exact, some, noise[:20].double(), amount)) - exact(some)
    row: dict[str, Any] = {
        "dimension": f.source.dim - f.rank(),
        "amount": amount,
        "largest_change_of_a_score": float((_each(f, made) - _each(f, x)).abs().max()),
        "largest_change_float64": float(gap.abs().max()),
        "pixel_change": float((made - x).square().mean().sqrt()),
    }
    if judge is not None:
        old, new = _each(judge, x), _each(judge, made.clamp(0, 1))
        classes = model.config.kind == "classes"
        same = old.argmax(1) == new.argmax(1) if classes else (old > 0) == (new > 0)
        row["resnet18_outputs_unchanged"] = float(same.double().mean())
    return row


def _edit_picture(
    model: Attributes, x: Tensor, y: Tensor, shown: Sequence[str], path: Path
) -> None:
    f = model()
    some = x[:8]
    before = f(some)
    rows = [some]
    labels = ["x"]
    for name in shown:
        k = model.config.names.index(name)
        has = y[:8, k] > 0.5
        if model.read.separate:
            (h, more), (_, less) = wished(model, name), wished(model, f"-{name}")
        else:
            h, more, less = f, held(model, name, before), held(model, f"-{name}", before)
        rows.append(h.back_project(some, torch.where(has[:, None], less, more)))
        labels.append(f"± {name}")
    image_grid(path, rows, labels, [""] * len(some),
               "Each attribute put on faces without it, and taken from others",
               cell=1.0)  # fmt: skip


def _erased_picture(
    model: Attributes, source: Any, x: Tensor, y: Tensor, index: Sequence[int], path: Path
) -> None:
    f, names = model(), model.config.names
    gaps = class_gap(f, labelled(model, source.train, PROBED), index)
    k = index[0]
    some = torch.cat([x[y[:, k] > 0.5][:5], x[y[:, k] < 0.5][:5]])
    cut = model.read.width if model.read.encodes else 0
    rows = [some, *(eraser(f, gap[None], cut)(some) for gap in gaps)]
    image_grid(path, rows, ["x", *(f"no {names[i]}" for i in index)], [""] * len(some),
               "Erasure by projection", cell=0.9)  # fmt: skip
