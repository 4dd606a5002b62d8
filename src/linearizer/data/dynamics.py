r"""Trajectories of known systems in float64, at even or uneven times, and pairs of their states.

Ordinary differential equations are solved by extrapolation to order 12, periodic partial ones in
Fourier space by exponential Runge–Kutta of order 4, all trajectories at once.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from ..training.settings import did_you_mean
from .images import check_index

__all__ = ["SYSTEMS", "Pair", "Pairs", "System", "Trajectories", "pairs", "simulate"]


# -- systems -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class System(abc.ABC):
    r"""ẋ = f(x), and where its trajectories start.

    Parameters are numbers of 0 or more; those that divide or set a scale must not be 0.
    """

    max_step: float = 0.1  #: longest step of the solver
    transient: float = 0.0  #: time that passes before t = 0

    #: of the numbers in a state, or of the fields in a frame
    names: ClassVar[tuple[str, ...]]
    may_be_zero: ClassVar[tuple[str, ...]] = ("transient",)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            whole = isinstance(field.default, int)
            kind = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            zero = field.name in self.may_be_zero
            if not kind or not 0 <= value < math.inf or (value == 0 and not zero):
                raise ValueError(
                    f"{type(self).__name__}: expected {field.name} to be a "
                    f"{'whole ' if whole else ''}number {'of 0 or more' if zero else 'above 0'}, "
                    f"got {value!r}."
                )

    @abc.abstractmethod
    def start(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw random first states (n, \\*shape), float64."""

    @abc.abstractmethod
    def advance(self, x: Tensor, time: Tensor, parts: int) -> Tensor:
        """Return the states after ``time`` (n,) or (1,), in so many equal steps."""

    def follow(self, x: Tensor, gaps: Tensor) -> Tensor:
        """Return x and the states after each gap of time (n or 1, m): (n, m + 1, \\*shape)."""
        states = [x]
        for gap in gaps.unbind(1):
            parts = math.ceil(float(gap.max()) / self.max_step)
            states.append(self.advance(states[-1], gap, parts))
        return torch.stack(states, 1)


@dataclass(frozen=True)
class _Ordinary(System):
    @abc.abstractmethod
    def rate(self, x: Tensor) -> Tensor:
        """ẋ of states (n, d)."""

    def advance(self, x: Tensor, time: Tensor, parts: int) -> Tensor:
        h = time[:, None] / parts
        for _ in range(parts):
            x = _extrapolate(self.rate, x, h)
        return x


@final
@dataclass(frozen=True)
class Pendulum(_Ordinary):
    r"""θ̇ = ω,  ω̇ = −ω₀² sin θ − γ ω.  Starts too low to turn over: |θ| ≤ 2, |ω| ≤ ω₀."""

    frequency: float = 1.0  #: ω₀ of small swings
    damping: float = 0.1  #: γ

    names: ClassVar[tuple[str, ...]] = ("θ", "ω")
    may_be_zero: ClassVar[tuple[str, ...]] = ("transient", "damping")

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        return _box(n, generator, (-2, 2), (-self.frequency, self.frequency))

    def rate(self, x: Tensor) -> Tensor:
        angle, speed = x.unbind(-1)
        return torch.stack(
            [speed, -(self.frequency**2) * angle.sin() - self.damping * speed], dim=-1
        )


@final
@dataclass(frozen=True)
class Duffing(_Ordinary):
    r"""ẋ = v,  v̇ = α x − β x³ − δ v.  Wells at x = ±√(α/β); starts in |x|, |v| ≤ 2."""

    linear: float = 1.0  #: α
    cubic: float = 1.0  #: β
    damping: float = 0.3  #: δ

    names: ClassVar[tuple[str, ...]] = ("x", "v")
    may_be_zero: ClassVar[tuple[str, ...]] = ("transient", "damping")

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        return _box(n, generator, (-2, 2), (-2, 2))

    def rate(self, x: Tensor) -> Tensor:
        place, speed = x.unbind(-1)
        force = (self.linear - self.cubic * place.square()) * place
        return torch.stack([speed, force - self.damping * speed], dim=-1)


