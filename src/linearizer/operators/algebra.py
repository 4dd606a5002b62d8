r"""Products and sums that keep structure. What has no rule here becomes Dense."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Dense, Operator, guard_result
from .blocks import BlockDiagonal
from .convolution import Convolution
from .diagonal import Diagonal, Projector
from .lowrank import Identity, LowRank, ScaledIdentityPlusLowRank
from .matrices import cat, own
from .mixing import MixingConvolution
from .rules import add, product, register
from .spirals import Spirals

# -- multiples of the identity ---------------------------------------------------------------------


@register(product, Identity, Operator)
def _identity_times(A: Identity, B: Operator) -> Operator:
    return B._now()


@register(product, Operator, Identity)
def _times_identity(A: Operator, B: Identity) -> Operator:
    return A._now()


@register(product, ScaledIdentityPlusLowRank, Operator)
def _multiple_times(A: ScaledIdentityPlusLowRank, B: Operator) -> Operator:
    return B.scale(A.alpha) if _is_multiple(A) else NotImplemented


@register(product, Operator, ScaledIdentityPlusLowRank)
def _times_multiple(A: Operator, B: ScaledIdentityPlusLowRank) -> Operator:
    return A.scale(B.alpha) if _is_multiple(B) else NotImplemented


def _is_multiple(A: Operator) -> bool:
    """Return whether A is αI by construction."""
    return isinstance(A, ScaledIdentityPlusLowRank) and A.U.shape[-1] == 0


def _plus_multiple(A: Operator, c: Tensor) -> Operator:
    """A + cI where that keeps the structure of A."""
    if isinstance(A, Diagonal | Projector):
        return Diagonal(A.diagonal + c[..., None])
    if isinstance(A, Convolution):
        delta = torch.zeros_like(A.kernel)
        delta[..., A.origin[0], A.origin[1]] = 1.0
        kernel = A.kernel + c[..., None, None, None] * delta
        return Convolution(kernel, A.image, A.padding, A.origin)
    if isinstance(A, Spirals):
        return Spirals(A.real + c[..., None], A.imag + 0 * c[..., None], A.single + c[..., None])
    if isinstance(A, BlockDiagonal) and A.blocks.shape[-1] == A.blocks.shape[-2]:
        eye = torch.eye(A.blocks.shape[-1], dtype=A.dtype, device=A.device)
        return BlockDiagonal(A.blocks + c[..., None, None, None] * eye)
    if isinstance(A, MixingConvolution):
        C, H, W = A.image
        kernel = c[..., None, None] * torch.eye(C, dtype=A.dtype, device=A.device)
        return A + MixingConvolution(kernel[..., None, None], (C, H, W))
    return NotImplemented


@register(add, Identity, Operator)
def _identity_plus(A: Identity, B: Operator) -> Operator:
    return _plus_multiple(B, A.like.new_ones(()))


@register(add, Operator, Identity)
def _plus_identity(A: Operator, B: Identity) -> Operator:
    return _plus_multiple(A, B.like.new_ones(()))


@register(add, ScaledIdentityPlusLowRank, Operator)
def _multiple_plus(A: ScaledIdentityPlusLowRank, B: Operator) -> Operator:
    return _plus_multiple(B, A.alpha) if _is_multiple(A) else NotImplemented


@register(add, Operator, ScaledIdentityPlusLowRank)
def _plus_multiple_of_identity(A: Operator, B: ScaledIdentityPlusLowRank) -> Operator:
    return _plus_multiple(A, B.alpha) if _is_multiple(B) else NotImplemented


# -- diagonals -------------------------------------------------------------------------------------


@register(product, Projector, Projector)
def _meet(A: Projector, B: Projector) -> Projector:
    return A.meet(B)


@register(product, Diagonal, Diagonal)
@register(product, Diagonal, Projector)
@register(product, Projector, Diagonal)
def _multiply_diagonals(A: Diagonal | Projector, B: Diagonal | Projector) -> Diagonal:
    return Diagonal(A.diagonal * B.diagonal)


@register(add, Diagonal, Diagonal)
@register(add, Diagonal, Projector)
@register(add, Projector, Diagonal)
@register(add, Projector, Projector)
def _add_diagonals(A: Diagonal | Projector, B: Diagonal | Projector) -> Diagonal:
    return Diagonal(A.diagonal + B.diagonal)


# -- low rank --------------------------------------------------------------------------------------


@register(product, LowRank, LowRank)
def _multiply_low_ranks(A: LowRank, B: LowRank) -> LowRank:
    return _times_low_rank(A, B) if B.U.shape[-1] < A.U.shape[-1] else _low_rank_times(A, B)


@register(product, LowRank, Operator)
def _low_rank_times(A: LowRank, B: Operator) -> LowRank:
    return LowRank(own(A.U), B._back(A.V))


@register(product, Operator, LowRank)
def _times_low_rank(A: Operator, B: LowRank) -> LowRank:
    return LowRank(A._columns(B.U), own(B.V))


@register(product, ScaledIdentityPlusLowRank, ScaledIdentityPlusLowRank)
def _multiply_sums(
    A: ScaledIdentityPlusLowRank, B: ScaledIdentityPlusLowRank
) -> ScaledIdentityPlusLowRank:
    # (αI + UVᵀ)(βI + PQᵀ) = αβI + U (βV)ᵀ + (αP + U VᵀP) Qᵀ
    U = cat(B._a * A.U, A._columns(B.U))
    return ScaledIdentityPlusLowRank(A.alpha * B.alpha, U, cat(A.V, B.V))


@register(add, LowRank, LowRank)
def _add_low_ranks(A: LowRank, B: LowRank) -> LowRank:
    return LowRank(cat(A.U, B.U), cat(A.V, B.V))


@register(add, ScaledIdentityPlusLowRank, ScaledIdentityPlusLowRank)
@register(add, ScaledIdentityPlusLowRank, LowRank)
@register(add, LowRank, ScaledIdentityPlusLowRank)
@register(add, ScaledIdentityPlusLowRank, Identity)
@register(add, Identity, ScaledIdentityPlusLowRank)
@register(add, LowRank, Identity)
@register(add, Identity, LowRank)
@register(add, Identity, Identity)
def _add_sums(A: Operator, B: Operator) -> ScaledIdentityPlusLowRank:
    (a, U, V), (b, P, Q) = _alpha_and_factors(A), _alpha_and_factors(B)
    return ScaledIdentityPlusLowRank(a + b, cat(U, P), cat(V, Q))


def _alpha_and_factors(A: Operator) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(A, Identity):
        A = A.scale(1.0)
    if isinstance(A, LowRank):
        return A.U.new_zeros(()), A.U, A.V
    assert isinstance(A, ScaledIdentityPlusLowRank)
    return A.alpha, A.U, A.V


# -- blocks, planes, convolutions ------------------------------------------------------------------


@register(product, BlockDiagonal, BlockDiagonal)
def _multiply_blocks(A: BlockDiagonal, B: BlockDiagonal) -> BlockDiagonal:
    one, two = A.blocks, B.blocks
    fit = one.shape[-3] == two.shape[-3] and one.shape[-1] == two.shape[-2]
    return BlockDiagonal(one @ two) if fit else NotImplemented


@register(add, BlockDiagonal, BlockDiagonal)
def _add_blocks(A: BlockDiagonal, B: BlockDiagonal) -> BlockDiagonal:
    fit = A.blocks.shape[-3:] == B.blocks.shape[-3:]
    return BlockDiagonal(A.blocks + B.blocks) if fit else NotImplemented


@register(product, Spirals, Spirals)
def _multiply_spirals(A: Spirals, B: Spirals) -> Spirals:
    if A.planes != B.planes:
        return NotImplemented
    planes = A.values * B.values
    return Spirals(planes.real, planes.imag, A.single * B.single)


@register(add, Spirals, Spirals)
def _add_spirals(A: Spirals, B: Spirals) -> Spirals:
    if A.planes != B.planes:
        return NotImplemented
    return Spirals(A.real + B.real, A.imag + B.imag, A.single + B.single)


@register(product, Convolution, Convolution)
def _multiply_convolutions(A: Convolution, B: Convolution) -> Convolution:
    if A.image != B.image or A.padding != B.padding or A.padding != "circular":
        return NotImplemented
    return A._from_multiplier(A._multiplier() * B._multiplier())


@register(add, Convolution, Convolution)
def _add_convolutions(A: Convolution, B: Convolution) -> Convolution:
    if A.image != B.image or A.padding != B.padding:
        return NotImplemented
    kernel, origin = _overlay(A, B)
    return Convolution(kernel, A.image, A.padding, origin)


@register(product, MixingConvolution, MixingConvolution)
@register(product, MixingConvolution, Convolution)
@register(product, Convolution, MixingConvolution)
def _multiply_mixing(A: Operator, B: Operator) -> MixingConvolution:
    one, two = _as_mixing(A), _as_mixing(B)
    if one is None or two is None or one.image[1:] != two.image[1:]:
        return NotImplemented
    return one._from_blocks(one._blocks() @ two._blocks())


@register(add, MixingConvolution, MixingConvolution)
@register(add, MixingConvolution, Convolution)
@register(add, Convolution, MixingConvolution)
def _add_mixing(A: Operator, B: Operator) -> MixingConvolution:
    one, two = _as_mixing(A), _as_mixing(B)
    if one is None or two is None or one.image != two.image:
        return NotImplemented
    kernel, origin = _overlay(one, two)
    if any(k > n for k, n in zip(kernel.shape[-2:], one.image[1:], strict=True)):
        return one._from_blocks(one._blocks() + two._blocks())
    return MixingConvolution(kernel, one.image, origin)


def _as_mixing(A: Operator) -> MixingConvolution | None:
    if isinstance(A, MixingConvolution):
        return A
    if isinstance(A, Convolution) and A.padding == "circular":
        kernel = torch.diag_embed(A.kernel.movedim(-3, -1), dim1=-4, dim2=-3)
        return MixingConvolution(kernel, A.image, A.origin)
    return None


# -- dense -----------------------------------------------------------------------------------------


@register(product, Operator, Dense)
def _times_dense(A: Operator, B: Dense) -> Dense:
    guard_result(A, B, (A.shape[0], B.shape[1]), "@")
    return Dense(A._columns(B.matrix))


@register(product, Dense, Operator)
def _dense_times(A: Dense, B: Operator) -> Dense:
    guard_result(A, B, (A.shape[0], B.shape[1]), "@")
    return Dense(B._back(A.matrix.mT).mT)


def _overlay(
    A: Convolution | MixingConvolution, B: Convolution | MixingConvolution
) -> tuple[Tensor, tuple[int, int]]:
    """The sum of two kernels laid over each other at their origins, and its origin."""
    size = [
        (max(A.origin[i], B.origin[i]), max(X.kernel.shape[i - 2] - X.origin[i] for X in (A, B)))
        for i in (0, 1)
    ]

    def padded(X: Convolution | MixingConvolution) -> Tensor:
        (up, down), (left, right) = (
            (before - X.origin[i], after - X.kernel.shape[i - 2] + X.origin[i])
            for i, (before, after) in enumerate(size)
        )
        return F.pad(X.kernel, (left, right, up, down))

    return padded(A) + padded(B), (size[0][0], size[1][0])
