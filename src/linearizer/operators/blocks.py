r"""Cores that keep groups of coordinates apart: one small matrix for each group."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .matrices import (
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
    matrix_projector,
    matrix_solve,
    matrix_svd,
    own,
    require_axes,
    scalar,
)
from .rules import null_of, range_of, register


class BlockDiagonal(Operator):
    r"""diag(A₁, …, A_k) z: k blocks of one size m × n, each on n coordinates of its own.

    Coordinates come block by block, (batch, k·n) → (batch, k·m). All that a single matrix has, the
    blocks have one by one; small singular values are judged by the largest of all blocks.

    Arguments:
        blocks: (k, m, n), or (batch, k, m, n).

    Example:
        >>> A = BlockDiagonal(torch.tensor([[[2.0]], [[0.0]], [[4.0]]]))
        >>> A.pinv()(torch.ones(1, 3))
        tensor([[0.5000, 0.0000, 0.2500]])
    """

    blocks: Tensor

    def __init__(self, blocks: Tensor) -> None:
        super().__init__()
        require_axes(self, "blocks", blocks, 3)
        hold(self, "blocks", blocks)

    @property
    def shape(self) -> tuple[int, int]:
        k, m, n = self.blocks.shape[-3:]
        return k * m, k * n

    @property
    def batch(self) -> int | None:
        return batch_of((self.blocks, 3))

    @property
    def T(self) -> BlockDiagonal:
        return BlockDiagonal(own(self.blocks.mT))

    def forward(self, z: Tensor) -> Tensor:
        k, _, n = self.blocks.shape[-3:]
        own = "" if self.batch is None else "b"
        parts = z.unflatten(-1, (k, n))
        return torch.einsum(f"{own}kmn,{own}...kn->{own}...km", self.blocks, parts).flatten(-2)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        self._guard(self.shape, "dense", limit)
        k, m, n = self.blocks.shape[-3:]
        whole = self.blocks.new_zeros(*self.blocks.shape[:-3], k, m, k, n)
        i = torch.arange(k, device=self.device)
        whole[..., i, :, i, :] = self.blocks.movedim(-3, 0)
        return whole.flatten(-2).flatten(-3, -2)

    def scale(self, c: float | Tensor) -> BlockDiagonal:
        return BlockDiagonal(scalar(c, self, 3) * self.blocks)

    def _integer_power(self, p: int) -> BlockDiagonal:
        return BlockDiagonal(torch.linalg.matrix_power(self._squares("power"), p))

    def _fractional_power(self, p: float) -> BlockDiagonal:
        return BlockDiagonal(matrix_power(self._squares("power"), p, blocks=True))

    def exp(self, t: float | Tensor = 1.0) -> BlockDiagonal:
        return BlockDiagonal(matrix_exp(scalar(t, self, 3) * self._squares("exp")))

    def log(self) -> BlockDiagonal:
        return BlockDiagonal(matrix_log(self._squares("log"), blocks=True))

    def inverse(self) -> BlockDiagonal:
        return BlockDiagonal(matrix_inverse(self._squares("inverse"), self, blocks=True))

    def pinv(self, rtol: float | None = None) -> BlockDiagonal:
        return BlockDiagonal(matrix_pinv(self.blocks, self._rtol(rtol), blocks=True))

    def _solve(self, w: Tensor) -> Tensor:
        k, n = self.blocks.shape[-3:-1]
        lead = () if self.batch is None else (self.batch,)
        samples = w.shape[len(lead) : -1].numel()
        parts = w.reshape(*lead, samples, k, n).movedim(-3, -1)  # (…, k, n, samples)
        z = matrix_solve(self.blocks, parts, self, blocks=True)
        return z.movedim(-1, -3).reshape(w.shape)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        return torch.linalg.svdvals(finite(self.blocks, "svd")).flatten(-2), None

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        return torch.linalg.eigvals(finite(self._squares("eigvals"), "eigvals")).flatten(-2), None

    def trace(self) -> Tensor:
        return self._squares("trace").diagonal(dim1=-2, dim2=-1).sum((-2, -1))

    def slogdet(self) -> tuple[Tensor, Tensor]:
        sign, log = torch.linalg.slogdet(finite(self._squares("slogdet"), "slogdet"))
        return sign.prod(-1), log.sum(-1)

    def svd(self, k: int | None = None) -> SVD:
        if self.batch is not None:
            return super().svd(k)
        U, S, V = matrix_svd(self.blocks)  # (blocks, m, r), (blocks, r), (blocks, n, r)
        block, column = self._leading(S.detach(), k, "svd")
        return SVD(self._place(U, block, column), S[block, column], self._place(V, block, column))

    def eig(self, k: int | None = None) -> Eig:
        if self.batch is not None:
            return super().eig(k)
        values, vectors = matrix_eig(self._squares("eig"))
        block, column = self._leading(values.detach().abs(), k, "eig")
        return Eig(values[block, column], self._place(vectors, block, column))

    def _squares(self, what: str) -> Tensor:
        self._square(what)
        return self.blocks

    def _leading(self, sizes: Tensor, k: int | None, what: str) -> tuple[Tensor, Tensor]:
        """Block, and column in its block, of the k largest."""
        k = min(count(k) or sizes.numel(), sizes.numel())
        self._guard((max(self.shape), k), what, hint=f"Ask for the leading ones: .{what}(k).")
        order = sizes.flatten().argsort(descending=True, stable=True)[:k]
        return order // sizes.shape[-1], order % sizes.shape[-1]

    def _place(self, columns: Tensor, block: Tensor, column: Tensor) -> Tensor:
        """Columns of blocks, (blocks, m, r), as columns of the whole, (blocks·m, k)."""
        whole = columns.new_zeros(len(block), *columns.shape[:2])
        i = torch.arange(len(block), device=columns.device)
        whole[i, block] = columns[block, :, column]
        return whole.flatten(1).mT


@register(range_of, BlockDiagonal)
def _range_of_blocks(A: BlockDiagonal, rtol: float) -> BlockDiagonal:
    return BlockDiagonal(matrix_projector(A.blocks, rtol))


@register(null_of, BlockDiagonal)
def _null_of_blocks(A: BlockDiagonal, rtol: float) -> BlockDiagonal:
    return BlockDiagonal(matrix_projector(A.blocks, rtol, null=True))
