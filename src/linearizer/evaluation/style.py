r"""How near operators come to style networks, how they blend, and what undoing gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..apps.style import PHOTO, RTOL, STRIP, Style
from ..data import Data
from ..data.photos import Photos
from ..data.stylised import Stylised, shrunk
from ..metrics import psnr
from ..pictures import image_grid
from ..runs import run_data
from ..stylizing import PAIRS, fit_pairs, style_model
from ..teachers import StyleNet, load_styles
from .tables import Say, lpips_or_why, result_folder, teacher_folder, write_table

__all__ = ["style"]

Map = Callable[[Tensor], Tensor]
#: Side of the kernel of the linear baseline, and photos that it is fitted to.
BLUR, FITTED = 9, 24


@torch.no_grad()
def style(
    run: str | Path,
    out: Path | None = None,
    photos: int = 200,
    root: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """All tables of a style model as JSON, and its pictures."""
    one = style_model(run)
    model: Style = one.model
    source = run_data(one, root)
    folder = result_folder(one, out)
    nets = load_styles(teacher_folder(one.config, root))
    assert isinstance(source.train, Stylised) and isinstance(source.test, Photos)
    longest, seen = source.train.longest, source.train.size is None
    held = [shrunk(source.test.photo(i), longest) for i in range(min(photos, len(source.test)))]
    judge, why = lpips_or_why(root)
    names = model.config.names
    result: dict[str, Any] = {
        "run": str(run), "styles": list(names), "photos": len(held), "held_out": not seen,
        "lpips": why or "alex",
        "parameters": sum(p.numel() for p in model.parameters()),
        "condition_number": {n: model.condition(model.kernel(n)) for n in names},
    }  # fmt: skip
    say("fidelity on the photo of training" if seen else f"fidelity on {len(held)} held-out photos")
    known = [n for n in names if n in nets]
    linear = {n: linear_map(*_trained(source, nets[n])) for n in known}
    result["fidelity"] = fidelity(model, {n: nets[n] for n in known}, linear, held, judge)
    new = [n for n in nets if n not in names]
    if new:
        say(f"a new style in closed form: {', '.join(new)}")
        result["new_style"] = {n: new_style(model, source, nets[n], held[:50], judge) for n in new}
    say("undoing, blending, time")
    result["photo"] = {"psnr": _mean(psnr_of(held[:50], lambda x: model.render(x, model.plain)))}
    result["undo"] = {n: undone(model, n, held[:20]) for n in names}
    pictures = []
    if judge is not None and len(names) > 2:
        result["blend"] = blends(model, held[:8], judge)
    path = folder / "style.png"
    _picture(model, {n: nets[n] for n in known}, held, path)
    pictures.append(path)
    if len(names) > 2:
        path = folder / "strip.png"
        _strips(model, held[0], path)
        pictures.append(path)
    result["seconds"] = times(model, nets[known[0]]) if known else {}
    return write_table(result, folder / "style.json", pictures)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def psnr_of(photos: list[Tensor], f: Map) -> list[float]:
    return [float(psnr(f(x[None]).clamp(0, 1), x[None])) for x in photos]


def _trained(source: Data, net: StyleNet, n: int = FITTED) -> tuple[list[Tensor], list[Tensor]]:
    """Training photos, and what a style network makes of them."""
    train = source.train
    assert isinstance(train, Stylised)
    x = [shrunk(train.photos.photo(i), train.longest) for i in range(min(n, len(train.photos)))]
    return x, [net(photo[None])[0] for photo in x]


def linear_map(x: list[Tensor], y: list[Tensor], side: int = BLUR) -> Map:
    """The best colour and blur: y ≈ k ∗ x + b, k mixing the colours, by least squares."""
    width = 3 * side * side + 1
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, 3, dtype=torch.float64)
    pad = (side // 2,) * 4
    for before, after in zip(x, y, strict=True):
        taps = F.unfold(F.pad(before[None], pad, mode="reflect"), side)[0].mT.double()
        taps = torch.cat([taps, torch.ones(len(taps), 1, dtype=torch.float64)], 1)
        gram += taps.mT @ taps
        cross += taps.mT @ after.flatten(1).mT.double()
    ridge = 1e-6 * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    solved = torch.linalg.solve(gram + ridge, cross).float()
    weight, bias = solved[:-1].mT.reshape(3, 3, side, side), solved[-1]
    return lambda x: F.conv2d(F.pad(x, pad, mode="reflect"), weight, bias)


def fidelity(
    model: Style,
    nets: Mapping[str, StyleNet],
    linear: Mapping[str, Map],
    photos: list[Tensor],
    judge: Any,
) -> dict[str, Any]:
    """PSNR and LPIPS to each style network: ours, the best linear map, the photo itself."""
    table: dict[str, Any] = {}
    for name, net in nets.items():
        kernel = model.kernel(name)
        ways: dict[str, Map] = {
            "ours": lambda x, kernel=kernel: model.render(x, kernel),  # type: ignore[misc]
            "linear": linear[name],
            "photo": lambda x: x,
        }
        table[name] = compared(ways, net, photos, judge)
    return table


def compared(ways: Mapping[str, Map], net: Map, photos: list[Tensor], judge: Any) -> dict[str, Any]:
    rows: dict[str, dict[str, list[float]]] = {way: {"psnr": [], "lpips": []} for way in ways}
    for photo in photos:
        x = photo[None]
        wanted = net(x)
        for way, f in ways.items():
            made = f(x).clamp(0, 1)
            rows[way]["psnr"].append(float(psnr(made, wanted)))
            if judge is not None:
                rows[way]["lpips"].append(float(judge(made, wanted)))
    return {
        way: {key: _mean(values) for key, values in row.items() if values}
        for way, row in rows.items()
    }


def new_style(
    model: Style, source: Data, net: StyleNet, photos: list[Tensor], judge: Any
) -> dict[str, Any]:
    """A style network that the model never saw: its kernel in closed form, and from one pair."""
    x, y = _trained(source, net)
    begun = time.perf_counter()
    kernel, _ = fit_pairs(model, list(zip(x[:PAIRS], y[:PAIRS], strict=True)))
    seconds = time.perf_counter() - begun
    single, _ = fit_pairs(model, [(x[0], y[0])])
    ways: dict[str, Map] = {
        f"{min(PAIRS, len(x))} pairs": lambda x: model.render(x, kernel),
        "one pair": lambda x: model.render(x, single),
        "linear": linear_map(x, y),
        "photo": lambda x: x,
    }
    return {"seconds": seconds, **compared(ways, net, photos, judge)}


def undone(model: Style, name: str, photos: list[Tensor]) -> dict[str, float]:
    """PSNR of f†(f(x)) to x: of the numbers of f(x), and of its picture in 8 bits."""
    kernel, m = model.kernel(name), model.multiple
    exact: list[float] = []
    bytes_: list[float] = []
    maps: dict[tuple[int, ...], tuple[Map, Map]] = {}
    for photo in photos:
        x = photo[None, :, : photo.shape[1] // m * m, : photo.shape[2] // m * m]
        shape = tuple(x.shape[1:])
        if shape not in maps:
            f = model.map(kernel, shape)
            maps[shape] = f, f.pinv(RTOL)
        there, back = maps[shape]
        made = there(x)
        kept = made.clamp(0, 1).mul(255).round().div(255)
        for values, y in ((exact, made), (bytes_, kept)):
            values.append(float(psnr(back(y).clamp(0, 1), x)))
    return {"psnr": _mean(exact), "psnr_of_8_bits": _mean(bytes_)}


def blends(model: Style, photos: list[Tensor], judge: Any) -> dict[str, Any]:
    """From the first style to the third, by operator, by pixels and by index.

    Neighbours along the strip in LPIPS, the largest over the mean (1 is even); whether the
    distance to the start grows all the way; and how near the strip comes to the second style,
    which lies between them by number only.
    """
    first, between, last = model.config.names[:3]
    steps = [i / 10 for i in range(11)]
    A, B, C = (model.kernel(n) for n in (first, between, last))
    ends = [(model.render(x[None], A).clamp(0, 1), model.render(x[None], C).clamp(0, 1))
            for x in photos]  # fmt: skip
    third = [model.render(x[None], B).clamp(0, 1) for x in photos]
    ways: dict[str, Callable[[int, float], Tensor]] = {
        "operator": lambda i, a: model.render(photos[i][None], (1 - a) * A + a * C),
        "pixels": lambda i, a: (1 - a) * ends[i][0] + a * ends[i][1],
        "index": lambda i, a: model.render(photos[i][None], model.family.kernels(2 * a)),
    }
    table: dict[str, Any] = {"from": first, "to": last, "between_by_number": between}
    for way, f in ways.items():
        neighbours, start, near = (torch.zeros(len(photos), n) for n in (10, 11, 11))
        for i in range(len(photos)):
            row = [f(i, a).clamp(0, 1) for a in steps]
            neighbours[i] = torch.tensor([float(judge(p, q)) for p, q in pairwise(row)])
            start[i] = torch.tensor([float(judge(row[0], p)) for p in row])
            near[i] = torch.tensor([float(judge(third[i], p)) for p in row])
        gap = neighbours.mean(0)
        table[way] = {
            "neighbours": gap.tolist(),
            "largest_over_mean": float(gap.max() / gap.mean()),
            "from_start": start.mean(0).tolist(),
            "monotone": bool((start.mean(0).diff() > 0).all()),
            "monotone_share_of_photos": float((start.diff(dim=1) > 0).all(1).float().mean()),
            "to_the_style_between": near.mean(0).tolist(),
        }
    return table


def times(model: Style, net: StyleNet, rounds: int = 5) -> dict[str, Any]:
    """Ours and the style network in turn on one photo, least of several rounds; and a blend."""
    rows: dict[str, Any] = {}
    names = model.config.names
    for side in (256, 1024):
        x = torch.rand(1, 3, side, side, dtype=model.plain.dtype)
        kernel = model.kernel(names[0])
        ways: dict[str, Map] = {
            "ours": lambda x, kernel=kernel: model.render(x, kernel),  # type: ignore[misc]
            "network": net,
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds if side == 256 else 2):
            for way, f in ways.items():
                begun = time.perf_counter()
                f(x)
                best[way] = min(best[way], time.perf_counter() - begun)
        rows[str(side)] = {**best, "network_over_ours": best["network"] / best["ours"]}
    weights = dict.fromkeys(names, 1 / len(names))
    taken = []
    for some in ({names[0]: 1.0}, weights):
        model.blend(some)
        begun = time.perf_counter()
        for _ in range(20):
            model.blend(some)
        taken.append((time.perf_counter() - begun) / 20)
    share = (taken[1] - taken[0]) / rows["256"]["ours"]
    rows["blend"] = {"styles": len(names), "share_of_256": share}
    return rows


def _picture(model: Style, nets: Mapping[str, StyleNet], photos: list[Tensor], path: Path) -> None:
    wide = [x for x in photos if x.shape[2] > x.shape[1]][:6] or photos[:1]
    shape = wide[0].shape
    x = torch.stack([p for p in wide if p.shape == shape])
    rows, labels = [x], [PHOTO]
    for name, net in nets.items():
        rows += [net(x), model.render(x, model.kernel(name))]
        labels += [f"{name}, network", "ours"]
    image_grid(path, rows, labels, [], "Held-out photos: style networks, and operators", cell=2.0)


def _strips(model: Style, photo: Tensor, path: Path) -> None:
    """Pairs of styles along the paper's strip; below, the same by index."""
    first, between, last = model.config.names[:3]
    x = photo[None]
    rows, labels = [], []
    for a, b in ((first, between), (between, last), (first, last)):
        A, B = model.kernel(a), model.kernel(b)
        rows.append(torch.cat([model.render(x, (1 - s) * A + s * B) for s in STRIP]))
        labels.append(f"{a} → {b}")
    rows.append(torch.cat([model.render(x, model.family.kernels(2 * s)) for s in STRIP]))
    labels.append("the last by index")
    image_grid(path, rows, labels, [f"{s:.2f}" for s in STRIP], "Blends of operators", cell=1.5)
