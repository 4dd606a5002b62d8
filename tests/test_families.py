"""Families: shapes, scales, singular ends, and the closed form of second moments."""

import pytest
import torch

from laws import close
from linearizer.families import (
    Family,
    GaussianVelocity,
    Leading,
    Preconditioned,
    Prediction,
    TimeLowRank,
)
from linearizer.operators import Dense, LowRank, ScaledIdentityPlusLowRank
from linearizer.solvers import SOLVERS, collapse, integrate


def test_a_family_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Family()


def test_time_low_rank_takes_a_number_a_scalar_or_a_batch():
    family = TimeLowRank(12, rank=3)
    t = torch.rand(5)
    many = family(t)
    assert isinstance(many, LowRank) and many.batch == 5 and many.shape == (12, 12)
    for i in range(5):
        for one in (family(float(t[i])), family(t[i])):
            assert one.batch is None
            close(one.dense(), many.dense()[i], 1e-12)
    assert family(0).shape == family(torch.tensor(1)).shape == (12, 12)


@pytest.mark.parametrize("dim", [8, 64, 1024])
def test_a_fresh_core_is_small_and_both_factors_learn(dim):
    family = TimeLowRank(dim, rank=8)
    A = family(torch.tensor([0.0, 0.5, 1.0]))
    assert (A.svd(1).S < 0.6).all() and (A.svd(1).S > 0.005).all()
    z = torch.randn(3, dim)
    (A(z) - z).square().sum().backward()
    for p in family.parameters():
        assert p.grad is not None and p.grad.norm() > 0
    apart = (family(0.0).dense() - family(1.0).dense()).norm() / family(0.0).dense().norm()
    assert apart > 1e-3


def test_time_low_rank_in_float32_takes_double_times():
    family = TimeLowRank(6, rank=2).float()
    assert family(torch.rand(3, dtype=torch.float64)).dtype == torch.float32
    assert family(0.25).dtype == torch.float32


@pytest.mark.parametrize("kind", ["low rank", "dense", "scaled"])
def test_prediction_is_the_velocity_of_its_predictor(kind):
    class Predictors(Family):
        def forward(self, c):
            t = torch.as_tensor(c, dtype=torch.float64)
            U, V = torch.ones(4, 1) * t[..., None, None], torch.eye(4)[:, :1]
            return {
                "low rank": lambda: LowRank(U, V),
                "dense": lambda: Dense(U @ V.mT),
                "scaled": lambda: ScaledIdentityPlusLowRank(t, U, V),
            }[kind]()

    family = Prediction(Predictors())
    t = torch.tensor([0.0, 0.3, 0.9])
    expected = (Predictors()(t).dense() - torch.eye(4)) / (1 - t)[:, None, None]
    close(family(t).dense(), expected)
    close(family(0.3).dense(), expected[1])
    if kind != "dense":
        assert isinstance(family(0.3), ScaledIdentityPlusLowRank)
    assert family.step(0.1, 0.9, never) is None
    close(family.step(0.9, 1.0, never).dense(), Predictors()(0.9).dense())
    z = torch.randn(2, 4)  # the last step is Euler's
    close(family.step(0.9, 1.0, never)(z), z + (1 - 0.9) * family(0.9)(z))
    close(family.step(1.0, 1.0, never).dense(), torch.eye(4))
    for call in (
        lambda: family(1.0),
        lambda: family(torch.tensor([0.5, 1.0])),
        lambda: family.step(1.0, 0.9, never),
        lambda: family.step(0.9, 1.1, never),
    ):
        with pytest.raises(ValueError, match="singular at t = 1"):
            call()


def never(family):
    raise AssertionError("the step was known")


def gaussian(n=7, k=3, rest=0.3):
    Q = torch.linalg.qr(torch.randn(n, k))[0]
    return GaussianVelocity(Q, torch.tensor([4.0, 1.5, 0.2, 2.5, 0.7])[:k], rest)


def test_gaussian_velocity_is_its_formula():
    family = gaussian()
    M, eye = family.moment.dense(), torch.eye(7)
    for t in (0.0, 0.4, 1.0):
        expected = (t * M - (1 - t) * eye) @ torch.linalg.inv((1 - t) ** 2 * eye + t**2 * M)
        close(family(t).dense(), expected, 1e-12)
    t = torch.rand(4)
    close(family(t).dense(), torch.stack([family(s).dense() for s in t]), 1e-12)


def test_gaussian_velocity_is_the_least_squares_one():
    family = gaussian()
    z0, n = torch.randn(200_000, 7), 200_000
    root = family.flow(0.0, 1.0)
    z1, t = root(torch.randn(n, 7)), 0.6
    zt, v = (1 - t) * z0 + t * z1, z1 - z0
    best = torch.linalg.lstsq(zt, v).solution.mT
    close(best, family(t).dense(), 0.03)


