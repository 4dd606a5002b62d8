r"""How good a forecaster is: errors on the test windows beside plain forecasts, and coverage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.files import shorten
from ...data.kinds import Data
from ...data.tables import Moment, Timed, Windows
from ...runs.pictures import save_figure, series_plot
from ..base import Run, Say, Yardstick
from .model import WINDOWS, Forecast, find_period
from .use import require_step

__all__ = ["evaluate", "fit_ridge", "measure_errors", "measure_intervals", "yardstick"]

#: How much the weights of the ridge regression are held to be 0: the best one is taken.
RIDGES = tuple(10.0**k for k in range(-6, 2))

#: A batch of windows ↦ the forecasts (n, horizon, channels)
Predict = Callable[[Moment], Tensor]


@torch.no_grad()
def yardstick(model: Forecast, data: Data) -> Yardstick:
    """Return the error of a ridge regression on differences from the last value, in validation."""
    weight, c = fit_ridge(data.train, data.val), model.config.clamp
    total = 0.0
    for batch in _batches(data.val, None):
        error = _apply_ridge(weight, batch.x) - batch.y.clamp(-c, c)
        total += float(error.square().mean((1, 2)).sum())
    return Yardstick("ridge on differences", {"clamped mse": total / len(data.val)})


@torch.no_grad()
def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure errors and coverage on scaled test windows, beside forecasts that need no training.

    These are the last value, the value of a period before where one is known, and a ridge
    regression of each channel in closed form.
    """
    model: Forecast = run.model
    parts: tuple[Timed, ...] = (data.train, data.val, data.test)
    train, val, test = (_fit_to(model, part, data.name) for part in parts)
    like = model.mean
    methods: dict[str, Predict] = {
        "ours": lambda batch: model.predict(batch.x.to(like), batch.t.to(like))
    }
    methods["last value"] = lambda batch: batch.x[:, -1:].expand_as(batch.y)
    if period := find_period(model.config):
        back = period - torch.arange(model.config.horizon) % period
        methods["a period before"] = lambda batch: batch.x[:, model.config.look_back - back]
    say("ridge regression")
    weight = fit_ridge(train, val)
    methods["ridge, per channel"] = lambda batch: _apply_ridge(weight, batch.x)
    say("errors and coverage")
    errors = {name: measure_errors(predict, test, n) for name, predict in methods.items()}
    by_step = {name: error.pop("mse_by_step") for name, error in errors.items()}
    pictures = [folder / "error-by-step.png", folder / "example.png"]
    _plot_errors(by_step, f"{data.name}: error by step", pictures[0])
    _plot_example(model, test, pictures[1])
    return {
        "look_back": model.config.look_back,
        "horizon": model.config.horizon,
        "test_windows": len(_choose(test, n)),
        "errors": errors,
        "intervals": measure_intervals(model, test, n=n),
        "mse_by_step": {name: values.tolist() for name, values in by_step.items()},
        "pictures": pictures,
    }


def _fit_to(model: Forecast, part: Timed, name: str) -> Timed:
    """Return the windows of a table as the model takes them, scaled by its own training rows."""
    windows, config = part.windows, model.config
    at = {column: i for i, column in enumerate(windows.columns)}
    if not set(config.columns) <= at.keys():
        raise ValueError(
            f"{name}: expected the columns {shorten(config.columns)}, as in training, got "
            f"{shorten(windows.columns)}. Bring a table with these columns."
        )
    require_step(name, part.step, config)
    if config.harmonics and part.day is None:
        raise ValueError(
            f"{name}: the model follows the time of day, but the table has no column of dates and "
            "times that can be read. Name it with --time."
        )
    mean, std = model.mean.float(), model.std.float()
    same = windows.columns == config.columns
    if same and torch.equal(windows.mean, mean) and torch.equal(windows.std, std):
        return part
    i = [at[column] for column in config.columns]
    rows = (windows.rows[:, i] * windows.std[i] + windows.mean[i] - mean) / std
    scaled = Windows(rows, windows.look_back, windows.horizon, mean, std, config.columns)
    return Timed(scaled, part.day, part.step, part.times)


def _choose(part: Timed, n: int | None) -> Tensor:
    """Return the numbers of n windows, spread evenly; of all where n is None."""
    count = min(len(part), n or len(part))
    return torch.linspace(0, len(part) - 1, count, dtype=torch.float64).long()


def _batches(part: Timed, n: int | None) -> Iterator[Moment]:
    for index in _choose(part, n).split(256):
        yield part.batch(index)


# -- what is measured ----------------------------------------------------------------------------