@final
@dataclass(frozen=True)
class VanDerPol(_Ordinary):
    r"""ẋ = v,  v̇ = μ (1 − x²) v − x.  A limit cycle of amplitude ≈ 2; starts in |x|, |v| ≤ 3."""

    damping: float = 1.0  #: μ; above about 10 lower max_step

    names: ClassVar[tuple[str, ...]] = ("x", "v")
    may_be_zero: ClassVar[tuple[str, ...]] = ("transient", "damping")

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        return _box(n, generator, (-3, 3), (-3, 3))

    def rate(self, x: Tensor) -> Tensor:
        place, speed = x.unbind(-1)
        return torch.stack([speed, self.damping * (1 - place.square()) * speed - place], dim=-1)


@final
@dataclass(frozen=True)
class Lorenz(_Ordinary):
    r"""ẋ = σ (y − x),  ẏ = x (ρ − z) − y,  ż = x y − β z, on its attractor after the transient.

    Errors grow by e^0.9 in a unit of time, so no two solvers agree for much longer than 30.
    """

    max_step: float = 0.02
    transient: float = 10.0
    sigma: float = 10.0  #: σ
    rho: float = 28.0  #: ρ
    beta: float = 8 / 3  #: β

    names: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        return _box(n, generator, (-15, 15), (-15, 15), (10, 40))

    def rate(self, x: Tensor) -> Tensor:
        a, b, c = x.unbind(-1)
        return torch.stack(
            [self.sigma * (b - a), a * (self.rho - c) - b, a * b - self.beta * c], dim=-1
        )


@dataclass(frozen=True)
class _Periodic(System):
    r"""u_t = L u + N(u) on a periodic grid, L diagonal in Fourier space: û_t = l û + N̂(û)."""

    length: float = 1.0  #: of a side
    points: int = 32  #: on a side

    axes: ClassVar[tuple[int, ...]]  #: the last axes of a state, which are the sides

    @abc.abstractmethod
    def symbol(self) -> Tensor:
        """Return the real l of each wave."""

    @abc.abstractmethod
    def nonlinear(self, v: Tensor) -> Tensor:
        """Return N̂ of waves v (n, \\*waves)."""

    def advance(self, x: Tensor, time: Tensor, parts: int) -> Tensor:
        N, v = self.nonlinear, self.waves(x)
        h = time.view(-1, *[1] * (v.ndim - 1)) / parts
        z = h * self.symbol()
        whole, half = z.exp(), (z / 2).exp()
        one, two, three = _phi(z)
        inner = h / 2 * _phi(z / 2)[0]
        first, middle, last = one - 3 * two + 4 * three, 2 * two - 4 * three, 4 * three - two
        for _ in range(parts):  # Cox and Matthews' ETDRK4
            Nv = N(v)
            a = half * v + inner * Nv
            Na = N(a)
            Nb = N(half * v + inner * Na)
            Nc = N(half * a + inner * (2 * Nb - Nv))
            v = whole * v + h * (first * Nv + middle * (Na + Nb) + last * Nc)
        return self.values(v)

    def waves(self, x: Tensor) -> Tensor:
        return torch.fft.rfftn(x, dim=self.axes)

    def values(self, v: Tensor) -> Tensor:
        return torch.fft.irfftn(v, [self.points] * len(self.axes), dim=self.axes)

    @functools.cached_property
    def wave_numbers(self) -> Tensor:
        """|k| of each wave."""
        scale = 2 * math.pi / self.length * self.points
        squares = torch.fft.rfftfreq(self.points, dtype=torch.float64).mul(scale).square()
        for _ in self.axes[1:]:
            other = torch.fft.fftfreq(self.points, dtype=torch.float64).mul(scale).square()
            squares = other[:, None] + squares
        return squares.sqrt()

    def _smooth(self, noise: Tensor, shortest: float) -> Tensor:
        """Take the mean and waves shorter than this from noise (n, …); scale it to variance 1."""
        k = self.wave_numbers
        v = self.waves(noise) * torch.exp(-((k * shortest / (2 * math.pi)) ** 2))
        x = self.values(torch.where(k > 0, v, 0))
        return x / x.square().mean(self.axes, keepdim=True).sqrt()


