"""Solvers: the collapsed operator equals the loop, converges at its order, and stays structured."""

import math

import pytest
import torch

from laws import close
from linearizer import solvers
from linearizer.families import Family, GaussianVelocity, Prediction, TimeLowRank
from linearizer.operators import (
    Dense,
    Diagonal,
    Identity,
    LowRank,
    Operator,
    ScaledIdentityPlusLowRank,
    UnsupportedError,
)
from linearizer.solvers import SOLVERS, choose_steps, collapse, integrate


class Made(Family):
    """A family from a function of a (…,) tensor of times."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, c):
        return self.make(torch.as_tensor(c, dtype=torch.float64))


def wave(*shape):
    """A smooth random function of time: (…,) ↦ (…, *shape)."""
    a, b, c = torch.randn(3, *shape)

    def at(t):
        t = t[(...,) + (None,) * len(shape)]
        return a + b * torch.sin(3 * t) + c * torch.cos(2 * t)

    return at


def lively(dim, rank, **kwargs):
    family = TimeLowRank(dim, rank, scale=1.0, **kwargs)
    with torch.no_grad():
        for net in (family.left, family.right):
            net.layers[-1].weight *= 8
    return family


def dense():
    A = wave(5, 5)
    return Made(lambda t: Dense(A(t)))


def low_rank():
    U, V = wave(9, 2), wave(9, 2)
    return Made(lambda t: LowRank(U(t), V(t)))


def deficient():
    u, V = wave(9, 1), wave(9, 3)
    return Made(lambda t: LowRank(u(t).expand(*u(t).shape[:-1], 3), V(t)))


def full_rank():
    U, V = wave(4, 4), wave(4, 4)
    return Made(lambda t: LowRank(U(t), V(t)))


def wider_than_dim():
    U, V = wave(3, 7), wave(3, 7)
    return Made(lambda t: LowRank(U(t), V(t)))


def uneven():
    U, V = wave(8, 2), wave(8, 2)
    sizes = torch.tensor([1e2, 1e-2])
    return Made(lambda t: LowRank(U(t) * sizes, V(t) / sizes))


def nothing():
    return Made(lambda t: LowRank(torch.zeros(*t.shape, 6, 2), torch.zeros(6, 2)))


def scaled():
    a, U, V = wave(), wave(8, 2), wave(8, 2)
    return Made(lambda t: ScaledIdentityPlusLowRank(a(t), U(t), V(t)))


def scaled_identity():
    a = wave()
    return Made(lambda t: Identity(6) * a(t))


def constant_low_rank():
    A = LowRank(torch.randn(7, 2), torch.randn(7, 2))
    return Made(lambda t: A)


def diagonal():
    d = wave(5)
    return Made(lambda t: Diagonal(d(t)))


def gaussian(rest=0.3):
    Q = torch.linalg.qr(torch.randn(8, 3))[0]
    return GaussianVelocity(Q, torch.tensor([4.0, 1.5, 0.2]), rest)


FAMILIES = {
    "dense": dense,
    "diagonal": diagonal,
    "low rank": low_rank,
    "low rank, deficient": deficient,
    "low rank, full": full_rank,
    "low rank, more columns than rows": wider_than_dim,
    "low rank, uneven columns": uneven,
    "low rank, constant": constant_low_rank,
    "low rank, zero": nothing,
    "scaled identity": scaled_identity,
    "scaled identity + low rank": scaled,
    "time low rank": lambda: lively(40, 3),
    "prediction": lambda: Prediction(lively(40, 3)),
    "prediction, dense": lambda: Prediction(dense()),
    "prediction, scaled": lambda: Prediction(scaled()),
    "gaussian": gaussian,
    "gaussian, singular": lambda: gaussian(0.0),
}
STEPPED = ("prediction", "gaussian, singular")  # cannot leave t = 1


def relative(a, b):
    return float((a - b).norm() / max(b.norm(), 1e-12))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_collapsed_operator_is_the_loop(name, solver):
    family = FAMILIES[name]()
    n = family(0.0).shape[0]
    z = torch.randn(4, n)
    intervals = [(0.0, 1.0, 1), (0.0, 1.0, 37), (0.25, 0.6, 5), (0.3, 1.0, 3)]
    if not name.startswith(STEPPED):
        intervals += [(1.0, 0.0, 6), (0.0, 1.4, 3)]
    for t0, t1, steps in intervals:
        B = collapse(family, solver, steps, t0, t1)
        assert isinstance(B, Operator) and B.shape == (n, n) and B.batch is None
        assert relative(B(z), integrate(family, z, solver, steps, t0, t1)) <= 1e-10
        if isinstance(B, LowRank | ScaledIdentityPlusLowRank):
            assert B.U.shape[-1] <= n


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: lively(300, 4).float(),
        lambda: Prediction(lively(300, 4).float()),
        lambda: gaussian().float(),
    ],
    ids=["time low rank", "prediction", "gaussian"],
)
@torch.no_grad()
def test_the_collapsed_operator_is_the_loop_in_float32(make, solver):
    family = make()
    z = torch.randn(4, family(0.0).shape[0], dtype=torch.float32)
    for steps in (1, 50, 300):
        B = collapse(family, solver, steps)
        assert B.dtype == torch.float32
        assert relative(B(z), integrate(family, z, solver, steps)) <= 1e-5


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_sub_intervals_compose(name, solver):
    family = FAMILIES[name]()
    whole = collapse(family, solver, 10)
    parts = collapse(family, solver, 6, 0.4, 1.0) @ collapse(family, solver, 4, 0.0, 0.4)
    assert relative(parts.dense(), whole.dense()) <= 1e-10


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_no_time_gives_the_identity(name, solver):
    family = FAMILIES[name]()
    n = family(0.0).shape[0]
    z = torch.randn(2, n)
    for t in (0.0, 0.5, 1.0):
        assert isinstance(collapse(family, solver, 5, t, t), Identity)
        assert torch.equal(integrate(family, z, solver, 5, t, t), z)


@torch.no_grad()
def reference(A, t0=0.0, t1=1.0):
    from scipy.integrate import solve_ivp

    n = A(torch.tensor(t0)).shape[0]

    def rate(t, z):
        return (A(torch.tensor(t)) @ torch.from_numpy(z).reshape(n, n)).reshape(-1).numpy()

    start = torch.eye(n).reshape(-1).numpy()
    found = solve_ivp(rate, (t0, t1), start, "DOP853", rtol=1e-12, atol=1e-13)
    return torch.from_numpy(found.y[:, -1].copy()).reshape(n, n)


ORDERS = {"euler": 1, "midpoint": 2, "rk4": 4, "exponential": 4}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ["dense", "scaled identity + low rank"])
@torch.no_grad()
def test_each_solver_converges_at_its_order(name, solver):
    family = FAMILIES[name]()
    exact = reference(lambda t: 0.5 * family(t).dense())
    half = Made(lambda t: family(t) * 0.5)
    steps = 256 if solver == "euler" else 32
    errors = [relative(collapse(half, solver, k).dense(), exact) for k in (steps, 2 * steps)]
    assert abs(math.log2(errors[0] / errors[1]) - ORDERS[solver]) < 0.25
    fine = collapse(half, solver, 400).dense()
    assert relative(fine, exact) < {1: 2e-2, 2: 2e-4}.get(ORDERS[solver], 1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_a_constant_core_gives_the_exponential(solver):
    for A in (
        Dense(torch.randn(5, 5)),
        LowRank(torch.randn(7, 2), torch.randn(7, 2)),
        ScaledIdentityPlusLowRank(-0.5, torch.randn(7, 2), torch.randn(7, 2)),
    ):
        A = A * (1.0 / float(A.svd(1).S))
        exact = torch.linalg.matrix_exp(0.7 * A.dense())
        family = Made(lambda t, A=A: A)
        bound = {"euler": 1e-2, "midpoint": 1e-4, "rk4": 1e-9, "exponential": 1e-13}[solver]
        assert relative(collapse(family, solver, 100, 0.2, 0.9).dense(), exact) < bound
        if solver == "exponential":
            assert relative(collapse(family, solver, 1, 0.2, 0.9).dense(), exact) < 1e-13


@torch.no_grad()
def test_rk4_of_a_constant_core_is_the_fourth_taylor_polynomial():
    """Appendix F's sanity check; with k₂ in the place of k₃ it fails."""
    A, h = torch.randn(4, 4), 0.5
    M = sum(torch.linalg.matrix_power(h * A, k) / math.factorial(k) for k in range(5))
    close(collapse(Made(lambda t: Dense(A)), "rk4", 2).dense(), M @ M, 1e-13)


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_back_and_forth_tends_to_the_identity(solver):
    family = lively(12, 2)
    errors = []
    for steps in (8, 64):
        forth, back = collapse(family, solver, steps), collapse(family, solver, steps, 1.0, 0.0)
        errors.append(relative((back @ forth).dense(), torch.eye(12)))
    # The exponential is symmetric in time: back and forth is the identity at once.
    assert errors[1] < max(errors[0] / 6, 1e-13) and errors[1] < 0.1


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_the_gaussian_flow_ends_in_the_root_of_the_moment(solver):
    for family in (gaussian(), gaussian(0.0)):
        root = family.flow(0.0, 1.0).dense()
        bound = {1: 2e-2, 2: 1e-3}.get(ORDERS[solver], 1e-6)
        assert relative(collapse(family, solver, 200).dense(), root) < bound


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_a_prediction_reaches_the_end_exactly(solver):
    """B ends in the range of the last predictor, and a perfect predictor is followed exactly."""
    predictor = lively(40, 3)
    B = collapse(Prediction(predictor), solver, 20)
    assert isinstance(B, LowRank) and B.rank() == 3  # α = 0: no noise is left
    U = predictor(0.95).U
    inside = U @ torch.linalg.pinv(U) @ B.dense()
    assert relative(inside, B.dense()) < 1e-10
    P = torch.linalg.qr(torch.randn(6, 2))[0]
    for steps in (1, 4):
        B = collapse(Prediction(Made(lambda t: LowRank(P, P))), "euler", steps)
        close(B.dense(), P @ P.mT, 1e-12)


