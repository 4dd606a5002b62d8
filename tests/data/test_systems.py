"""Simulated systems: what their equations conserve, and that the solvers solve them."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline
from torch import nn

from linearizer.data import SYSTEMS, Pairs, Trajectories, dynamics, pairs, simulate
from linearizer.training.loop import Training, fit


def rows(*index: int) -> torch.Tensor:
    return torch.tensor(index, dtype=torch.int64)


# -- systems -----------------------------------------------------------------------------------


def test_a_pendulum_without_damping_keeps_its_energy_and_with_damping_loses_it():
    def energy(**parameters):
        angle, speed = simulate("pendulum", 20, 50, 0.5, 0, frequency=2.0, **parameters).x.unbind(
            -1
        )
        return speed**2 / 2 - 4 * angle.cos()

    free = energy(damping=0.0)
    assert (free - free[:, :1]).abs().max() < 1e-8 and free.max() < 4
    damped = energy(damping=0.4)
    assert (damped.diff(dim=1) < 1e-12).all() and (damped[:, -1] + 4 < 0.01).all()


def test_duffing_ends_in_both_wells():
    x, v = simulate("duffing", 50, 2, 40.0, 0, cubic=4.0, damping=0.5).x[:, -1].unbind(-1)
    assert torch.allclose(x.abs(), torch.tensor(0.5), atol=1e-3) and v.abs().max() < 1e-3
    assert 10 < (x > 0).sum() < 40


def test_van_der_pol_ends_on_its_limit_cycle():
    x = simulate("van-der-pol", 10, 100, 0.1, 0, transient=20.0).x[..., 0]
    assert ((x.abs().amax(1) - 2.009).abs() < 0.005).all()
    circle = simulate("van-der-pol", 10, 100, 0.3, 0, damping=0.0).x.norm(dim=-1)
    assert torch.allclose(circle, circle[:, :1])


def test_lorenz_stays_on_its_attractor():
    one = simulate("lorenz", 20, 80, 0.1, 0, transient=5.0).x
    low, high = one.amin((0, 1)), one.amax((0, 1))
    assert (low > torch.tensor([-22, -30, 0])).all() and (high < torch.tensor([22, 30, 50])).all()
    assert low[0] < -10 and high[0] > 10 and abs(one[..., 2].mean() - 23.5) < 1
    two = simulate("lorenz", 20, 2, 0.1, 1, transient=5.0).x
    assert (one[:, :2] - two).abs().amax((1, 2)).min() > 0.1


def test_kuramoto_sivashinsky_keeps_its_mean():
    waves = simulate("kuramoto-sivashinsky", 4, 21, 1.0, 0, transient=20.0)
    assert waves.x.shape == (4, 21, 64) and waves.x.mean(-1).abs().max() < 1e-12
    assert waves.x.abs().amax((1, 2)).min() > 1 and waves.x.abs().max() < 4
    level = torch.linspace(-1, 1, 4)[:, None]
    later = waves.parameters.advance(waves.x[:, -1] + level, torch.ones(1), 100)
    assert torch.allclose(later.mean(1, keepdim=True), level, atol=1e-12)
    # In a frame that moves along, the level is not seen: u(x, t) + c moves by c t.
    shift = torch.fft.rfftfreq(64, d=22 / 64) * 2j * math.pi * level
    still = waves.parameters.advance(waves.x[:, -1], torch.ones(1), 100)
    moved = torch.fft.irfft(torch.fft.rfft(still) * torch.exp(-shift), 64)
    assert torch.allclose(later - level, moved, atol=1e-6)


def test_lambda_omega_turns_where_it_is_even_and_spirals_elsewhere():
    system = dynamics.LambdaOmega(rotation=1.5)
    angle = torch.linspace(0, 3, 4)
    even = torch.stack([angle.cos(), angle.sin()], 1)[..., None, None].expand(-1, -1, 32, 32)
    later = system.advance(even, torch.tensor([2.0]), 80)
    turned = torch.stack([(angle - 3).cos(), (angle - 3).sin()], 1)[..., None, None]
    assert torch.allclose(later, turned.expand_as(later), atol=1e-6)
    frames = simulate("lambda-omega", 8, 3, 1.0, 0, max_step=0.1).x
    size = frames.norm(dim=2)
    assert frames.shape == (8, 3, 2, 32, 32) and size.max() < 1.01
    assert (size.amin((1, 2, 3)) < 0.5).sum() >= 6  # the hearts of spirals


# -- solvers -----------------------------------------------------------------------------------

SHORT = {name: {"transient": 0.0, "steps": 3, "dt": 10.0} for name in SYSTEMS}
SHORT["lorenz"]["dt"] = 2.5


@pytest.mark.parametrize("name", SYSTEMS)
def test_half_the_step_changes_next_to_nothing(name):
    whole = simulate(name, 3, seed=0, **SHORT[name])
    half = simulate(name, 3, seed=0, max_step=whole.parameters.max_step / 2, **SHORT[name])
    assert (whole.x - half.x).abs().max() < 1e-6


@pytest.mark.parametrize("name", SYSTEMS)
def test_uneven_times_are_those_of_the_same_trajectories(name):
    fine = simulate(name, 2, 301, 0.02, 3, transient=1.0)
    uneven = simulate(name, 2, 11, 0.3, 3, irregular=True, transient=1.0)
    assert torch.equal(fine.x[:, 0], uneven.x[:, 0]) and uneven.t.max() < fine.t.max()
    gaps = uneven.t.diff(dim=1)
    assert (gaps > 0.03).all() and (gaps < 0.57).all() and gaps.std() > 0.1
    assert (uneven.t[0] != uneven.t[1])[1:].all()
    for i in range(2):
        between = torch.from_numpy(CubicSpline(fine.t[i], fine.x[i])(uneven.t[i]))
        scale = fine.x.abs().max() * (50 if name == "lorenz" else 1)  # the spline's own error
        assert (uneven.x[i] - between).abs().max() < 1e-6 * scale


def test_another_solver_agrees():
    for name in ("pendulum", "duffing", "van-der-pol", "lorenz"):
        ours = simulate(name, 2, 9, 0.4, 0, irregular=True, transient=0.0)
        for t, x in zip(ours.t, ours.x, strict=True):
            theirs = solve_ivp(
                lambda _, x, f=ours.parameters.rate: f(torch.from_numpy(x)[None])[0].numpy(),
                (0, float(t[-1])), x[0].numpy(), "DOP853", t.numpy(), rtol=1e-11, atol=1e-11,
            )  # fmt: skip
            assert np.abs(theirs.y.T - x.numpy()).max() < 1e-6, name
    ours = simulate("kuramoto-sivashinsky", 1, 5, 0.5, 0, irregular=True, transient=0.0)
    k = 2j * np.pi / 22 * np.arange(33)
    slope = np.append(k[:-1], 0)

    def rate(_, u):
        v, squares = np.fft.rfft(u), np.fft.rfft(u * u)
        return np.fft.irfft(-slope * squares / 2 - k**2 * v - k**4 * v)

    t, x = ours.t[0].numpy(), ours.x[0].numpy()
    theirs = solve_ivp(rate, (0, t[-1]), x[0], "Radau", t, rtol=1e-9, atol=1e-9)
    assert np.abs(theirs.y.T - x).max() < 1e-6


def test_the_functions_of_the_exponential_solver():
    z = torch.cat([-(10.0 ** torch.linspace(-9, 3, 80)), torch.linspace(-1.1, 1.1, 30)])
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(200))
    s, w = (nodes + 1) / 2, weights / 2
    for j, value in enumerate(dynamics._phi(z), 1):  # ∫ e^((1−s)z) s^(j−1)/(j−1)! ds
        exact = (torch.exp((1 - s) * z[:, None]) * s ** (j - 1) / math.factorial(j - 1)) @ w
        assert torch.allclose(value, exact, rtol=1e-11)


# -- trajectories ------------------------------------------------------------------------------


@pytest.mark.parametrize("irregular", [False, True])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_seed_gives_the_same_again(name, irregular):
    one, two, other = (
        simulate(name, 3, 4, 0.1, seed, irregular, transient=0.5) for seed in (5, 5, 6)
    )
    assert torch.equal(one.x, two.x) and torch.equal(one.t, two.t)
    assert not torch.isclose(one.x, other.x).all(-1).any()
    assert one.x.dtype == one.t.dtype == torch.float64 and one.dt == 0.1
    assert one.parameters == SYSTEMS[name](transient=0.5) and one.names == SYSTEMS[name].names
    if not irregular:
        assert torch.allclose(one.t, torch.arange(4.0) / 10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"name": "lorentz"}, "there is no system 'lorentz'. Did you mean lorenz\\? Known: pend"),
        ({"dampng": 1.0}, "pendulum has no parameter 'dampng'. Did you mean damping\\? Known: max"),
        ({"damping": -0.1}, "Pendulum: expected damping to be a number of 0 or more, got -0.1"),
        ({"frequency": 0}, "Pendulum: expected frequency to be a number above 0, got 0"),
        ({"max_step": math.nan}, "expected max_step to be a number above 0, got nan"),
        ({"damping": "much"}, "expected damping to be a number of 0 or more, got 'much'"),
        ({"name": "lambda-omega", "points": 32.0}, "points to be a whole number above 0, got 32.0"),
        ({"trajectories": 0}, "expected 1 or more trajectories, got 0"),
        ({"steps": 1}, "expected 2 or more steps, got 1"),
        ({"dt": 0.0}, "expected dt above 0, got 0.0"),
        (
            {"name": "van-der-pol", "damping": 1e3},
            r"van-der-pol became infinite. Lower max_step \(now 0.1\) .*damping=1000.0",
        ),
    ],
)
def test_what_cannot_be_simulated_gets_a_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        simulate(
            **{"name": "pendulum", "trajectories": 2, "steps": 3, "dt": 0.1, "seed": 0, **call}
        )


def test_trajectories_of_ones_own_are_checked():
    t, x = torch.arange(4.0).repeat(2, 1), torch.zeros(2, 4, 3)
    assert len(Trajectories(t, x, 1.0, ("a", "b", "c"))) == 2
    with pytest.raises(ValueError, match="expected float64 x, got torch.float32"):
        Trajectories(t, x.float(), 1.0, ())
    with pytest.raises(ValueError, match=r"expected t \(n, steps\) and .* got \(2, 4\) and \(2, 3"):
        Trajectories(t, x[:, :3], 1.0, ())
    t[1, 2] = t[1, 1]
    with pytest.raises(ValueError, match="expected times that rise, but those of trajectory 1"):
        Trajectories(t, x, 1.0, ())


# -- pairs -------------------------------------------------------------------------------------


def test_pairs_are_all_pairs_once():
    t = torch.tensor([[0.0, 1.0, 3.0, 4.5], [0.0, 0.5, 1.0, 9.0]])
    x = torch.stack([10 * torch.arange(2.0)[:, None] + t, t], -1)
    data = Pairs(Trajectories(t, x, 1.0, ("a", "b")), max_lag=2)
    assert len(data) == 2 * (3 + 2) and data.shape == (2,)
    first, dt, last = data.batch(torch.arange(10))
    assert first.dtype == dt.dtype == last.dtype == torch.float32
    assert torch.allclose(last - first, dt[:, None].expand(-1, 2))
    found = {(float(a[0]), float(b[0])) for a, b in zip(first, last, strict=True)}
    wanted = {
        (10 * i + float(t[i, a]), 10 * i + float(t[i, b]))
        for i in range(2) for a in range(4) for b in range(a + 1, min(a + 3, 4))
    }  # fmt: skip
    assert found == wanted
    again = data.batch(rows(7, 7, 1))
    assert torch.equal(again.x[0], again.x[1]) and torch.equal(again.y[2], last[1])
    with pytest.raises(ValueError, match="Pairs.batch: expected rows 0 to 9, got 10 to 10"):
        data.batch(rows(10))
    for lag in (0, 4):
        with pytest.raises(ValueError, match=f"max_lag from 1 to 3 for 4 states .* got {lag}"):
            Pairs(data.trajectories, lag)


def test_pairs_are_split_by_trajectory_and_train():
    swings = simulate("pendulum", 20, 30, 0.2, 0, irregular=True)
    train, val, test = pairs(swings, max_lag=4)
    assert [len(p.trajectories) for p in (train, val, test)] == [14, 2, 4]
    assert torch.equal(torch.cat([p.trajectories.x for p in (train, val, test)]), swings.x)
    assert repr(val) == "Pairs(220 of (2,) from 2 trajectories)"

    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(2, 2, dtype=torch.float32)

        def forward(self, x, dt):
            return x + dt[:, None] * self.map(x)

    def loss(model, batch, draw):
        return {"mse": (model(batch.x, batch.dt) - batch.y).square().mean()}

    training = Training(steps=150, rate=3e-2, validate_every=0, log_every=150)
    model = Rate()
    fit(model, loss, train, training, progress=False)
    assert abs(model.map.weight[0, 1] - 1) < 0.3  # θ̇ = ω
    with pytest.raises(ValueError, match="expected 5 or more trajectories to split .*, got 4"):
        pairs(test.trajectories)
