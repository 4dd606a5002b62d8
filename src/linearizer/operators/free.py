r"""Operators that are known by what they do: two functions, and Krylov methods for the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator, UnsupportedError
from .derivatives import first_order
from .matrices import as_complex, count, fix_signs, matrix_eig, scalar, singular, top
from .rules import add, product, register, to_scipy

Function = Callable[[Tensor], Tensor]


class MatrixFree(Operator):
    r"""A z and Aᵀ w as functions of rows, (batch, n) → (batch, m) and back.

    Products, sums and multiples stay functions. ``svd(k)``, ``eig(k)`` and ``solve`` grow a Krylov
    basis until their residual is rounding; everything else is dense, up to the usual limit.

    Arguments:
        forward_rows, backward_rows: z ↦ A z and w ↦ Aᵀ w on rows.
        shape: (m, n).

    Example:
        >>> A = MatrixFree(lambda z: z.roll(1, -1), lambda w: w.roll(-1, -1), (5, 5))
        >>> torch.allclose((A @ A.T).dense(), torch.eye(5))
        True
    """

    like: Tensor

    def __init__(
        self,
        forward_rows: Function,
        backward_rows: Function,
        shape: tuple[int, int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        for name, function in (("forward_rows", forward_rows), ("backward_rows", backward_rows)):
            if not callable(function):
                raise TypeError(
                    f"MatrixFree: expected {name} to be a function of rows, got "
                    f"{type(function).__name__}."
                )
        self.forward_rows, self.backward_rows = forward_rows, backward_rows
        self.size = (int(shape[0]), int(shape[1]))
        self.register_buffer("like", torch.empty(0, dtype=dtype, device=device), persistent=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.size

    @property
    def T(self) -> MatrixFree:
        return self._with(self.backward_rows, self.forward_rows, self.size[::-1])

    def _with(self, there: Function, back: Function, shape: tuple[int, int]) -> MatrixFree:
        return MatrixFree(there, back, shape, self.like.dtype, self.like.device)

    def forward(self, z: Tensor) -> Tensor:
        out = self.forward_rows(z.flatten(0, -2)).to(self.like)
        if out.shape != (z[..., 0].numel(), self.size[0]):
            raise ValueError(
                f"MatrixFree: expected the function to give rows of {self.size[0]} numbers, got "
                f"{tuple(out.shape)} for {tuple(z.shape)}."
            )
        return out.reshape(*z.shape[:-1], self.size[0])

    def scale(self, c: float | Tensor) -> Operator:
        c = scalar(c, self, 0)
        if c.ndim:
            return super().scale(c)
        there, back, c = self.forward_rows, self.backward_rows, c.clone()
        return self._with(lambda z: c * there(z), lambda w: c * back(w), self.size)

    def svd(self, k: int | None = None) -> SVD:
        k = count(k)
        if k is None or min(self.size) <= 4 * (k + 8):
            return top(super().svd(k), k)
        for V, AV in _grow(self, k, self._back):
            P, R = torch.linalg.qr(AV)
            U, S, Wh = torch.linalg.svd(R)
            U, S, V = P @ U[:, :k], S[:k], V @ Wh.mT[:, :k]
            off = torch.linalg.vector_norm(self._back(U) - V * S, dim=0).max()
            if off <= _rounding(self) * S[0]:
                break
        U, S, V = fix_signs(SVD(U, S, V))
        AV = self._columns(V)
        if AV.requires_grad:  # σᵢ = uᵢᵀ A vᵢ
            S = first_order(S, (U * AV).sum(-2), "MatrixFree.svd", AV)
        return SVD(U, S, V)

    def eig(self, k: int | None = None) -> Eig:
        n, k = self._square("eig"), count(k)
        if k is None or n <= 4 * (k + 8):
            return super().eig(k)
        for Q, AQ in _grow(self, k, lambda AQ: AQ):
            values, X = top(matrix_eig(Q.mT @ AQ), k)
            vectors = as_complex(Q) @ X
            off = as_complex(AQ) @ X - vectors * values
            if torch.linalg.vector_norm(off, dim=0).max() <= _rounding(self) * values[0].abs():
                break
        return Eig(values, vectors)

    def _solve(self, w: Tensor) -> Tensor:
        W = w.flatten(0, -2).mT
        for Q, AQ in _grow(self, W.shape[1], lambda AQ: AQ, torch.linalg.qr(W.detach())[0]):
            P, R = torch.linalg.qr(AQ)
            pivots = R.diagonal().abs()
            if pivots.min() <= len(R) * torch.finfo(w.dtype).eps * pivots.max():
                raise singular(self, "solve")
            z = Q @ torch.linalg.solve_triangular(R, P.mT @ W, upper=True)
            off = torch.linalg.vector_norm(self._columns(z).detach() - W.detach(), dim=0)
            size = pivots.max() * torch.linalg.vector_norm(z.detach(), dim=0)
            if bool((off <= _rounding(self) * torch.maximum(size, W.detach().norm(dim=0))).all()):
                break
        else:
            raise singular(self, "solve")
        return z.mT.reshape(w.shape)


def _rounding(A: MatrixFree) -> float:
    return 1e2 * torch.finfo(A.like.dtype).eps


def _grow(
    A: MatrixFree, k: int, step: Callable[[Tensor], Tensor], start: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Orthonormal Q and A Q, each time with a block more: what ``step`` makes of the last A Q."""
    n = A.size[1]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if start is None:
            start = torch.randn(n, k + 8, dtype=torch.float64, generator=generator).to(A.like)
        new = torch.linalg.qr(start)[0]
        Q, AQ = new[:, :0], A.like.new_zeros(A.size[0], 0)
        while new.shape[1]:
            last = A._columns(new)
            Q, AQ = torch.cat([Q, new], 1), torch.cat([AQ, last], 1)
            yield Q, AQ
            if 2 * Q.numel() > DENSE_LIMIT:
                raise UnsupportedError(
                    f"MatrixFree: {Q.shape[1]} Krylov vectors of {n} numbers were not enough. "
                    "Ask for fewer values, or precondition the operator."
                )
            new = step(last)
            size = torch.linalg.vector_norm(new, dim=0)
            for _ in range(2):  # twice is enough to be orthogonal to rounding
                new = new - Q @ (Q.mT @ new)
            kept = torch.linalg.vector_norm(new, dim=0) > 1e2 * torch.finfo(Q.dtype).eps * size
            new, R = torch.linalg.qr(new[:, kept])
            new = new[:, R.diagonal().abs() > 1e2 * torch.finfo(Q.dtype).eps * size.amax()]
            new = torch.linalg.qr(new - Q @ (Q.mT @ new))[0][:, : n - Q.shape[1]]


