r"""Layers that set the leading directions of data apart from the rest, without losing the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import Bijection, full_precision, say
from .reversible import Pull

__all__ = ["FinestWaves", "OnPart", "PrincipalAxes"]


class PrincipalAxes(Bijection):
    r"""z = S H (x − μ): an orthogonal H that turns the r leading principal axes into the first
    coordinates, which S scales to unit variance; the others stay as long as they were.

    H = I − W T Wᵀ is a product of r reflections, so nothing dim × dim is ever made. Set from data
    once (``initialize``); the identity until then.

    Arguments:
        shape: Shape of x; z is a vector.
        rank: r, how many leading axes.
        least: Axes along which data vary less than this share of the largest deviation are not
            scaled up further than it says; with 0, data that do not vary along r axes are refused.

    Example:
        >>> x = torch.randn(500, 6) @ torch.diag(torch.tensor([9.0, 5.0, 1.0, 1.0, 1.0, 1.0]))
        >>> g = PrincipalAxes((6,), rank=2).initialize(x)
        >>> torch.allclose(g(x)[:, :2].std(0), torch.ones(2), atol=0.01)
        True
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-4)
        True
    """

    mean: Tensor
    reflectors: Tensor
    triangle: Tensor
    scale: Tensor
    initialized: Tensor

    def __init__(self, shape: tuple[int, ...], rank: int, least: float = 0.0) -> None:
        super().__init__(shape)
        self.out_shape = (self.dim,)
        if not 1 <= rank <= self.dim:
            raise ValueError(f"PrincipalAxes: expected 1 ≤ rank ≤ {self.dim}, got {rank}.")
        if not 0 <= least <= 1:
            raise ValueError(f"PrincipalAxes: expected 0 ≤ least ≤ 1, got {least}.")
        self.rank, self.least = rank, float(least)
        self.register_buffer("mean", torch.zeros(self.dim))
        self.register_buffer("reflectors", torch.zeros(self.dim, rank))
        self.register_buffer("triangle", torch.zeros(rank, rank))
        self.register_buffer("scale", torch.ones(rank))
        self.register_buffer("initialized", torch.tensor(False))

    def centre(self) -> Tensor:
        """μ, (dim,)."""
        return self.mean

    def turn(self, y: Tensor) -> Tensor:
        """H y, (n, dim) → (n, dim)."""
        with full_precision(y):
            return y - (y @ self.reflectors) @ self.triangle @ self.reflectors.mT

    def turn_back(self, u: Tensor, w: Tensor) -> Tensor:
        """Hᵀ (u, w), (n, rank) and (n, dim − rank) → (n, dim)."""
        y = torch.cat([u, w], 1)
        with full_precision(y):
            return y - (y @ self.reflectors) @ self.triangle.mT @ self.reflectors.mT

    def forward(self, x: Tensor) -> Tensor:
        y = self.turn(x.flatten(1) - self.mean)
        return torch.cat([y[:, : self.rank] / self.scale, y[:, self.rank :]], 1)

    def inverse(self, z: Tensor) -> Tensor:
        y = self.turn_back(z[:, : self.rank] * self.scale, z[:, self.rank :])
        return (y + self.mean).reshape(z.shape[0], *self.shape)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), -self.scale.abs().log().sum().expand(x.shape[0])

    def lengths(self, gap: Tensor) -> Tensor:
        """Squared lengths that differences of coordinates have as differences of x, (n,)."""
        r = self.rank
        return (gap[:, :r] * self.scale).square().sum(1) + gap[:, r:].square().sum(1)

    def _set_triangle(self) -> None:
        """T from W, so that H is orthogonal to rounding for the W that is stored."""
        W = self.reflectors.double()
        G = W.mT @ W
        T = torch.linalg.inv(torch.triu(G, 1) + torch.diag(G.diagonal() / 2))
        self.triangle.copy_(T)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PrincipalAxes:
        super()._apply(fn, recurse)
        if not self.reflectors.is_meta and bool(self.initialized):
            self._set_triangle()  # in the precision that the layer has now
        return self

    def extra_repr(self) -> str:
        return f"{self.shape}, rank={self.rank}, initialized={say(self.initialized)}"

    def _initialize(self, x: Tensor) -> Tensor:
        if not self.initialized:
            y = x.flatten(1).double()
            mean = y.mean(0)
            n, r = len(y), self.rank
            if n <= r:
                raise ValueError(
                    f"PrincipalAxes.initialize: expected more than rank = {r} samples, got {n}."
                )
            y = y - mean
            # The smaller Gram matrix of the two has the same leading directions.
            if n < self.dim and not self.least:
                values, U = torch.linalg.eigh(y @ y.mT)
                Q = y.mT @ U[:, -r:].flip(1)
            else:
                values, Q = torch.linalg.eigh(y.mT @ y)
                Q = Q[:, -r:].flip(1)
            variance = values[-r:].flip(0) / n
            if self.least:
                largest = float(variance[0]) or 1.0
                variance = variance.clamp_min(self.least**2 * largest)
            elif variance[-1] <= 1e-12 * variance[0]:
                raise ValueError(
                    f"PrincipalAxes.initialize: the data vary in fewer than rank = {r} directions. "
                    "Lower the rank, or add a little noise."
                )
            self.mean.copy_(mean)
            self.align(torch.linalg.qr(Q)[0])
            self.scale.copy_(variance.sqrt())
        return self.forward(x)

    @torch.no_grad()
    def align(self, Q: Tensor) -> None:
        """Take the orthonormal columns of Q (dim, rank) as axes; centre and scales stay."""
        W = torch.geqrf(Q.double())[0].tril(-1)
        W.diagonal().fill_(1.0)
        self.reflectors.copy_(W)
        self._set_triangle()
        self.initialized.fill_(True)


class FinestWaves(Bijection):
    r"""z = (u, w): the cosine waves of x − μ, the finest ones first and scaled to a small spread.

    Images hold least of themselves in their finest waves. What a network of w adds to u is almost
    free to choose: u ← u + E(w) has E of almost all of x, and nothing of x is lost.

    u is a vector of waves of the whole image, or a map (C′, h, w): then the image is cut into h × w
    blocks, and each gives its C′ finest waves. The cosine transform is orthogonal; μ and the scales
    are set from data once (``initialize``), and all blocks share them.
    Some data leave pixels as they are, as dark borders do. Where r of them never change, they can
    take the place of the waves: u is then 0 on the data and w is all of x, so that u + E(w) is
    *exactly* the network E.

    Arguments:
        shape: (C, H, W) of x; z is a vector.
        rank: How many waves are set apart, or the shape (C′, h, w) of a map of them.
        spread: Standard deviation that each of them gets; less, where the data hardly have it.
        pixels: Take pixels that never change instead of waves, those farthest from the centre, if
            there are as many: in the data of ``initialize``, or as ``take_pixels`` was told.

    Example:
        >>> x = torch.rand(50, 1, 8, 8).cumsum(2).cumsum(3)
        >>> g = FinestWaves((1, 8, 8), rank=4).initialize(x)
        >>> torch.allclose(g(x)[:, :4].std(0), torch.full((4,), 0.01), rtol=0.02)
        True
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-3)
        True
    """

    mean: Tensor
    scale: Tensor
    initialized: Tensor
    taken: Tensor
    rows: Tensor
    columns: Tensor
    order: Tensor
    place: Tensor
    grid = (1, 1)

    def __init__(
        self,
        shape: tuple[int, int, int],
        rank: int | tuple[int, int, int],
        spread: float = 0.01,
        pixels: bool = False,
    ) -> None:
        super().__init__(shape)
        if len(self.shape) != 3:
            raise ValueError(f"FinestWaves: expected an image shape (C, H, W), got {self.shape}.")
        channels, *grid = (rank, 1, 1) if isinstance(rank, int) else rank
        whole = [side % n == 0 for side, n in zip(self.shape[1:], grid, strict=True) if n > 0]
        if len(whole) < 2 or not all(whole):
            raise ValueError(
                f"FinestWaves: expected a map (C′, h, w) whose sides divide those of {self.shape}, "
                f"got {rank}."
            )
        self.grid = (grid[0], grid[1])
        blocks = grid[0] * grid[1]
        if not 1 <= channels <= self.dim // blocks:
            raise ValueError(
                f"FinestWaves: expected 1 ≤ rank ≤ {self.dim // blocks}"
                f"{' channels' if blocks > 1 else ''}, got {channels}."
            )
        if not spread > 0:
            raise ValueError(f"FinestWaves: expected a spread > 0, got {spread}.")
        if pixels and blocks > 1:
            raise ValueError("FinestWaves: pixels need a rank, not a map: they lie anywhere.")
        self.out_shape = (self.dim,)
        self.rank, self.spread, self.pixels = channels * blocks, float(spread), pixels
        self.choose = pixels  #: whether ``initialize`` is to look for pixels
        self.register_buffer("mean", torch.zeros(self.dim // blocks))
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("initialized", torch.tensor(False))
        order = self._finest(None)
        # What data may decide is kept with the weights.
        self.register_buffer("taken", torch.tensor(False), persistent=pixels)
        self.register_buffer("order", order, persistent=pixels)
        self.register_buffer("place", order.argsort(), persistent=pixels)
        for name, n in zip(("rows", "columns"), self.block, strict=True):
            self.register_buffer(name, _cosines(n).to(self.mean), persistent=False)

    @property
    def block(self) -> tuple[int, int]:
        """Sides of a block."""
        return self.shape[1] // self.grid[0], self.shape[2] // self.grid[1]

    def _finest(self, device: torch.device | None) -> Tensor:
        """Where each wave is among the pixels of a transformed block, the finest first."""
        down, right = (torch.arange(n, device=device) / n for n in self.block)
        fine = (down[:, None] + right).expand(self.shape[0], *self.block)
        return fine.flatten().argsort(descending=True, stable=True)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        device = self.mean.device
        if not self.rows.is_meta or self.mean.is_meta:
            return
        for name, n in zip(("rows", "columns"), self.block, strict=True):
            setattr(self, name, _cosines(n, device).to(self.mean))  # they had no numbers
        if not self.pixels:
            self.order = self._finest(device)
            self.place = self.order.argsort()
            self.taken = torch.tensor(False, device=device)

    def turn(self, y: Tensor) -> Tensor:
        """The waves of y, the finest first, (n, dim) → (n, dim); or its pixels."""
        blocks = self._cut(y)
        with full_precision(y):
            waves = self.rows @ blocks @ self.columns.mT
        if self.pixels:
            waves = torch.where(self.taken, blocks, waves)
        if self.grid == (1, 1):
            return waves.flatten(1)[:, self.order]
        return waves.permute(0, 3, 4, 5, 1, 2).flatten(1, 3)[:, self.order].flatten(1)

    def turn_back(self, u: Tensor, w: Tensor) -> Tensor:
        """What has the waves (u, w), (n, rank) and (n, dim − rank) → (n, dim)."""
        waves = torch.cat([u, w], 1)
        C, (h, w_), (p, q) = self.shape[0], self.grid, self.block
        if self.grid == (1, 1):
            waves = waves[:, self.place].reshape(-1, 1, 1, C, p, q)
        else:
            waves = waves.unflatten(1, (-1, h, w_))[:, self.place].unflatten(1, (C, p, q))
            waves = waves.permute(0, 4, 5, 1, 2, 3)
        with full_precision(waves):
            blocks = self.rows.mT @ waves @ self.columns
        if self.pixels:
            blocks = torch.where(self.taken, waves, blocks)
        return blocks.permute(0, 3, 1, 4, 2, 5).flatten(1)

    def _cut(self, y: Tensor) -> Tensor:
        """The blocks of flat images, (n, dim) → (n, h, w, C, p, q)."""
        C, (h, w), (p, q) = self.shape[0], self.grid, self.block
        return y.reshape(-1, C, h, p, w, q).permute(0, 2, 4, 1, 3, 5)

    def centre(self) -> Tensor:
        """μ of a whole image, (dim,)."""
        if self.grid == (1, 1):
            return self.mean
        C, (p, q) = self.shape[0], self.block
        return self.mean.reshape(C, p, q).repeat(1, *self.grid).flatten()

    def _scales(self) -> Tensor:
        """The scale of each number of u, (rank,)."""
        return self.scale.repeat_interleave(self.grid[0] * self.grid[1])

    def forward(self, x: Tensor) -> Tensor:
        y = self.turn(x.flatten(1) - self.centre())
        return torch.cat([y[:, : self.rank] / self._scales(), y[:, self.rank :]], 1)

    def inverse(self, z: Tensor) -> Tensor:
        y = self.turn_back(z[:, : self.rank] * self._scales(), z[:, self.rank :])
        return (y + self.centre()).reshape(z.shape[0], *self.shape)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), -self._scales().log().sum().expand(x.shape[0])

    def extra_repr(self) -> str:
        apart = "pixels" if say(self.taken) is True else "waves"
        of = "" if self.grid == (1, 1) else f" of {self.grid[0]}×{self.grid[1]} blocks"
        return f"{self.shape}, rank={self.rank} {apart}{of}, initialized={say(self.initialized)}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FinestWaves:
        super()._apply(fn, recurse)
        for name, n in zip(("rows", "columns"), self.block, strict=True):
            matrix = getattr(self, name)  # orthogonal in the precision that the layer has now
            if not matrix.is_meta:
                matrix.copy_(_cosines(n))
        return self

    @torch.no_grad()
    def take_pixels(self, unused: Tensor) -> None:
        """Set pixels apart instead of waves, if enough of them are unused, (C, H, W) of bool."""
        self.choose = False
        if int(unused.sum()) < self.rank:
            return
        _, H, W = self.shape
        down, right = ((torch.arange(n) - (n - 1) / 2).square() for n in (H, W))
        far = torch.where(unused.cpu(), down[:, None] + right, -1.0)
        order = far.flatten().argsort(descending=True, stable=True)
        self.order.copy_(order)
        self.place.copy_(order.argsort())
        self.taken.fill_(True)

    def _initialize(self, x: Tensor) -> Tensor:
        if not self.initialized:
            if self.choose and len(x) > 1:
                self.take_pixels((x == x[:1]).all(0))
            if self.grid == (1, 1):
                self.mean.copy_(x.flatten(1).mean(0))
            else:
                self.mean.copy_(self._cut(x).mean((0, 1, 2)).flatten())
            if self.taken:  # the mean of equal numbers is not quite that number
                first = self.order[: self.rank]
                self.mean[first] = x[0].flatten()[first]
            y = self.turn(x.flatten(1) - self.centre())
            # A wave that the data hardly have is not blown up: noise in it would be. Pixels that
            # never change count as if they had a tenth of what others have.
            share = 0.1 if self.taken else 0.01
            least = max(share * float(y.square().mean().sqrt()), 1e-6)
            power = y[:, : self.rank].square().mean(0).unflatten(0, (len(self.scale), -1)).mean(1)
            self.scale.copy_(power.sqrt().clamp_min(least) / self.spread)
            self.initialized.fill_(True)
        return self.forward(x)


def _cosines(n: int, device: torch.device | None = None) -> Tensor:
    """The orthogonal cosine transform (DCT-II) of n numbers, (n, n) in float64."""
    i = torch.arange(n, dtype=torch.float64, device=device)
    k = i[:, None]
    matrix = torch.cos(math.pi / n * k * (i + 0.5)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix


class OnPart(Bijection):
    r"""(a, u, b) ↦ (a, g(u), b): a bijection of some coordinates of a vector; the others stay.

    Arguments:
        g: A bijection of vectors.
        dim: Length of the whole vector.
        start: How many coordinates come before those of g.

    Example:
        >>> g = OnPart(ActNorm((2,)), 5)
        >>> g(torch.ones(3, 5)).shape
        torch.Size([3, 5])
    """

    def __init__(self, g: Bijection, dim: int, start: int = 0) -> None:
        super().__init__((dim,))
        if len(g.shape) != 1 or g.out_shape != g.shape or not 0 <= start <= dim - g.dim:
            raise ValueError(
                f"OnPart: expected a bijection of vectors that fits into {dim} numbers from "
                f"number {start} on, got one from {g.shape} to {g.out_shape}."
            )
        self.g = g
        self.start, self.end = start, start + g.dim

    def forward(self, x: Tensor) -> Tensor:
        return self._around(x, self.g.forward(x[:, self.start : self.end]))

    def inverse(self, z: Tensor) -> Tensor:
        return self._around(z, self.g.inverse(z[:, self.start : self.end]))

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_det = self.g.with_log_det(x[:, self.start : self.end])
        return self._around(x, z), log_det

    def _initialize(self, x: Tensor) -> Tensor:
        return self._around(x, self.g._initialize(x[:, self.start : self.end]))

    def _pull_back(self, z: Tensor, grad: Tensor, pull: Pull) -> tuple[Tensor, Tensor]:
        part = slice(self.start, self.end)
        x, inner = self.g._pull_back(z[:, part], grad[:, part], pull)
        return self._around(z, x), self._around(grad, inner)

    def _around(self, x: Tensor, part: Tensor) -> Tensor:
        return torch.cat([x[:, : self.start], part, x[:, self.end :]], 1)
