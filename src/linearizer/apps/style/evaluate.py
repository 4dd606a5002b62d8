r"""How near the operators come to the style networks, and what undoing a style gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.kinds import Data
from ...data.stylised import Stylised, shrink
from ...metrics.images import psnr
from ...metrics.perceptual import LPIPS
from ...runs.pictures import image_grid
from ..base import Run, Say, Yardstick
from .model import PHOTO, RTOL, STRIP, Style

__all__ = [
    "compare",
    "evaluate",
    "fit_filter",
    "measure_undo",
    "stylise_training_photos",
    "yardstick",
]

Map = Callable[[Tensor], Tensor]
#: Side of the kernel of the linear yardstick, and every how many pixels it is fitted to.
SIDE, STRIDE = 9, 3
#: Training photos that it is fitted to.
FITTED = 12
#: The same for the yardstick of a training, which only changes colours.
FEW = 3
#: Photos that are taken at most to measure how well they are kept, and how well styles are undone.
KEPT, UNDONE = 50, 20


@torch.no_grad()
def yardstick(model: Style, data: Data) -> Yardstick | None:
    """Return the PSNR, on validation crops, of the best change of colour for each style."""
    train: Stylised = data.train
    if train.size is None:
        return None
    fits: list[Map] = [
        fit_filter(*stylise_training_photos(train, train.styles[name], FEW), side=1)
        for name in model.config.names
    ]
    fits.append(lambda x: x)  # the style that leaves photos as they are
    total = 0.0
    for index in torch.arange(len(data.val)).split(64):
        batch = data.val.batch(index)
        made = torch.stack([fits[s](x) for x, s in zip(batch.x, batch.style, strict=True)])
        total += float(psnr(made.clamp(0, 1), batch.y).clamp_max(100).sum())
    return Yardstick("a change of colours", {"psnr": total / len(data.val)})


def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure each style on test photos: distance to its network, and to the photo when undone."""
    model: Style = run.model
    train: Stylised = data.train
    photos = [shrink(data.test.photo(i), train.longest) for i in range(len(data.test))[:n]]
    names = model.config.names
    nets = {name: net for name, net in train.styles.items() if name in names}
    result: dict[str, Any] = {
        "styles": list(names),
        "photos": len(photos),
        "held_out": train.size is not None,
        "lpips": "not measured: its weights are not there" if train.judge is None else "alex",
        "parameters": sum(p.numel() for p in model.parameters()),
        "condition_number": {name: model.condition(model.kernel(name)) for name in names},
        "fidelity": {},
    }
    for name, net in nets.items():
        say(f"{name}: distance to its network on {len(photos)} photos")
        maps: dict[str, Map] = {
            "ours": _renderer(model, model.kernel(name)),
            "linear": fit_filter(*stylise_training_photos(train, net)),
            "photo": lambda x: x,
        }
        result["fidelity"][name] = compare(maps, net, photos, train.judge)
    say("undoing")
    kept = _renderer(model, model.plain)
    result["photo"] = {"psnr": _mean([_psnr(kept(x[None]), x[None]) for x in photos[:KEPT]])}
    result["undo"] = {name: measure_undo(model, name, photos[:UNDONE]) for name in names}
    result["pictures"] = [folder / "style.png"]
    _draw_styles(model, nets, photos, folder / "style.png")
    if len(names) > 1:
        result["pictures"].append(folder / "strip.png")
        _draw_strips(model, photos[0], folder / "strip.png")
    return result


def _renderer(model: Style, kernel: Tensor) -> Map:
    return lambda x: model.render(x, kernel)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _psnr(made: Tensor, wanted: Tensor) -> float:
    return float(psnr(made.clamp(0, 1), wanted))


def stylise_training_photos(
    train: Stylised, net: Map, n: int = FITTED
) -> tuple[list[Tensor], list[Tensor]]:
    """Return training photos, and what a style network makes of them."""
    count = min(n, len(train.photos))
    x = [shrink(train.photos.photo(i), train.longest) for i in range(count)]
    return x, [net(photo[None])[0] for photo in x]


