r"""Diagonal cores, and the learned projector of zeros and ones."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .matrices import (
    as_complex,
    batch_of,
    count,
    finite,
    hold,
    middle,
    nonsingular,
    own,
    peak,
    real_log,
    real_power,
    reciprocal,
    require_axes,
    scalar,
    unit_columns,
)
from .rules import null_of, range_of, register


class Diagonal(Operator):
    r"""diag(d) z; its pseudo-inverse sends 0 to 0.

    Example:
        >>> Diagonal(torch.tensor([2.0, 0.0])).pinv().diagonal
        tensor([0.5000, 0.0000])
    """

    diagonal: Tensor

    def __init__(self, diagonal: Tensor) -> None:
        super().__init__()
        require_axes(self, "diagonal", diagonal, 1)
        hold(self, "diagonal", diagonal)

    @property
    def shape(self) -> tuple[int, int]:
        return self.diagonal.shape[-1], self.diagonal.shape[-1]

    @property
    def batch(self) -> int | None:
        return batch_of((self.diagonal, 1))

    @property
    def T(self) -> Diagonal:
        return Diagonal(own(self.diagonal))

    def forward(self, z: Tensor) -> Tensor:
        return z * middle(self.diagonal, z, 1)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        self._guard(self.shape, "dense", limit)
        return torch.diag_embed(self.diagonal)

    def scale(self, c: float | Tensor) -> Diagonal:
        return Diagonal(scalar(c, self, 1) * self.diagonal)

    def _integer_power(self, p: int) -> Diagonal:
        return Diagonal(self.diagonal**p)

    def _fractional_power(self, p: float) -> Diagonal:
        return Diagonal(real_power(self.diagonal, p))

    def exp(self, t: float | Tensor = 1.0) -> Diagonal:
        return Diagonal(torch.exp(scalar(t, self, 1) * self.diagonal))

    def log(self) -> Diagonal:
        return Diagonal(real_log(self.diagonal))

    def inverse(self) -> Diagonal:
        nonsingular(self.diagonal, self)
        return Diagonal(1.0 / self.diagonal)

    def _solve(self, w: Tensor) -> Tensor:
        nonsingular(self.diagonal, self)
        return w / middle(self.diagonal, w, 1)

    def pinv(self, rtol: float | None = None) -> Diagonal:
        return Diagonal(reciprocal(finite(self.diagonal, "pinv"), self._rtol(rtol)))

    def svd(self, k: int | None = None) -> SVD:
        d = finite(self.diagonal, "svd")
        S, order = d.abs().sort(dim=-1, descending=True, stable=True)
        V = self._unit(order, k, "svd")
        sign = torch.where(d < 0, -1.0, 1.0).to(d).gather(-1, order)[..., : V.shape[-1]]
        return SVD(V * sign.unsqueeze(-2), S[..., : V.shape[-1]], V)

    def eig(self, k: int | None = None) -> Eig:
        d = finite(self.diagonal, "eig")
        order = d.abs().argsort(dim=-1, descending=True, stable=True)
        V = self._unit(order, k, "eig")
        values = d.gather(-1, order)[..., : V.shape[-1]]
        return Eig(as_complex(values), as_complex(V))

    def _unit(self, order: Tensor, k: int | None, what: str) -> Tensor:
        """Unit vectors e_i for the first k indices, as columns."""
        n = self.shape[0]
        k = min(count(k) or n, n)
        self._guard((n, k), what, hint=f"Ask for the leading ones: .{what}(k).")
        return unit_columns(order[..., :k], n, self._tensor.detach())

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        return finite(self.diagonal, "svd").abs(), None

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        return as_complex(finite(self.diagonal, "eigvals")), None

    def trace(self) -> Tensor:
        return self.diagonal.sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        return self.diagonal.sign().prod(-1), self.diagonal.abs().log().sum(-1)


class Projector(Operator):
    r"""Diagonal of zeros and ones, learned: Λ = round(P) + P − P.detach(), P = sigmoid(logits).

    In use Λ is exactly 0/1, so Λ² = Λ; gradients pass straight through to the probabilities.

    Paper: section 4.3 (linear idempotent generative network).

    Example:
        >>> P = Projector(torch.tensor([3.0, -1.0]))
        >>> P(torch.tensor([[5.0, 7.0]]))
        tensor([[5., 0.]])
    """

    logits: Tensor

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        require_axes(self, "logits", logits, 1)
        hold(self, "logits", logits)

    @property
    def shape(self) -> tuple[int, int]:
        return self.logits.shape[-1], self.logits.shape[-1]

    @property
    def batch(self) -> int | None:
        return batch_of((self.logits, 1))

    @property
    def mask(self) -> Tensor:
        """Which directions are kept, as booleans."""
        return self.logits > 0

    @property
    def diagonal(self) -> Tensor:
        """Λ, exactly 0/1, with the gradient of the probabilities."""
        P = torch.sigmoid(self.logits)
        return self.mask.to(P) + (P - P.detach())

    @property
    def T(self) -> Projector:
        return self._now()

    def forward(self, z: Tensor) -> Tensor:
        return z * middle(self.diagonal, z, 1)

    def _as_diagonal(self) -> Diagonal:
        return Diagonal(self.diagonal)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        return self._as_diagonal().dense(limit)

    def scale(self, c: float | Tensor) -> Diagonal:
        return self._as_diagonal().scale(c)

    def _integer_power(self, p: int) -> Projector:
        return self._now()

    def _fractional_power(self, p: float) -> Operator:
        return self._as_diagonal().inverse() ** -p if p < 0 else self._now()

    def log(self) -> Diagonal:
        return self._as_diagonal().log()

    def _solve(self, w: Tensor) -> Tensor:
        return self._as_diagonal()._solve(w)

    def exp(self, t: float | Tensor = 1.0) -> Diagonal:
        return self._as_diagonal().exp(t)

    def inverse(self) -> Diagonal:
        return self._as_diagonal().inverse()

    def pinv(self, rtol: float | None = None) -> Projector:
        return self._now()

    def svd(self, k: int | None = None) -> SVD:
        return self._as_diagonal().svd(k)

    def eig(self, k: int | None = None) -> Eig:
        return self._as_diagonal().eig(k)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        return self._as_diagonal()._singular_values()

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        return self._as_diagonal()._eigenvalues()

    def trace(self) -> Tensor:
        return self.diagonal.sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        return self._as_diagonal().slogdet()

    def complement(self) -> Projector:
        """I − Λ."""
        tiny = torch.finfo(self.dtype).tiny
        return Projector(torch.where(self.logits == 0, tiny, -self.logits))

    def meet(self, other: Projector) -> Projector:
        """Onto the intersection of the two ranges."""
        return Projector(torch.minimum(self.logits, other.logits))

    def join(self, other: Projector) -> Projector:
        """Onto the span of both ranges."""
        return Projector(torch.maximum(self.logits, other.logits))


@register(range_of, Diagonal)
def _range_of_diagonal(A: Diagonal, rtol: float) -> Diagonal:
    size = finite(A.diagonal, "range_projector").detach().abs()
    return Diagonal((rtol * peak(size) < size).to(size))


@register(null_of, Diagonal)
def _null_of_diagonal(A: Diagonal, rtol: float) -> Diagonal:
    return Diagonal(1.0 - _range_of_diagonal(A, rtol).diagonal)


@register(range_of, Projector)
def _range_of_projector(A: Projector, rtol: float) -> Projector:
    return A._now()


@register(null_of, Projector)
def _null_of_projector(A: Projector, rtol: float) -> Projector:
    return A.complement()
