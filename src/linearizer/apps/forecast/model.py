r"""Forecasts: f(x) = g_y⁻¹(A g_x(x)), from look_back rows of a table to the horizon rows after.

A is block diagonal, one rectangular block for each channel. It starts as the ridge regression
between the coordinates, in closed form, and is then trained with g_x and g_y. With ``harmonics`` it
is a family A_t that follows the time of day; without, one fixed matrix.

Paper: appendix E (further experiments), weather forecasting.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ...bijections import AdditiveCoupling, Bijection, Chain, Flatten, LevelAndWaves, Monotone, Swap
from ...data.kinds import Data
from ...data.tables import Moment, Timed
from ...families import Periodic
from ...linearizer import Linearizer
from ...nets import MLP
from ...operators import BlockDiagonal
from ...runs.pictures import series_plot
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings
from .ridge import Moments, average, choose, fit_core, pick, wanders

__all__ = ["Config", "Forecast", "Interval", "find_period", "finish", "loss", "measure", "start"]

#: Training windows are cut into so many parts of time; each of the last four is foretold from all
#: parts before it.
PARTS, FOLDS = 8, 4
#: Windows that closed forms see at most: neighbours differ by one row.
WINDOWS = 10_000
#: Numbers of the shape of errors: quantiles at 0%, 0.5%, … 100%.
LEVELS = 201


class Config(Settings):
    """Settings of the model."""

    columns: tuple[str, ...] = Field(("0",), min_length=1, description="names of the channels")
    look_back: int = Field(96, ge=2, description="rows of the past")
    horizon: int = Field(96, ge=1, description="rows of the future")
    step: float | None = Field(None, description="usual time between two rows, if it is known")
    step_unit: str = Field("", description="unit of step: s, months, or none for plain numbers")
    harmonics: int = Field(
        0, ge=0, le=24, description="waves of the day that the core follows; 0 for one fixed core"
    )
    width: int = Field(6, ge=1, description="coordinates of a channel that these waves act on")
    seen: int = Field(5, ge=0, description="coordinates of every channel that g_x conditions on")
    changed: int = Field(16, ge=1, description="coordinates of every channel that g_x then shifts")
    hidden: int = Field(64, ge=1, description="width of the conditioner")
    depth: int = Field(2, ge=1, description="hidden layers of the conditioner")
    knots: int = Field(17, ge=0, description="of the rising map of each channel in g_y; 0 for none")
    core_rate: float = Field(
        0.1, gt=0, description="learning rate of the core, as a share of that of g"
    )
    clamp: float = Field(
        8.0, gt=0, description="training windows are cut at this many standard deviations"
    )


class Interval(NamedTuple):
    """A forecast and the bounds that the truth is within, with a stated probability."""

    lower: Tensor  #: (n, horizon, channels)
    middle: Tensor  #: f(x)
    upper: Tensor


class Forecast(nn.Module):
    r"""``model()`` is the Linearizer from pasts to futures, both scaled.

    With ``harmonics`` there is one for each time of day: ``model(0.5)`` is that of pasts which end
    at noon, and ``model()`` the one of the mean core over the day.
    """

    mean: Tensor
    std: Tensor
    spread: Tensor
    shape_of_errors: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        L, H, C = config.look_back, config.horizon, len(config.columns)
        self.source = Space(_on_pasts(config))
        self.target = Space(_on_futures(config))
        # The core is core_rate · raw, so that Adam moves it more slowly than g.
        self.raw = nn.Parameter(torch.zeros(C, H, L))
        if config.harmonics:
            width = min(config.width, L)
            self.raw_waves = nn.Parameter(torch.zeros(2 * config.harmonics, C, H, width))
        self.register_buffer("mean", torch.zeros(C))
        self.register_buffer("std", torch.ones(C))
        # Of the errors in coordinates: size at each step, and quantiles of what is left.
        self.register_buffer("spread", torch.ones(H, C))
        levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64).clamp(1e-4, 1 - 1e-4)
        normal = (2**0.5 * torch.erfinv(2 * levels - 1)).to(torch.get_default_dtype())
        self.register_buffer("shape_of_errors", normal.expand(C, LEVELS).clone())

    # -- the map -------------------------------------------------------------------------------

    @property
    def family(self) -> Periodic:
        """The family t ↦ A_t; only with ``harmonics``."""
        rate = self.config.core_rate
        return Periodic(rate * self.raw, rate * self.raw_waves)

    def operator(self, t: float | Tensor | None = None) -> BlockDiagonal:
        """Return A, or A_t at a time of day (0 is midnight, 0.5 noon), or at each of (batch,)."""
        if t is None or not self.config.harmonics:
            return BlockDiagonal(self.config.core_rate * self.raw)
        return self.family(t)

    def forward(self, t: float | Tensor | None = None) -> Linearizer:
        return Linearizer(self.source, self.operator(t), self.target)

    def coordinates(self, x: Tensor, t: Tensor) -> Tensor:
        """Return A_t g_x(x) for each past and its own time of day, (n, channels·horizon)."""
        z = self.source.coordinates(x)
        return self.family.carry(z, t) if self.config.harmonics else self.operator()(z)

    def predict(self, x: Tensor, t: Tensor) -> Tensor:
        """Return f_t(x) for each past and its own time of day, (n, horizon, channels)."""
        return self.target.points(self.coordinates(x, t))

    def scale(self, rows: Tensor) -> Tensor:
        """Scale rows (…, channels) by the mean and deviation of the training rows."""
        return (rows - self.mean) / self.std

    def unscale(self, rows: Tensor) -> Tensor:
        """Scale rows (…, channels) back to the user's units."""
        return rows * self.std + self.mean

    # -- uncertainty ---------------------------------------------------------------------------

    @torch.no_grad()
    def interval(self, x: Tensor, t: Tensor, coverage: float = 0.9) -> Interval:
        r"""Return bounds that hold the truth with this probability, at each step and channel alone.

        In coordinates the bounds are w + σ q: w = A_t g_x(x), σ the size of the errors of
        validation windows at that step, q a quantile of all errors of the channel in units of σ.
        g_y⁻¹ is rising in each number alone, so it carries quantiles to quantiles exactly.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"forecast: expected a coverage between 0 and 1, got {coverage}.")
        w = self.coordinates(x, t)
        C, H = len(self.config.columns), self.config.horizon
        bounds = []
        for level in ((1 - coverage) / 2, (1 + coverage) / 2):
            place = level * (LEVELS - 1)
            low = min(int(place), LEVELS - 2)
            pair = self.shape_of_errors[:, low : low + 2]
            q = torch.lerp(pair[:, 0], pair[:, 1], place - low)
            shifted = w.unflatten(1, (C, H)) + self.spread.mT * q[:, None]
            bounds.append(self.target.points(shifted.flatten(1)))
        return Interval(bounds[0], self.target.points(w), bounds[1])

    def carry(
        self, mean: Tensor, covariance: Tensor, t: float | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""Carry a Gaussian in coordinates of the past to those of the future: N(Am, ASAᵀ).

        Arguments:
            mean: m, (n, channels·look_back).
            covariance: S of each channel, (channels, look_back, look_back).

        Returns:
            Am (n, channels·horizon), and ASAᵀ of each channel, (channels, horizon, horizon).
        """
        A = self.operator(t)
        return A(mean), A.blocks @ covariance @ A.blocks.mT


