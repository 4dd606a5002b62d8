import copy
import math

import pytest
import torch

from catalogue import OPERATORS, shaken
from laws import close
from linearizer import Linearizer, Space
from linearizer.bijections import Flatten, mlp
from linearizer.operators import (
    Dense,
    Diagonal,
    Identity,
    LowRank,
    ScaledIdentityPlusLowRank,
)


def space(n):
    return Space(shaken(mlp(n, blocks=2, hidden=16)))


@pytest.fixture
def X():
    return space(4)


@pytest.fixture
def Y():
    return space(3)


def test_composition_is_one_after_the_other(X, Y):
    Z = space(5)
    f, h = Linearizer(X, Dense(torch.randn(3, 4)), Y), Linearizer(Y, Dense(torch.randn(5, 3)), Z)
    x = torch.randn(6, 4)
    close((h @ f)(x), h(f(x)), 1e-8)


def test_composition_demands_the_same_space(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    twin = Space(X.g)
    with pytest.raises(ValueError, match="same Space object"):
        f @ Linearizer(Y, Dense(torch.randn(4, 3)), twin)
    with pytest.raises(ValueError, match="different Spaces"):
        f + Linearizer(twin, Dense(torch.randn(3, 4)), Y)
    for act in (lambda: f**2, f.exp, f.eig):
        with pytest.raises(ValueError, match="one Space object as both"):
            act()


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_powers_are_rollouts(X, n):
    f = Linearizer(X, Dense(0.5 * torch.randn(4, 4)), X)
    x = y = torch.randn(5, 4)
    for _ in range(n):
        y = f(y)
    close((f**n)(x), y, 1e-8)


def test_negative_and_fractional_powers(X):
    M = torch.randn(4, 4)
    f = Linearizer(X, Dense(M @ M.mT + torch.eye(4)), X)
    x = torch.randn(5, 4)
    close((f**-1)(f(x)), x, 1e-8)
    close((f**0.5)((f**0.5)(x)), f(x), 1e-8)
    close(f.inverse()(f(x)), x, 1e-8)


def test_exponential_is_the_flow(X):
    """d/dt e^{tA} z = A e^{tA} z, and e^{sA} e^{tA} = e^{(s+t)A}."""
    f = Linearizer(X, Dense(torch.randn(4, 4)), X)
    x = torch.randn(5, 4)
    close(f.exp(0.3)(f.exp(0.4)(x)), f.exp(0.7)(x), 1e-8)
    t = torch.tensor(0.3, requires_grad=True)
    z = X.g(f.exp(t)(x))
    speed = torch.autograd.functional.jvp(lambda s: X.g(f.exp(s)(x)), t, torch.ones(()))[1]
    close(speed, z @ f.operator.matrix.mT, 1e-7)


def test_sums_and_multiples(X, Y):
    f, h = (Linearizer(X, Dense(torch.randn(3, 4)), Y) for _ in range(2))
    x = torch.randn(5, 4)
    close((f + h)(x), Y.add(f(x), h(x)), 1e-8)
    close((f - h)(x), Y.sub(f(x), h(x)), 1e-8)
    close((2.5 * f)(x), Y.scale(2.5, f(x)), 1e-8)
    close((f / 2)(x), Y.scale(0.5, f(x)), 1e-8)
    close((-f)(x), Y.neg(f(x)), 1e-8)


def test_svd_gives_points(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    S = f.svd(2)
    assert S.U.shape == (2, 3) and S.V.shape == (2, 4) and S.S.shape == (2,)
    close(f(S.V), Y.scale(S.S, S.U), 1e-8)
    close(f.T(S.U), X.scale(S.S, S.V), 1e-8)
    assert S.operator.U.shape == (3, 2)


def test_eigenvectors_real_and_complex(X):
    turn = torch.tensor([[0.0, -2.0], [2.0, 0.0]])
    f = Linearizer(X, Dense(torch.block_diag(turn, torch.diag(torch.tensor([3.0, -1.0])))), X)
    E = f.eig()
    assert E.values.abs().tolist() == pytest.approx([3, 2, 2, 1])
    for value, r, s in zip(E.values, E.real, E.imag, strict=True):
        a, b, r, s = float(value.real), float(value.imag), r[None], s[None]
        close(f(r), X.sub(X.scale(a, r), X.scale(b, s)), 1e-8)
        close(f(s), X.add(X.scale(b, r), X.scale(a, s)), 1e-8)


def test_null_space_and_range(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 1) @ torch.randn(1, 4)), Y)
    assert f.rank() == 1
    N = f.null_space()
    assert N.shape == (3, 4)
    close(f(N), Y.zero().expand(3, 3), 1e-8, floor=1.0)
    close(X.gram(N), torch.eye(3))
    P, R = f.null_projector(), f.range_projector()
    x = torch.randn(5, 4)
    close(f(P(x)), Y.zero().expand(5, 3), 1e-8, floor=1.0)
    close(P(P(x)), P(x), 1e-8)
    close(R(f(x)), f(x), 1e-8)
    close(f(X.add(x, X.scale(3.0, N[:1]))), f(x), 1e-8)


