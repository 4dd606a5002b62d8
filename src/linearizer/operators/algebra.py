r"""Products and sums of operators: the rules that keep structure, then Dense."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import DENSE_LIMIT, Dense, Operator, UnsupportedError
from .blocks import BlockDiagonal
from .convolution import Convolution
from .diagonal import Diagonal, Projector
from .lowrank import Identity, LowRank, ScaledIdentityPlusLowRank
from .matrices import (
    cat,
)
from .mixing import MixingConvolution
from .spirals import Spirals


def product(A: Operator, B: Operator) -> Operator:
    if A.shape[1] != B.shape[0]:
        raise ValueError(
            f"A @ B: A has shape {A.shape} and B {B.shape}, but the inner sizes must agree."
        )
    _agree(A, B, "A @ B")
    if (c := _multiple_of_identity(A)) is not None:
        return B if isinstance(A, Identity) else B.scale(c)
    if (c := _multiple_of_identity(B)) is not None:
        return A if isinstance(B, Identity) else A.scale(c)
    if isinstance(A, Projector) and isinstance(B, Projector):
        return A.meet(B)
    if isinstance(A, Diagonal | Projector) and isinstance(B, Diagonal | Projector):
        return Diagonal(A.diagonal * B.diagonal)
    if isinstance(A, LowRank) and not (isinstance(B, LowRank) and B.U.shape[-1] < A.U.shape[-1]):
        return LowRank(A.U, B.T._columns(A.V))
    if isinstance(B, LowRank):
        return LowRank(A._columns(B.U), B.V)
    if isinstance(A, ScaledIdentityPlusLowRank) and isinstance(B, ScaledIdentityPlusLowRank):
        # (αI + UVᵀ)(βI + PQᵀ) = αβI + U (βV)ᵀ + (αP + U VᵀP) Qᵀ
        U = cat(B._a * A.U, A._columns(B.U))
        return ScaledIdentityPlusLowRank(A.alpha * B.alpha, U, cat(A.V, B.V))
    if (pair := _convolutions(A, B)) is not None and pair[0].padding == "circular":
        return pair[0]._from_multiplier(pair[0]._multiplier() * pair[1]._multiplier())
    if (mixing := _mixing(A, B)) is not None:
        return mixing[0]._from_blocks(mixing[0]._blocks() @ mixing[1]._blocks())
    if (pair_of_blocks := _blocks(A, B)) is not None:
        first, second = pair_of_blocks
        if first.shape[-1] == second.shape[-2]:
            return BlockDiagonal(first @ second)
    if (spirals := _spirals(A, B)) is not None:
        one, other = spirals
        planes = one.values * other.values
        return Spirals(planes.real, planes.imag, one.single * other.single)
    _guard_result(A, B, (A.shape[0], B.shape[1]), "@")
    if isinstance(B, Dense):
        return Dense(A._columns(B.matrix))
    if isinstance(A, Dense):
        return Dense(B.T._columns(A.matrix.mT).mT)
    return Dense(A._columns(B.dense()))


def add(A: Operator, B: Operator) -> Operator:
    if A.shape != B.shape:
        raise ValueError(f"A + B: A has shape {A.shape} and B {B.shape}, but they must agree.")
    _agree(A, B, "A + B")
    if _multiple_of_identity(A) is not None and _multiple_of_identity(B) is None:
        A, B = B, A
    if (c := _multiple_of_identity(B)) is not None:
        if isinstance(A, Diagonal | Projector):
            return Diagonal(A.diagonal + c[..., None])
        if isinstance(A, Convolution):
            delta = torch.zeros_like(A.kernel)
            delta[..., A.origin[0], A.origin[1]] = 1.0
            kernel = A.kernel + c[..., None, None, None] * delta
            return Convolution(kernel, A.image, A.padding, A.origin)
        if isinstance(A, Spirals):
            return Spirals(
                A.real + c[..., None], A.imag + 0 * c[..., None], A.single + c[..., None]
            )
    if (spirals := _spirals(A, B)) is not None:
        one, other = spirals
        return Spirals(one.real + other.real, one.imag + other.imag, one.single + other.single)
    if isinstance(A, Diagonal | Projector) and isinstance(B, Diagonal | Projector):
        return Diagonal(A.diagonal + B.diagonal)
    if (a := _alpha_and_factors(A)) is not None and (b := _alpha_and_factors(B)) is not None:
        U, V = cat(a[1], b[1]), cat(a[2], b[2])
        if isinstance(A, LowRank) and isinstance(B, LowRank):
            return LowRank(U, V)
        return ScaledIdentityPlusLowRank(a[0] + b[0], U, V)
    if (pair := _convolutions(A, B)) is not None:
        kernel, origin = _overlay(*pair)
        return Convolution(kernel, pair[0].image, pair[0].padding, origin)
    if (mixing := _mixing(A, B)) is not None:
        kernel, origin = _overlay(*mixing)
        if any(k > n for k, n in zip(kernel.shape[-2:], mixing[0].image[1:], strict=True)):
            return mixing[0]._from_blocks(mixing[0]._blocks() + mixing[1]._blocks())
        return MixingConvolution(kernel, mixing[0].image, origin)
    if (pair_of_blocks := _blocks(A, B)) is not None:
        first, second = pair_of_blocks
        if first.shape[-2:] == second.shape[-2:]:
            return BlockDiagonal(first + second)
    _guard_result(A, B, A.shape, "+")
    return Dense(A.dense() + B.dense())


def _agree(A: Operator, B: Operator, what: str) -> None:
    if A.dtype != B.dtype or A.device != B.device:
        raise ValueError(
            f"{what}: A is {A.dtype} on {A.device}, B is {B.dtype} on {B.device}. "
            "Move one of them with .to()."
        )
    if A.batch is not None and B.batch is not None and A.batch != B.batch:
        raise ValueError(f"{what}: A has a batch of {A.batch} and B one of {B.batch}.")


def _guard_result(A: Operator, B: Operator, shape: tuple[int, int], sign: str) -> None:
    entries = shape[0] * shape[1] * (A.batch or B.batch or 1)
    if entries > DENSE_LIMIT:
        raise UnsupportedError(
            f"{type(A).__name__} {sign} {type(B).__name__}: has no structured form, and the dense "
            f"{shape[0]} × {shape[1]} result is above the limit of {DENSE_LIMIT:,} entries. "
            "Apply them one after the other, or choose operators of one kind."
        )


def _multiple_of_identity(A: Operator) -> Tensor | None:
    """α where A is αI by construction, else None."""
    if isinstance(A, Identity):
        return A.like.new_ones(())
    if isinstance(A, ScaledIdentityPlusLowRank) and A.U.shape[-1] == 0:
        return A.alpha
    return None


def _alpha_and_factors(A: Operator) -> tuple[Tensor, Tensor, Tensor] | None:
    if isinstance(A, Identity):
        A = A.scale(1.0)
    if isinstance(A, LowRank) and A.shape[0] == A.shape[1]:
        A = A._with_zero()
    if isinstance(A, ScaledIdentityPlusLowRank):
        return A.alpha, A.U, A.V
    return (A.U.new_zeros(()), A.U, A.V) if isinstance(A, LowRank) else None


def _convolutions(A: Operator, B: Operator) -> tuple[Convolution, Convolution] | None:
    """The two as convolutions of one image with one padding, else None."""
    if not (isinstance(A, Convolution) and isinstance(B, Convolution)):
        return None
    return (A, B) if A.image == B.image and A.padding == B.padding else None


def _spirals(A: Operator, B: Operator) -> tuple[Spirals, Spirals] | None:
    """The two as spirals in the same planes, else None."""
    if not (isinstance(A, Spirals) and isinstance(B, Spirals)):
        return None
    return (A, B) if A.planes == B.planes else None


def _mixing(A: Operator, B: Operator) -> tuple[MixingConvolution, MixingConvolution] | None:
    """The two as mixing convolutions over one size of image, where one of them is, else None."""
    size = next((X.image[1:] for X in (A, B) if isinstance(X, MixingConvolution)), None)
    if size is None:
        return None
    first, second = _as_mixing(A, size), _as_mixing(B, size)
    return None if first is None or second is None else (first, second)


def _as_mixing(A: Operator, size: tuple[int, int]) -> MixingConvolution | None:
    if isinstance(A, MixingConvolution):
        return A if A.image[1:] == size else None
    if isinstance(A, Convolution) and A.padding == "circular" and A.image[1:] == size:
        kernel = torch.diag_embed(A.kernel.movedim(-3, -1), dim1=-4, dim2=-3)
        return MixingConvolution(kernel, A.image, A.origin)
    if (c := _multiple_of_identity(A)) is not None:
        C = A.shape[0] // (size[0] * size[1])
        kernel = c[..., None, None] * torch.eye(C, dtype=A.dtype, device=A.device)
        return MixingConvolution(kernel[..., None, None], (C, *size))
    return None


def _blocks(A: Operator, B: Operator) -> tuple[Tensor, Tensor] | None:
    """The blocks of both, where both have as many, else None."""
    if not (isinstance(A, BlockDiagonal) and isinstance(B, BlockDiagonal)):
        return None
    return (A.blocks, B.blocks) if A.blocks.shape[-3] == B.blocks.shape[-3] else None


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