def fit_filter(x: list[Tensor], y: list[Tensor], side: int = SIDE) -> Map:
    """Fit the best change of colour and blur: y ≈ k ∗ x + b, k mixing the colours."""
    width = 3 * side * side + 1
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, 3, dtype=torch.float64)
    pad = (side // 2,) * 4
    for before, after in zip(x, y, strict=True):
        padded = F.pad(before[None], pad, mode="reflect")
        taps = F.unfold(padded, side, stride=STRIDE)[0].mT.double()
        taps = F.pad(taps, (0, 1), value=1.0)
        gram += taps.mT @ taps
        cross += taps.mT @ after[:, ::STRIDE, ::STRIDE].flatten(1).mT.double()
    ridge = 1e-6 * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    solved = torch.linalg.solve(gram + ridge, cross).float()
    weight, bias = solved[:-1].mT.reshape(3, 3, side, side), solved[-1]
    return lambda x: F.conv2d(F.pad(x, pad, mode="reflect"), weight, bias)


def compare(
    maps: Mapping[str, Map], net: Map, photos: list[Tensor], judge: LPIPS | None
) -> dict[str, dict[str, float]]:
    """Return the mean PSNR and LPIPS of each map to a style network."""
    rows: dict[str, dict[str, list[float]]] = {name: {"psnr": [], "lpips": []} for name in maps}
    for photo in photos:
        x = photo[None]
        wanted = net(x)
        for name, f in maps.items():
            made = f(x).clamp(0, 1)
            rows[name]["psnr"].append(_psnr(made, wanted))
            if judge is not None:
                rows[name]["lpips"].append(float(judge(made, wanted)))
    return {
        name: {key: _mean(values) for key, values in row.items() if values}
        for name, row in rows.items()
    }


def measure_undo(model: Style, name: str, photos: list[Tensor]) -> dict[str, float]:
    """Return the PSNR of f†(f(x)) to x: from the numbers of f(x), and from its 8-bit picture."""
    kernel, m = model.kernel(name), model.multiple
    rows: dict[str, list[float]] = {"psnr": [], "psnr_of_8_bits": []}
    maps: dict[tuple[int, ...], tuple[Map, Map]] = {}
    for photo in photos:
        x = photo[None, :, : photo.shape[1] // m * m, : photo.shape[2] // m * m]
        shape = tuple(x.shape[1:])
        if shape not in maps:
            f = model.map(kernel, shape)
            maps[shape] = f, f.pinv(RTOL)
        there, back = maps[shape]
        made = there(x)
        picture = made.clamp(0, 1).mul(255).round().div(255)
        for row, y in zip(rows.values(), (made, picture), strict=True):
            row.append(_psnr(back(y), x))
    return {key: _mean(row) for key, row in rows.items()}


def _draw_styles(model: Style, nets: Mapping[str, Map], photos: list[Tensor], path: Path) -> None:
    """Draw photos of one size, and each style of them by its network and by its operator."""
    wide = [x for x in photos if x.shape[2] > x.shape[1]][:6] or photos[:1]
    x = torch.stack([p for p in wide if p.shape == wide[0].shape])
    rows, labels = [x], [PHOTO]
    for name, net in nets.items():
        rows += [net(x), model.render(x, model.kernel(name))]
        labels += [f"{name}, network", "ours"]
    image_grid(path, rows, labels, [], "Test photos: style networks, and operators", cell=2.0)


def _draw_strips(model: Style, photo: Tensor, path: Path) -> None:
    """Draw a photo along blends from each of the first styles to the next."""
    rows, labels = [], []
    for first, second in pairwise(model.config.names[:4]):
        A, B = model.kernel(first), model.kernel(second)
        rows.append(torch.cat([model.render(photo[None], torch.lerp(A, B, a)) for a in STRIP]))
        labels.append(f"{first} → {second}")
    image_grid(path, rows, labels, [f"{a:.2f}" for a in STRIP], "Blends of operators", cell=1.5)
