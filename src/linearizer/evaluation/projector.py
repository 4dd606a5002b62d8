r"""Idempotency, reconstruction, projected noise, anomalies, algebra and gaps of a projector."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..apps.projector import Projection, join, meet, strokes
from ..baselines import Autoencoder, autoencoder_loss, ign_loss, ign_noise, train_for
from ..data import root_folder
from ..data.images import pixels_of, zip_pictures
from ..draws import Draw
from ..metrics import digit_classifier, psnr, roc_auc
from ..pictures import image_grid
from ..projecting import projector_of
from ..runs import run_data
from ..training import Loss, Training
from .tables import Say, result_folder, write_table

__all__ = ["projector"]

Map = Callable[[Tensor], Tensor]

#: Length of the code (as the projector's rank where None) and loss. The range of an idempotent
#: generative network is to be tightened by its loss, not by its width.
BASELINES: dict[str, tuple[int | None, Loss]] = {
    "autoencoder": (None, autoencoder_loss),
    "ign": (128, ign_loss),
}


@torch.no_grad()
def projector(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    baseline_minutes: float = 0.0,
) -> dict[str, Any]:
    """Measure a projector, beside networks without its architecture where minutes are given."""
    one = projector_of(run)
    model: Projection = one.model
    folder = result_folder(one, out)
    source = run_data(one, root)
    if len(source.test) < 16:
        raise ValueError(f"evaluate: expected 16 test images or more, got {len(source.test)}.")
    x = _all(source.test)
    say(f"{source.name}: {len(x):,} test images")
    f = model()
    inputs, missing = _inputs(x, root)
    result: dict[str, Any] = {
        "run": one.folder.name,
        "data": {"name": source.name, "shape": list(x.shape[1:]), "test_images": len(x),
                 "notes": [*source.notes, *missing]},
        "g": model.config.g,
        "rank": f.rank(),
        "dim": model.target.dim,
        "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip
    say("idempotency")
    result["idempotency_float32"] = idempotency(f, inputs)
    double = copy.deepcopy(model).double()
    exact = {name: these[:100].double() for name, these in inputs.items()}
    result["idempotency_float64"] = idempotency(double(), exact)
    some = {name: these[:100] for name, these in inputs.items()}
    result["idempotency_at_other_ranks"] = {
        str(rank): {
            "float32": max(idempotency(model(rank), some).values()),
            "float64": max(idempotency(double(rank), exact).values()),
        }
        for rank in sorted({1, f.rank() // 2, f.rank() + 1, (f.rank() + model.largest) // 2,
                            model.largest} & set(range(1, model.largest + 1)))
    }  # fmt: skip
    say("reconstruction")
    result["reconstruction"] = reconstruction(f, x)
    result["reconstruction_by_rank"] = _by_rank(model, source, x)
    if is_digits(source.name, x):
        result["projected"] = {
            "test digits as they are": looks(lambda x: x, {"data": x})["data"],
            **looks(f, inputs),
        }
    say("anomalies")
    result["anomaly_roc_auc"] = _anomalies(model, x, inputs)
    say("gaps")
    result["gaps"] = _gaps(model, x[:1000], _all(source.train, 10_000).mean(0, keepdim=True))
    picture = folder / "projector.png"
    files = [picture]
    if _two_classes(source):
        result["meet_and_join"] = _lattice(model, source, folder / "meet-and-join.png")
        files.append(folder / "meet-and-join.png")
    result["seconds_per_image"] = _times(f, x)
    if baseline_minutes > 0:
        result["baselines"] = {}
        for name in BASELINES:
            say(f"{name}, {baseline_minutes:g} minutes")
            files.append(folder / f"{name}.png")
            result["baselines"][name] = baseline(name, run, baseline_minutes, files[-1], root)
    _picture(f, inputs, f"{one.folder.name}: rank {f.rank()} of {model.target.dim}", picture)
    files.append(folder / "ranks.png")
    _ranks(model, x[:10], folder / "ranks.png")
    return write_table(result, folder / "projector.json", files)


def _all(images: Any, limit: int | None = None) -> Tensor:
    index = torch.arange(min(len(images), limit or len(images)))
    return torch.cat([images.batch(i).x for i in index.split(1000)])


def _inputs(x: Tensor, root: Path | None) -> tuple[dict[str, Tensor], list[str]]:
    """Inputs of every kind, at most 1,000 each, and what is missing."""
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
        "scribbles": strokes(x, draw, 3),
        "zero": torch.zeros_like(x[:1]),
    }
    path = root_folder(root) / "bsds500" / "bsds500_images.zip"
    if not path.exists():
        return inputs, [f"no photos: {path.name} is not in the data root"]
    pictures = [p for name, p in sorted(zip_pictures(path).items()) if name.startswith("test")]
    inputs["photos"] = torch.stack([pixels_of(p, x.shape[-1], x.shape[1]) for p in pictures])
    return inputs, []


def idempotency(f: Map, inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest |f(f(x)) − f(x)| over each kind of input."""
    rows = {}
    for name, x in inputs.items():
        worst = 0.0
        for part in x.split(250):
            once = f(part)
            worst = max(worst, float((f(once) - once).abs().max()))
        rows[name] = worst
    return rows


