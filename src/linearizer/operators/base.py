r"""The contract of a linear core, its dense fallback, and the dense operator."""

from __future__ import annotations

import abc
from itertools import chain

import torch
from torch import Tensor, nn

from .matrices import (
    SVD,
    Eig,
    batch_of,
    count,
    finite,
    hold,
    matrix_eig,
    matrix_inverse,
    matrix_pinv,
    matrix_power,
    matrix_svd,
    rows,
    scalar,
    shaped,
    top,
)

#: Entries (rows × columns × batch) above which no dense matrix is made behind the user's back.
DENSE_LIMIT = 2**24


class UnsupportedError(ValueError):
    """What an operator cannot do because of its size or its batch axis, though it is defined."""


class Operator(nn.Module, abc.ABC):
    r"""Linear map ℝⁿ → ℝᵐ in coordinates, z ↦ A z.

    A subclass writes ``shape``, ``forward`` and ``T``; everything else follows densely, and is
    overridden only by an exact cheaper rule. An operator may carry one leading batch axis (one A
    for each sample); ``shape`` stays (m, n) and ``batch`` tells its length.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows m, columns n)."""

    @property
    @abc.abstractmethod
    def T(self) -> Operator:
        """Transpose Aᵀ."""

    @abc.abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """A z for each row: (batch, n) → (batch, m)."""

    @property
    def batch(self) -> int | None:
        """Length of the leading batch axis, or None for a single A."""
        return None

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    @property
    def _tensor(self) -> Tensor:
        return next(chain(self.parameters(), self.buffers()))

    def __call__(self, z: Tensor) -> Tensor:
        name, (_, n) = type(self).__name__, self.shape
        if z.ndim < 2 or z.shape[-1] != n:
            raise ValueError(
                f"{name}: expected coordinates of shape (batch, {n}), got {tuple(z.shape)}. "
                "Coordinates are batch first; a single vector is z[None]."
            )
        if z.dtype != self.dtype or z.device != self.device:
            raise ValueError(
                f"{name}: expected {self.dtype} on {self.device}, got {z.dtype} on {z.device}. "
                "Move one of them with .to()."
            )
        if self.batch is not None and z.shape[0] != self.batch:
            raise ValueError(
                f"{name}: expected a batch of {self.batch} (one A for each sample), "
                f"got {z.shape[0]}."
            )
        with torch.autocast(z.device.type, enabled=False):  # low precision is for conditioners
            return super().__call__(z)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        """The matrix itself, (m, n) or (batch, m, n); an error above ``limit`` entries."""
        self._guard(self.shape, "dense", limit)
        eye = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        return self._columns(eye)

    def _guard(
        self,
        size: tuple[int, int],
        what: str,
        limit: int | None = DENSE_LIMIT,
        hint: str = "",
        samples: float | Tensor = 1.0,
    ) -> None:
        """Refuse a dense result above the limit; ``samples`` is a scalar that may bring a batch."""
        brought = len(samples) if isinstance(samples, Tensor) and samples.ndim else None
        batch = self.batch or brought
        entries = size[0] * size[1] * (batch or 1)
        if limit is not None and entries > limit:
            raise UnsupportedError(
                f"{type(self).__name__}.{what}: would make a dense {size[0]} × {size[1]} matrix"
                f"{f' for each of {batch} samples' if batch else ''}, "
                f"above the limit of {limit:,} entries. "
                + (hint or "Keep to structured operators, or call .dense(limit=None) yourself.")
            )

    def _columns(self, M: Tensor) -> Tensor:
        """A M for a matrix of columns, (n, k) or (batch, n, k)."""
        if self.batch is not None and M.ndim == 2:
            M = M.expand(self.batch, *M.shape)
        return self.forward(M.mT).mT

    def _square(self, what: str) -> int:
        m, n = self.shape
        if m != n:
            raise ValueError(
                f"{type(self).__name__}.{what}: needs a square operator, got {m} × {n}. "
                "Use pinv or svd for rectangular ones."
            )
        return n

    # -- algebra ---------------------------------------------------------------------------

    def scale(self, c: float | Tensor) -> Operator:
        """c A for a number, or for one number each sample (batch,)."""
        self._guard(self.shape, "scale", samples=c)
        return Dense(scalar(c, self, 2) * self.dense())

    def __matmul__(self, other: Operator) -> Operator:
        from .algebra import product

        return product(self, other) if isinstance(other, Operator) else NotImplemented

    def __add__(self, other: Operator) -> Operator:
        from .algebra import add

        return add(self, other) if isinstance(other, Operator) else NotImplemented

    def __sub__(self, other: Operator) -> Operator:
        return self + other.scale(-1.0) if isinstance(other, Operator) else NotImplemented

    def __mul__(self, c: float | Tensor) -> Operator:
        return self.scale(c) if isinstance(c, int | float | Tensor) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, c: float | Tensor) -> Operator:
        return self.scale(1.0 / c) if isinstance(c, int | float | Tensor) else NotImplemented

    def __neg__(self) -> Operator:
        return self.scale(-1.0)

    def __pow__(self, p: float) -> Operator:
        r"""Aᵖ: integer (negative inverts), or the principal fractional power where it is real."""
        n = self._square("power")
        if p == 0:
            from .lowrank import Identity

            return Identity(n, dtype=self.dtype, device=self.device)
        if p == 1:
            return self
        if float(p).is_integer():
            return self.inverse() ** -int(p) if p < 0 else self._integer_power(int(p))
        return self._fractional_power(float(p))

    def _integer_power(self, p: int) -> Operator:
        return Dense(torch.linalg.matrix_power(self.dense(), p))

    def _fractional_power(self, p: float) -> Operator:
        return Dense(matrix_power(self.dense(), p))

    def exp(self, t: float | Tensor = 1.0) -> Operator:
        r"""e^{tA}, the flow of ż = A z after time t."""
        self._square("exp")
        self._guard(self.shape, "exp", samples=t)
        return Dense(torch.linalg.matrix_exp(scalar(t, self, 2) * self.dense()))

    def inverse(self) -> Operator:
        """A⁻¹; an error where A is singular to working precision."""
        self._square("inverse")
        return Dense(matrix_inverse(self.dense(), self))

    def solve(self, w: Tensor) -> Tensor:
        """z with A z = w, for square non-singular A: (batch, n) → (batch, n)."""
        return self.inverse()(w)

    def pinv(self, rtol: float | None = None) -> Operator:
        r"""Moore–Penrose A†; singular values ≤ rtol·σ_max count as zero.

        The default ``rtol`` is max(m, n)·ε of the dtype.
        """
        return Dense(matrix_pinv(self.dense(), self._rtol(rtol)))

    def svd(self, k: int | None = None) -> SVD:
        r"""The k leading singular triples (fewer where the structure has fewer), or all of them.

        Signs are fixed: of each right vector the first entry within 0.1% of the largest magnitude
        is positive. Values have gradients always, vectors where values are distinct.
        """
        return top(matrix_svd(self.dense()), count(k))

    def eig(self, k: int | None = None) -> Eig:
        """The k eigenpairs of largest magnitude, or all of them."""
        self._square("eig")
        return top(matrix_eig(self.dense()), count(k))

    def rank(self, rtol: float | None = None) -> int | Tensor:
        """How many singular values exceed rtol·σ_max; (batch,) where there is a batch axis."""
        S = torch.linalg.svdvals(finite(self.dense(), "rank"))
        return self._number((self._rtol(rtol) * S[..., :1] < S).sum(-1))

    def _number(self, count: Tensor) -> int | Tensor:
        return int(count) if self.batch is None else count

    def _rtol(self, rtol: float | None) -> float:
        if rtol is None:
            return max(self.shape) * torch.finfo(self.dtype).eps
        if not rtol >= 0:
            raise ValueError(f"{type(self).__name__}: expected rtol ≥ 0, got {rtol}.")
        return float(rtol)

    def extra_repr(self) -> str:
        return f"shape={self.shape}" + (f", batch={self.batch}" if self.batch else "")


class Dense(Operator):
    r"""A z for a matrix, (m, n) or (batch, m, n).

    Example:
        >>> A = Dense(torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
        >>> A.pinv().dense()
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        shaped(self, "matrix", matrix, 2)
        hold(self, "matrix", matrix)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[-2], self.matrix.shape[-1]

    @property
    def batch(self) -> int | None:
        return batch_of((self.matrix, 2))

    @property
    def T(self) -> Dense:
        return Dense(self.matrix.mT)

    def forward(self, z: Tensor) -> Tensor:
        return rows(z, self.matrix.mT)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        return self.matrix

    def scale(self, c: float | Tensor) -> Dense:
        if isinstance(c, Tensor) and c.ndim:
            self._guard(self.shape, "scale", samples=c)
        return Dense(scalar(c, self, 2) * self.matrix)
