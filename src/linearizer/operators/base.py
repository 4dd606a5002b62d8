r"""The contract of a linear core, its dense fallback, and the dense operator."""

from __future__ import annotations

import abc
import copy
import sys
from itertools import chain
from numbers import Real
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .matrices import (
    SVD,
    Eig,
    batch_of,
    count,
    finite,
    hold,
    matrix_eig,
    matrix_exp,
    matrix_inverse,
    matrix_log,
    matrix_pinv,
    matrix_power,
    matrix_solve,
    matrix_svd,
    own,
    peak,
    require_axes,
    rows,
    safe,
    scalar,
    top,
)
from .rules import add, identity, null_of, product, range_of, register, to_scipy

#: Entries (rows × columns × batch) above which no dense matrix is made behind the user's back.
DENSE_LIMIT = 2**24

Self = TypeVar("Self", bound="Operator")


class UnsupportedError(ValueError):
    """What an operator cannot do because of its size or its batch axis, though it is defined."""


class Operator(nn.Module, abc.ABC):
    r"""Linear map ℝⁿ → ℝᵐ in coordinates, z ↦ A z.

    A subclass writes ``shape``, ``forward`` and ``T``; everything else follows densely, and is
    overridden only by an exact cheaper rule. An operator may carry one leading batch axis (one A
    for each sample); ``shape`` stays (m, n) and ``batch`` tells its length.

    What an operation returns is *derived*: it holds values as of now. Gradients pass through it to
    this operator, but it shares none of its Parameters and none of its memory, so that an
    optimiser's step changes this operator alone.

    To add an operator:

    1. Write ``shape``, ``forward`` and ``T``; keep tensors with ``register_buffer``, or as
       Parameters. Derived operators hold copies: pass ``tensor.clone()``.
    2. Override what has an exact cheaper rule: ``dense``, ``scale``, ``exp``, ``pinv``, ``svd``, …
    3. Say how it is multiplied and added: ``@register(product, Mine, Other)``.
    4. Name it in ``__init__.py`` of this folder, ``docs/nouns.md`` and ``docs/api/operators.md``.
    5. Add one line to ``tests/catalogue.py``, singular or rectangular: that buys every law.
    """

    #: So that numpy's numbers and arrays leave ``2 * A`` to the operator.
    __array_ufunc__ = None

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
    def H(self) -> Operator:
        """Conjugate transpose, which is Aᵀ: operators are real."""
        return self.T

    @property
    def batch(self) -> int | None:
        """Length of the leading batch axis, or None for a single A."""
        return None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the entries; numpy's for SciPy, which asks an operator for it."""
        like = self._tensor
        if sys._getframe(1).f_globals.get("__name__", "").startswith("scipy."):
            return like.new_empty(0, device="cpu").detach().numpy().dtype  # type: ignore[return-value]
        return like.dtype

    @property
    def device(self) -> torch.device:
        return self._tensor.device

    @property
    def _tensor(self) -> Tensor:
        for held in (self._parameters, self._buffers):
            for tensor in held.values():
                if tensor is not None:
                    return tensor
        return next(chain(self.parameters(), self.buffers()))

    def __call__(self, z: Tensor) -> Tensor:
        like = self._tensor
        if not isinstance(z, Tensor):
            raise TypeError(
                f"{type(self).__name__}: expected coordinates as a tensor, got {type(z).__name__}. "
                "Use torch.as_tensor(…, dtype=torch.float32)."
            )
        if (
            z.ndim < 2
            or z.shape[-1] != self.shape[1]
            or z.dtype != like.dtype
            or z.device != like.device
            or self.batch not in (None, z.shape[0])
        ):
            self._refuse(z)
        if not like.is_meta and torch.is_autocast_enabled(
            like.device.type
        ):  # low precision is for conditioners
            with torch.autocast(like.device.type, enabled=False):
                return super().__call__(z)
        return super().__call__(z)

    def _refuse(self, z: Tensor) -> None:
        """Say why these are no coordinates for this operator."""
        name, (_, n), like = type(self).__name__, self.shape, self._tensor
        if z.ndim < 2 or z.shape[-1] != n:
            raise ValueError(
                f"{name}: expected coordinates of shape (batch, {n}), got {tuple(z.shape)}. "
                "Coordinates are batch first; a single vector is z[None]."
            )
        if z.dtype != like.dtype or z.device != like.device:
            raise ValueError(
                f"{name}: expected {like.dtype} on {like.device}, got {z.dtype} on "
                f"{getattr(z, 'device', 'cpu')}. Move one of them with .to()."
            )
        raise ValueError(
            f"{name}: expected a batch of {self.batch} (one A for each sample), got {z.shape[0]}."
        )

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

    def _back(self, M: Tensor) -> Tensor:
        """Aᵀ M for a matrix of columns, (m, k) or (batch, m, k)."""
        return self.T._columns(M)

    def _square(self, what: str) -> int:
        m, n = self.shape
        if m != n:
            raise ValueError(
                f"{type(self).__name__}.{what}: needs a square operator, got {m} × {n}. "
                "Use pinv or svd for rectangular ones."
            )
        return n

    def _now(self: Self) -> Self:
        """The same operator as a derived one: it holds copies, with a graph, of all tensors."""
        return _snapshot(self)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        for tensor in self.buffers():
            if not tensor.is_leaf:  # torch copies no graph: the copy holds the values alone
                memo[id(tensor)] = tensor.detach().clone()
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    # -- algebra ---------------------------------------------------------------------------

    def scale(self, c: float | Tensor) -> Operator:
        """c A for a number, or for one number each sample (batch,)."""
        self._guard(self.shape, "scale", samples=c)
        return Dense(scalar(c, self, 2) * self.dense())

    def __matmul__(self, other: Operator) -> Operator:
        if isinstance(other, Tensor):
            raise TypeError("A @ z: expected another operator, got a tensor. Call A(z).")
        if not isinstance(other, Operator):
            return NotImplemented
        if self.shape[1] != other.shape[0]:
            raise ValueError(
                f"A @ B: A has shape {self.shape} and B {other.shape}, but the inner sizes must "
                "agree."
            )
        _agree(self, other, "A @ B")
        return product(self, other)

    def __add__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator):
            return self._now() if _is_zero(other) else NotImplemented
        if self.shape != other.shape:
            raise ValueError(
                f"A + B: A has shape {self.shape} and B {other.shape}, but they must agree."
            )
        _agree(self, other, "A + B")
        return add(self, other)

    __radd__ = __add__  # so that sum([A, B]) starts from 0

    def __sub__(self, other: Operator) -> Operator:
        return self + other.scale(-1.0) if isinstance(other, Operator) else NotImplemented

    def __mul__(self, c: float | Tensor) -> Operator:
        return self.scale(c) if isinstance(c, Real | Tensor) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, c: float | Tensor) -> Operator:
        return self.scale(1.0 / c) if isinstance(c, Real | Tensor) else NotImplemented

    def __neg__(self) -> Operator:
        return self.scale(-1.0)

    def __pow__(self, p: float) -> Operator:
        r"""Aᵖ: integer (negative inverts), or the principal fractional power where it is real."""
        self._square("power")
        if p == 0:
            return identity(self)
        if p == 1:
            return self._now()
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
        return Dense(matrix_exp(scalar(t, self, 2) * self.dense()))

    def log(self) -> Operator:
        r"""The principal logarithm, with exp as its inverse; an error where it is not real."""
        self._square("log")
        return Dense(matrix_log(self.dense()))

    def inverse(self) -> Operator:
        """A⁻¹; an error where A is singular to working precision."""
        self._square("inverse")
        return Dense(matrix_inverse(self.dense(), self))

    def solve(self, w: Tensor) -> Tensor:
        """z with A z = w, for square non-singular A: (batch, n) → (batch, n)."""
        self._square("solve")
        like = self._tensor
        if w.ndim < 2 or w.shape[-1] != self.shape[0] or w.dtype != like.dtype:
            self._refuse(w)
        if self.batch not in (None, w.shape[0]):
            self._refuse(w)
        return self._solve(w)

    def _solve(self, w: Tensor) -> Tensor:
        columns = w.mT if self.batch is None or w.ndim > 2 else w.unsqueeze(-1)
        z = matrix_solve(self.dense(), columns, self)
        return z.mT if self.batch is None or w.ndim > 2 else z.squeeze(-1)

    def pinv(self, rtol: float | None = None) -> Operator:
        r"""Moore–Penrose A†; singular values ≤ rtol·σ_max count as zero.

        The default ``rtol`` is max(m, n)·ε of the dtype. Where ``rtol`` cuts values that are not
        zero, the derivative is that of the truncated A†.
        """
        return Dense(matrix_pinv(self.dense(), self._rtol(rtol)))

    def range_projector(self, rtol: float | None = None) -> Operator:
        """Orthogonal projector onto the range, A A†, from orthonormal factors."""
        return range_of(self, self._rtol(rtol))

    def null_projector(self, rtol: float | None = None) -> Operator:
        """Orthogonal projector onto the null space, I − A† A, from orthonormal factors."""
        return null_of(self, self._rtol(rtol))

    # -- what it says ----------------------------------------------------------------------

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

    def eigvals(self, k: int | None = None) -> Tensor:
        """The k eigenvalues of largest magnitude, or all of them, complex."""
        self._square("eigvals")
        values, times = self._eigenvalues()
        if times is not None:
            values = values.repeat_interleave(times, -1)
        order = values.detach().abs().argsort(dim=-1, descending=True, stable=True)
        return values.gather(-1, order)[..., : count(k)]

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        """All eigenvalues in any order, and how often each counts."""
        return torch.linalg.eigvals(finite(self.dense(), "eigvals")), None

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        """All singular values in any order, and how often each counts."""
        return torch.linalg.svdvals(finite(self.dense(), "svd")), None

    def rank(self, rtol: float | None = None) -> int | Tensor:
        """How many singular values exceed rtol·σ_max; (batch,) where there is a batch axis."""
        with torch.no_grad():
            S, times = self._singular_values()
            above = self._rtol(rtol) * peak(S) < S
            number = (above if times is None else above * times).sum(-1)
        return int(number) if self.batch is None else number

    def norm(self, kind: str | int = "fro") -> Tensor:
        """Frobenius ("fro"), spectral (2), nuclear ("nuc") norm, or the least singular value (−2).

        A number, or (batch,).
        """
        if kind not in ("fro", "nuc", 2, -2):
            raise ValueError(
                f'{type(self).__name__}.norm: expected "fro", "nuc", 2 or -2, got {kind!r}.'
            )
        S, times = self._singular_values()
        if not S.shape[-1]:
            return S.new_zeros(S.shape[:-1])
        if kind in (2, -2):
            return S.amax(-1) if kind == 2 else S.amin(-1)
        weight = S.new_ones(()) if times is None else times.to(S)
        if kind == "nuc":
            return (weight * S).sum(-1)
        size = safe(peak(S).detach())  # squares of what is far from 1 would over- or underflow
        return size[..., 0] * torch.linalg.vector_norm(weight.sqrt() * (S / size), dim=-1)

    def cond(self) -> Tensor:
        """σ_max/σ_min, infinite where A is singular; a number, or (batch,)."""
        S, _ = self._singular_values()
        return S.amax(-1) / S.amin(-1) if S.shape[-1] else S.new_ones(S.shape[:-1])

    def trace(self) -> Tensor:
        """The sum of the diagonal, a number or (batch,)."""
        self._square("trace")
        return self.dense().diagonal(dim1=-2, dim2=-1).sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        """Sign of the determinant and log |det A|, as torch.linalg.slogdet gives them."""
        self._square("slogdet")
        sign, log = torch.linalg.slogdet(finite(self.dense(), "slogdet"))
        return sign, log

    def det(self) -> Tensor:
        """The determinant, a number or (batch,); see ``slogdet`` where it would overflow."""
        sign, log = self.slogdet()
        return sign * log.exp()

    def _rtol(self, rtol: float | None) -> float:
        if rtol is None:
            return max(1, *self.shape) * torch.finfo(self._tensor.dtype).eps
        if not rtol >= 0:
            raise ValueError(f"{type(self).__name__}: expected rtol ≥ 0, got {rtol}.")
        return float(rtol)

    # -- numpy and SciPy -------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.dense().detach().cpu().numpy()
        return array.astype(dtype) if dtype is not None else array

    def matvec(self, z: Any) -> Any:
        """A z for one numpy vector, as SciPy's iterative methods ask for it."""
        return self._numpy(self, z)

    def rmatvec(self, w: Any) -> Any:
        """Aᵀ w for one numpy vector."""
        return self._numpy(self.T, w)

    def _numpy(self, A: Operator, vector: Any) -> Any:
        like = self._tensor
        z = torch.as_tensor(vector).to(dtype=like.dtype, device=like.device).reshape(1, -1)
        with torch.no_grad():
            return A(z)[0].cpu().numpy()

    def to_scipy(self) -> Any:
        """A as ``scipy.sparse.linalg.LinearOperator``."""
        return to_scipy(self)

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
        require_axes(self, "matrix", matrix, 2)
        hold(self, "matrix", matrix)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[-2], self.matrix.shape[-1]

    @property
    def batch(self) -> int | None:
        return batch_of((self.matrix, 2))

    @property
    def T(self) -> Dense:
        return Dense(own(self.matrix.mT))

    def __call__(self, z: Tensor) -> Tensor:
        # The usual case at once: for a small matrix the checks would cost more than the product.
        matrix = self._tensor
        if (
            getattr(z, "dtype", None) is matrix.dtype
            and matrix.is_cpu
            and z.is_cpu
            and matrix.ndim == 2 == z.ndim
            and z.shape[1] == matrix.shape[1]
            and not (self._forward_hooks or self._forward_pre_hooks)
            and not (self._backward_hooks or self._backward_pre_hooks)
            and not torch.is_autocast_enabled("cpu")
        ):
            return F.linear(z, matrix)
        return super().__call__(z)

    def forward(self, z: Tensor) -> Tensor:
        matrix = self._tensor
        return F.linear(z, matrix) if matrix.ndim == 2 else rows(z, matrix.mT)

    def _back(self, M: Tensor) -> Tensor:
        return self.matrix.mT @ M

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        return self.matrix

    def scale(self, c: float | Tensor) -> Dense:
        if isinstance(c, Tensor) and c.ndim:
            self._guard(self.shape, "scale", samples=c)
        return Dense(scalar(c, self, 2) * self.matrix)


