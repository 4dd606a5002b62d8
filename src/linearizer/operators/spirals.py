r"""Cores that turn and scale planes: complex numbers on the diagonal, in real coordinates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .diagonal import Diagonal
from .matrices import (
    as_complex,
    batch_of,
    count,
    finite,
    fix_signs,
    hold,
    middle,
    no_log,
    no_power,
    nonsingular,
    own,
    peak,
    precise,
    real_log,
    real_power,
    require_axes,
    safe,
    scalar,
    unit_columns,
)
from .rules import null_of, range_of, register


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
            require_axes(self, name, value, 1)
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
        return Spirals(own(self.real), -self.imag, own(self.single))

    @property
    def values(self) -> Tensor:
        """a + ib of the planes, (k,) or (batch, k)."""
        if self.real.element_size() < 4:
            precise(self.real, "Spirals")
        return torch.complex(self.real, self.imag)

    def forward(self, z: Tensor) -> Tensor:
        k, n = self.planes, self.shape[1]
        if not k:
            return z * middle(self.single, z, 1)
        if z.dtype not in (torch.float32, torch.float64):  # torch has no such complex numbers
            x, y = z[..., 0 : 2 * k : 2], z[..., 1 : 2 * k : 2]
            a, b = middle(self.real, z, 1), middle(self.imag, z, 1)
            planes = torch.stack([a * x - b * y, b * x + a * y], -1)
        else:
            pairs = torch.view_as_complex(z[..., : 2 * k].unflatten(-1, (k, 2)).contiguous())
            planes = torch.view_as_real(pairs * middle(self.values, z, 1))
        if 2 * k == n:
            return planes.flatten(-2)
        return torch.cat([planes.flatten(-2), z[..., 2 * k :] * middle(self.single, z, 1)], -1)

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
        v = finite(self.values, "power")
        if p < 0 and (v == 0).any():
            raise no_power(p)
        powers = torch.where(v == 0, torch.zeros_like(v), torch.where(v == 0, 1.0, v) ** p)
        return self._of(powers, real_power(self.single, p))

    def exp(self, t: float | Tensor = 1.0) -> Spirals:
        t = scalar(t, self, 1)
        size, angle = torch.exp(t * self.real), t * self.imag
        return Spirals(size * angle.cos(), size * angle.sin(), torch.exp(t * self.single))

    def log(self) -> Spirals:
        a, b = finite(self.real, "log"), finite(self.imag, "log")
        if ((b == 0) & (a <= 0)).any():
            raise no_log()
        return Spirals(torch.hypot(a, b).log(), torch.atan2(b, a), real_log(self.single))

    def _reciprocal(self) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of 1/(a + ib), by a size first, so that no square overflows."""
        size = safe(torch.maximum(self.real.abs(), self.imag.abs()).detach())
        a, b = self.real / size, self.imag / size
        square = safe(a.square() + b.square())
        return a / square / size, -b / square / size

    def inverse(self) -> Spirals:
        nonsingular(torch.cat(self._sizes(), -1), self)
        return Spirals(*self._reciprocal(), 1.0 / self.single)

    def _solve(self, w: Tensor) -> Tensor:
        return self.inverse().forward(w)

    def pinv(self, rtol: float | None = None) -> Spirals:
        planes, single = self._kept(self._rtol(rtol))
        a, b = self._reciprocal()
        c = 1.0 / safe(self.single)
        return Spirals(
            torch.where(planes, a, 0.0), torch.where(planes, b, 0.0), torch.where(single, c, 0.0)
        )

    def _kept(self, rtol: float) -> tuple[Tensor, Tensor]:
        """Which planes and which singles are above rtol·σ_max."""
        planes, single = (finite(s, "pinv") for s in self._sizes())
        least = rtol * peak(torch.cat([planes, single], -1))
        return planes > least, single > least

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
        n = self.shape[0]
        k = min(count(k) or n, n)
        self._guard((n, k), "eig", hint="Ask for the leading ones: .eig(k).")
        order = values.detach().abs().argsort(dim=-1, descending=True, stable=True)[..., :k]
        # (1, ∓i)/√2 on its plane for a ± ib, and 1 on a single coordinate
        turns = order < 2 * self.planes
        first = torch.where(turns, order - order % 2, order)
        here = as_complex(torch.where(turns, 0.5**0.5, 1.0).to(self.dtype))
        sign = torch.where(order % 2 == 0, -1j, 1j).to(here.dtype)
        beside = torch.where(turns, here * sign, 0.0)
        vectors = here.new_zeros(*order.shape[:-1], n, k)
        vectors.scatter_(-2, first.unsqueeze(-2), here.unsqueeze(-2))
        other = torch.where(turns, first + 1, first)
        vectors.scatter_add_(-2, other.unsqueeze(-2), beside.unsqueeze(-2))
        return Eig(values.gather(-1, order), vectors)

    def _unit(self, order: Tensor, k: int | None, what: str) -> Tensor:
        """Unit vectors e_i for the first k indices, as columns."""
        n = self.shape[0]
        k = min(count(k) or n, n)
        self._guard((n, k), what, hint=f"Ask for the leading ones: .{what}(k).")
        return unit_columns(order[..., :k], n, self._tensor.detach())

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        planes, single = (finite(s, "svd") for s in self._sizes())
        return torch.cat([planes.repeat_interleave(2, -1), single], -1), None

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        a, b, c = (finite(t, "eigvals") for t in self._together())
        pair = torch.complex(a, b)
        return torch.cat([pair, pair.conj(), as_complex(c)], -1), None

    def trace(self) -> Tensor:
        return 2 * self.real.sum(-1) + self.single.sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        planes, single = self._sizes()
        log = 2 * planes.log().sum(-1) + single.log().sum(-1)
        singular = (planes == 0).any(-1)
        return torch.where(singular, 0.0, self._together()[2].sign().prod(-1)), log


def _mask(A: Spirals, rtol: float) -> Tensor:
    planes, single = A._kept(rtol)
    return torch.cat([planes.repeat_interleave(2, -1), single], -1).to(A.dtype)


@register(range_of, Spirals)
def _range_of_spirals(A: Spirals, rtol: float) -> Diagonal:
    return Diagonal(_mask(A, rtol))


@register(null_of, Spirals)
def _null_of_spirals(A: Spirals, rtol: float) -> Diagonal:
    return Diagonal(1.0 - _mask(A, rtol))