@torch.no_grad()
def test_rtol_bounds_what_is_dropped():
    family = lively(100, 4)
    full = collapse(family, steps=30)
    size = torch.linalg.matrix_norm(full.dense(), 2)
    ranks = [full.U.shape[-1]]
    for rtol in (1e-8, 1e-3):
        part = collapse(family, steps=30, rtol=rtol)
        assert torch.linalg.matrix_norm(part.dense() - full.dense(), 2) <= 2.1 * rtol * size
        ranks.append(part.U.shape[-1])
    assert ranks[0] > ranks[1] > ranks[2]


@torch.no_grad()
def test_kinds_are_kept():
    assert isinstance(collapse(diagonal(), steps=3), Diagonal)
    assert isinstance(collapse(dense(), steps=3), Dense)
    B = collapse(scaled_identity(), steps=3)
    assert isinstance(B, ScaledIdentityPlusLowRank) and B.U.shape == (6, 0)
    B = collapse(constant_low_rank(), steps=50)
    assert isinstance(B, ScaledIdentityPlusLowRank) and B.U.shape == (7, 2)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.largest = max(self.largest, t.untyped_storage().size() // t.element_size())
        return out


@pytest.mark.parametrize("wrap", [lambda f: f, Prediction], ids=["velocity", "prediction"])
@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_nothing_of_size_d_by_d_is_allocated(solver, wrap, monkeypatch):
    monkeypatch.setattr("linearizer.solvers._CHUNK", 2**20)
    n = 6000
    family = wrap(TimeLowRank(n, rank=2, hidden=8).float())
    with Watch() as watch:
        B = collapse(family, solver, 30)
        integrate(family, torch.randn(2, n, dtype=torch.float32), solver, 30)
    assert n * 2 < watch.largest <= 2**20 + 100 < n * n
    assert B.U.shape[-1] <= 18


@torch.no_grad()
def test_times_go_through_the_family_in_batches():
    family = lively(20, 2)
    seen = []
    family.register_forward_pre_hook(lambda _, args: seen.append(torch.as_tensor(args[0]).numel()))
    for run in (
        lambda: collapse(family, steps=100),
        lambda: integrate(family, torch.randn(1, 20), steps=100),
    ):
        seen.clear()
        run()
        assert len(seen) == 2 and 200 <= sum(seen) <= 202


@torch.no_grad()
def test_small_batches_of_times_change_nothing(monkeypatch):
    family, z = lively(30, 2), torch.randn(3, 30)
    whole = collapse(family, steps=20), integrate(family, z, steps=20)
    monkeypatch.setattr("linearizer.solvers._CHUNK", 30 * 2 * 2 * 3)
    close(collapse(family, steps=20).dense(), whole[0].dense(), 1e-12)
    close(integrate(family, z, steps=20), whole[1], 1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("wrap", [lambda f: f, Prediction], ids=["velocity", "prediction"])
def test_gradients_pass(solver, wrap):
    family = wrap(lively(6, 2, hidden=4))
    z = torch.randn(3, 6)
    grads = []
    for run in (
        lambda: collapse(family, solver, 3)(z),
        lambda: integrate(family, z, solver, 3),
    ):
        family.zero_grad()
        run().square().sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in family.parameters()]))
        assert grads[-1].isfinite().all() and grads[-1].norm() > 0
    close(grads[0], grads[1], 1e-9)