@register(product, Operator, Operator)
def _multiply_densely(A: Operator, B: Operator) -> Operator:
    guard_result(A, B, (A.shape[0], B.shape[1]), "@")
    return Dense(A._columns(B.dense()))


@register(add, Operator, Operator)
def _add_densely(A: Operator, B: Operator) -> Operator:
    guard_result(A, B, A.shape, "+")
    return Dense(A.dense() + B.dense())


def _is_zero(value: object) -> bool:
    return isinstance(value, Real) and value == 0


def _agree(A: Operator, B: Operator, what: str) -> None:
    one, two = A._tensor, B._tensor
    if one.dtype != two.dtype or one.device != two.device:
        raise ValueError(
            f"{what}: A is {one.dtype} on {one.device}, B is {two.dtype} on {two.device}. "
            "Move one of them with .to()."
        )
    if A.batch is not None and B.batch is not None and A.batch != B.batch:
        raise ValueError(f"{what}: A has a batch of {A.batch} and B one of {B.batch}.")


def guard_result(A: Operator, B: Operator, shape: tuple[int, int], sign: str) -> None:
    entries = shape[0] * shape[1] * (A.batch or B.batch or 1)
    if entries > DENSE_LIMIT:
        raise UnsupportedError(
            f"{type(A).__name__} {sign} {type(B).__name__}: has no structured form, and the dense "
            f"{shape[0]} × {shape[1]} result is above the limit of {DENSE_LIMIT:,} entries. "
            "Apply them one after the other, or choose operators of one kind."
        )


M = TypeVar("M", bound=nn.Module)


def _snapshot(module: M) -> M:
    twin = copy.copy(module)
    twin.__dict__ = dict(module.__dict__)
    twin._parameters = {}
    twin._buffers = {
        name: None if tensor is None else own(tensor)
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
    }
    twin._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    twin._modules = {
        name: None if child is None else _snapshot(child) for name, child in module._modules.items()
    }
    return twin