def _on_pasts(config: Config) -> Bijection:
    shape = (config.look_back, len(config.columns))
    layers: list[Bijection] = [LevelAndWaves(shape, constant=True)]
    seen = min(config.seen, config.look_back - 1)
    if seen:
        net = Across(shape, seen, config.changed, config.hidden, config.depth)
        layers.append(AdditiveCoupling(shape, net, "second", cut=seen))
    return Chain(*layers, Swap(shape), Flatten((shape[1], shape[0])))


def _on_futures(config: Config) -> Bijection:
    shape = (config.horizon, len(config.columns))
    layers: list[Bijection] = [Monotone(shape, config.knots)] if config.knots else []
    return Chain(*layers, Swap(shape), Flatten((shape[1], shape[0])))


class Across(nn.Module):
    r"""A conditioner that sees all channels: (n, seen, C) → (n, rows − seen, C).

    An MLP of all that is seen gives the first ``changed`` rows, in all channels; the others are 0.

    Arguments:
        shape: (rows, C) of a whole window.
    """

    def __init__(
        self, shape: tuple[int, int], seen: int, changed: int, hidden: int, depth: int
    ) -> None:
        super().__init__()
        rows, C = shape
        self.rows, self.channels = rows - seen, C
        self.changed = min(changed, self.rows)
        self.net = MLP(seen * C, self.changed * C, hidden, depth)

    def forward(self, z: Tensor) -> Tensor:
        made = self.net(z.flatten(1)).unflatten(1, (self.changed, self.channels))
        return F.pad(made, (0, 0, 0, self.rows - self.changed))