def test_structure_survives_in_projectors():
    E = Space(Flatten((20_000,)))
    f = Linearizer(E, LowRank(torch.randn(20_000, 3), torch.randn(20_000, 3)), E)
    P = f.null_projector()
    assert isinstance(P.operator, ScaledIdentityPlusLowRank) and f.rank() == 3
    assert isinstance(f.range_projector().operator, LowRank)
    with pytest.raises(ValueError, match=r"null_projector\(\)"):
        f.null_space()


def test_fit_core_recovers_the_core_that_made_the_data(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    x = torch.randn(50, 4)
    start = Linearizer(X, Dense(torch.zeros(3, 4)), Y)
    fitted = start.fit_core(x, f(x))
    close(fitted.operator.matrix, f.operator.matrix, 1e-8)
    assert start.operator.matrix.abs().max() == 0
    assert not fitted.operator.matrix.requires_grad


def test_fit_core_streams(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    x, y = torch.randn(500, 4), torch.randn(500, 3)
    batches = ((x[i : i + 3], y[i : i + 3]) for i in range(0, 500, 3))
    close(f.fit_core(batches).operator.matrix, f.fit_core(x, y).operator.matrix)
    ridged = f.fit_core(x, y, ridge=7.0).operator.matrix
    Z, W = X.g(x), Y.g(y)
    close(ridged, torch.linalg.solve(Z.mT @ Z + 7.0 * torch.eye(4), Z.mT @ W).mT)


def test_fit_core_of_little_or_dependent_data_has_least_norm(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    for x in (torch.randn(2, 4), torch.randn(2, 4)[[0, 1, 0, 1, 0, 1]]):
        y = f(x)
        A = f.fit_core(x, y).operator.matrix
        close(A, (torch.linalg.pinv(X.g(x)) @ Y.g(y)).mT, 1e-8)


def test_fit_core_refuses_bad_data(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
    with pytest.raises(ValueError, match="as many y as x, got 5 x and 4 y"):
        f.fit_core(torch.randn(5, 4), torch.randn(4, 3))
    with pytest.raises(ValueError, match="no y"):
        f.fit_core(torch.randn(5, 4))
    with pytest.raises(ValueError, match="got none"):
        f.fit_core([])
    with pytest.raises(ValueError, match="got none"):
        f.fit_core(torch.randn(0, 4), torch.randn(0, 3))
    with pytest.raises(ValueError, match="NaN"):
        f.fit_core(torch.full((5, 4), math.nan), torch.randn(5, 3))
    with pytest.raises(ValueError, match="ridge ≥ 0"):
        f.fit_core(torch.randn(5, 4), torch.randn(5, 3), ridge=-1.0)


def test_one_core_for_each_sample(X, Y):
    A = torch.randn(5, 3, 4)
    f = Linearizer(X, Dense(A), Y)
    x = torch.randn(5, 4)
    for i in range(5):
        close(f(x)[i : i + 1], Linearizer(X, Dense(A[i]), Y)(x[i : i + 1]))
    close(
        f.pinv()(f(x)),
        torch.cat([Linearizer(X, Dense(A[i]), Y).pinv()(f(x)[i : i + 1]) for i in range(5)]),
    )
    with pytest.raises(ValueError, match="one A for each of 5 samples"):
        f.svd()


def test_construction_names_what_does_not_fit(X, Y):
    with pytest.raises(ValueError, match=r"operator has shape \(4, 3\).*need \(3, 4\)"):
        Linearizer(X, Dense(torch.randn(4, 3)), Y)
    with pytest.raises(TypeError, match="expected operator as Operator, got Tensor.*Dense"):
        Linearizer(X, torch.randn(3, 4), Y)
    with pytest.raises(TypeError, match="expected source as Space, got Chain.*Space"):
        Linearizer(X.g, Dense(torch.randn(3, 4)), Y)


def test_everything_learns(X, Y):
    f = Linearizer(X, Dense(torch.nn.Parameter(torch.randn(3, 4))), Y)
    loss = (f.pinv() @ f)(torch.randn(5, 4)).square().sum() + f(torch.randn(5, 4)).sum()
    loss.backward()
    assert all(p.grad is not None for p in f.parameters())
    assert f.operator.matrix.grad.abs().max() > 0


def test_identity_core_changes_coordinates_only(X):
    other = space(4)
    f = Linearizer(X, Identity(4), other)
    x = torch.randn(5, 4)
    close(other.norm(f(x)), X.norm(x), 1e-8)


@pytest.mark.parametrize("name", ["projector", "diagonal, singular"])
def test_idempotent_core_idempotent_map(name):
    A = OPERATORS[name]()
    X = space(A.shape[0])
    f = Linearizer(X, A, X)
    p = f.range_projector()
    x = 10 * torch.randn(5, X.dim)
    close(p(p(x)), p(x), 1e-10)
    if name == "projector":
        assert torch.equal(f.operator(f.operator(X.g(x))), f.operator(X.g(x)))


def test_the_state_dict_reloads(X, Y):
    f = Linearizer(X, Diagonal(torch.ones(4)), X)
    h = Linearizer(space(4), Diagonal(torch.zeros(4)), space(4))
    h.load_state_dict(f.state_dict())
    x = torch.randn(3, 4)
    close(h(x), f(x))


def test_fit_core_says_what_a_loader_must_give(X, Y):
    f, x = Linearizer(X, Dense(torch.randn(3, 4)), Y), torch.randn(5, 4)
    with pytest.raises(TypeError, match="one loader of"):
        f.fit_core([x], torch.randn(5, 3))
    with pytest.raises(TypeError, match=r"fit_core\(x, y\)"):
        f.fit_core([x])
    with pytest.raises(ValueError, match="got 5 x and 4 y"):
        f.fit_core([(x, torch.randn(4, 3))])
    with pytest.raises(ValueError, match="ridge"):
        f.fit_core(x, torch.randn(5, 3), ridge=math.inf)


def test_fit_core_to_many_outputs_stays_small():
    E, W = Space(Flatten((3,))), Space(Flatten((2000,)))
    A, x = torch.randn(2000, 3), torch.randn(500, 3)
    f = Linearizer(E, Dense(torch.zeros(2000, 3)), W)
    loader = ((x[i : i + 10], x[i : i + 10] @ A.mT) for i in range(0, 500, 10))
    close(f.fit_core(loader).operator.matrix, A, 1e-9)


def test_autocast_reaches_no_core(X, Y):
    f = Linearizer(X, Dense(torch.randn(3, 4)), Y).float()
    x = torch.randn(5, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert f(x).dtype == torch.float32


@pytest.fixture
def f(X):
    return Linearizer(X, Dense(torch.nn.Parameter(0.3 * torch.randn(4, 4) + torch.eye(4))), X)


def test_numbers_of_the_core(f):
    M = f.operator.matrix.detach()
    assert f.shape == (4, 4)
    for kind in ("fro", "nuc", 2, -2):
        close(f.norm(kind), torch.linalg.matrix_norm(M, kind))
    close(f.cond(), torch.linalg.cond(M))
    close(f.det(), torch.linalg.det(M))
    close(f.trace(), M.trace())
    close(f.eigvals().abs(), torch.linalg.eigvals(M).abs().sort(descending=True).values)
    close(torch.stack(f.slogdet()), torch.stack(torch.linalg.slogdet(M)))


def test_the_logarithm_generates_f(f):
    x = torch.randn(5, 4)
    close(f.log().exp()(x), f(x), 1e-8)
    close(f.log().exp(0.5)(x), (f**0.5)(x), 1e-8)


def test_solve_is_the_inverse(f):
    x = torch.randn(5, 4)
    close(f.solve(f(x)), x, 1e-8)
    assert f.H.operator.matrix.equal(f.T.operator.matrix)


def test_sums_of_lists_and_a_hint_for_points(f):
    x = torch.randn(5, 4)
    close(sum([f, f, f])(x), (3 * f)(x))
    with pytest.raises(TypeError, match=r"Call f\(x\)"):
        f @ x


def test_decompositions_unpack_as_those_of_torch(f):
    U, S, V = f.svd()
    close(f(V), f.target.scale(S, U), 1e-8)
    values, vectors = f.eig()
    assert vectors.is_complex() and vectors.real.equal(f.eig().real)
    assert f.svd().operator.U.shape == f.eig().operator.vectors.shape == (4, 4)
    assert values.shape == (4,)


def test_jacobian_and_densities(f):
    x = torch.randn(5, 4)
    J = f.jacobian(x)
    expected = torch.autograd.functional.jacobian(lambda u: f(u[None])[0], x[2])
    close(J[2], expected)
    close(f.log_det(x), torch.linalg.slogdet(J).logabsdet)
    # f(x) has the density of x over |det ∂f/∂x|
    close(f.log_prob(f(x)), f.source.log_prob(x) - f.log_det(x), 1e-8)
    normal = torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4))
    z, log_det = f.source.g.with_log_det(x)
    close(f.source.log_prob(x), normal.log_prob(z) + log_det)


def test_density_of_a_wide_core(X, Y):
    A = torch.randn(3, 4)
    f, y = Linearizer(X, Dense(A), Y), torch.randn(5, 3)
    normal = torch.distributions.MultivariateNormal(torch.zeros(3), A @ A.mT)
    w, log_det = Y.g.with_log_det(y)
    close(f.log_prob(y), normal.log_prob(w) + log_det)
    with pytest.raises(ValueError, match="rank 4.*got rank 3.*no density"):
        f.T.log_prob(torch.randn(2, 4))


def test_weights_of_pairs(X, Y):
    f = Linearizer(X, Dense(torch.zeros(3, 4)), Y)
    x, y, w = torch.randn(50, 4), torch.randn(50, 3), torch.rand(50)
    fitted = f.fit_core(x, y, weights=w).operator.matrix
    Z, W = X.g(x), w[:, None] * Y.g(y)
    close(fitted, torch.linalg.solve(Z.mT @ (w[:, None] * Z), Z.mT @ W).mT, 1e-8)
    batches = [(x[:20], y[:20], w[:20]), (x[20:], y[20:], w[20:])]
    close(f.fit_core(batches).operator.matrix, fitted)
    twice = f.fit_core(torch.cat([x, x[:1]]), torch.cat([y, y[:1]])).operator.matrix
    counted = torch.ones(50)
    counted[0] = 2
    close(f.fit_core(x, y, weights=counted).operator.matrix, twice)
    with pytest.raises(ValueError, match="a weight ≥ 0 for each of 50 pairs"):
        f.fit_core(x, y, weights=-w)
    with pytest.raises(ValueError, match="let the loader give"):
        f.fit_core(batches, weights=w)


def test_a_derived_map_moves_without_its_parent(f):
    x = torch.randn(5, 4)
    before = f(x)
    for derived in (f.pinv(), f.T, 2 * f, f @ f, f.null_projector(), copy.deepcopy(f.exp())):
        moved = derived.float()
        assert moved.source is moved.target
        assert all(p.dtype == torch.float32 for p in moved.parameters())
        moved(x.float())
        assert f.source.g is not moved.source.g and f(x).equal(before)
    assert f.T.double().source is f.source  # nothing moves: the Space stays the same


def test_projectors_keep_their_digits():
    for dtype, cond, limit in ((torch.float32, 1e4, 5e-6), (torch.float64, 1e10, 1e-14)):
        U, V = (torch.linalg.qr(torch.randn(6, 6).to(dtype))[0] for _ in "UV")
        M = (U[:, :4] * torch.logspace(0, -math.log10(cond), 4).to(dtype)) @ V[:, :4].mT
        E = Space(Flatten((6,)))
        for core in (Dense(M), LowRank(U[:, :4] @ torch.diag(torch.linalg.svdvals(M)[:4]),
                                       V[:, :4].contiguous())):  # fmt: skip
            f = Linearizer(E, core, E)
            for P in (f.range_projector(1e-3 / cond), f.null_projector(1e-3 / cond)):
                D = P.operator.dense()
                assert float((D @ D - D).abs().max()) < limit
                assert float((D - D.mT).abs().max()) < limit
            N = f.null_space(1e-3 / cond)
            assert N.shape == (2, 6) and float((N @ core.dense().mT).abs().max()) < limit
            inside = f.range_projector(1e-3 / cond)(core.dense().mT)
            assert float((inside - core.dense().mT).abs().max()) < limit
        x = E.project(torch.randn(3, 6).to(dtype), M.mT[:4])
        assert float((E.project(x, M.mT[:4]) - x).abs().max()) < limit
