"""The laws, each a function that fails with an assertion. Relative errors in float64."""

import copy

import torch
from torch import Tensor, nn

from linearizer.operators import Operator


def close(a: Tensor, b: Tensor, rtol: float = 1e-9, floor: float = 0.0) -> None:
    """‖a − b‖ ≤ rtol · max(‖a‖, ‖b‖, floor), in the largest entry."""
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    a, b = a.detach(), b.detach()
    if a.numel():
        scale = max(float(a.abs().max()), float(b.abs().max()), floor)
        error = float((a - b).abs().max())
        assert error <= rtol * scale, f"relative error {error / scale:.1e} > {rtol:.0e}"


def batch_of(A: Operator) -> int:
    return A.batch or 6


def matrix(A: Operator) -> Tensor:
    """The dense matrix, column by column through forward, by none of the overrides."""
    return Operator.dense(A)


def operator_apply(A):
    z = torch.randn(batch_of(A), A.shape[1])
    close(A(z), torch.einsum("...mn,...n->...m", matrix(A), z))
    close(A.dense(), matrix(A))
    assert A(z).shape == (batch_of(A), A.shape[0])


def operator_adjoint(A):
    """⟨Az, w⟩ = ⟨z, Aᵀw⟩"""
    z, w = torch.randn(batch_of(A), A.shape[1]), torch.randn(batch_of(A), A.shape[0])
    close((A(z) * w).sum(-1), (z * A.T(w)).sum(-1), floor=1.0)
    close(A.T.dense(), A.dense().mT)


def operator_penrose(A):
    M, P = A.dense(), A.pinv().dense()
    close(M @ P @ M, M)
    close(P @ M @ P, P)
    close((M @ P).mT, M @ P, floor=1.0)
    close((P @ M).mT, P @ M, floor=1.0)


def operator_svd(A):
    U, S, V = A.svd()
    close((U * S.unsqueeze(-2)) @ V.mT, A.dense(), floor=1e-9)
    k = S.shape[-1]
    for Q in (U, V):
        close(Q.mT @ Q, torch.eye(k).expand(*Q.shape[:-2], k, k))
    assert (S[..., :-1] >= S[..., 1:] - 1e-12).all() and (S >= 0).all()
    full = torch.linalg.svdvals(A.dense())
    close(S, full[..., :k], floor=1e-9)
    assert (full[..., k:] <= 1e-9 * max(1.0, float(full.max()))).all()
    if k > 1:
        top = A.svd(k - 1)
        close(top.S, S[..., : k - 1])
        close(A(top.V.mT), (top.U * top.S.unsqueeze(-2)).mT, floor=1e-9)


def operator_rank(A):
    expected = torch.linalg.matrix_rank(A.dense())
    assert torch.equal(torch.as_tensor(A.rank()), expected)


def operator_scale_and_sum(A):
    B = A * 2.0 - A / 4.0 + (-A)
    close(B.dense(), 0.75 * A.dense(), floor=1e-9)
    close((A + A).dense(), 2 * A.dense())


def operator_product(A):
    close((A.T @ A).dense(), A.dense().mT @ A.dense())
    close((A @ A.T).dense(), A.dense() @ A.dense().mT)


def operator_power(A):
    M = A.dense()
    for p in (0, 1, 2, 5):
        close((A**p).dense().expand_as(M), torch.linalg.matrix_power(M, p))


def operator_exp(A):
    for t in (1.0, -0.3):
        close(A.exp(t).dense(), torch.linalg.matrix_exp(t * A.dense()))
    close((A.exp(0.5) @ A.exp(0.5)).dense(), A.exp().dense())


def operator_inverse(A):
    try:
        B = A.inverse()
    except ValueError as error:
        assert "singular" in str(error)
        assert (torch.linalg.cond(A.dense()) > 1e12).any()
        return
    eye = torch.eye(A.shape[0]).expand_as(A.dense())
    close(A.dense() @ B.dense(), eye, 1e-9 * float(torch.linalg.cond(A.dense()).max()))
    close((A**-2).dense(), torch.linalg.matrix_power(B.dense(), 2))
    w = torch.randn(batch_of(A), A.shape[0])
    close(A(A.solve(w)), w, 1e-9 * float(torch.linalg.cond(A.dense()).max()))