@final
@dataclass(frozen=True)
class KuramotoSivashinsky(_Periodic):
    r"""u_t = −u u_x − u_xx − u_xxxx on a circle: chaotic fronts. The mean of u stays 0."""

    max_step: float = 0.01
    transient: float = 50.0
    length: float = 22.0
    points: int = 64

    names: ClassVar[tuple[str, ...]] = ("u",)
    axes: ClassVar[tuple[int, ...]] = (-1,)

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(n, self.points, dtype=torch.float64, generator=generator)
        return self._smooth(noise, shortest=8.0)

    def symbol(self) -> Tensor:
        k = self.wave_numbers
        return k**2 - k**4

    @functools.cached_property
    def slope(self) -> Tensor:
        """ik; the wave that only alternates has none on the grid."""
        k = self.wave_numbers
        return 1j * torch.where(k < math.pi * self.points / self.length, k, 0)

    def nonlinear(self, v: Tensor) -> Tensor:
        return -0.5 * self.slope * self.waves(self.values(v).square())


@final
@dataclass(frozen=True)
class LambdaOmega(_Periodic):
    r"""u_t = (1 − r²) u + β r² v + D ∇²u,  v_t = (1 − r²) v − β r² u + D ∇²v,  r² = u² + v².

    Frames (2, points, points) of waves on a torus, which turn around spirals from most starts.
    """

    max_step: float = 0.025
    transient: float = 20.0
    length: float = 20.0
    points: int = 32
    rotation: float = 1.0  #: β
    diffusion: float = 0.5  #: D

    names: ClassVar[tuple[str, ...]] = ("u", "v")
    axes: ClassVar[tuple[int, ...]] = (-2, -1)
    may_be_zero: ClassVar[tuple[str, ...]] = ("transient", "rotation")

    def start(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (n, 2, self.points, self.points)
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        x = self._smooth(noise, shortest=self.length / 2)
        return x / (1 + x.square().sum(1, keepdim=True)).sqrt()  # r < 1

    def symbol(self) -> Tensor:
        return 1 - self.diffusion * self.wave_numbers**2

    def nonlinear(self, v: Tensor) -> Tensor:
        x = self.values(v)
        turned = torch.stack([x[:, 1], -x[:, 0]], dim=1)
        return self.waves(x.square().sum(1, keepdim=True) * (self.rotation * turned - x))


SYSTEMS: dict[str, type[System]] = {
    "pendulum": Pendulum,
    "duffing": Duffing,
    "van-der-pol": VanDerPol,
    "lorenz": Lorenz,
    "kuramoto-sivashinsky": KuramotoSivashinsky,
    "lambda-omega": LambdaOmega,
}


def _box(n: int, generator: torch.Generator, *sides: tuple[float, float]) -> Tensor:
    """Draw points (n, d) evenly from a box."""
    low, high = torch.tensor(sides, dtype=torch.float64).unbind(1)
    u = torch.rand(n, len(sides), dtype=torch.float64, generator=generator)
    return low + (high - low) * u


# -- solvers -----------------------------------------------------------------------------------

_PARTS = (2, 4, 6, 8, 10, 12)
_WEIGHTS = [
    math.prod(n * n / (n * n - m * m) for m in _PARTS if m != n) for n in _PARTS
]  # the polynomial in (h/n)² through the results, at 0


def _extrapolate(rate: Callable[[Tensor], Tensor], x: Tensor, h: Tensor) -> Tensor:
    """Return x after h, to order 12: Gragg's midpoint rule in 2, 4, …, 12 parts, extrapolated."""
    first = rate(x)
    total = torch.zeros_like(x)
    for parts, weight in zip(_PARTS, _WEIGHTS, strict=True):
        small = h / parts
        before, now = x, x + small * first
        for _ in range(parts - 1):
            before, now = now, before + 2 * small * rate(now)
        total += weight * (now - x)
    return x + total


def _phi(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return φ₁, φ₂, φ₃, where φ₀ = eᶻ and φⱼ₊₁ = (φⱼ − 1/j!)/z; near 0 by their series."""
    near = z.abs() < 1
    small, large = torch.where(near, z, 0), torch.where(near, 1, z)
    one = torch.expm1(large) / large
    two = (one - 1) / large
    three = (two - 0.5) / large
    found = []
    for j, value in enumerate((one, two, three), 1):
        series = torch.zeros_like(z)
        for i in reversed(range(18)):
            series = series * small + 1 / math.factorial(i + j)
        found.append(torch.where(near, series, value))
    return found[0], found[1], found[2]


# -- trajectories ------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Trajectories:
    r"""States x (n, steps, \*shape) at times t (n, steps), both float64; t rises in every row."""

    t: Tensor
    x: Tensor
    dt: float  #: the time step, or its mean where steps are uneven
    names: tuple[str, ...]  #: of the numbers in a state, or of the fields in a frame
    parameters: System | None = None  #: what made them
    unit: str = ""  #: of time, where it is known
    notes: tuple[str, ...] = ()  #: what was done to them

    def __post_init__(self) -> None:
        for name, value in (("t", self.t), ("x", self.x)):
            if value.dtype != torch.float64:
                raise ValueError(f"Trajectories: expected float64 {name}, got {value.dtype}.")
        if self.t.ndim != 2 or self.x.ndim < 3 or self.x.shape[:2] != self.t.shape:
            raise ValueError(
                "Trajectories: expected t (n, steps) and x (n, steps, *shape), got "
                f"{tuple(self.t.shape)} and {tuple(self.x.shape)}."
            )
        falls = (self.t.diff(dim=1) <= 0).any(1)
        if falls.any():
            raise ValueError(
                "Trajectories: expected times that rise, but those of trajectory "
                f"{int(falls.int().argmax())} do not. Sort them and drop doubles."
            )

    def __len__(self) -> int:
        return len(self.t)


def simulate(
    name: str,
    trajectories: int,
    steps: int,
    dt: float,
    seed: int,
    irregular: bool = False,
    **parameters: float,
) -> Trajectories:
    r"""Simulate trajectories of a system from random starts; the same seed gives the same ones.

    Arguments:
        name: One of ``SYSTEMS``.
        trajectories, steps: How many, and how many states of each; t starts at 0.
        dt: Time from a state to the next.
        irregular: Draw each of these times from [0.1, 1.9]·dt, other ones for each trajectory.
        parameters: Of the system, see its class; ``max_step`` bounds the steps of the solver.

    Example:
        >>> swings = simulate("pendulum", 5, steps=100, dt=0.1, seed=0, damping=0.0)
        >>> angle, speed = swings.x.unbind(-1)
        >>> energy = speed**2 / 2 - angle.cos()
        >>> torch.allclose(energy, energy[:, :1], atol=1e-8)
        True
    """
    system = system_of(name, parameters)
    for what, count, least in (("trajectories", trajectories, 1), ("steps", steps, 2)):
        if count < least:
            raise ValueError(f"simulate: expected {least} or more {what}, got {count}.")
    if not 0 < dt < math.inf:
        raise ValueError(f"simulate: expected dt above 0, got {dt}.")
    generator = torch.Generator().manual_seed(seed)
    x = system.start(trajectories, generator)
    if irregular:
        u = torch.rand(trajectories, steps - 1, dtype=torch.float64, generator=generator)
        gaps = dt * (0.1 + 1.8 * u)
        t = torch.cat([torch.zeros(trajectories, 1, dtype=torch.float64), gaps.cumsum(1)], 1)
    else:
        gaps = torch.full((1, steps - 1), dt, dtype=torch.float64)
        t = (dt * torch.arange(steps, dtype=torch.float64)).repeat(trajectories, 1)
    if system.transient:
        x = system.follow(x, torch.tensor([[system.transient]], dtype=torch.float64))[:, -1]
    x = system.follow(x, gaps)
    if not x.isfinite().all():
        raise ValueError(
            f"simulate: trajectories of {name} became infinite. Lower max_step (now "
            f"{system.max_step:g}) or look at the parameters: {system}."
        )
    return Trajectories(t, x, dt, system.names, system)


def system_of(name: str, parameters: Mapping[str, float]) -> System:
    """Return the system of that name with these parameters."""
    if name not in SYSTEMS:
        raise ValueError(f"simulate: there is no system {name!r}. {did_you_mean(name, SYSTEMS)}")
    kind = SYSTEMS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(
                f"simulate: {name} has no parameter {parameter!r}. {did_you_mean(parameter, known)}"
            )
    return kind(**parameters)


# -- pairs -------------------------------------------------------------------------------------


class Pair(NamedTuple):
    r"""States and what they become."""

    x: Tensor  #: (n, *shape) float32, at t
    dt: Tensor  #: (n,) float32, Δt > 0
    y: Tensor  #: (n, *shape) float32, at t + Δt


@final
class Pairs:
    r"""(x(t), Δt, x(t + Δt)): all pairs of states of one trajectory, up to ``max_lag`` rows apart.

    Row i is always the same pair; ``fit`` shuffles them.

    Example:
        >>> data = Pairs(simulate("duffing", 3, steps=10, dt=0.5, seed=0), max_lag=2)
        >>> len(data), data.batch(torch.tensor([0, 9])).dt.tolist()
        (51, [0.5, 1.0])
    """

    def __init__(self, trajectories: Trajectories, max_lag: int = 1) -> None:
        steps = trajectories.t.shape[1]
        if not 1 <= max_lag < steps:
            raise ValueError(
                f"Pairs: expected max_lag from 1 to {steps - 1} for {steps} states in a "
                f"trajectory, got {max_lag}."
            )
        self.trajectories = trajectories
        self.max_lag = max_lag
        lags = range(1, max_lag + 1)
        self._first = torch.cat([torch.arange(steps - lag) for lag in lags])
        self._last = torch.cat([torch.arange(lag, steps) for lag in lags])

    def __len__(self) -> int:
        return len(self.trajectories) * len(self._first)

    def __repr__(self) -> str:
        return f"Pairs({len(self):,} of {self.shape} from {len(self.trajectories)} trajectories)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one state."""
        return tuple(self.trajectories.x.shape[2:])

    def batch(self, index: Tensor) -> Pair:
        """Return the pairs of the rows ``index`` (n,) int64."""
        check_index(index, len(self), "Pairs.batch")
        t, x = self.trajectories.t, self.trajectories.x
        which, pair = index // len(self._first), index % len(self._first)
        first, last = self._first[pair], self._last[pair]
        dt = t[which, last] - t[which, first]
        return Pair(x[which, first].float(), dt.float(), x[which, last].float())


def pairs(trajectories: Trajectories, max_lag: int = 1) -> tuple[Pairs, Pairs, Pairs]:
    r"""Split into train, val and test pairs: the first 70%, next 10% and last 20% of the rows."""
    n = len(trajectories)
    train, test = int(0.7 * n), int(0.2 * n)
    if not test:
        raise ValueError(f"pairs: expected 5 or more trajectories to split 70/10/20, got {n}.")
    bounds = ((0, train), (train, n - test), (n - test, n))
    first, second, third = (
        Pairs(
            dataclasses.replace(trajectories, t=trajectories.t[a:b], x=trajectories.x[a:b]), max_lag
        )
        for a, b in bounds
    )
    return first, second, third
