"""Low precision, no numbers, no entries, no finite entries: it works, or it says so."""

import math

import pytest
import torch

from linearizer.operators import (
    BlockDiagonal,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Projector,
    ScaledIdentityPlusLowRank,
    Spirals,
)

rand = torch.rand

SQUARES = {
    "identity": lambda: Identity(4),
    "dense": lambda: Dense(rand(4, 4)),
    "diagonal": lambda: Diagonal(rand(4)),
    "projector": lambda: Projector(rand(4)),
    "low rank": lambda: LowRank(rand(4, 2), rand(4, 2)),
    "sum": lambda: ScaledIdentityPlusLowRank(1.0, rand(4, 2), rand(4, 2)),
    "blocks": lambda: BlockDiagonal(rand(2, 2, 2)),
    "spirals": lambda: Spirals(rand(2), rand(2)),
    "convolution": lambda: Convolution(rand(1, 2, 2), (1, 2, 2)),
    "mixing": lambda: MixingConvolution(rand(1, 1, 2, 2), (1, 2, 2)),
}

ANY = {
    "call": lambda A: A(torch.zeros(2, A.shape[1], dtype=A.dtype, device=A.device)),
    "T": lambda A: A.T,
    "2 *": lambda A: 2 * A,
    "@": lambda A: A @ A.T,
    "+": lambda A: A + A,
    "svd": lambda A: A.svd(),
    "pinv": lambda A: A.pinv(),
    "rank": lambda A: A.rank(),
    "norm": lambda A: A.norm(),
    "cond": lambda A: A.cond(),
    "range": lambda A: A.range_projector(),
    "null": lambda A: A.null_projector(),
}
SQUARE = {
    "exp": lambda A: A.exp(),
    "log": lambda A: A.log(),
    "** 0": lambda A: A**0,
    "** 2": lambda A: A**2,
    "** .5": lambda A: A**0.5,
    "inverse": lambda A: A.inverse(),
    "solve": lambda A: A.solve(torch.zeros(2, A.shape[0], dtype=A.dtype, device=A.device)),
    "eig": lambda A: A.eig(),
    "eigvals": lambda A: A.eigvals(),
    "det": lambda A: A.det(),
    "trace": lambda A: A.trace(),
}


@pytest.mark.parametrize("where", ["bfloat16", "float16", "meta"])
@pytest.mark.parametrize("name", SQUARES)
def test_low_precision_and_meta_work_or_say_so(name, where):
    A = SQUARES[name]().to(where if where == "meta" else getattr(torch, where))
    for act in (*ANY.values(), *SQUARE.values()):
        try:
            act(A)
        except ValueError as error:
            text = str(error)
            assert any(w in text for w in ("meta device", "expected float32", "singular"))
    if name not in ("convolution", "mixing"):  # those need an FFT or a convolution of the dtype
        assert ANY["call"](A).shape == (2, 4)


def zeros(*shape):
    return torch.zeros(*shape)


EMPTY = {
    "no rows": lambda: Dense(zeros(0, 3)),
    "no columns": lambda: Dense(zeros(3, 0)),
    "nothing": lambda: Dense(zeros(0, 0)),
    "rank 0": lambda: LowRank(zeros(3, 0), zeros(3, 0)),
    "rank 0, tall": lambda: LowRank(zeros(3, 0), zeros(2, 0)),
    "low rank, no rows": lambda: LowRank(zeros(0, 2), zeros(3, 2)),
    "alpha alone": lambda: ScaledIdentityPlusLowRank(2.0, zeros(3, 0), zeros(3, 0)),
    "alpha of nothing": lambda: ScaledIdentityPlusLowRank(2.0, zeros(0, 0), zeros(0, 0)),
    "diagonal": lambda: Diagonal(zeros(0)),
    "projector": lambda: Projector(zeros(0)),
    "blocks": lambda: BlockDiagonal(zeros(0, 2, 2)),
    "identity": lambda: Identity(0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_operators_have_all_that_others_have(name):
    A = EMPTY[name]()
    m, n = A.shape
    for act in ANY.values():
        act(A)
    assert A.pinv().dense().shape == (n, m)
    assert A.range_projector().dense().shape == (m, m)
    assert A.null_projector().dense().shape == (n, n)
    assert A.rank() == (3 if name == "alpha alone" else 0)
    for act in SQUARE.values() if m == n else ():
        try:
            act(A)
        except ValueError as error:
            assert "singular" in str(error) and name == "rank 0"


DECOMPOSED = ["svd", "pinv", "rank", "range", "null", "log", "** .5", "inverse", "solve", "eig"]


@pytest.mark.parametrize(
    "A",
    [
        Dense(torch.full((2, 2), math.nan)),
        LowRank(torch.full((3, 1), math.nan), torch.zeros(3, 1)),
        ScaledIdentityPlusLowRank(math.nan, torch.zeros(3, 1), torch.zeros(3, 1)),
        Diagonal(torch.full((2,), math.nan)),
        Spirals(torch.full((1,), math.nan), torch.zeros(1)),
        BlockDiagonal(torch.full((1, 2, 2), math.nan)),
        Convolution(torch.full((1, 1, 1), math.nan), (1, 2, 2)),
        MixingConvolution(torch.full((1, 1, 1, 1), math.nan), (1, 2, 2)),
    ],
    ids=lambda A: type(A).__name__,
)
def test_nan_is_named(A):
    for act in DECOMPOSED:
        with pytest.raises(ValueError, match="NaN or infinite|singular"):
            {**ANY, **SQUARE}[act](A)