def reconstruction(f: Map, x: Tensor) -> dict[str, float]:
    """PSNR of f(x) on test images."""
    back = torch.cat([f(p) for p in x.split(500)]).clamp(0, 1)
    each = psnr(back, x)
    return {
        "psnr_mean_over_images": float(each.mean()),
        "psnr_of_mean_error": float(-10 * (back - x).square().mean().log10()),
        "psnr_worst_image": float(each.min()),
    }


def _by_rank(model: Projection, source: Any, x: Tensor) -> dict[str, Any]:
    """PSNR at other ranks of the same network, beside principal components of the pixels."""
    train = _all(source.train, 10_000).flatten(1).double()
    mean = train.mean(0)
    axes = torch.linalg.eigh((train - mean).mT @ (train - mean))[1].flip(1)
    top = int((model.logits > 0).sum())
    most = model.largest if model.config.g == "subspace" else top
    kept = [k for k in (2, 4, 8, 16, 32, 64, 128, 256, 512) if k <= most]
    rows = {}
    for k in sorted({*kept, top, most}):
        Q = axes[:, :k]
        flat = x.flatten(1).double() - mean
        pca = (flat @ Q @ Q.mT + mean).reshape_as(x).float().clamp(0, 1)
        rows[str(k)] = {
            "psnr": reconstruction(model(k), x)["psnr_mean_over_images"],
            "pca_psnr": float(psnr(pca, x).mean()),
        }
    return rows


def is_digits(name: str, x: Tensor) -> bool:
    """Whether our digit classifier can judge images of these data."""
    return name == "mnist" and x.shape[1:] == (1, 32, 32)