@torch.no_grad()
def measure_errors(predict: Predict, part: Timed, n: int | None = None) -> dict[str, Any]:
    """Return "mse" and "mae" over windows, steps and channels, and "mse_by_step" (horizon,)."""
    squares = torch.zeros(part.windows.horizon, dtype=torch.float64)
    sizes, count = torch.zeros_like(squares), len(_choose(part, n)) * part.shape[1]
    for batch in _batches(part, n):
        error = (predict(batch) - batch.y).double()
        squares += error.square().sum((0, 2))
        sizes += error.abs().sum((0, 2))
    return {
        "mse": float(squares.mean() / count),
        "mae": float(sizes.mean() / count),
        "mse_by_step": squares / count,
    }


@torch.no_grad()
def measure_intervals(
    model: Forecast, part: Timed, coverage: float = 0.9, n: int | None = None
) -> dict[str, Any]:
    """Return the share of true values inside the intervals and the mean width of these."""
    inside = torch.zeros(model.config.horizon, len(model.config.columns), dtype=torch.float64)
    width, count = torch.zeros_like(inside), len(_choose(part, n))
    for x, y, t in _batches(part, n):
        lower, _, upper = model.interval(x.to(model.mean), t.to(model.mean), coverage)
        inside += ((lower <= y) & (y <= upper)).double().sum(0)
        width += (upper - lower).double().sum(0)
    inside, width = inside / count, width / count
    by_channel = zip(model.config.columns, inside.mean(0).tolist(), strict=True)
    return {
        "nominal": coverage,
        "coverage": float(inside.mean()),
        "mean_width": float(width.mean()),
        "coverage_by_channel": dict(by_channel),
        "coverage_first_step": float(inside[0].mean()),
        "coverage_last_step": float(inside[-1].mean()),
    }


# -- the ridge regression ------------------------------------------------------------------------


def fit_ridge(train: Timed, val: Timed) -> Tensor:
    r"""Solve W = (E[aaᵀ] + λI)⁻¹ E[ayᵀ] for each channel, (channels, look_back + 1, horizon).

    a is (x, 1), x and y relative to the last value of x, and the weight of 1 is free. λ is the one
    with the least error on validation windows.
    """
    aa, ay, _ = _moments(train)
    free = torch.ones(aa.shape[-1], dtype=torch.float64)
    free[-1] = 0
    weights = torch.stack([torch.linalg.solve(aa + r * free.diag(), ay) for r in RIDGES])
    aa, ay, yy = _moments(val)
    errors = yy + (weights * (aa @ weights - 2 * ay)).sum((-2, -1))  # E‖y − Wᵀa‖²
    best = errors.argmin(0)
    return weights[best, torch.arange(len(best))]


def _relate(x: Tensor) -> Tensor:
    """Return (x, 1) relative to the last value of x, (channels, n, look_back + 1)."""
    last = x[:, -1:]
    return torch.cat([x - last, torch.ones_like(last)], 1).permute(2, 0, 1)


def _apply_ridge(weight: Tensor, x: Tensor) -> Tensor:
    return (_relate(x.double()) @ weight).permute(1, 2, 0) + x[:, -1:]


def _moments(part: Timed) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[aaᵀ], E[ayᵀ] and E‖y‖² of each channel, over at most WINDOWS windows."""
    sums: list[Any] = [0.0, 0.0, 0.0]
    for x, y, _ in _batches(part, WINDOWS):
        a = _relate(x.double())
        y = (y - x[:, -1:]).double().permute(2, 0, 1)
        for i, moment in enumerate((a.mT @ a, a.mT @ y, y.square().sum((1, 2)))):
            sums[i] = sums[i] + moment
    count = len(_choose(part, WINDOWS))
    return sums[0] / count, sums[1] / count, sums[2] / count


# -- pictures ------------------------------------------------------------------------------------


def _plot_example(model: Forecast, part: Timed, path: Path) -> None:
    x, y, t = (v.to(model.mean) for v in part.batch(torch.tensor([len(part) // 3])))
    lower, middle, upper = (model.unscale(v[0]) for v in model.interval(x, t))
    past, truth = model.unscale(x[0]), model.unscale(y[0])
    shown, title = range(min(5, len(model.config.columns))), "A test window and its 90% interval"
    names, first = model.config.columns, len(part) // 3
    times = part.times[first : first + len(past) + len(truth)]
    series_plot(path, past, middle, lower, upper, truth, names, shown, title, times)


def _plot_errors(curves: Mapping[str, Tensor], title: str, path: Path) -> None:
    """Plot the mean squared error along the horizon, a line for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, errors in curves.items():
        width, style = (2.0, "-") if name == "ours" else (1.0, "--")
        steps = range(1, len(errors) + 1)
        axes.plot(steps, errors, label=name, linewidth=width, linestyle=style)
    axes.set(xlabel="steps after the last row", ylabel="MSE, scaled data", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
