r"""Continuous time by one generator: x(t) = g⁻¹(e^{tK} g(x(0))), at any real t.

The group law f(s + t) = f(s) f(t) holds by architecture, f(−t) is the inverse, and the spectrum of
K is that of the motion: frequencies, decay rates, modes and Koopman eigenfunctions.

Paper: future work of section 5 (continuous-time evolution by matrix exponentials).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ...bijections import (
    ActNorm,
    AdditiveCoupling,
    Bijection,
    Chain,
    InvertibleLinear,
    OnPart,
    Twist,
    mlp,
    subspace,
)
from ...data.dynamics import Pair
from ...data.kinds import Data
from ...linearizer import Linearizer
from ...nets import MLP
from ...operators import Spirals
from ...runs.pictures import save_figure
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings

__all__ = ["Config", "Dynamics", "Mode", "loss", "measure"]


#: Rates of turning below this are none, as a share of the fastest rate.
STILL = 1e-9
#: Steps of K for one of g: a slow K leaves g to bend for what is a frequency.
FAST = 10.0


class Config(Settings):
    """Settings of the model."""

    shape: tuple[int, ...] = Field((2,), description="of a state; frames are (C, H, W)")
    names: tuple[str, ...] = Field(("0", "1"), description="of the numbers in a state")
    horizon: float = Field(1.0, gt=0, description="longest time that is trained on")
    unit: str = Field("", description="of time, where it has a name")
    spirals: int | None = Field(
        None, ge=0, description="modes with a frequency and a decay; enough for the state if none"
    )
    cycles: int = Field(0, ge=0, description="modes with a frequency that never decay")
    decays: int = Field(0, ge=0, description="modes with a decay and no frequency")
    constants: int = Field(0, ge=0, description="modes that stay as they are")
    stable: bool = Field(True, description="no mode grows: Re λ ≤ 0 by parametrization")
    g: Literal["auto", "lift", "subspace"] = Field(
        "auto", description="auto is lift for up to 32 numbers in a state, else subspace"
    )
    blocks: int = Field(4, ge=1, description="blocks of the stack on the coordinates")
    hidden: int = Field(48, ge=1, description="width of the conditioners")
    max_log_scale: float = Field(2.0, gt=0, description="bound of the couplings' log-scales")
    near: float | None = Field(
        0.3,
        gt=0,
        description="moves shorter than this, in standard deviations, count as this long: errors "
        "are relative to the way that a state goes; none for plain errors",
    )
    coordinates: float = Field(0.1, ge=0, description="weight of the error in coordinates")
    padding: float = Field(0.1, ge=0, description="weight of what is left of 0 in the padding")
    backward: float = Field(0.0, ge=0, description="weight of the error backwards in time")

    @property
    def size(self) -> int:
        """How many numbers a state has."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The kind of g."""
        if self.g != "auto":
            return self.g
        return "lift" if self.size <= 32 and len(self.shape) == 1 else "subspace"

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The numbers of spirals, cycles, decays and constants."""
        others = 2 * self.cycles + self.decays + self.constants
        spirals = self.spirals
        if spirals is None:
            wanted = self.size + 1 if self.kind == "lift" else min(16, self.size)
            spirals = max(0, math.ceil((wanted - others) / 2))
        return spirals, self.cycles, self.decays, self.constants

    @property
    def rank(self) -> int:
        """The number of coordinates of all modes."""
        spirals, cycles, decays, constants = self.counts
        return 2 * (spirals + cycles) + decays + constants


class Mode(NamedTuple):
    r"""One eigenvalue λ of the generator, or a pair λ, λ̄, in the time unit of the data."""

    number: int  #: from 0
    rate: float  #: Re λ: the amplitude goes as e^(rate·t)
    frequency: float  #: |Im λ|/2π, cycles in a unit of time
    half_life: float | None  #: time after which half is left; negative where it grows
    period: float | None
    share: float  #: of the coordinates' mean square in the data


class Dynamics(nn.Module):
    r"""``model(t)`` is the Linearizer f_t = g⁻¹ e^{tK} g from the Space to itself, at any real t.

    K is block diagonal: each mode is a plane with a decay and a frequency, or a single coordinate
    with a decay. Nothing is lost by that where K can be diagonalised, since g ends in a learned
    matrix.

    An invertible g keeps the dimension. For more modes than a state has numbers the state is
    padded with zeros, and the Space is that of padded states: ``pad(x)`` makes one, ``state``
    reads the state off again. Frames and long states are not padded: modes live in the leading
    coordinates of a :func:`bijections.subspace`, and what is left over decays at one learned rate.
    """

    spread: Tensor
    centre: Tensor
    scale: Tensor
    factors: Tensor
    extra: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        spirals, cycles, decays, constants = config.counts
        rank, size = config.rank, config.size
        if rank < 2:
            raise ValueError(
                f"dynamics: expected modes of two coordinates or more, got {rank}. Ask for more "
                "spirals, cycles, decays or constants."
            )
        lifted = config.kind == "lift"
        if lifted and len(config.shape) > 1:
            raise ValueError("dynamics: g = lift takes states of one axis. Leave g out for frames.")
        if (rank < size) if lifted else (rank > size):
            raise ValueError(
                f"dynamics: {spirals} spirals, {cycles} cycles, {decays} decays and {constants} "
                f"constants take {rank} coordinates, but a state has {size} numbers. Ask for "
                f"{'more' if lifted else 'fewer'} modes, or for another g."
            )
        self.space = Space(_lift(config) if lifted else _subspace(config))
        dim = self.space.dim
        self.decay = nn.Parameter(torch.full((spirals + decays,), -2.0 / FAST))
        self.turn = nn.Parameter(torch.arange(1.0, spirals + cycles + 1) * 2 * math.pi / FAST)
        self.rest = nn.Parameter(torch.full((1 if dim > rank else 0,), -2.0 / FAST))
        self.register_buffer("scale", torch.ones(config.shape))
        self.register_buffer("spread", torch.ones(dim))  #: of coordinates, set after training
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("factors", torch.ones(dim), persistent=False)
        self.register_buffer("extra", torch.zeros(dim), persistent=False)

    # -- states ----------------------------------------------------------------------------

    def pad(self, x: Tensor) -> Tensor:
        """Return states (n, \\*shape) as points of the Space: zeros after the state."""
        if tuple(x.shape[1:]) != self.config.shape:
            raise ValueError(
                f"dynamics: expected states (n, {', '.join(map(str, self.config.shape))}), got "
                f"{tuple(x.shape)}."
            )
        missing = self.space.dim - self.config.size
        return F.pad(x, (0, missing)) if missing else x

    def state(self, points: Tensor) -> Tensor:
        """Return the states of points of the Space."""
        if self.space.dim == self.config.size:
            return points
        return points[..., : self.config.size]

    # -- the group -------------------------------------------------------------------------

    @property
    def generator(self) -> Spirals:
        """K, in 1/time unit of the data."""
        spirals, cycles, _, constants = self.config.counts
        T = self.config.horizon

        def falling(raw: Tensor) -> Tensor:
            raw = FAST * raw
            return -F.softplus(raw) / T if self.config.stable else raw.add(2.0).neg() / T

        decay, rest = falling(self.decay), falling(self.rest)
        zero = decay.new_zeros
        real = torch.cat([decay[:spirals], zero(cycles)])
        outside = self.space.dim - self.config.rank
        single = torch.cat([decay[spirals:], zero(constants), rest.expand(outside)])
        k = len(real)
        return Spirals(
            real - self.extra[0 : 2 * k : 2], FAST * self.turn / T, single - self.extra[2 * k :]
        )

    def forward(self, t: float | Tensor = 1.0) -> Linearizer:
        """Return f_t, for a time or one for each point (batch,), before or after."""
        core = self.generator.exp(t)
        if bool((self.factors != 1).any()):
            k = core.planes
            planes = self.factors[0 : 2 * k : 2]
            core = Spirals(
                core.real * planes, core.imag * planes, core.single * self.factors[2 * k :]
            )
        return Linearizer(self.space, core, self.space)

    def simulate(self, x0: Tensor, times: Tensor | Iterable[float]) -> Tensor:
        r"""Return states at all times at once, (n, \*shape) and (m,) → (n, m, \*shape).

        g(x0) once, e^{tK} of all times in closed form, g⁻¹ once: no step follows another.
        """
        with torch.inference_mode():
            states = self._simulate(x0, times)
        return states.clone()  # a tensor like any other

    def _simulate(self, x0: Tensor, times: Tensor | Iterable[float]) -> Tensor:
        z = self.space.coordinates(self.pad(x0))
        t = torch.as_tensor(
            times if isinstance(times, Tensor) else list(times),
            dtype=torch.float64,
            device=z.device,
        )
        if t.ndim != 1:
            raise ValueError(f"simulate: expected times (m,), got shape {tuple(t.shape)}.")
        # Angles of many turns keep their digits in double precision.
        flow = self.generator.double().exp(t).to(z.dtype)
        z = (z * self.factors)[None].expand(len(t), -1, -1)
        moved = flow.forward(z).transpose(0, 1).flatten(0, 1)  # (n·m, dim)
        states = [self.state(self.space.points(part)) for part in moved.split(1 << 16)]
        return torch.cat(states).unflatten(0, (len(x0), len(t)))

    # -- the spectrum ----------------------------------------------------------------------

    @torch.no_grad()
    def spectrum(self) -> list[Mode]:
        """Return frequencies and decays of all modes, in the data's time unit."""
        K = self.generator
        k = K.planes
        power = self.spread.square()
        total = float(power[: self.config.rank].sum())
        found = []
        for i in range(self._modes):
            plane = i < k
            rate = float(K.real[i] if plane else K.single[i - k])
            turn = abs(float(K.imag[i])) / (2 * math.pi) if plane else 0.0
            half_life = math.log(2) / -rate if rate else None
            period = 1 / turn if turn else None
            share = float(power[self._places(i)].sum()) / total
            found.append(Mode(i, rate, turn, half_life, period, share))
        return found

    @property
    def _modes(self) -> int:
        return sum(self.config.counts)

    def _places(self, mode: int) -> list[int]:
        """Return the coordinates of a mode."""
        k = self.config.counts[0] + self.config.counts[1]
        if not 0 <= mode < self._modes:
            raise ValueError(f"dynamics: expected modes 0 to {self._modes - 1}, got {mode}.")
        return [2 * mode, 2 * mode + 1] if mode < k else [mode + k]

    @torch.no_grad()
    def modes(self, phases: int = 8, amplitude: float = 1.5) -> Tensor:
        r"""Return each mode alone as states through one of its cycles, (modes, phases, \*shape).

        g⁻¹ of the middle of the data with the mode's coordinates on a circle of ``amplitude``
        times their spread; of a mode without a frequency, on the line from − to +.
        """
        K, spread, centre = self.generator, self.spread, self.centre
        rows = []
        for i in range(self._modes):
            at = self._places(i)
            z = centre.repeat(phases, 1)
            if i < K.planes:
                angle = 2 * math.pi * torch.arange(phases, device=z.device) / phases
                r = amplitude * spread[at].square().sum().sqrt()
                z[:, at] = r * torch.stack([angle.cos(), angle.sin()], 1).to(z)
            else:
                line = torch.linspace(-1, 1, phases, device=z.device)[:, None].to(z)
                z[:, at] = centre[at] + amplitude * spread[at] * line
            rows.append(self.state(self.space.points(z)))
        return torch.stack(rows)

    @torch.no_grad()
    def eigenfunctions(self, x: Tensor) -> Tensor:
        r"""Return φ(x), (n, modes), complex: φᵢ(x(t)) = e^{λᵢt} φᵢ(x(0)) on the learned motion."""
        z = self.space.coordinates(self.pad(x))
        k = self.generator.planes
        planes = torch.complex(z[:, 0 : 2 * k : 2], z[:, 1 : 2 * k : 2])
        single = z[:, 2 * k : self.config.rank]
        return torch.cat([planes, torch.complex(single, torch.zeros_like(single))], 1)

    def carry(
        self, mean: Tensor, covariance: Tensor, t: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        r"""Carry a Gaussian in coordinates through time: N(e^{tK}m, e^{tK}S e^{tKᵀ}).

        Arguments:
            mean: m, (n, dim).
            covariance: S, (dim, dim).
        """
        core = self(t).operator
        half = core(covariance.mT).mT  # A S
        return core(mean), core(half)

    # -- switches --------------------------------------------------------------------------

    def without(self, modes: Iterable[int]) -> Dynamics:
        """Return the same motion with these modes left out: their coordinates are 0."""
        return self.damp(modes, 0.0)

    def damp(self, modes: Iterable[int], factor: float = 1.0, rate: float = 0.0) -> Dynamics:
        r"""Return the motion with these modes weaker: amplitudes times ``factor``, and e^{−rate·t}.

        It shares g and the weights of K with this model. A factor other than 0 and 1 counts anew
        with every f_t that is applied, so the group law then needs rate alone.
        """
        twin = copy.copy(self)
        twin._buffers = dict(self._buffers)
        twin.factors, twin.extra = self.factors.clone(), self.extra.clone()
        for mode in modes:
            at = self._places(mode)
            twin.factors[at] *= factor
            twin.extra[at] += rate
        return twin

    # -- training --------------------------------------------------------------------------

    @torch.no_grad()
    def initialize(self, batch: Pair) -> None:
        """Set the norms of g from states, and modes from the best linear motion of short gaps."""
        x, dt, y = batch.x, batch.dt, batch.y
        both = torch.cat([x, y])
        if len(self.config.shape) == 1:
            std = both.std(0)
            if bool((std == 0).any()):
                names, flat = self.config.names, int((std == 0).nonzero()[0, 0])
                which = names[flat] if len(names) == len(std) else f"number {flat} of a state"
                raise ValueError(
                    f"dynamics: {which} is the same in all of the data, so it has no dynamics. "
                    "Leave it out."
                )
            self.scale.copy_(std)
        else:
            self.scale.fill_(float(both.std()))
        self.space.g.initialize(self.pad(both))
        near = dt <= dt.quantile(0.15)
        r = self.config.rank
        z, w = (self.space.coordinates(self.pad(s[near]))[:, :r].double() for s in (x, y))
        self._begin((z + w) / 2, (w - z) / dt[near].double()[:, None])

    @torch.no_grad()
    def become(self, values: Tensor, vectors: Tensor) -> None:
        r"""Take a matrix M on states with a 1 after them, by its eigenvalues and vectors, as f.

        e^{tM} then is f_t, for a fresh g that pads states to one number more.
        """
        d, layers = self.config.size, list(cast(Chain, self.space.g))
        norm, pad, body = (cast(Any, layer) for layer in layers[:3])
        last = pad.conditioner.layers[-1]
        last.weight.zero_()
        last.bias.fill_(1.0)
        before = next(iter(body))
        before.mean.zero_()
        before.log_scale.zero_()
        V = vectors.clone()  # of states in the units of the first layer
        V[:d] = (V[:d] - norm.g.mean[:, None] * V[d:]) * norm.g.log_scale.exp()[:, None]
        V = V / V.norm(dim=0)
        pairs, singles = split_modes(values)
        planes = torch.stack([V[:, pairs].real, -V[:, pairs].imag], 2).flatten(1)
        basis = torch.cat([planes, V[:, singles].real], 1)
        _assign(_last_linear(self.space.g), torch.linalg.inv(basis))
        T, found = self.config.horizon, values[pairs]
        self.turn.copy_(found.imag * T / FAST)
        self.decay.copy_((-torch.cat([found.real, values[singles].real]) * T - 2.0) / FAST)

    def _begin(self, z: Tensor, rate: Tensor) -> None:
        """Begin with the best linear ż = K z: its eigenbasis in g, its eigenvalues in K."""
        r, T = self.config.rank, self.config.horizon
        spirals, cycles, decays, _ = self.config.counts
        planes = spirals + cycles
        middle = z - z.mean(0)
        gram = middle.mT @ middle
        gram += 1e-4 * gram.diagonal().mean() * torch.eye(r).to(gram)
        K = torch.linalg.solve(gram, middle.mT @ rate).mT
        values, vectors = torch.linalg.eig(K)
        # Pairs first for the planes, slowest decay first; what is left over in any order.
        pairs = [i for i in values.real.argsort(descending=True).tolist() if values[i].imag > 1e-9]
        reals = [i for i in values.abs().argsort().tolist() if abs(values[i].imag) <= 1e-9]
        columns: list[tuple[Tensor, complex]] = []
        for i in pairs[:planes]:
            # K (p − iq) = (a + ib)(p − iq): with coordinates along p and q, K turns by b.
            p, q = vectors[:, i].real, -vectors[:, i].imag
            columns += [(p, complex(values[i])), (q, complex(values[i]))]
        singles = [(vectors[:, i].real, complex(values[i])) for i in reals]
        for i in pairs[planes:]:
            parts = (vectors[:, i].real, vectors[:, i].imag)
            singles += [(part, complex(values[i].real)) for part in parts]
        columns += singles
        basis = torch.stack([column for column, _ in columns], 1)
        found = [value for _, value in columns]
        if torch.linalg.cond(basis) > 1e4:
            basis = torch.eye(r).to(basis)
        spread = (torch.linalg.solve(basis, middle.mT)).square().mean(1).sqrt()
        spread[: 2 * planes] = (
            spread[: 2 * planes].unflatten(0, (planes, 2)).mean(1).repeat_interleave(2)
        )
        layer = _last_linear(self.space.g)
        W = torch.linalg.solve(basis * spread, layer.weight().double())
        _assign(layer, W)
        turns = torch.tensor([abs(found[2 * i].imag) for i in range(planes)])
        places = [*range(0, 2 * spirals, 2), *range(2 * planes, 2 * planes + decays)]
        slow = torch.tensor([found[i].real for i in places])
        first = float(turns[turns > 0][0]) if bool((turns > 0).any()) else math.pi / T
        missing = turns == 0  # the overtones of one frequency are those of a swing
        turns[missing] = first * torch.arange(2.0, 2 + int(missing.sum()))
        self.turn.copy_(turns * T / FAST)
        share = (-slow * T).clamp(0.05, 5.0)
        raw = share.expm1().log() if self.config.stable else share - 2.0
        self.decay.copy_(raw / FAST)


def split_modes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return which eigenvalues turn forwards, one of each pair, and which do not turn."""
    least = STILL * float(values.abs().max())
    return values.imag > least, values.imag.abs() <= least


def _last_linear(g: Bijection) -> InvertibleLinear:
    """Return the matrix that the stack on the coordinates ends in."""
    found = [layer for layer in g.modules() if isinstance(layer, InvertibleLinear)]
    return found[-1]


def _assign(layer: InvertibleLinear, W: Tensor) -> None:
    """Make W the matrix of the layer."""
    P, L, U = torch.linalg.lu(W)
    s, c = U.diagonal(), layer.max_log_scale
    layer.lower.copy_(L.tril(-1))
    layer.upper.copy_(U.triu(1))
    layer.raw.copy_(c * torch.atanh((s.abs().log() / c).clamp(-0.99, 0.99)))
    layer.sign.copy_(s.sign())
    layer.permutation.copy_(P.argmax(1))


def _lift(config: Config) -> Bijection:
    """Build (x, 0) ↦ (x, h(x)), then a stack on all of it."""
    d, n = config.size, config.rank
    start: list[Bijection] = []
    if n > d:
        h = MLP(d, n - d, config.hidden)
        last = h.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=config.hidden**-0.5)  # the padding gets a variance
        start += [OnPart(ActNorm((d,)), n), AdditiveCoupling((n,), h, "second", cut=d)]
    body = mlp(n, config.blocks, config.hidden, max_log_scale=config.max_log_scale)
    return Chain(*start, *body, *_twist(config))


def _twist(config: Config) -> list[Bijection]:
    """Build planes that turn by how far out a point is."""
    n, planes = config.rank, config.counts[0] + config.counts[1]
    return [Twist(n, planes, MLP(n - planes, planes, config.hidden))] if planes else []


def _subspace(config: Config) -> Bijection:
    body = subspace(
        config.shape,
        rank=config.rank,
        hidden=4 * config.hidden,
        nets="mlp",
        blocks=config.blocks,
        flow_hidden=config.hidden,
        max_log_scale=config.max_log_scale,
    )
    return Chain(*body, *(OnPart(g, config.size) for g in _twist(config)))


def loss(model: Dynamics, batch: Pair, draw: Draw) -> dict[str, Tensor]:
    r"""‖f_Δt(x) − y‖² in data, and ‖e^{ΔtK}g(x) − g(y)‖² in coordinates over their variance.

    The first cannot be made small by a g that collapses; the second is the same for a g and any
    multiple of it. Pairs count by 1/(near² + ‖y − x‖²), divided by its mean, so that what is slow,
    small or close to rest is learned as well as what is fast.
    """
    config = model.config
    x, y = model.pad(batch.x), model.pad(batch.y)
    z, w = model.space.coordinates(torch.cat([x, y])).chunk(2)
    weight = x.new_ones(len(x))
    if config.near is not None:
        way = ((batch.y - batch.x) / model.scale).square().flatten(1).mean(1)
        weight = 1 / (config.near**2 + way)
        weight = weight / weight.mean()
    terms = _terms(model, z, w, batch.dt, batch.y, weight)
    if config.backward:
        back = _terms(model, w, z, -batch.dt, batch.x, weight)
        terms |= {f"{k} backward": config.backward * v for k, v in back.items()}
    return terms


def _terms(
    model: Dynamics, z: Tensor, w: Tensor, dt: Tensor, y: Tensor, weight: Tensor
) -> dict[str, Tensor]:
    config, r = model.config, model.config.rank
    moved = model.generator.exp(dt)(z)
    point = model.space.points(moved)
    off = ((model.state(point) - y) / model.scale).square().flatten(1).mean(1)
    terms = {"data": (weight * off).mean()}
    if config.coordinates:
        off = (weight[:, None] * (moved - w)[:, :r].square()).mean(0)
        variance = w[:, :r].var(0)
        # A coordinate of hardly any variance must not count without bound.
        terms["coordinates"] = config.coordinates * (off / (variance + 1e-3)).mean()
    if model.space.dim > config.size and config.padding:
        terms["padding"] = config.padding * point[:, config.size :].square().mean()
    return terms


def measure(model: Dynamics, batch: Pair, draw: Draw) -> dict[str, Tensor]:
    """Return the squared error of f_Δt(x) over the variance of the data, for each pair."""
    got = model.state(model(batch.dt)(model.pad(batch.x)))
    return {"error": ((got - batch.y) / model.scale).square().flatten(1).mean(1)}


def facts(data: Data) -> dict[str, Any]:
    """Return shape and names of a state and the longest gap, which the data decide."""
    moves = data.train.trajectories
    longest = float((moves.t[:, data.train.max_lag :] - moves.t[:, : -data.train.max_lag]).max())
    shape = tuple(data.train.shape)
    return {"shape": shape, "names": moves.names, "horizon": longest, "unit": moves.unit}


@torch.no_grad()
def finish(model: Dynamics, data: Data) -> None:
    """Set how far each coordinate spreads, and the middle of those that have no decay."""
    x = data.train.trajectories.x.flatten(0, 1)
    x = x[:: max(1, len(x) // 4096)].to(model.scale)
    z = torch.cat([model.space.coordinates(model.pad(part)) for part in x.split(1024)])
    K = model.generator
    still = torch.cat([K.real.new_zeros(2 * K.planes), (K.single == 0).to(K.single)])
    model.centre.copy_(z.mean(0) * still)
    model.spread.copy_((z - model.centre).square().mean(0).sqrt())


@torch.no_grad()
def preview(model: Dynamics, data: Data, path: Path) -> None:
    """Draw test trajectories and what the model makes of their first state."""
    from matplotlib.figure import Figure

    moves = data.test.trajectories
    n = min(3, len(moves))
    figure = Figure(figsize=(4.2 * n, 3.2), dpi=110, layout="constrained")
    like = model.scale
    for i in range(n):
        axes = figure.add_subplot(1, n, i + 1)
        t, x = moves.t[i], moves.x[i].flatten(1)
        fine = torch.linspace(float(t[0]), float(t[-1]), 200)
        made = model.simulate(moves.x[i, :1].to(like), fine - float(t[0]))[0].flatten(1)
        for j in range(min(3, x.shape[1])):
            axes.plot(fine, made[:, j].cpu(), color=f"C{j}", linewidth=1)
            axes.plot(t, x[:, j], "o", color=f"C{j}", markersize=3)
        axes.set(xlabel="time", title=f"test {i}: dots are data, lines g⁻¹(e^{{tK}} g(x))")
        axes.title.set_fontsize(8)
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def spectrum(model: Dynamics, folder: Path, k: int = 8) -> dict[str, Any]:
    """Plot the eigenvalues of K and draw the first k modes, each alone through one cycle."""
    folder.mkdir(parents=True, exist_ok=True)
    modes = model.spectrum()
    files = [folder / "spectrum.png", folder / "modes.png"]
    _plot_spectrum(modes, model.config.unit or "time", files[0])
    strongest = sorted(modes, key=lambda m: -m.share)[:k]
    _plot_modes(model, strongest, files[1])
    if model.config.shape == (2,):
        files.append(folder / "eigenfunctions.png")
        _plot_eigenfunctions(model, strongest, files[2])
    return {
        "dimensions": [model.space.dim, model.space.dim],
        "unit": model.config.unit,
        "modes": [mode._asdict() for mode in modes],
        "files": [str(p) for p in files],
    }


def _plot_spectrum(modes: list[Mode], unit: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="0.7", linewidth=1)
    sizes = [20 + 300 * mode.share for mode in modes]
    axes.scatter([m.rate for m in modes], [m.frequency for m in modes], sizes, alpha=0.6)
    for mode in modes:
        at, word = (mode.rate, mode.frequency), str(mode.number)
        axes.annotate(word, at, xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel=f"rate Re λ, 1/{unit}", ylabel=f"frequency |Im λ|/2π, cycles/{unit}")
    axes.set_title("Eigenvalues of the generator; area: share of the mode")
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


@torch.no_grad()
def _plot_modes(model: Dynamics, modes: list[Mode], path: Path) -> None:
    frames = len(model.config.shape) > 1
    states = model.modes(8 if frames else 64)[[m.number for m in modes]].double().cpu()
    labels = [_label(mode, model.config.unit or "time") for mode in modes]
    if frames:
        _plot_frames(states, labels, path)
        return
    size = model.config.size
    figure, panels = _grid(len(modes), 3.2, 2.8)
    for axes, mode, state, label in zip(panels, modes, states, labels, strict=False):
        if 2 <= size <= 8:
            closed = torch.cat([state, state[:1]]) if mode.frequency else state
            axes.plot(closed[:, 0], closed[:, 1], linewidth=1.2)
            axes.set(xlabel=model.config.names[0], ylabel=model.config.names[1])
        else:
            box = (0, 1, 0, size)
            axes.imshow(state.mT.numpy(), aspect="auto", cmap="RdBu_r", origin="lower", extent=box)
            axes.set(xlabel="cycle")
        axes.set_title(label, fontsize=8)
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def _plot_frames(states: Tensor, labels: list[str], path: Path) -> None:
    """Draw the first field of frames (modes, phases, C, H, W), a row for each mode."""
    from matplotlib.figure import Figure

    count, phases = states.shape[:2]
    size = (1.3 * phases, 1.5 * count + 0.3)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    panels = figure.subplots(count, phases, squeeze=False)
    for row, state, label in zip(panels, states, labels, strict=True):
        high = float(state.abs().max())
        for axes, frame in zip(row, state, strict=True):
            field = frame.reshape(-1, *frame.shape[-2:])[0]
            axes.imshow(field.numpy(), cmap="RdBu_r", vmin=-high, vmax=high)
            axes.set_axis_off()
        row[0].set_title(label, fontsize=8, loc="left")
    save_figure(figure, path)


def _grid(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a figure with so many panels, in rows of up to four."""
    from matplotlib.figure import Figure

    columns = min(4, count)
    rows = math.ceil(count / columns)
    size = (width * columns, height * rows)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def _label(mode: Mode, unit: str) -> str:
    turns = f"{mode.frequency:.3g} cycles/{unit}" if mode.frequency else "no frequency"
    return f"mode {mode.number}: {turns}, rate {mode.rate:.2g}"


@torch.no_grad()
def _plot_eigenfunctions(model: Dynamics, modes: list[Mode], path: Path, points: int = 81) -> None:
    """Draw |φ| as contours on its angle as colour, where the modes reach in the plane."""
    states = model.modes(64).flatten(0, 1)
    states = states[states.isfinite().all(1)]
    low, high = states.quantile(0.02, 0), states.quantile(0.98, 0)
    sides = [torch.linspace(float(a), float(b), points) for a, b in zip(low, high, strict=True)]
    grid = torch.cartesian_prod(*sides).to(states)
    values = model.eigenfunctions(grid).unflatten(0, (points, points)).cpu()
    figure, panels = _grid(len(modes), 3.4, 3.0)
    box = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    how = {"origin": "lower", "extent": box, "aspect": "auto"}
    for axes, mode in zip(panels, modes, strict=True):
        phi = values[..., mode.number].T  # rows are the second number of a state
        turning = bool(mode.frequency)
        shown = phi.angle() if turning else phi.real
        most = math.pi if turning else float(shown.abs().max())
        colours = "twilight" if turning else "RdBu_r"
        picture = axes.imshow(shown.numpy(), vmin=-most, vmax=most, cmap=colours, **how)
        if turning:
            lines = {"levels": 7, "colors": "white", "linewidths": 0.7}
            axes.contour(*(s.numpy() for s in sides), phi.abs().numpy(), **lines)
        figure.colorbar(picture, ax=axes, label="arg φ; lines |φ|" if turning else "φ")
        axes.set(xlabel=model.config.names[0], ylabel=model.config.names[1])
        axes.set_title(_label(mode, model.config.unit or "time"), fontsize=8)
    save_figure(figure, path)
