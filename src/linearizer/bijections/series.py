r"""Layers for windows of a series, (steps, channels): level and waves, rising maps, a swap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .base import Bijection, full_precision, say

__all__ = ["LevelAndWaves", "Monotone", "Swap", "cosines"]


def cosines(n: int, device: torch.device | None = None) -> Tensor:
    """The orthonormal cosine transform (DCT-II) as a matrix, (frequency, step), in float64."""
    k = torch.arange(n, dtype=torch.float64, device=device)
    waves = torch.cos(math.pi / n * k[:, None] * (k + 0.5)) * (2.0 / n) ** 0.5
    waves[0] /= 2.0**0.5
    return waves


class LevelAndWaves(Bijection):
    r"""z = ((x_last, D Δx) − μ) / σ in each channel: the last value, and the cosine transform of
    the differences, from slow waves to fast ones.

    So the level is one coordinate: a shift of the whole window moves nothing else. μ and σ are set
    from data once (``initialize``), for each coordinate and channel; σ = 1 where data stand still.

    Arguments:
        shape: (steps, channels) with two or more steps.
        constant: Make the fastest wave the second coordinate, as 1 + 0.1 z: almost constant, so
            that a core has something to multiply an offset with.

    Example:
        >>> g = LevelAndWaves((3, 1))
        >>> g(torch.tensor([[[5.0], [5.0], [5.0]]])).flatten().tolist()
        [5.0, 0.0, 0.0]
    """

    waves: Tensor
    mean: Tensor
    scale: Tensor
    initialized: Tensor

    def __init__(self, shape: tuple[int, int], constant: bool = False) -> None:
        super().__init__(shape)
        if len(self.shape) != 2 or self.shape[0] < 2:
            raise ValueError(
                f"LevelAndWaves: expected (steps, channels) with two or more steps, got {shape}."
            )
        self.constant = constant
        steps = self.shape[0]
        dtype = torch.get_default_dtype()
        self.register_buffer("waves", cosines(steps - 1).to(dtype), persistent=False)
        self.register_buffer("mean", torch.zeros(self.shape))
        self.register_buffer("scale", torch.ones(self.shape))
        self.register_buffer("initialized", torch.tensor(False))
        order = [0, steps - 1, *range(1, steps - 1)] if constant else list(range(steps))
        self.order = order
        self.back = sorted(range(steps), key=order.__getitem__)

    def raw(self, x: Tensor) -> Tensor:
        """Level and waves as they are, (n, steps, channels)."""
        with full_precision(x):
            waves = self.waves @ (x[:, 1:] - x[:, :-1])
        z = torch.cat([x[:, -1:], waves], 1)
        return z[:, self.order] if self.constant else z

    def forward(self, x: Tensor) -> Tensor:
        return (self.raw(x) - self.mean) / self.scale

    def inverse(self, z: Tensor) -> Tensor:
        z = z * self.scale + self.mean
        z = z[:, self.back] if self.constant else z
        with full_precision(z):
            steps = self.waves.mT @ z[:, 1:]
        # x_i = x_last − Σ_{j>i} Δx_j
        before = z[:, :1] - steps.flip(1).cumsum(1).flip(1)
        return torch.cat([before, z[:, :1]], 1)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), -self.scale.log().sum().expand(x.shape[0])

    def _initialize(self, x: Tensor) -> Tensor:
        if not self.initialized:
            std, mean = torch.std_mean(self.raw(x), 0, correction=0)
            self.adopt(mean, std)
        return self.forward(x)

    @torch.no_grad()
    def adopt(self, mean: Tensor, std: Tensor) -> None:
        """Take mean and standard deviation of :meth:`raw`, (steps, channels), as μ and σ."""
        scale = torch.where(std > 1e-6 * (1 + mean.abs()), std, 1.0)
        if self.constant:
            scale[1] *= 10
            mean = mean.clone()
            mean[1] -= scale[1]
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self.initialized.fill_(True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LevelAndWaves:
        super()._apply(fn, recurse)
        if not self.waves.is_meta:
            self.waves.copy_(cosines(len(self.waves)))  # orthonormal in the precision it has now
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if self.waves.is_meta and not self.mean.is_meta:  # assigned to a layer without numbers
            self.waves = cosines(len(self.waves), self.mean.device).to(self.mean.dtype)

    def extra_repr(self) -> str:
        return f"{self.shape}, constant={self.constant}, initialized={say(self.initialized)}"


class Monotone(Bijection):
    r"""z = h_c(x): each number by a rising piecewise linear map of its channel, h_c(0) = b_c.

    The slopes between the knots are e^{c·tanh(raw/c)}, so they stay between e^−c and e^c, and
    beyond the outer knots the map goes on as it was. It starts as the identity. Both ways are
    exact, and the order of numbers is kept: quantiles of z are quantiles of x.

    Arguments:
        shape: (steps, channels).
        knots: How many, equally spaced from ``low`` to ``high``.
        max_log_slope: The bound c.

    Example:
        >>> g = Monotone((2, 1))
        >>> x = torch.tensor([[[-7.0], [0.3]]])
        >>> torch.allclose(g.inverse(g(x)), x) and torch.allclose(g(x), x)
        True
    """

    knots: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        knots: int = 17,
        low: float = -3.0,
        high: float = 5.0,
        max_log_slope: float = 2.0,
    ) -> None:
        super().__init__(shape)
        if len(self.shape) != 2 or knots < 2 or not low < 0 < high or max_log_slope <= 0:
            raise ValueError(
                "Monotone: expected (steps, channels), two or more knots on both sides of 0 and a "
                f"bound above 0, got {shape}, {knots} from {low} to {high}, and {max_log_slope}."
            )
        self.max_log_slope = max_log_slope
        channels = self.shape[1]
        self.register_buffer("knots", torch.linspace(low, high, knots))
        at = torch.linspace(low, high, knots, device="cpu")
        self.below = int((at <= 0).sum()) - 1  # the last knot up to 0
        self.raw = nn.Parameter(torch.zeros(channels, knots + 1))
        self.shift = nn.Parameter(torch.zeros(channels))

    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Values at the knots (channels, knots), and the slopes and their logarithms around."""
        c = self.max_log_slope
        log_slope = c * torch.tanh(self.raw / c)
        slope = log_slope.exp()
        rise = slope[:, 1:-1] * self.knots.diff()
        at = torch.cat([torch.zeros_like(slope[:, :1]), rise.cumsum(1)], 1)
        # h(0), so that it can be taken off: 0 lies between the outer knots.
        first = self.below
        zero = at[:, first] + slope[:, first + 1] * (0 - self.knots[first])
        return at - zero[:, None] + self.shift[:, None], slope, log_slope

    def _pieces(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Which piece each number is on, and the knot that it is counted from, (channels, n)."""
        if torch.compiler.is_compiling():  # exported files have no search
            above = [(x > knot[:, None]).long() for knot in at.unbind(1)]
            piece = torch.stack(above).sum(0)
        else:
            piece = torch.searchsorted(at.detach().contiguous(), x.detach().contiguous())
        return piece, (piece - 1).clamp_min(0)

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(x)[0]

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        at, slope, log_slope = self._table()
        flat = x.movedim(-1, 0).flatten(1)
        knots = self.knots.expand_as(at)
        piece, knot = self._pieces(flat, knots)
        z = at.gather(1, knot) + slope.gather(1, piece) * (flat - knots.gather(1, knot))
        log_det = log_slope.gather(1, piece).unflatten(1, x.shape[:2]).sum((0, 2))
        return z.unflatten(1, x.shape[:2]).movedim(0, -1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        at, slope, _ = self._table()
        flat = z.movedim(-1, 0).flatten(1)
        piece, knot = self._pieces(flat, at)
        start = self.knots.expand_as(at).gather(1, knot)
        x = start + (flat - at.gather(1, knot)) / slope.gather(1, piece)
        return x.unflatten(1, z.shape[:2]).movedim(0, -1)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._forward(x)


class Swap(Bijection):
    r"""(a, b) → (b, a): the two axes of a table in the other order.

    Example:
        >>> Swap((2, 3))(torch.zeros(5, 2, 3)).shape
        torch.Size([5, 3, 2])
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__(shape, (shape[1], shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        return x.mT.contiguous()

    def inverse(self, z: Tensor) -> Tensor:
        return z.mT.contiguous()

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), x.new_zeros(x.shape[0])