def looks(f: Map, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the digit classifier says of projections."""
    rows = {}
    for name, x in inputs.items():
        y = torch.cat([f(p) for p in x.split(500)]).clamp(0, 1)
        best, label = torch.softmax(digit_classifier()(y), 1).max(1)
        rows[name] = {
            "share_confident": float((best > 0.9).double().mean()),
            "classes": torch.bincount(label, minlength=10).tolist(),
        }
    return rows


def _anomalies(model: Projection, x: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """ROC-AUC of ‖(I − Λ) g(x)‖: test images against everything else."""
    usual = model.score(x[1000:3000] if len(x) >= 3000 else x)
    draw, rows = Draw(5), {}
    half = inputs["data"].clone()
    half[..., : half.shape[-2] // 2, :] = 0
    others = {
        **{name: these for name, these in inputs.items() if name not in ("data", "zero")},
        "data with noise 0.2": inputs["data"] + 0.2 * draw.normal(inputs["data"]),
        "data with a stroke": torch.maximum(inputs["data"], strokes(inputs["data"], draw, 1)),
        "data turned by 90°": inputs["data"].rot90(1, (2, 3)),
        "data without the upper half": half,
    }
    for name, these in others.items():
        rows[name] = roc_auc(model.score(these), usual)
    return rows


def _gaps(model: Projection, x: Tensor, mean: Tensor) -> dict[str, Any]:
    """PSNR on the unknown pixels, with the lower half or a square in the middle unknown."""
    H, W = x.shape[-2:]
    rows: dict[str, Any] = {}
    for name, place in (
        ("lower half", (slice(H // 2, H), slice(0, W))),
        ("middle square", (slice(H // 4, 3 * H // 4), slice(W // 4, 3 * W // 4))),
    ):
        known = torch.ones(1, H, W, dtype=torch.bool)
        known[:, place[0], place[1]] = False
        seen = x * known
        ways = {
            "mean image": torch.where(known, x, mean.expand_as(x)),
            "one projection": torch.where(known, x, model()(seen)),
            "back-projection": model.inpaint(x, known),
        }
        rows[name] = {
            way: float(psnr(y.clamp(0, 1)[..., place[0], place[1]],
                            x[..., place[0], place[1]]).mean())
            for way, y in ways.items()
        }  # fmt: skip
    return rows


def _two_classes(source: Any) -> tuple[int, int] | None:
    """Two classes with images to train and test on, 3 and 8 where there are ten."""
    found: list[Any] = [getattr(part, "labels", None) for part in (source.train, source.test)]
    if any(labels is None or labels.ndim != 1 for labels in found):
        return None
    both = [i for i in found[0].unique().tolist() if bool((found[1] == i).any())]
    if len(both) < 2:
        return None
    return (3, 8) if len(both) == 10 else (both[0], both[1])


def _lattice(model: Projection, source: Any, path: Path) -> dict[str, Any]:
    """Two classes with a mask each over one g: their meet and join."""
    labels, names = source.train.labels, source.train.names or tuple("0123456789")
    two = _two_classes(source)
    assert two is not None
    a, b = two
    of = {i: source.train.batch((labels == i).nonzero()[:500, 0]).x for i in (a, b)}
    rank = int((model.logits > 0).sum()) // 2
    one, other = model.onto(of[a], rank), model.onto(of[b], rank)
    maps = {f"P({names[a]})": one, f"P({names[b]})": other, "meet": meet(one, other),
            "join": join(one, other)}  # fmt: skip
    test = {i: source.test.batch((source.test.labels == i).nonzero()[:300, 0]).x for i in (a, b)}
    rows: dict[str, Any] = {}
    for name, f in maps.items():
        rows[name] = {"rank": f.rank()}
        for i in (a, b):
            rows[name][f"psnr of {names[i]}"] = float(psnr(f(test[i]).clamp(0, 1), test[i]).mean())
    shown = torch.cat([test[a][:6], test[b][:6]])
    image_grid(path, [shown, *(f(shown) for f in maps.values())], ["x", *maps], [],
               f"Projectors of two classes over one g, rank {rank} each")  # fmt: skip
    return rows


def _times(f: Map, x: Tensor) -> dict[str, float]:
    rows = {}
    for batch in (1, 64):
        some = x[:batch]
        f(some)
        begun = time.perf_counter()
        for _ in range(10):
            f(some)
        rows[f"batch {batch}"] = (time.perf_counter() - begun) / 10 / len(some)
    return rows


def baseline(
    name: str, run: str | Path, minutes: float, picture: Path, root: Path | None = None
) -> dict[str, Any]:
    """A network without the architecture, trained on a projector's data for as long."""
    one = projector_of(run)
    source = run_data(one, root)
    x = _all(source.test)
    inputs, _ = _inputs(x, root)
    if name == "ign":
        inputs = {**inputs, "noise of its training": ign_noise(x[:1000], Draw(11))}
    width, loss = BASELINES[name]
    torch.manual_seed(0)
    shape: Any = tuple(one.model.target.shape)
    code = width or int((one.model.logits > 0).sum())
    net = Autoencoder(shape, code, one.model.config.hidden or 16)
    training = Training(batch=128, rate=1e-3, ema=0.999)
    with torch.enable_grad():
        share = 1.0
        if name == "ign":  # its absolute differences alone keep images of few strokes black
            train_for(0.1 * 60 * minutes, net, autoencoder_loss, source.train, training)
            # At 1e-3 it falls to black within a few hundred steps.
            share, training = 0.9, training.model_copy(update={"rate": 2e-4})
        taken = train_for(share * 60 * minutes, net, loss, source.train, training)
    with torch.no_grad():
        _picture(net, inputs, f"{name}, for comparison", picture)
        return {
            **taken,
            "cpu_seconds": taken["cpu_seconds"] / share,
            "parameters": sum(p.numel() for p in net.parameters()),
            "code": code,
            "reconstruction": reconstruction(net, x),
            "idempotency_float32": idempotency(net, inputs),
            "seconds_per_image": _times(net, x),
            **({"projected": looks(net, inputs)} if is_digits(source.name, x) else {}),
        }


def _picture(f: Map, inputs: Mapping[str, Tensor], title: str, path: Path) -> None:
    rows, labels, n = [], [], 12
    for name, x in inputs.items():
        if name == "zero":
            continue
        once = f(x[:n])
        rows += [x[:n], once]
        labels += [name, "f(·)"]
    image_grid(path, rows, labels, [], title)


def _ranks(model: Projection, x: Tensor, path: Path) -> None:
    most = model.largest
    ranks = [k for k in (2, 4, 8, 16, 32, 64, 128, 256) if k <= most]
    image_grid(path, [x, *(model(k)(x) for k in ranks)], ["x", *(f"rank {k}" for k in ranks)], [],
               "One network, other ranks")  # fmt: skip