@register(product, MatrixFree, Operator)
@register(product, Operator, MatrixFree)
def _compose(A: Operator, B: Operator) -> Operator:
    if A.batch is not None or B.batch is not None:
        return NotImplemented
    first, second, back, again = B._now(), A._now(), A.T, B.T
    shape, like = (A.shape[0], B.shape[1]), A._tensor
    return MatrixFree(
        lambda z: second(first(z)), lambda w: again(back(w)), shape, like.dtype, like.device
    )


@register(add, MatrixFree, Operator)
@register(add, Operator, MatrixFree)
def _sum(A: Operator, B: Operator) -> Operator:
    if A.batch is not None or B.batch is not None:
        return NotImplemented
    one, two, one_back, two_back = A._now(), B._now(), A.T, B.T
    like = A._tensor
    return MatrixFree(
        lambda z: one(z) + two(z),
        lambda w: one_back(w) + two_back(w),
        A.shape,
        like.dtype,
        like.device,
    )


def from_callable(
    matvec: Function,
    rmatvec: Function,
    shape: tuple[int, int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> MatrixFree:
    r"""An operator from two functions of *one vector*, z ↦ A z and w ↦ Aᵀ w, (n,) → (m,) and back.

    Functions of whole batches of rows go into :class:`MatrixFree` as they are.

    Example:
        >>> A = from_callable(
        ...     lambda z: z.cumsum(0), lambda w: w.flip(0).cumsum(0).flip(0), (3, 3)
        ... )
        >>> A(torch.ones(1, 3))
        tensor([[1., 2., 3.]])
    """

    def rows(function: Function) -> Function:
        if not callable(function):
            raise TypeError(
                "from_callable: expected two functions of a vector, matvec and rmatvec, got "
                f"{type(function).__name__}."
            )
        return lambda z: torch.stack([function(row) for row in z]) if len(z) else z.new_zeros(0, 0)

    return MatrixFree(rows(matvec), rows(rmatvec), shape, dtype, device)


class _Foreign(torch.autograd.Function):
    """A function of numpy's vectors that is linear, and its transpose."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, there: Any, back: Any) -> Tensor:
        ctx.there, ctx.back = there, back
        rows = z.detach().cpu().numpy()
        return torch.stack([torch.as_tensor(there(row).reshape(-1)) for row in rows]).to(z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Foreign.apply(grad, ctx.back, ctx.there), None, None


def from_scipy(operator: Any, dtype: torch.dtype = torch.float64) -> MatrixFree:
    r"""An operator of SciPy, PyLops or anything else with ``shape``, ``matvec`` and ``rmatvec``.

    Gradients pass through it to coordinates: the transpose is its derivative.

    Arguments:
        operator: ``scipy.sparse.linalg.LinearOperator``, a sparse array, a PyLops operator, …
        dtype: Of the coordinates.
    """
    if not (hasattr(operator, "matvec") and hasattr(operator, "rmatvec")):
        operator = _scipy().aslinearoperator(operator)
    there, back = operator.matvec, operator.rmatvec
    return MatrixFree(
        lambda z: _Foreign.apply(z, there, back),
        lambda w: _Foreign.apply(w, back, there),
        operator.shape,
        dtype,
    )


def _scipy() -> Any:
    try:
        return importlib.import_module("scipy.sparse.linalg")
    except ImportError:
        raise ImportError("SciPy is not installed. Use pip install scipy.") from None


@register(to_scipy, Operator)
def _to_scipy(A: Operator) -> Any:
    if A.batch is not None:
        raise UnsupportedError(
            f"to_scipy: the operator holds one A for each of {A.batch} samples. Take one of them."
        )
    return _scipy().aslinearoperator(A)