def test_gaussian_flow_is_the_root_of_the_moment():
    family = gaussian()
    root = family.flow(0.0, 1.0).dense()
    close(root @ root, family.moment.dense(), 1e-12)
    close(root, root.mT, 1e-12)
    halves = family.flow(0.4, 1.0) @ family.flow(0.0, 0.4)
    close(halves.dense(), root, 1e-12)
    close((family.flow(1.0, 0.0) @ family.flow(0.0, 1.0)).dense(), torch.eye(7), 1e-12)
    h = 1e-6  # the velocity is the flow's derivative
    slope = (family.flow(0.3, 0.3 + h).dense() - family.flow(0.3, 0.3 - h).dense()) / (2 * h)
    close(slope, family(0.3).dense(), 1e-7)


def advance(solver, A, z, t, h):
    """One step as the books have it, for numbers."""
    k1 = A(t) * z
    if solver == "euler":
        return z + h * k1
    k2 = A(t + h / 2) * (z + h / 2 * k1)
    if solver == "midpoint":
        return z + h * k2
    k3 = A(t + h / 2) * (z + h / 2 * k2)
    k4 = A(t + h) * (z + h * k3)
    return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@pytest.mark.parametrize("solver", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rest", [0.0, 0.3])
def test_a_solver_of_a_gaussian_velocity_does_what_its_name_says(solver, steps, rest):
    family, h = gaussian(rest=rest), 1 / steps
    wanted = []
    for moment in (*family.values.tolist(), rest):

        def rate(t, moment=moment):
            return (t * moment - (1 - t)) / ((1 - t) ** 2 + t**2 * moment)

        z = 1.0
        for n in range(steps if moment else 0):
            z = advance(solver, rate, z, n * h, h)
        wanted.append(z if moment else 0.0)  # z_t = (1−t)z₀ is what any solver finds
    outside = torch.eye(7) - family.basis @ family.basis.mT
    exact = family.basis @ torch.diag(torch.tensor(wanted[:-1])) @ family.basis.mT
    exact = exact + wanted[-1] * outside
    close(collapse(family, solver, steps).dense(), exact, 1e-12)
    close(integrate(family, torch.eye(7), solver, steps).mT, exact, 1e-12)


def test_a_step_into_a_singular_end_leaves_the_rest_to_the_solver():
    family = gaussian(rest=0.0)
    assert family.singular and family.step(0.0, 0.5, never) is None
    assert family.flow(0.0, 1.0).rank() == collapse(family, "euler", 3).rank() == 3
    apart = collapse(family, "euler", 1, 0.5).dense() - family.flow(0.5, 1.0).dense()
    assert float(apart.abs().max()) > 0.01  # Euler's step is not the exact flow
    for call in (lambda: family(1.0), lambda: collapse(family, t0=1.0, t1=0.5)):
        with pytest.raises(ValueError, match="singular at t = 1"):
            call()
    full = gaussian(3, 3, 0.0)  # no other direction, so nothing is singular
    assert not full.singular
    full(1.0)


@pytest.mark.parametrize("batches", [False, True])
def test_gaussian_from_coordinates_has_the_samples_second_moment(batches):
    z = torch.randn(500, 9) @ torch.diag(torch.arange(1.0, 10.0)) + 2.0
    M = z.mT @ z / 500
    source = iter(z.split(64)) if batches else z
    family = GaussianVelocity.from_coordinates(source, 9)
    close(family.moment.dense(), M)
    part = GaussianVelocity.from_coordinates(z, 4)
    close(part.moment.dense().trace(), M.trace())
    values = torch.linalg.eigvalsh(M).flip(0)
    close(part.values, values[:4])
    close(part.rest, values[4:].mean())
    assert GaussianVelocity.from_coordinates(z, 4, rest=0.0).singular
    few = GaussianVelocity.from_coordinates(z[:2], 4)
    assert few.values.shape == (2,)


def test_gaussian_from_coordinates_streams_wide_data():
    mixing = torch.linalg.qr(torch.randn(2000, 20))[0] * torch.linspace(3, 1, 20)
    batches = [torch.randn(100, 20) @ mixing.mT for _ in range(5)]
    z = torch.cat(batches)
    family = GaussianVelocity.from_coordinates(batches, 20)
    close(family.moment(z[:3]), z[:3] @ z.mT @ z / 500, 1e-9)
    assert float(family.rest) < 1e-12


def test_families_move_and_reload():
    family = gaussian()
    twin = GaussianVelocity(torch.eye(7)[:, :3], torch.ones(3))
    twin.load_state_dict(family.state_dict())
    close(twin(0.3).dense(), family(0.3).dense())
    assert family.float()(0.3).dtype == torch.float32


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TimeLowRank(4, rank=5), "1 ≤ rank ≤ dim = 4, got 5"),
        (lambda: TimeLowRank(4, 2, scale=0.0), "scale > 0"),
        (lambda: TimeLowRank(4, 2)(torch.rand(2, 2)), "number or \\(batch,\\)"),
        (lambda: GaussianVelocity(torch.eye(3), torch.ones(2)), "basis \\(dim, rank\\)"),
        (lambda: GaussianVelocity(torch.eye(3), -torch.ones(3)), "≥ 0"),
        (lambda: GaussianVelocity(torch.ones(3, 2), torch.ones(2)), "orthonormal"),
        (lambda: GaussianVelocity.from_coordinates([], 2), "got none"),
        (lambda: GaussianVelocity.from_coordinates(torch.ones(3), 2), "samples \\(n, dim\\)"),
        (lambda: GaussianVelocity.from_coordinates(torch.ones(3, 2), 3), "rank ≤ dim = 2"),
    ],
)
def test_mistakes_are_told_in_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_moments_that_are_rounding_count_as_zero():
    z = (torch.randn(500, 3) @ torch.randn(3, 8)).float()
    for rank in (3, 8):
        family = GaussianVelocity.from_coordinates(z, rank)
        assert family.singular and int((family.values > 0).sum()) == 3
        B = collapse(family, "rk4", 50)
        assert B.rank() == 3


