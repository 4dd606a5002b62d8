r"""How good a flow is: samples, one step against many, inversion, round trips and times."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.kinds import Data
from ...linearizer import Linearizer
from ...metrics.images import digit_features, frechet, psnr
from ...metrics.perceptual import LPIPS
from ...operators import LowRank
from ...runs.evaluate import lpips_or_why
from ...runs.export import export
from ...runs.pictures import image_grid, save_figure
from ...spaces import Space
from ..base import Run, Say
from ..images import (
    Map,
    measure_psnr,
    principal_axes,
    project_onto,
    stack_images,
    stack_test_images,
)
from .model import Flow, describe_flow

__all__ = ["evaluate", "evaluate_alone", "find_judge", "measure_inversion", "measure_times"]

#: Samples whose distribution is compared with that of the test images.
SAMPLES = 10_000
#: Steps of the loops whose samples are judged, and coordinates up to which moments are taken.
FULL_STEPS, LARGEST = (1, 2, 5, 10, 100), 4096


@torch.no_grad()
def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure a flow on at most n test images, with as many samples."""
    model: Flow = run.model
    x = stack_test_images(data, n)
    lpips, why = lpips_or_why(None)
    f = model.collapse("rk4", 1000)
    result: dict[str, Any] = {
        "shape": list(model.target.shape),
        "core": model.config.core,
        "kind": describe_flow(model.config),
        "rank": f.rank(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if lpips is None:
        result["lpips"] = why
    say("sample quality")
    judge = find_judge(data, x, n or SAMPLES, lpips)
    result["fid"] = _measure_quality(model, f, data, x, judge)
    say("one step against many")
    result["one_against_many"] = _compare_with_loop(model, lpips)
    if model.config.core != "gaussian" and model.target.dim <= LARGEST:
        say("the closed form")
        result["closed_form"] = _compare_with_closed_form(model, f, data, judge)
    say("inversion")
    result["inversion"] = measure_inversion(f, data, x, lpips)
    result["round_trip"] = _measure_round_trip(model, x[:1000])
    z = _leading_coordinates(model.target, model, x)
    result["coordinates"] = _measure_moments(z)
    noise = _leading_coordinates(model.source, model, model.noise(5000, 5))
    result["coordinates_of_noise"] = _measure_moments(noise)
    say("times")
    result["times"] = measure_times(model, f)
    pictures = [folder / "flow.png", folder / "coordinates.png"]
    _draw_samples(model, f, x, f"{run.folder.name}: rank {result['rank']}", pictures[0])
    _draw_coordinates(z, pictures[1])
    return {**result, "pictures": pictures}


@torch.no_grad()
def evaluate_alone(run: Run, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure what needs no images: one step against many, round trips of noise, and times."""
    model: Flow = run.model
    f = model.collapse("rk4", 1000)
    say("one step against many")
    result: dict[str, Any] = {
        "kind": describe_flow(model.config),
        "rank": f.rank(),
        "one_against_many": _compare_with_loop(model, lpips_or_why(None)[0], n or 64),
        "round_trip": _measure_round_trip(model, None),
    }
    say("times")
    result["times"] = measure_times(model, f)
    path = folder / "flow.png"
    title = f"{run.folder.name}: rank {result['rank']}"
    image_grid(path, list(f(model.noise(36, 0)).split(12)), ["one step", "", ""], [], title)
    return {**result, "pictures": [path]}


class Judge(NamedTuple):
    """A network whose features tell how far samples are from test images, as Fréchet distances."""

    name: str
    features: Map
    wanted: Tensor  #: features of the test images
    samples: int

    def judge(self, parts: Iterable[Tensor]) -> float:
        """Return the distance of images, which come part by part."""
        return frechet(torch.cat([self.features(p.clamp(0, 1)) for p in parts]), self.wanted)

    def judge_map(self, model: Flow, g: Map, temperature: float = 1.0) -> float:
        """Return the distance of what a map makes of noise, always of the same."""
        counts = [min(500, self.samples - done) for done in range(0, self.samples, 500)]
        return self.judge(
            g(temperature * model.noise(count, 1000 + i)) for i, count in enumerate(counts)
        )


def find_judge(data: Data, x: Tensor, samples: int, lpips: LPIPS | None) -> Judge | None:
    """Return our classifier's features for MNIST, AlexNet's where its weights are, else None."""
    if tuple(x.shape[1:]) == (1, 32, 32) and data.name == "mnist":
        features: Map = digit_features
        name = "64 features of our digit classifier"
    elif lpips is not None:
        features, name = partial(_average_alex, lpips), "AlexNet's last 256 channels, averaged"
    else:
        return None
    return Judge(name, features, torch.cat([features(p) for p in x.split(500)]), samples)


def _measure_quality(
    model: Flow, f: Linearizer, data: Data, x: Tensor, judge: Judge | None
) -> dict[str, Any]:
    """Return Fréchet distances of one-step and of many-step samples to the test images."""
    if judge is None:
        return {"features": None}
    measure = partial(judge.judge_map, model)
    return {
        "features": judge.name,
        "samples": judge.samples,
        "reference": f"{len(x)} test images",
        "real_training_images": judge.judge(stack_images(data.train, len(x)).split(500)),
        "reconstructed_test_images": judge.judge(f(f.pinv()(p)) for p in x.split(500)),
        "one step (1000 of rk4)": measure(f),
        "one step (10 of rk4)": measure(model.collapse("rk4", 10)),
        "one step (100 of rk4)": measure(model.collapse("rk4", 100)),
        "one step, temperature 0.9": measure(f, 0.9),
        "full steps": {
            solver: {
                str(n): measure(partial(model.integrate, solver=solver, steps=n))
                for n in FULL_STEPS
            }
            for solver in ("euler", "rk4")
        },
    }


def _average_alex(lpips: LPIPS, x: Tensor) -> Tensor:
    return torch.cat([lpips.activations(p)[-1].mean((2, 3)) for p in x.split(100)])


def _compare_with_loop(model: Flow, lpips: LPIPS | None, samples: int = 64) -> dict[str, Any]:
    """Compare the collapsed operator with the loop, from the same noise."""
    rows: dict[str, Any] = {}
    double = copy.deepcopy(model).double()
    noise = model.noise(min(samples, 64), 7)
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
    some, exact = noise[:16], noise[:16].double()
    once, many = model.collapse("rk4", 100)(some), model.integrate(some, "rk4", 100, True)
    gap = double.collapse("rk4", 100)(exact) - double.integrate(exact, "rk4", 100, True)
    rows["100 through data"] = {
        "mse_float32": float((once - many).square().mean()),
        "psnr": float(psnr(once, many).mean()),
        "mse_float64": float(gap.square().mean()),
        "samples": len(some),
    }
    return rows


def _compare_with_closed_form(
    model: Flow, f: Linearizer, data: Data, judge: Judge | None
) -> dict[str, float]:
    r"""Compare B with what flow matching would learn at best, given g.

    That is known from the second moments Σ₀ and Σ₁ of g(noise) and g(data): the flow of
    A_t = (tΣ₁ − (1−t)Σ₀)((1−t)²Σ₀ + t²Σ₁)⁻¹ is B* = Σ₀^½ (Σ₀^−½ Σ₁ Σ₀^−½)^½ Σ₀^−½.
    """
    r, dim = model.leading or model.target.dim, model.target.dim
    noise = model.noise(SAMPLES, 6)
    x = stack_images(data.train, SAMPLES).to(noise)
    moments = []
    for space, points in ((model.source, noise), (model.target, x)):
        z = torch.cat([space.coordinates(p)[:, :r] for p in points.split(500)]).double()
        moments.append(z.mT @ z / len(z))
    R = _root(moments[0])
    inside = torch.linalg.solve(R, torch.linalg.solve(R, moments[1]).mT)
    best = torch.linalg.solve(R, (R @ _root(inside)).mT).mT
    wide = F.pad(best, (0, 0, 0, dim - r)).to(x), torch.eye(dim, r, dtype=x.dtype)
    closed = Linearizer(model.source, LowRank(*wide), model.target)
    learned = f.operator(F.pad(R, (0, dim - r)).to(x)).double()[:, :r].mT  # B Σ₀^½
    some = noise[:64]
    row = {
        "relative_error": float((learned - best @ R).norm() / (best @ R).norm()),
        "mse_of_samples": float((closed(some) - f(some)).square().mean()),
    }
    if judge is not None:
        row["fid"] = judge.judge_map(model, closed)
    return row


def _root(S: Tensor) -> Tensor:
    """Return the symmetric square root, of at least 1e-6 of the largest everywhere."""
    values, Q = torch.linalg.eigh(S)
    return (Q * values.clamp_min(1e-12 * float(values[-1])).sqrt()) @ Q.mT


def measure_inversion(
    f: Linearizer, data: Data, x: Tensor, lpips: LPIPS | None = None
) -> dict[str, Any]:
    """Return how near f(f†(x)) is to test images, beside principal components of that rank."""
    back, rank = f.pinv(), f.rank()
    row: dict[str, Any] = {
        "rank": rank,
        "images": len(x),
        **measure_psnr(lambda part: f(back(part)), x),
    }
    if lpips is not None:
        parts = [lpips(f(back(part)).clamp(0, 1), part) for part in x.split(100)]
        row["lpips_alex"] = float(torch.cat(parts).mean())
    if rank < min(len(data.train), f.target.dim):
        mean, axes = principal_axes(data.train, rank)
        row["pca_of_same_rank"] = measure_psnr(lambda part: project_onto(part, mean, axes), x)
    return row


def _measure_round_trip(model: Flow, x: Tensor | None) -> dict[str, float]:
    """Return the largest differences of g⁻¹(g(·)) and g(g⁻¹(·)), in float32."""
    g = model.target
    noise, z = model.noise(1000, 3), model.noise(1000, 4).flatten(1)
    data = {} if x is None else {"data": float((g.points(g.coordinates(x)) - x).abs().max())}
    return {
        **data,
        "noise_images": float((g.points(g.coordinates(noise)) - noise).abs().max()),
        "normal_coordinates": float((g.coordinates(g.points(z)) - z).abs().max()),
    }


def _leading_coordinates(space: Space, model: Flow, x: Tensor) -> Tensor:
    """Return the coordinates of images that carry the data, at most 256."""
    z = torch.cat([space.coordinates(p) for p in x[:5000].split(500)])
    return z[:, : model.leading or 256]


def _measure_moments(z: Tensor) -> dict[str, float]:
    correlation = torch.corrcoef(z.mT) - torch.eye(z.shape[1])
    return {
        "second_moment": float(z.square().mean()),
        "fourth_moment": float(z.pow(4).mean()),
        "kurtosis": float(((z - z.mean(0)) / z.std(0)).pow(4).mean()),
        "largest_mean": float(z.mean(0).abs().max()),
        "largest_correlation": float(correlation.abs().max()),
    }


def measure_times(model: Flow, f: Linearizer) -> dict[str, Any]:
    """Return how long samples take, in one step and in loops, and a collapse."""
    return {**_time_sampling(model, f), **_time_collapse(model)}


def _time_sampling(model: Flow, f: Linearizer) -> dict[str, Any]:
    """Return seconds for each image, measured in turn; medians."""
    rows: dict[str, Any] = {}
    exported = _export(f, model.noise(8, 1))
    for batch in (1, 64):
        noise = model.noise(batch, 0)
        ways: dict[str, Callable[[], Tensor]] = {
            "one_step": partial(f, noise),
            "100_steps_in_coordinates": partial(model.integrate, noise, "rk4", 100),
            "100_steps_through_data": partial(model.integrate, noise, "rk4", 100, True),
        }
        if exported is not None:
            ways["one_step_exported"] = partial(exported, noise)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values() if batch == 1 else ():
            way()  # not timed: first calls are slower
        for turn in range(5):
            for name, way in ways.items():
                if turn and name == "100_steps_through_data":
                    continue  # it takes long enough to be measured once
                many = 20 if name.startswith("one_step") else 1
                begun = time.perf_counter()
                for _ in range(many):
                    way()
                seconds[name].append((time.perf_counter() - begun) / many / batch)
        once, inside, through, *file = (statistics.median(s) for s in seconds.values())
        rows[f"batch {batch}"] = {
            "one_step_seconds": once,
            "100_steps_in_coordinates_seconds": inside,
            "100_steps_through_data_seconds": through,
            "coordinates_over_one_step": inside / once,
            "data_over_one_step": through / once,
        }
        if file:
            rows[f"batch {batch}"] |= {
                "exported_seconds": file[0],
                "coordinates_over_exported": inside / file[0],
                "data_over_exported": through / file[0],
            }
    return rows


def _export(f: Linearizer, x: Tensor) -> Callable[[Tensor], Any] | None:
    """Return the one step as an ONNX file runs it, on as many threads, where that is installed."""
    if any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return None
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = export(f, Path(folder) / "f.onnx", "onnx", x).path
        session = onnxruntime.InferenceSession(str(path), options)
    name = session.get_inputs()[0].name
    return lambda noise: session.run(None, {name: noise.numpy()})


def _time_collapse(model: Flow) -> dict[str, Any]:
    rows = {}
    for steps in (100, 1000):
        begun = time.perf_counter()
        B = model.collapse("rk4", steps).operator
        seconds = time.perf_counter() - begun
        size = sum(t.numel() * t.element_size() for t in B.buffers()) / 2**20
        rows[f"collapse of {steps}"] = {"seconds": seconds, "operator_mib": size}
    return rows


def _draw_samples(model: Flow, f: Linearizer, x: Tensor, title: str, path: Path) -> None:
    n = 12
    noise, some = model.noise(3 * n, 0), x[:n]
    codes = f.pinv()(some)
    ends = f.source.geodesic(codes[:1], codes[1:2], torch.linspace(0, 1, n)).flatten(0, 1)
    many = model.integrate(noise[:n], "rk4", 100)
    rows = [*f(noise).split(n), many, some, f(codes), f(ends)]
    labels = ["one step", "", "", "first row, 100 steps", "test images", "f(f†(x))", "between two"]
    image_grid(path, rows, labels, [], title)


def _draw_coordinates(z: Tensor, path: Path) -> None:
    """Draw how Gaussian the coordinates are, which is how good samples can be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    values = z.flatten().double().sort().values
    shown = values[torch.linspace(0, len(values) - 1, 2000).long()]
    p = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    normal = 2**0.5 * torch.erfinv(2 * p - 1)
    left.plot(normal.numpy(), shown.numpy(), ".", markersize=2)
    left.plot([-3.5, 3.5], [-3.5, 3.5], color="0.6", linewidth=1)
    left.set(xlabel="quantiles of N(0, 1)", ylabel="quantiles of g(x)")
    left.set_title("All coordinates of test images")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(20_000, z.shape[1], generator=generator).norm(dim=1)
    right.hist(z.norm(dim=1).numpy(), 60, density=True, alpha=0.7, label="g(x)")
    right.hist(drawn.numpy(), 60, density=True, histtype="step", label="N(0, I)")
    right.set(xlabel="‖z‖", title="Distance from the origin")
    right.legend()
    save_figure(figure, path)