def test_a_large_collapse_with_gradients_is_refused():
    with pytest.raises(UnsupportedError, match="no_grad"):
        collapse(TimeLowRank(2000, 2, hidden=4), steps=100)


def test_families_that_are_not_smooth_are_refused_when_they_grow(monkeypatch):
    monkeypatch.setattr("linearizer.solvers._MODES", 1000)
    with pytest.raises(UnsupportedError, match="smoothly"), torch.no_grad():
        collapse(Made(lambda t: LowRank(torch.randn(*t.shape, 50, 2), torch.randn(50, 2))))


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_chosen_steps_reach_the_error(solver):
    U, V = wave(8, 2), wave(8, 2)
    family = Made(lambda t: LowRank(0.3 * U(t), V(t)))
    exact = collapse(family, "exponential", 3000).dense()
    for error in (1e-1, 1e-2) if solver == "euler" else (1e-3, 1e-5):
        steps = choose_steps(family, solver, error)
        found = relative(collapse(family, solver, steps).dense(), exact)
        assert error / 50 / 2 ** ORDERS[solver] < found <= 1.5 * error


def test_choose_steps_knows_when_to_stop():
    assert choose_steps(constant_low_rank(), "exponential", 1e-10) <= 4
    assert choose_steps(nothing(), "euler", 1e-10) == 1
    with pytest.raises(ValueError, match="higher order"):
        choose_steps(low_rank(), "euler", 1e-9, max_steps=64)
    with pytest.raises(ValueError, match="error > 0"):
        choose_steps(low_rank(), "euler", 0.0)
    with pytest.raises(ValueError, match="rounding of torch.float32"):
        choose_steps(TimeLowRank(64, 8, scale=3.0).float(), "rk4", 1e-12)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f: collapse(f, "rk5"), "did you mean 'rk4'"),
        (lambda f: collapse(f, "zzz"), "known: euler, midpoint, rk4, exponential"),
        (lambda f: collapse(f, steps=0), "≥ 1, got 0"),
        (lambda f: integrate(f, torch.randn(1, 9), steps=2.5), "≥ 1, got 2.5"),
        (lambda f: collapse(f, t1=float("nan")), "finite"),
        (lambda f: collapse(f, rtol=-1.0), "rtol ≥ 0"),
        (lambda f: integrate(f, torch.randn(2, 5)), "\\(batch, 9\\)"),
        (lambda f: integrate(f, torch.randn(9)), "\\(batch, 9\\)"),
        (lambda f: collapse(Prediction(f), steps=3, t0=1.0, t1=0.0), "singular at t = 1"),
        (lambda f: collapse(Prediction(f), steps=3, t1=1.2), "singular at t = 1"),
        (lambda f: collapse(Made(lambda t: Dense(torch.ones(2, 3)))), "square"),
    ],
)
def test_mistakes_are_told_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(low_rank())


