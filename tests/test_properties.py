"""Laws over shapes, ranks, precisions, batches, condition numbers and scales, for each class.

Every bound is rounding times what the mathematics multiplies it by: the sizes of the factors of a
product, the condition number of a pseudo-inverse, the growth of an exponential.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from linearizer.operators import (
    BlockDiagonal,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Operator,
    Projector,
    ScaledIdentityPlusLowRank,
    Spirals,
)

few = settings(max_examples=30, derandomize=True, deadline=None, database=None)


@dataclass(frozen=True)
class Case:
    """How an operator is drawn: its numbers come from the seed, all else from the strategy."""

    seed: int
    dtype: torch.dtype
    batch: int | None
    m: int
    n: int
    rank: int
    scale: float
    uneven: float  # U is as much longer as V is shorter
    cond: float

    @property
    def eps(self) -> float:
        return torch.finfo(self.dtype).eps

    @property
    def lead(self) -> tuple[int, ...]:
        return () if self.batch is None else (self.batch,)


@st.composite
def cases(draw, square=False, largest=1.0):
    """Scales of 1e±200 (1e±18 in float32), of which the ``largest`` share is drawn upwards."""
    single = draw(st.booleans())
    reach, worst = (18.0, 3.0) if single else (200.0, 9.0)
    n = draw(st.integers(1, 7))
    m = n if square else draw(st.integers(1, 7))
    extremes = st.sampled_from([-reach, 0.0, largest * reach])
    return Case(
        draw(st.integers(0, 2**20)),
        torch.float32 if single else torch.float64,
        draw(st.sampled_from([None, None, 1, 3])),
        m,
        n,
        draw(st.integers(1, min(m, n))),
        10.0 ** draw(st.floats(-reach, largest * reach) | extremes),
        10.0 ** draw(st.floats(-reach / 4, reach / 4) | st.just(0.0)),
        10.0 ** draw(st.floats(0.0, worst) | st.just(0.0)),
    )


def values(case: Case, k: int) -> Tensor:
    """k numbers from 1 down to 1/cond with random signs, (*batch, k)."""
    falling = case.cond ** -torch.linspace(0.0, 1.0, k) if k > 1 else torch.ones(1)
    return falling * (torch.randint(0, 2, (*case.lead, k)) * 2.0 - 1.0)


def frame(case: Case, rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(*case.lead, rows, columns))[0]


def dense(case):
    k = case.rank
    d = values(case, k).unsqueeze(-2)
    return Dense(case.scale * (frame(case, case.m, k) * d) @ frame(case, case.n, k).mT)


def low_rank(case):
    d = values(case, case.rank).unsqueeze(-2)
    U, V = frame(case, case.m, case.rank) * d, frame(case, case.n, case.rank)
    up, down = case.scale**0.5 * case.uneven, case.scale**0.5 / case.uneven
    return LowRank(up * U, down * V)


def scaled(case):
    """Eigenvalue 1 and those of the rank, in a basis that is not orthogonal."""
    k = case.rank
    Q = frame(case, case.n, k)
    up, down = case.scale**0.5 * case.uneven, case.scale**0.5 / case.uneven
    alpha = torch.full(case.lead, case.scale)
    U = Q * (values(case, k).abs() - 1.0).unsqueeze(-2)
    return ScaledIdentityPlusLowRank(alpha, up * U, down * Q)


def blocks(case):
    k, a, b = case.rank, -(-case.m // case.rank), -(-case.n // case.rank)
    d = values(case, k * min(a, b)).unflatten(-1, (k, 1, min(a, b)))
    P, Q = (torch.linalg.qr(torch.randn(*case.lead, k, x, min(a, b)))[0] for x in (a, b))
    return BlockDiagonal(case.scale * (P * d) @ Q.mT)


def spirals(case):
    sizes = case.scale * values(case, case.n)
    angle = torch.randn(*case.lead, case.n // 2)
    planes, single = sizes[..., : case.n // 2], sizes[..., case.n // 2 :]
    return Spirals(planes * angle.cos(), planes * angle.sin(), single)


def convolution(padding):
    def make(case):
        image = (case.rank, 1 + case.m // 3, 1 + case.n // 2)
        kernel = torch.randn(*case.lead, case.rank, *(min(3, s) for s in image[1:]))
        kernel[..., 0, 0] += 8.0  # no frequency is near 0
        return Convolution(case.scale * kernel, image, padding, (0, 0))

    return make


def mixing(case):
    image = (case.rank, 1 + case.m // 3, 1 + case.n // 3)
    channels = case.rank if case.m == case.n else 1 + case.m % 3
    size = [min(2, s) for s in image[1:]]
    return MixingConvolution(
        case.scale * torch.randn(*case.lead, channels, case.rank, *size), image
    )


MAKE = {
    "Identity": lambda case: Identity(case.n),
    "Dense": dense,
    "Diagonal": lambda case: Diagonal(case.scale * values(case, case.n)),
    "Projector": lambda case: Projector(torch.randn(*case.lead, case.n)),
    "LowRank": low_rank,
    "ScaledIdentityPlusLowRank": scaled,
    "BlockDiagonal": blocks,
    "Spirals": spirals,
    "Convolution": convolution("circular"),
    "Convolution, zero": convolution("zero"),
    "MixingConvolution": mixing,
}
each = pytest.mark.parametrize("name", MAKE)


def build(name: str, case: Case) -> Operator:
    torch.manual_seed(case.seed)
    return MAKE[name](case).to(case.dtype)


def peak(M: Tensor) -> Tensor:
    """The largest entry of each matrix, (*batch, 1, 1): norms would square what is 1e200."""
    return M.abs().amax((-2, -1), keepdim=True)


def within(a: Tensor, b: Tensor, bound: Tensor) -> None:
    assert a.dtype == b.dtype and a.isfinite().all(), "not finite"
    excess = ((a - b).abs() / bound.clamp_min(torch.finfo(a.dtype).tiny)).max()
    assert excess <= 1.0, f"{float(excess):.1e} times the bound"


def rounding(case: Case, M: Tensor) -> float:
    return 16 * case.eps * max(M.shape[-2:])


def spectrum(M: Tensor) -> tuple[Tensor, Tensor]:
    """σ_max and the condition number without zeros, of a matrix that is scaled to 1 before."""
    unit = M / peak(M).clamp_min(torch.finfo(M.dtype).tiny)
    S = torch.linalg.svdvals(unit.double())
    cut = max(M.shape[-2:]) * torch.finfo(M.dtype).eps * S[..., :1]
    least = torch.where(cut < S, S, torch.inf).amin(-1)
    return S[..., 0, None, None] * peak(M).double(), (S[..., 0] / least)[..., None, None]


@each
@few
@given(case=cases(largest=0.4), other=cases(largest=0.4))
def test_products_and_sums(name, case, other):
    A = build(name, case)
    M = A.dense()
    B = A.T
    within(B.dense(), M.mT, 2 * case.eps * peak(M).expand_as(M.mT))
    z = torch.randn(A.batch or 4, A.shape[1], dtype=case.dtype)
    expected = torch.einsum("...mn,...n->...m", M, z)
    bound = rounding(case, M) * peak(M)[..., 0] * z.abs().amax(-1, keepdim=True)
    within(A(z), expected, bound * terms(A))
    for X, Y in ((A, B), (B, A), (A, build("Dense", turned(other, A, case)))):
        P, Q = X.dense(), Y.dense()
        bound = rounding(case, P) * P.shape[-1] * peak(P) * peak(Q)
        within((X @ Y).dense(), P @ Q, bound * terms(A))
    C = build(name, case) * -0.75
    within((A + C).dense(), M + C.dense(), rounding(case, M) * peak(M) * terms(A))
    within((A - C).dense(), M - C.dense(), rounding(case, M) * peak(M) * terms(A))


def turned(other: Case, A: Operator, case: Case) -> Case:
    """A dense partner for A, (n, k)."""
    n = A.shape[1]
    k = min(other.rank, n)
    scale = min(max(other.scale, 1e-15), 1e15)
    return Case(other.seed, case.dtype, case.batch, n, k, k, scale, 1.0, min(other.cond, 10.0))


def terms(A: Operator) -> float:
    """Sums of a factored operator add numbers as large as ‖U‖‖V‖, not as UVᵀ."""
    return 4.0 if isinstance(A, LowRank | ScaledIdentityPlusLowRank) else 1.0


@each
@few
@given(case=cases())
def test_svd_and_rank(name, case):
    A = build(name, case)
    M = A.dense()
    U, S, V = A.svd()
    top, _ = spectrum(M)
    top = top.to(case.dtype)
    bound = rounding(case, M) * top
    within((U * S.unsqueeze(-2)) @ V.mT, M, 4 * bound)
    for Q in (U, V):
        one = torch.eye(Q.shape[-1], dtype=case.dtype).expand(*Q.shape[:-2], -1, -1)
        within(Q.mT @ Q, one, torch.full_like(one, 4 * rounding(case, M)))
    unit = torch.linalg.svdvals((M / peak(M).clamp_min(torch.finfo(M.dtype).tiny)).double())
    exact = (unit * peak(M)[..., 0].double())[..., : S.shape[-1]]
    within(S.double(), exact, (4 * bound[..., 0]).double())
    assert (S[..., :-1] >= S[..., 1:] * (1 - 4 * case.eps)).all()
    # What is clearly above the cut counts, what is clearly below does not.
    unit, cut = unit / unit[..., :1].clamp_min(1e-300), max(M.shape[-2:]) * case.eps
    low, high = (unit > 4 * cut).sum(-1), (unit > cut / 4).sum(-1)
    rank = torch.as_tensor(A.rank())
    assert (low <= rank).all() and (rank <= high).all()


@each
@few
@given(case=cases())
def test_penrose(name, case):
    A = build(name, case)
    P, M = A.pinv().dense(), A.dense()
    top, cond = spectrum(M)
    top, cond = top.to(case.dtype), cond.to(case.dtype)
    bound = 4 * rounding(case, M) * cond
    within(M @ (P @ M), M, bound * top)
    within((P @ M) @ P, P, bound * (cond / top.clamp_min(torch.finfo(case.dtype).tiny)))
    within((M @ P).mT, M @ P, bound)
    within((P @ M).mT, P @ M, bound)


@each
@few
@given(case=cases(square=True))
def test_solve_leaves_a_small_residual(name, case):
    if name in ("Dense", "LowRank"):
        case = replace(case, rank=case.n)
    A = build(name, case)
    if name == "Projector":
        A = Projector(A.logits.abs() + 0.1)
    M = A.dense()
    top, cond = (x.to(case.dtype) for x in spectrum(M))
    assume(bool((cond * case.eps * M.shape[-1] < 0.01).all()))
    assume(bool((torch.as_tensor(A.rank()) == M.shape[-1]).all()))
    w = A(torch.randn(A.batch or 2, A.shape[0], dtype=case.dtype))
    z = A.solve(w)
    # Backward stable: z is of size 1, and the residual is the rounding of A z, whatever the
    # condition number. Woodbury's formula and a product of factors are forward stable alone.
    size = top[..., 0] * torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    bound = 4 * rounding(case, M) * size
    if isinstance(A, LowRank | ScaledIdentityPlusLowRank):
        bound = bound * cond[..., 0]
    within(A(z), w, bound)


def exponential(M):
    """The series itself: torch's own is off by up to 6e-11 where the norm is about 0.05."""
    total = term = torch.eye(M.shape[-1], dtype=M.dtype).expand_as(M)
    for k in range(1, 120):
        term = term @ M / k
        total = total + term
    return total


