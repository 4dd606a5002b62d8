"""Gradients of what is cut, dependent or projected, against finite differences."""

import pytest
import torch
from torch import randn

from laws import close
from linearizer.operators import (
    BlockDiagonal,
    Convolution,
    Dense,
    Diagonal,
    LowRank,
    MixingConvolution,
    ScaledIdentityPlusLowRank,
    Spirals,
)

SCALED = ScaledIdentityPlusLowRank
KINDS = {
    "dense, tall": (Dense, lambda: [randn(6, 4)]),
    "dense, wide": (Dense, lambda: [randn(4, 6)]),
    "low rank": (LowRank, lambda: [randn(6, 3), randn(5, 3)]),
    "small alpha": (SCALED, lambda: [torch.tensor(0.2), randn(6, 2), randn(6, 2)]),
    "large alpha": (SCALED, lambda: [torch.tensor(3.0), 0.3 * randn(6, 2), 0.3 * randn(6, 2)]),
    "blocks": (BlockDiagonal, lambda: [randn(2, 3, 2)]),
    "mixing": (lambda k: MixingConvolution(k, (2, 1, 3)), lambda: [randn(2, 2, 1, 2)]),
    "convolution": (lambda k: Convolution(k, (1, 2, 3)), lambda: [randn(1, 2, 2)]),
    "diagonal": (Diagonal, lambda: [torch.tensor([3.0, 1.0, -0.5, 2.0, 0.1])]),
    "spirals": (Spirals, lambda: [randn(2), randn(2), randn(1)]),
}


def differences(function, tensors, step=1e-6):
    """The gradient by central differences."""
    result = []
    for i, x in enumerate(tensors):
        gradient = torch.zeros_like(x)
        for j in range(x.numel()):
            e = torch.zeros(x.numel())
            e[j] = step
            up, down = (
                function(*(y + s * e.view_as(y) if k == i else y for k, y in enumerate(tensors)))
                for s in (1, -1)
            )
            gradient.view(-1)[j] = (up - down) / (2 * step)
        result.append(gradient)
    return result


def check_gradient(make, tensors, function):
    inputs = [x.clone().requires_grad_() for x in tensors]
    value = function(make(*inputs)) + 0 * sum(x.sum() for x in inputs)
    found = torch.autograd.grad(value, inputs)
    with torch.no_grad():
        expected = differences(lambda *x: function(make(*x)), tensors)
    for one, two in zip(found, expected, strict=True):
        close(one, two, 1e-5, floor=1e-2)


def weigh(A):
    """A number that depends on all entries."""
    M = A.dense()
    generator = torch.Generator().manual_seed(7)
    return (M * torch.randn(M.shape, generator=generator)).sum()


@pytest.mark.parametrize("rtol", [None, 0.3])
@pytest.mark.parametrize("method", ["pinv", "range_projector", "null_projector"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_cut_has_the_gradient_of_what_is_kept(name, method, rtol):
    make, tensors = KINDS[name]
    torch.manual_seed(3)
    check_gradient(make, tensors(), lambda A: weigh(getattr(A, method)(rtol)))


def twice(u, V):
    return LowRank(torch.cat([u, 2 * u], 1), V)


@pytest.mark.parametrize(
    "function",
    [
        lambda A: weigh(A.pinv()),
        lambda A: weigh(Dense(A.svd(1).U)),
        lambda A: weigh(Dense(A.svd(1).V)),
        lambda A: A.svd().S.sum(),
        lambda A: A.norm("nuc"),
    ],
    ids=["pinv", "U", "V", "S", "norm"],
)
def test_dependent_columns_keep_their_gradient(function):
    check_gradient(twice, [randn(6, 1), randn(5, 2)], function)


def symmetric(alpha, U):
    return SCALED(alpha, U, U)


@pytest.mark.parametrize("alpha", [0.7, -0.7])
@pytest.mark.parametrize("side", ["U", "V"])
def test_singular_vectors_of_a_symmetric_sum_follow_it(alpha, side):
    check_gradient(
        symmetric,
        [torch.tensor(alpha), randn(6, 2)],
        lambda A: weigh(Dense(getattr(A.svd(2), side))),
    )


def test_a_fractional_power_at_zero_factors():
    check_gradient(symmetric, [torch.tensor(0.7), randn(6, 2)], lambda A: weigh(A**0.5))
    for U, V in ((torch.zeros(6, 2), randn(6, 2)), (randn(6, 2), torch.zeros(6, 2))):
        check_gradient(SCALED, [torch.tensor(0.7), U, V], lambda A: weigh(A**0.5))


def test_solve_has_its_gradient():
    w = randn(3, 6)
    check_gradient(
        lambda a, U, V, w: SCALED(a, U, V).solve(w),
        [torch.tensor(0.7), randn(6, 2), randn(6, 2), w],
        lambda z: (z * torch.arange(18.0).view(3, 6)).sum(),
    )
    check_gradient(symmetric, [torch.tensor(0.7), randn(6, 2)], lambda A: A.solve(w)[0].sum())


def projector(U):
    """I less the projector onto U, with dependent columns [U V]."""
    return SCALED(1.0, -U / U.square().sum(), U)


@pytest.mark.parametrize("method", ["pinv", "range_projector", "null_projector"])
def test_a_singular_sum_keeps_its_rank(method):
    check_gradient(projector, [randn(6, 1)], lambda A: weigh(getattr(A, method)()))


@pytest.mark.parametrize(
    "function",
    [lambda U, V: LowRank(U, V).svd().S, lambda U, V: LowRank(U, V).pinv().dense()],
    ids=["svd", "pinv"],
)
def test_second_derivatives_of_independent_factors_are_right(function):
    factors = [randn(5, 2).requires_grad_(), randn(4, 2).requires_grad_()]
    assert torch.autograd.gradgradcheck(function, factors)


@pytest.mark.parametrize(
    "function, what",
    [
        (lambda M: (Dense(M) ** 0.5).dense().sum(), r"A \*\* 0.5"),
        (lambda M: Dense(M).pinv(0.5).dense().sum(), "pinv"),
        (lambda M: Dense(M).range_projector(0.5).dense()[0].sum(), "range_projector"),
        (lambda M: twice(M[:, :1], M[:, :2]).svd().S.sum(), "LowRank.svd"),
        (lambda M: weigh(twice(M[:, :1], M[:, :2]).pinv()), "LowRank.pinv"),
        (lambda M: SCALED(1.0, M[:, :1], M[:, :1]).solve(M)[0].sum(), "solve"),
    ],
)
def test_second_derivatives_that_are_not_known_are_refused(function, what):
    M = (torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0])) + 0.1 * randn(4, 4)).requires_grad_()
    M = (M.detach() @ M.detach().mT).requires_grad_()
    (gradient,) = torch.autograd.grad(function(M), M, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{what}.*second derivative"):
        torch.autograd.grad(gradient.sum(), M)