@pytest.mark.parametrize("k", [1.0, 1e4, 1e6])
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-6])
def test_a_column_that_is_almost_nothing_at_first_is_not_lost(k, epsilon):
    torch.manual_seed(1)
    U, V = torch.randn(40, 3) / 6, torch.randn(40, 3) / 6

    def at(t):
        left = torch.stack([(epsilon + t) / k, torch.ones_like(t), torch.cos(t)], -1)
        right = torch.tensor([k, 1.0, 1.0])
        return LowRank(
            (U * left[..., None, :]).float(), (V * right).float().expand(*t.shape, 40, 3)
        )

    z = torch.randn(5, 40).float()
    once, many = collapse(Made(at), steps=20)(z), integrate(Made(at), z, steps=20)
    assert float((once - many).norm() / many.norm()) < 1e-5


DRIFTS = {
    "all columns": lambda t, k: torch.exp(k * t)[..., None].expand(*t.shape, 3),
    "single columns, opposite": lambda t, k: torch.exp(
        k * t[..., None] * torch.tensor([1.0, -1.0, 0.0])
    ),
    "a peak": lambda t, k: torch.stack([torch.exp(-k * (t - 0.5) ** 2), 1 + t, torch.cos(t)], -1),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("alpha", [None, 0.7])
@pytest.mark.parametrize("name", DRIFTS)
@torch.no_grad()
def test_factors_that_drift_apart_collapse_like_their_product(name, alpha, solver):
    """U(t) D(t) and V(t) D(t)⁻¹ have the product U(t) V(t)ᵀ, whatever D is."""
    U, V = (0.2 * wave(30, 3)(torch.zeros(())) for _ in range(2))

    def family(dtype, k):
        def at(t):
            D = DRIFTS[name](t, k)[..., None, :]
            factors = (U * D).to(dtype), (V * (1 + t[..., None, None]) / D).to(dtype)
            if alpha is None:
                return LowRank(*factors)
            return ScaledIdentityPlusLowRank((alpha * torch.cos(t)).to(dtype), *factors)

        return Made(at)

    for dtype, k, bound in ((torch.float64, 100.0, 1e-10), (torch.float32, 30.0, 1e-5)):
        z = torch.randn(4, 30).to(dtype)
        for steps in (1, 3, 20):
            B = collapse(family(dtype, k), solver, steps)
            loop = integrate(family(dtype, k), z, solver, steps)
            assert relative(B(z), loop) <= bound
            assert relative(loop, integrate(family(dtype, 0.0), z, solver, steps)) <= bound
    assert name == "a peak" or B.U.shape[-1] == 3  # nothing moves: the drift added no direction


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1e-150, 1.0, 1e150])
@torch.no_grad()
def test_columns_that_vanish_at_some_times_are_not_lost(size, solver):
    U, V = wave(20, 3), wave(20, 3)

    def at(t):
        left = torch.stack([(t - 0.5).clamp(min=0), torch.cos(9 * t), 0 * t], -1)[..., None, :]
        right = torch.stack([(t < 0.4).to(t), 1 + 0 * t, 1 + t], -1).flip(-1)[..., None, :]
        return LowRank(0.1 * size * U(t) * left, V(t) * right / size)

    z = torch.randn(3, 20)
    for t0, t1, steps in ((0.0, 1.0, 7), (0.0, 0.35, 2), (0.9, 0.2, 30)):
        loop = integrate(Made(at), z, solver, steps, t0, t1)
        assert relative(collapse(Made(at), solver, steps, t0, t1)(z), loop) <= 1e-10