# -- training -----------------------------------------------------------------------------------


def loss(model: Forecast, batch: Moment, draw: Draw) -> dict[str, Tensor]:
    """Return the mean of (f_t(x) − y)² over windows, steps and channels, cut at ±clamp."""
    c = model.config.clamp
    error = model.predict(batch.x.clamp(-c, c), batch.t) - batch.y.clamp(-c, c)
    return {"mse": error.square().mean()}


def measure(model: Forecast, batch: Moment, draw: Draw) -> dict[str, Tensor]:
    """Return for each window the squared and absolute error, and the former with y cut."""
    forecast = model.predict(batch.x, batch.t)
    c = model.config.clamp
    error = (forecast - batch.y).flatten(1)
    return {
        "mse": error.square().mean(1),
        "mae": error.abs().mean(1),
        "clamped mse": (forecast - batch.y.clamp(-c, c)).flatten(1).square().mean(1),
    }


def facts(data: Data) -> dict[str, Any]:
    """Return channels, look-back and horizon, which the data decide."""
    windows = getattr(data.train, "windows", None)
    if windows is None:
        raise ValueError(f"forecast: {data.name} holds no table of numbers over time.")
    look_back, _ = windows.shape
    step, unit = data.train.step or (None, "")
    return {
        "columns": windows.columns,
        "look_back": look_back,
        "horizon": windows.horizon,
        "step": step,
        "step_unit": unit,
    }