@each
@few
@given(case=cases(square=True, largest=0.0), s=st.floats(-2.0, 2.0), t=st.floats(-2.0, 2.0))
def test_exponentials_are_a_semigroup(name, case, s, t):
    A = build(name, case)
    M = A.dense()
    growth = torch.linalg.matrix_norm(M.double(), 2) * (abs(s) + abs(t))
    bound = rounding(case, M) * 8 * (1 + growth) * torch.exp(growth)
    bound = bound.to(case.dtype)[..., None, None]
    assume(bool((bound < 0.1).all()))
    within((A.exp(s) @ A.exp(t)).dense().expand_as(M), A.exp(s + t).dense().expand_as(M), bound)
    within(A.exp(t).dense().expand_as(M), exponential(t * M.double()).to(case.dtype), bound)
    one = torch.eye(M.shape[-1], dtype=case.dtype).expand_as(M)
    within(A.exp(0.0).dense().expand_as(M), one, torch.full_like(one, 4 * case.eps))


@each
@few
@given(case=cases(square=True, largest=0.2), p=st.integers(0, 5))
def test_integer_powers(name, case, p):
    limit = (30 if case.dtype == torch.float32 else 290) / (p + 1)
    case = replace(case, scale=min(max(case.scale, 10.0**-limit), 10.0**limit))
    A = build(name, case)
    M = A.dense()
    top = spectrum(M)[0]
    bound = rounding(case, M) * max(p, 1) * M.shape[-1] * top**p
    exact = torch.linalg.matrix_power(M.double(), p).to(case.dtype)
    within((A**p).dense().expand_as(M), exact, (bound * terms(A)).to(case.dtype))
    within(
        (A**p @ A).dense(),
        (A ** (p + 1)).dense(),
        (4 * bound * top * terms(A)).to(case.dtype),
    )