@torch.no_grad()
def test_a_small_whole_step_is_not_lost():
    """The last step of a prediction, 1e-20 in size, is all that is left of the noise."""
    U, V = wave(8, 2), wave(8, 2)
    D = Made(lambda t: LowRank(1e-20 * U(t), V(t)))
    z = torch.randn(3, 8)
    loop = integrate(Prediction(D), z, "rk4", 6)
    assert relative(collapse(Prediction(D), "rk4", 6)(z), loop) <= 1e-10


@torch.no_grad()
def test_shares_that_follow_the_time_are_taken_only_where_they_are_needed(monkeypatch):
    """A factor that an MLP makes moves in no more modes than its last hidden layer is wide."""
    modes = []
    span = solvers._Curve.span
    monkeypatch.setattr(
        solvers._Curve, "span", lambda self: (modes.append(len(self.modes.rows)), span(self))[1]
    )
    collapse(lively(60, 8, hidden=6), "rk4", 100)
    assert len(modes) == 2 and max(modes) <= 7 + 3  # three of rounding


def test_gradients_pass_through_columns_that_are_zero_in_one_factor():
    U, V = (torch.nn.Parameter(0.3 * torch.randn(6, 3)) for _ in range(2))
    with torch.no_grad():
        U[:, 0] = 0.0
        V *= torch.tensor([1.0, 1e6, 1.0])
        U *= torch.tensor([1.0, 1e-6, 1.0])
    grads = []
    for make in (lambda A, B: LowRank(A, B), lambda A, B: Dense(A @ B.mT)):
        family = Made(lambda t, make=make: make(U * (1 + t[..., None, None]), V))
        z = integrate(family, torch.ones(2, 6), "exponential", 2)
        grads.append(torch.autograd.grad(z.square().sum(), (U, V)))
    for one, other in zip(*grads, strict=True):
        close(one, other, 1e-9)


def test_steps_may_be_any_integer_type():
    numpy = pytest.importorskip("numpy")
    family, z = low_rank(), torch.randn(2, 9)
    for steps in (numpy.int32(4), numpy.int64(4), numpy.uint8(4), torch.tensor(4)):
        assert torch.equal(integrate(family, z, "rk4", steps), integrate(family, z, "rk4", 4))
        close(collapse(family, "rk4", steps).dense(), collapse(family, "rk4", 4).dense(), 1e-12)
    for steps in (True, numpy.float64(4.0), "4", None, numpy.int64(-1)):
        with pytest.raises(ValueError, match="steps: expected a whole number ≥ 1"):
            integrate(family, z, "rk4", steps)
