r"""Cores that turn and scale planes: complex numbers on the diagonal, in real coordinates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .matrices import (
    as_complex,
    batch_of,
    count,
    finite,
    fix_signs,
    hold,
    middle,
    no_power,
    nonsingular,
    peak,
    pick,
    real_power,
    safe,
    scalar,
    shaped,
)


class Spirals(Operator):
    r"""(a + ib) on each plane of two coordinates, and c on each single one after them.

    A plane is turned and scaled: (x, y) ↦ (a x − b y, b x + a y). As a generator K it has the flow
    e^{tK}: decay or growth a and turns at b on the planes, decay or growth c of the rest. Products,
    sums, powers and exponentials are again of this kind and cost as little as a diagonal.

    Arguments:
        real, imag: a and b of the planes, (k,) or (batch, k).
        single: c of the coordinates after the 2k of the planes, (m,) or (batch, m); none if left
            out.

    Example:
        >>> K = Spirals(torch.tensor([0.0]), torch.tensor([torch.pi / 2]), torch.tensor([-1.0]))
        >>> K.exp(1.0)(torch.tensor([[1.0, 0.0, 1.0]])).round(decimals=4) + 0
        tensor([[0.0000, 1.0000, 0.3679]])
    """

    real: Tensor
    imag: Tensor
    single: Tensor

    def __init__(self, real: Tensor, imag: Tensor, single: Tensor | None = None) -> None:
        super().__init__()
        single = real.new_zeros(0) if single is None else single
        for name, value in (("real", real), ("imag", imag), ("single", single)):
            shaped(self, name, value, 1)
        if real.shape != imag.shape:
            raise ValueError(
                "Spirals: expected real and imag of one shape, got "
                f"{tuple(real.shape)} and {tuple(imag.shape)}."
            )
        if len({t.shape[0] for t in (real, single) if t.ndim == 2}) > 1:
            raise ValueError(
                f"Spirals: expected planes and singles of one batch, got {real.shape[0]} and "
                f"{single.shape[0]}."
            )
        if not real.shape[-1] and not single.shape[-1]:
            raise ValueError("Spirals: expected a plane or a single coordinate, got none.")
        hold(self, "real", real)
        hold(self, "imag", imag)
        hold(self, "single", single)

    @property
    def planes(self) -> int:
        """How many planes there are."""
        return self.real.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        n = 2 * self.real.shape[-1] + self.single.shape[-1]
        return n, n

    @property
    def batch(self) -> int | None:
        return batch_of((self.real, 1), (self.single, 1))

    @property
    def T(self) -> Spirals:
        return Spirals(self.real, -self.imag, self.single)

    @property
    def values(self) -> Tensor:
        """a + ib of the planes, (k,) or (batch, k)."""
        return torch.complex(self.real, self.imag)

    def forward(self, z: Tensor) -> Tensor:
        k = self.planes
        x, y = z[..., 0 : 2 * k : 2], z[..., 1 : 2 * k : 2]
        a, b = middle(self.real, z, 1), middle(self.imag, z, 1)
        planes = torch.stack([a * x - b * y, b * x + a * y], -1).flatten(-2)
        return torch.cat([planes, z[..., 2 * k :] * middle(self.single, z, 1)], -1)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        self._guard(self.shape, "dense", limit)
        a, b, c = self._together()
        along = torch.cat([a.repeat_interleave(2, -1), c], -1)
        across = F.pad(torch.stack([b, torch.zeros_like(b)], -1).flatten(-2), (0, c.shape[-1]))
        across = across[..., :-1]
        below, above = (torch.diag_embed(s * across, o) for s, o in ((1, -1), (-1, 1)))
        return torch.diag_embed(along) + below + above

    def _together(self) -> tuple[Tensor, Tensor, Tensor]:
        """a, b, c, all with the batch axis where one of them has it."""
        lead = () if self.batch is None else (self.batch,)
        a, b, c = (t.expand(*lead, t.shape[-1]) for t in (self.real, self.imag, self.single))
        return a, b, c

    def _of(self, values: Tensor, single: Tensor) -> Spirals:
        return Spirals(values.real, values.imag, single)

    # -- algebra ---------------------------------------------------------------------------

    def scale(self, c: float | Tensor) -> Spirals:
        c = scalar(c, self, 1)
        return Spirals(c * self.real, c * self.imag, c * self.single)

    def _integer_power(self, p: int) -> Spirals:
        return self._of(self.values**p, self.single**p)

    def _fractional_power(self, p: float) -> Spirals:
        # A plane with b = 0 and a < 0 is turned by π: e^{iπp} is real in the plane.
        v = self.values
        if p < 0 and (v == 0).any():
            raise no_power(p)
        powers = torch.where(v == 0, torch.zeros_like(v), torch.where(v == 0, 1.0, v) ** p)
        return self._of(powers, real_power(self.single, p))

    def exp(self, t: float | Tensor = 1.0) -> Spirals:
        t = scalar(t, self, 1)
        size, angle = torch.exp(t * self.real), t * self.imag
        return Spirals(size * angle.cos(), size * angle.sin(), torch.exp(t * self.single))

    def inverse(self) -> Spirals:
        nonsingular(torch.cat([t.abs() for t in self._sizes()], -1), self)
        size = self.real.square() + self.imag.square()
        return Spirals(self.real / size, -self.imag / size, 1.0 / self.single)

    def pinv(self, rtol: float | None = None) -> Spirals:
        planes, single = (finite(s, "pinv") for s in self._sizes())
        least = self._rtol(rtol) * peak(torch.cat([planes, single], -1))
        a, b, c = self._together()
        square = safe(a.square() + b.square())
        kept = planes > least
        return Spirals(
            torch.where(kept, a / square, 0.0),
            torch.where(kept, -b / square, 0.0),
            torch.where(single > least, 1.0 / safe(c), 0.0),
        )

    def _sizes(self) -> tuple[Tensor, Tensor]:
        """|a + ib| of the planes and |c|, with one batch axis."""
        a, b, c = self._together()
        return torch.hypot(a, b), c.abs()

    def svd(self, k: int | None = None) -> SVD:
        a, b, c = (finite(t, "svd") for t in self._together())
        size = torch.cat([torch.hypot(a, b).repeat_interleave(2, -1), c.abs()], -1)
        S, order = size.sort(dim=-1, descending=True, stable=True)
        V = self._unit(order, k, "svd")
        # A/|A| turns the unit vectors; where |a + ib| = 0 they stay.
        r = torch.hypot(a, b)
        turn = Spirals(
            torch.where(r == 0, 1.0, a / safe(r)),
            torch.where(r == 0, 0.0, b / safe(r)),
            torch.where(c < 0, -1.0, 1.0).to(c),
        )
        return fix_signs(SVD(turn._columns(V), S[..., : V.shape[-1]], V))

    def eig(self, k: int | None = None) -> Eig:
        a, b, c = (finite(t, "eig") for t in self._together())
        pairs = torch.complex(a, b)
        values = torch.cat([torch.stack([pairs, pairs.conj()], -1).flatten(-2), as_complex(c)], -1)
        order = values.abs().argsort(dim=-1, descending=True, stable=True)
        n = self.shape[0]
        k = min(count(k) or n, n)
        self._guard((n, k), "eig", hint="Ask for the leading ones: .eig(k).")
        # (1, ∓i)/√2 for a ± ib
        halves = torch.tensor([[1, 1], [-1j, 1j]], dtype=values.dtype, device=values.device)
        blocks = [halves / 2**0.5] * self.planes
        single = torch.eye(c.shape[-1], dtype=values.dtype, device=values.device)
        vectors = torch.block_diag(*blocks, single)
        return Eig(values.gather(-1, order)[..., :k], pick(vectors, order[..., :k]))

    def _unit(self, order: Tensor, k: int | None, what: str) -> Tensor:
        """Unit vectors e_i for the first k indices, as columns."""
        n = self.shape[0]
        k = min(count(k) or n, n)
        self._guard((n, k), what, hint=f"Ask for the leading ones: .{what}(k).")
        return F.one_hot(order[..., :k], n).to(self.dtype).mT

    def rank(self, rtol: float | None = None) -> int | Tensor:
        planes, single = (finite(s, "rank") for s in self._sizes())
        least = self._rtol(rtol) * peak(torch.cat([planes, single], -1))
        return self._number(2 * (planes > least).sum(-1) + (single > least).sum(-1))