def test_a_singular_velocity_does_not_step_across_its_end():
    family = GaussianVelocity(torch.eye(4)[:, :2], torch.ones(2), 0.0)
    with pytest.raises(ValueError, match="singular at t = 1"):
        collapse(family, "euler", 9, 0.0, 2.0)


def test_leading_acts_on_the_first_coordinates_alone():
    inner = TimeLowRank(3, rank=2)
    A = Leading(inner, 7)(0.3).dense()
    assert torch.allclose(A[:3, :3], inner(0.3).dense()) and A[3:].norm() == A[:, 3:].norm() == 0
    assert Leading(inner, 7)(torch.rand(5)).batch == 5
    with pytest.raises(ValueError, match="at most 2 coordinates"):
        Leading(inner, 2)(0.3)


@pytest.mark.parametrize("rest", [0.0, 0.3])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_common_eigenbasis_gives_what_the_steps_give_in_either_precision(solver, rest):
    Q = torch.linalg.qr(torch.randn(30, 5))[0].float()
    family = GaussianVelocity(Q, torch.tensor([2.0, 1.0, 0.5, 0.1, 0.0]).float(), rest)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        family.to(dtype)
        z = torch.randn(4, 30).to(dtype)
        once, many = collapse(family, solver, 12)(z), integrate(family, z, solver, 12)
        assert float((once - many).norm() / many.norm()) < tolerance


@pytest.mark.parametrize("rest", [0.0, 0.3])
def test_an_exponential_loop_over_an_eigenbasis_is_that_of_matrices(rest):
    class Matrices(Family):
        def forward(self, c):
            return family(c)

        def step(self, t0, t1, take):
            return family.step(t0, t1, take)

    Q = torch.linalg.qr(torch.randn(9, 3))[0]
    family = GaussianVelocity(Q, torch.tensor([2.0, 0.5, 0.0]), rest)
    z = torch.randn(4, 9)
    found = integrate(family, z, "exponential", 7)
    close(found, integrate(Matrices(), z, "exponential", 7), 1e-12)


def test_rows_of_zeros_need_not_be_stored():
    Q = torch.linalg.qr(torch.randn(6, 3))[0]
    wide = torch.nn.functional.pad(Q, (0, 0, 0, 4))
    values = torch.tensor([2.0, 1.0, 0.5])
    short, full = GaussianVelocity(Q, values, 0.1, dim=10), GaussianVelocity(wide, values, 0.1)
    close(short(0.4).dense(), full(0.4).dense(), 1e-12)
    close(collapse(short, steps=9).dense(), collapse(full, steps=9).dense(), 1e-12)
    with pytest.raises(ValueError, match="expected dim ≥ 6"):
        GaussianVelocity(Q, values, 0.1, dim=5)


@pytest.mark.parametrize("t", [0.5, torch.tensor([0.25, 0.5])])
def test_rates_of_a_gaussian_velocity_are_where_its_moments_are(t):
    velocity = GaussianVelocity(torch.eye(4)[:, :2], torch.tensor([2.0, 1.0]), 0.5)
    _, rates = velocity.eigenbasis()
    assert rates.to("meta")(t).diagonal.device.type == "meta"


def test_preconditioning_leaves_a_smooth_function_of_the_angle_to_learn():
    class Sine(Family):
        def forward(self, c):
            eye = torch.eye(3, dtype=c.dtype)
            return LowRank(
                torch.sin(torch.pi / 2 * c)[..., None, None] * eye, eye.expand(*c.shape, 3, 3)
            )

    family = Preconditioned(Sine(), torch.full((3,), 0.02))
    t = torch.tensor([0.0, 0.001, 0.02, 0.3, 1.0])
    best = t / ((1 - t) ** 2 * 0.02**2 + t**2)  # E[z₁ | z_t] of isotropic Gaussians
    found = family(t).dense()
    assert torch.allclose(found, best[:, None, None] * torch.eye(3), atol=1e-9)
    shares = torch.linspace(0, 1, 11)
    times = family.times(shares)
    again = torch.atan2(times, (1 - times) * 0.02) / (torch.pi / 2)
    assert torch.allclose(again, shares) and times[0] == 0 and abs(times[-1] - 1) < 1e-6
    with pytest.raises(ValueError, match="deviations > 0"):
        Preconditioned(Sine(), torch.zeros(3))
