r"""Quality, one step against many, inversion, round trips and times of a flow."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..apps.flow import Flow
from ..linearizer import Linearizer
from ..metrics import digit_features, frechet, psnr
from ..perceptual import LPIPS
from ..pictures import image_grid
from ..runs import run_data
from ..sampling import collapsed, flow_of
from .tables import Say, lpips_or_why, result_folder, write_table

__all__ = ["flow"]

#: Section 4.1, the tables of figure 5.
PAPER = {
    "mnist": {
        "one_against_100_steps": {"psnr": 32.4, "lpips": 0.006, "mse": 3.0e-4},
        "inversion": {"psnr": 31.6, "lpips": 0.008},
    },
    "celeba": {
        "one_against_100_steps": {"psnr": 32.9, "lpips": 0.007, "mse": 3.0e-4},
        "inversion": {"psnr": 33.4, "lpips": 0.006},
        "inception_fid": {"1 step": 405, "10 steps": 152, "100 steps": 127, "100 in one": 131,
                          "1000 in one": 123},
    },
}  # fmt: skip


@torch.no_grad()
def flow(
    run: str | Path,
    samples: int = 10_000,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Sample quality, one step against many, inversion, round trips and times of a flow."""
    one = flow_of(run)
    model: Flow = one.model
    folder = result_folder(one, out)
    source = run_data(one, root)
    test = source.test
    if len(test) < 16:
        raise ValueError(
            f"evaluate: expected 16 test images or more, {source.name} has {len(test)}."
        )
    say(f"{source.name}: {len(test):,} test images")
    x = torch.cat([test.batch(i).x for i in torch.arange(len(test)).split(1000)])
    lpips, why = lpips_or_why(root)
    f = collapsed(one).f
    result: dict[str, Any] = {
        "run": one.folder.name,
        "data": {"name": source.name, "shape": list(model.target.shape), "test_images": len(x),
                 "notes": list(source.notes)},
        "core": model.config.core if model.config is not None else None,
        "rank": f.rank(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "paper": PAPER.get(source.name, {}),
    }  # fmt: skip
    if lpips is None:
        result["lpips"] = why
    say("sample quality")
    result["fid"] = _quality(model, f, source, x, samples, lpips)
    say("one step against many")
    result["one_against_many"] = _fidelity(model, lpips)
    say("inversion")
    result["inversion"] = _inversion(f, x, lpips)
    result["round_trip"] = _round_trip(model, x)
    result["coordinates"] = _moments(model, x)
    say("times")
    result["times"] = _times(model, f)
    picture, numbers = folder / "flow.png", folder / "flow.json"
    _picture(model, f, x, result, picture)
    return write_table(result, numbers, [picture, folder / "coordinates.png"])


def _quality(
    model: Flow, f: Linearizer, source: Any, x: Tensor, samples: int, lpips: LPIPS | None
) -> dict[str, Any]:
    """Fréchet distances of one-step and of many-step samples to the test images."""
    if tuple(x.shape[1:]) == (1, 32, 32) and source.name == "mnist":
        features: Callable[[Tensor], Tensor] = digit_features
        name = "64 features of our digit classifier"
    elif lpips is not None:
        features, name = partial(_alex, lpips), "AlexNet's last 256 channels, averaged over places"
    else:
        return {"features": None}
    wanted = features(x)
    train = source.train
    n = min(len(x), len(train))
    real = torch.cat([features(train.batch(i).x) for i in torch.arange(n).split(500)])

    def fid(g: Callable[[Tensor], Tensor], temperature: float = 1.0) -> float:
        parts = [min(500, samples - done) for done in range(0, samples, 500)]
        some = [
            features(g(temperature * model.noise(count, 1000 + i)).clamp(0, 1))
            for i, count in enumerate(parts)
        ]
        return frechet(torch.cat(some), wanted)

    rows = {"one step (1000 of rk4)": fid(f)}
    for steps in (10, 100):
        rows[f"one step ({steps} of rk4)"] = fid(model.collapse("rk4", steps))
    rows["10 steps in a loop"] = fid(lambda noise: model.integrate(noise, "rk4", 10))
    rows["one step, temperature 0.9"] = fid(f, 0.9)
    return {
        "features": name,
        "samples": samples,
        "reference": f"{len(x)} test images",
        "real_training_images": frechet(real, wanted),
        "reconstructed_test_images": frechet(
            torch.cat([features(f(f.pinv()(p)).clamp(0, 1)) for p in x.split(500)]), wanted
        ),
        **rows,
    }


def _alex(lpips: LPIPS, x: Tensor) -> Tensor:
    return torch.cat([lpips.activations(p)[-1].mean((2, 3)) for p in x.split(100)])


def _fidelity(model: Flow, lpips: LPIPS | None) -> dict[str, Any]:
    """The collapsed operator against the loop, from the same noise."""
    rows: dict[str, Any] = {}
    double = copy.deepcopy(model).double()
    noise = model.noise(64, 7)
    for steps in (10, 100, 1000):
        once, many = model.collapse("rk4", steps)(noise), model.integrate(noise, "rk4", steps)
        row = {
            "mse_float32": float((once - many).square().mean()),
            "psnr": float(psnr(once, many).mean()),
        }
        if lpips is not None:
            row["lpips"] = float(lpips(once.clamp(0, 1), many.clamp(0, 1)).mean())
        exact = noise.double()
        gap = double.collapse("rk4", steps)(exact) - double.integrate(exact, "rk4", steps)
        rows[str(steps)] = {**row, "mse_float64": float(gap.square().mean())}
    return rows


def _inversion(f: Linearizer, x: Tensor, lpips: LPIPS | None) -> dict[str, Any]:
    """f(f†(x)) on all test images."""
    g = f.pinv()
    back = torch.cat([f(g(p)) for p in x.split(500)]).clamp(0, 1)
    each = psnr(back, x)
    row = {
        "rank": f.rank(),
        "images": len(x),
        "psnr_mean_over_images": float(each.mean()),
        "psnr_of_mean_error": float(-10 * (back - x).square().mean().log10()),
        "psnr_worst_image": float(each.min()),
    }
    if lpips is not None:
        parts = zip(back.split(100), x.split(100), strict=True)
        row["lpips_alex"] = float(torch.cat([lpips(a, b) for a, b in parts]).mean())
    return row


def _round_trip(model: Flow, x: Tensor) -> dict[str, float]:
    """Largest differences of g⁻¹(g(·)) and g(g⁻¹(·)), in float32."""
    g = model.target
    noise, z = model.noise(1000, 3), model.noise(1000, 4).flatten(1)
    return {
        "data": float((g.points(g.coordinates(x[:1000])) - x[:1000]).abs().max()),
        "noise_images": float((g.points(g.coordinates(noise)) - noise).abs().max()),
        "normal_coordinates": float((g.coordinates(g.points(z)) - z).abs().max()),
    }


def _moments(model: Flow, x: Tensor) -> dict[str, float]:
    z = _carried(model, x)
    return {
        "second_moment": float(z.square().mean()),
        "fourth_moment": float(z.pow(4).mean()),
        "largest_mean": float(z.mean(0).abs().max()),
        "largest_correlation": float(
            (torch.corrcoef(z.mT) - torch.eye(z.shape[1])).abs().max()
        ),
    }  # fmt: skip


def _carried(model: Flow, x: Tensor) -> Tensor:
    """The coordinates of images that carry the data, at most 256."""
    z = torch.cat([model.target.coordinates(p) for p in x[:5000].split(500)])
    return z[:, : model._kept() or 256]


def _times(model: Flow, f: Linearizer) -> dict[str, Any]:
    """Seconds for each image, measured in turn; medians."""
    rows: dict[str, Any] = {}
    for batch in (1, 64):
        noise = model.noise(batch, 0)
        ways: dict[str, Callable[[], Any]] = {
            "one_step": partial(f, noise),
            "100_steps_in_coordinates": partial(model.integrate, noise, "rk4", 100),
            "100_steps_through_data": partial(model.integrate, noise, "rk4", 100, True),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        f(noise)  # warms up
        for turn in range(3):
            for name, way in ways.items():
                if turn and name == "100_steps_through_data":
                    continue  # it takes long enough to be measured once
                many = 20 if name == "one_step" else 1
                begun = time.perf_counter()
                for _ in range(many):
                    way()
                taken[name].append((time.perf_counter() - begun) / many / batch)
        row = {f"{name}_seconds": statistics.median(t) for name, t in taken.items()}
        row["coordinates_over_one_step"] = (
            row["100_steps_in_coordinates_seconds"] / row["one_step_seconds"]
        )
        row["data_over_one_step"] = row["100_steps_through_data_seconds"] / row["one_step_seconds"]
        rows[f"batch {batch}"] = row
    for steps in (100, 1000):
        begun = time.perf_counter()
        B = model.collapse("rk4", steps).operator
        rows[f"collapse of {steps}"] = {
            "seconds": time.perf_counter() - begun,
            "operator_mib": sum(t.numel() * t.element_size() for t in B.buffers()) / 2**20,
        }
    return rows


def _picture(model: Flow, f: Linearizer, x: Tensor, result: Mapping[str, Any], path: Path) -> None:
    n = 12
    noise, some = model.noise(3 * n, 0), x[:n]
    codes = f.pinv()(some)
    ends = f.source.geodesic(codes[:1], codes[1:2], torch.linspace(0, 1, n)).flatten(0, 1)
    many = model.integrate(noise[:n], "rk4", 100)
    rows = [*f(noise).split(n), many, some, f(codes), f(ends)]
    labels = ["one step", "", "", "first row, 100 steps", "test images", "f(f†(x))", "between two"]
    image_grid(path, rows, labels, [], f"{result['run']}: rank {result['rank']}")
    _normality(_carried(model, x), path.with_name("coordinates.png"))


def _normality(z: Tensor, path: Path) -> None:
    """How Gaussian the coordinates are, which is how good samples can be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    values = z.flatten().double().sort().values
    keep = values[torch.linspace(0, len(values) - 1, 2000).long()]
    p = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    normal = 2**0.5 * torch.erfinv(2 * p - 1)
    left.plot(normal.numpy(), keep.numpy(), ".", markersize=2)
    left.plot([-3.5, 3.5], [-3.5, 3.5], color="0.6", linewidth=1)
    left.set(xlabel="quantiles of N(0, 1)", ylabel="quantiles of g(x)",
             title="All coordinates of test images")  # fmt: skip
    norms = z.norm(dim=1)
    right.hist(norms.numpy(), 60, density=True, alpha=0.7, label="g(x)")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(20_000, z.shape[1], generator=generator).norm(dim=1)
    right.hist(drawn.numpy(), 60, density=True,
               histtype="step", label="N(0, I)")  # fmt: skip
    right.set(xlabel="‖z‖", title="Distance from the origin")
    right.legend()
    figure.savefig(path)