@torch.no_grad()
def start(model: Forecast, data: Data) -> None:
    r"""Set the scales of the coordinates, and the core in closed form.

    It is a ridge regression of each channel, of all together, or of each channel drawn to that of
    all, and this drawn to the last value or to the value of a period before. Which, and how much,
    is decided by folds that go forward in time: later parts of the training windows foretold from
    earlier ones, and validation from all. Channels that wander, with no mean that they come back
    to, go by themselves and keep their level: over few folds it would seem to come back. Windows
    are cut at ±clamp.
    """
    c, train = model.config, data.train
    if c.harmonics and train.day is None:
        raise ValueError(
            f"forecast: harmonics={c.harmonics} needs the time of day, but {data.name} has no "
            "column of dates and times that can be read. Name one with time, or set harmonics=0."
        )
    if not bool(train.windows.rows[: len(train) + c.look_back].any()):
        raise ValueError(
            f"forecast: every column of {data.name} stays as it is over the training rows, so "
            "there is nothing to learn. Bring more rows."
        )
    model.mean.copy_(train.windows.mean)
    model.std.copy_(train.windows.std)
    layer = cast(LevelAndWaves, next(iter(cast(Chain, model.source.g))))
    raw = [layer.raw(x).double() for x, _, _ in _batches(model, train)]
    std, mean = torch.std_mean(torch.cat(raw), 0, correction=0)
    layer.adopt(mean.to(layer.mean), std.to(layer.scale))
    del raw
    whole = _moments(model, train)
    folds = [*_forward(model, train), (whole, _moments(model, data.val))]
    units = layer.scale.double().mT.clone()  # of each coordinate, (C, L)
    units[:, 1] = 1.0  # the one that is almost constant
    if c.harmonics:
        units = torch.cat([units, units[:, : c.width].repeat(1, 2 * c.harmonics)], 1)
    W = torch.zeros_like(whole.pw)
    still = wanders(train.windows.rows[: len(train) + c.look_back], c.look_back // 2)
    for hold, channels in ((True, still), (False, ~still)):
        if channels.any():
            some = [(pick(known, channels), pick(later, channels)) for known, later in folds]
            choice = choose(some, units[channels], c.look_back, hold)
            W[channels] = fit_core(pick(whole, channels), choice, units[channels], c.look_back)
    L, rate = c.look_back, c.core_rate
    model.raw.copy_(W[:, :L].mT / rate)
    if c.harmonics:
        waves = W[:, L:].unflatten(1, (2 * c.harmonics, -1))  # (C, waves, width, H)
        model.raw_waves.copy_(waves.permute(1, 0, 3, 2) / rate)


def _forward(model: Forecast, train: Timed) -> list[tuple[Moments, Moments]]:
    """Pair each of the last parts of the training time with all that ends before it."""
    gap, n = model.config.look_back + model.config.horizon, len(train)
    ends = [n * k // PARTS for k in range(PARTS - FOLDS, PARTS + 1)]
    if ends[0] - gap < n // PARTS:  # too little to cut
        return []
    marks = sorted({0, *ends, *(end - gap for end in ends)})
    found = {}
    for first, last in pairwise(marks):
        found[first] = _moments(model, train, first, last), last - first

    def between(first: int, last: int) -> Moments:
        return average([part for at, part in found.items() if first <= at < last])

    return [(between(0, a - gap), between(a, b)) for a, b in pairwise(ends)]


def _batches(
    model: Forecast, part: Timed, first: int = 0, last: int | None = None, size: int = 512
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give windows first … last − 1, cut at ±clamp; of a part with over WINDOWS every k-th."""
    clamp, every = model.config.clamp, -(-len(part) // WINDOWS)
    for index in torch.arange(first, len(part) if last is None else last, every).split(size):
        x, y, t = (v.to(model.raw) for v in part.batch(index))
        yield x.clamp(-clamp, clamp), y.clamp(-clamp, clamp), t


def _moments(model: Forecast, part: Timed, first: int = 0, last: int | None = None) -> Moments:
    """Return the moments of windows, with the last value and that of a period before as plain."""
    c = model.config
    C, total = len(c.columns), 0
    sums: list[Any] = [0.0] * 4
    period = find_period(c)
    back = None if period is None else period - torch.arange(c.horizon) % period
    for x, y, t in _batches(model, part, first, last):
        # In float64 before the products: those of smooth tables would be indefinite by rounding.
        z = model.source.coordinates(x).unflatten(1, (C, -1)).movedim(1, 0).double()
        if c.harmonics:
            low = z[..., : model.raw_waves.shape[-1]]
            rhythm = model.family.rhythm(t)[:, :, None].double()
            z = torch.cat([z, (rhythm * low[:, :, None]).flatten(2)], 2)
        plain = [x[:, -1:].expand_as(y)] + ([] if back is None else [x[:, c.look_back - back]])
        w, *s = (
            model.target.coordinates(v).unflatten(1, (C, -1)).movedim(1, 0).double()
            for v in (y, *plain)
        )
        found = (z.mT @ z, z.mT @ w, w.square().sum((1, 2)), torch.stack([z.mT @ v for v in s]))
        for i, moment in enumerate(found):
            sums[i] = sums[i] + moment
        total += len(x)
    return Moments(*(value / total for value in sums))


def find_period(config: Config) -> int | None:
    """Return the rows of a day, or of a year where rows are months, if the look-back holds them."""
    whole = {"s": 86400.0, "months": 12.0}.get(config.step_unit)
    if whole is None or not config.step:
        return None
    rows = round(whole / config.step)
    fits = 2 <= rows <= config.look_back and abs(rows * config.step - whole) < 0.01 * whole
    return rows if fits else None


@torch.no_grad()
def finish(model: Forecast, data: Data) -> None:
    r"""Set size and shape of the errors g_y(y) − A_t g_x(x) from validation windows."""
    C, H = len(model.config.columns), model.config.horizon
    every = -(-len(data.val) // 2000)
    errors = []
    for index in torch.arange(0, len(data.val), every).split(256):
        x, y, t = (v.to(model.raw) for v in data.val.batch(index))
        error = model.target.coordinates(y) - model.coordinates(x, t)
        errors.append(error.unflatten(1, (C, H)))
    r = torch.cat(errors)  # (windows, C, H)
    spread = r.double().square().mean(0).sqrt().clamp_min(1e-6).to(r)
    model.spread.copy_(spread.mT)
    levels = torch.linspace(0, 1, LEVELS, dtype=torch.float64)
    for channel in range(C):
        ratio = (r[:, channel] / spread[channel]).flatten().double()
        place = (levels * (len(ratio) - 1)).round().long()
        model.shape_of_errors[channel] = ratio.sort().values[place].to(r)


@torch.no_grad()
def preview(model: Forecast, data: Data, path: Path) -> None:
    """Draw past, truth and forecast with its interval, of four channels of a validation window."""
    first = len(data.val) // 2
    x, y, t = (v.to(model.raw) for v in data.val.batch(torch.tensor([first])))
    lower, middle, upper = (v[0] for v in model.interval(x, t))
    names, title = model.config.columns, "One validation window, scaled"
    shown = range(min(4, len(names)))
    times = data.val.times[first : first + len(x[0]) + len(y[0])]
    series_plot(path, x[0], middle, lower, upper, y[0], names, shown, title, times)