def operator_fractional(A):
    """(A^½)² = A where a real root exists, and otherwise an error, never a wrong answer."""
    values = torch.linalg.eigvals(A.dense())
    scale = values.abs().max()
    negative = ((values.real < -1e-9 * scale) & (values.imag.abs() < 1e-9 * scale)).any()
    try:
        root = A**0.5
    except ValueError as error:
        assert "power" in str(error)
        assert negative
        return
    close((root @ root).dense(), A.dense(), 1e-8, floor=1e-6)
    close((A**1.5).dense(), root.dense() @ A.dense(), 1e-8, floor=1e-6)


def operator_eig(A):
    values, vectors = A.eig()
    M = A.dense().to(values.dtype)
    close(M @ vectors, vectors * values.unsqueeze(-2), floor=1.0)
    assert (values.abs()[..., :-1] >= values.abs()[..., 1:] - 1e-9 * values.abs().max()).all()
    expected = torch.linalg.eigvals(A.dense()).abs().sort(-1, descending=True).values
    close(values.abs(), expected, 1e-7, floor=1.0)
    lengths = torch.linalg.vector_norm(vectors, dim=-2)
    close(lengths, torch.ones_like(lengths))
    top = A.eig(2)
    close(top.values, values[..., :2])


ANY = [
    operator_apply,
    operator_adjoint,
    operator_penrose,
    operator_svd,
    operator_rank,
    operator_scale_and_sum,
    operator_product,
]
SQUARE = [operator_power, operator_exp, operator_inverse, operator_fractional, operator_eig]


# -- two operators -----------------------------------------------------------------------------


def pair(A: Operator, B: Operator) -> set[str]:
    """A @ B, A + B and A − B are those of the matrices, to rounding; what fits is named."""
    done = set()
    if None not in (A.batch, B.batch) and A.batch != B.batch:
        return done
    M, N = A.dense(), B.dense()
    if A.shape[1] == B.shape[0]:
        close((A @ B).dense(), M @ N, 1e-13, floor=size(M) * size(N))
        done.add("@")
    if A.shape == B.shape:
        close((A + B).dense(), M + N, 1e-13, floor=size(M) + size(N))
        close((A - B).dense(), M - N, 1e-13, floor=size(M) + size(N))
        done |= {"+", "-"}
    return done


def size(M: Tensor) -> float:
    """The largest Frobenius norm of a matrix or of a batch of them."""
    return float(torch.linalg.matrix_norm(M.detach()).max())


# -- what an operation returns is its own ------------------------------------------------------


def storages(tensors) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


def own_core(parents: list[Operator], derived: Operator) -> None:
    """No Parameter, no storage in common, a copy, and no change when the parents change."""
    assert not list(derived.parameters()), "the result holds Parameters"
    ours = storages(t for A in parents for t in (*A.parameters(), *A.buffers()))
    assert not ours & storages(derived.buffers()), "the result shares memory with a parent"
    before = derived.dense().detach().clone()
    twin = copy.deepcopy(derived)
    with torch.no_grad():
        for A in parents:
            for t in (*A.parameters(), *A.buffers()):
                t.mul_(1.5).add_(0.1)
    for B in (derived, twin):
        assert torch.equal(B.dense(), before), "the result moved with a parent"


def same_gradient(parameters: list[nn.Parameter], derived: Tensor, dense: Tensor) -> None:
    """Both have one derivative with respect to all parameters, in a random direction."""
    weights = torch.randn_like(dense)
    found, expected = (
        torch.autograd.grad((weights * M).sum(), parameters, allow_unused=True)
        for M in (derived.expand_as(dense), dense)
    )
    for one, other, p in zip(found, expected, parameters, strict=True):
        zero = torch.zeros_like(p)
        floor = 1e-3 * float((zero if other is None else other).abs().max())
        close(
            zero if one is None else one, zero if other is None else other, 1e-8, max(floor, 1e-9)
        )
