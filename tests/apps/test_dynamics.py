"""Dynamics: the group law, spectra of known systems, mode switches, files, and the commands."""

import json
import math

import numpy as np
import pytest
import torch

import linearizer as lz
from conftest import type_words
from linearizer import data
from linearizer.apps.base import Run
from linearizer.apps.dynamics import evaluate as evaluation
from linearizer.apps.dynamics import model as dynamics
from linearizer.apps.dynamics import use as simulating
from linearizer.apps.dynamics.app import APP
from linearizer.data import Trajectories, read_trajectories
from linearizer.data.trajectories import TRAJECTORIES, DynamicsSettings
from linearizer.runs.algebra import certify_run, write_spectrum
from linearizer.training.draws import Draw
from linearizer.training.loop import Training, fit

MODELS = {
    "no padding": {"spirals": 1},
    "padded": {"spirals": 1, "cycles": 1, "decays": 1, "constants": 1},
    "padded, free": {"spirals": 2, "decays": 1, "stable": False},
    "subspace": {
        "spirals": 1,
        "decays": 1,
        "g": "subspace",
        "shape": (2, 4, 4),
        "names": ("u", "v"),
    },
}


def made(name="padded", seed=0, **changes):
    """A model with weights that are nowhere zero, as after training."""
    torch.manual_seed(seed)
    config = dynamics.Config(
        **{"horizon": 5.0, "hidden": 8, "blocks": 2, **MODELS[name], **changes}
    )
    model = dynamics.Dynamics(config)
    x, dt = torch.randn(300, *config.shape), 0.1 + torch.rand(300)
    turn = torch.randn(config.size, config.size)
    motion = torch.linalg.matrix_exp(
        dt[:, None, None] * (turn - turn.mT - 0.2 * torch.eye(len(turn)))
    )
    y = (motion @ x.reshape(300, -1, 1)).reshape(x.shape)
    model.initialize(data.Pair(x, dt, y))
    with torch.no_grad():
        for p in model.space.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def points(model, n=20):
    """Padded states and others near them."""
    x = model.pad(torch.randn(n, *model.config.shape))
    return x + 0.1 * torch.randn_like(x)


# -- the group -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_times_add_up_and_go_back(name):
    model = made(name)
    x = points(model)
    with torch.no_grad():
        for s, t in ((0.7, 1.9), (-0.4, 3.0), (2.5, -2.5), (0.0, 1.0)):
            assert torch.allclose(model(s)(model(t)(x)), model(s + t)(x), atol=1e-9)
            assert torch.allclose((model(s) @ model(t))(x), model(s + t)(x), atol=1e-9)
        assert torch.allclose(model(-1.3)(model(1.3)(x)), x, atol=1e-9)
        assert torch.allclose(model(1.3).pinv()(x), model(-1.3)(x), atol=1e-8)
        single = made(name).float()
        x = x.float()
        once = single(2.6)(x)
        assert (single(0.7)(single(1.9)(x)) - once).abs().max() < 2e-4 * (1 + once.abs().max())


def test_every_law_holds():
    model = made()
    assert model(0.8).certify(points(model)).passed


@pytest.mark.parametrize("name", MODELS)
def test_simulating_is_the_loop_of_equal_steps(name):
    model = made(name)
    x0 = torch.randn(4, *model.config.shape)
    with torch.no_grad():
        states = model.simulate(x0, [0.3 * i for i in range(6)])
        assert states.shape == (4, 6, *model.config.shape) and not states.is_inference()
        assert torch.allclose(states[:, 0], x0, atol=1e-9)
        step, x = model(0.3), model.pad(x0)
        for i in range(1, 6):
            x = step(x)
            assert torch.allclose(states[:, i], model.state(x), atol=1e-8)
            power = (step**i)(model.pad(x0))
            assert torch.allclose(states[:, i], model.state(power), atol=1e-8)
        back = model.simulate(x0, torch.tensor([-0.3]))[:, 0]
        assert torch.allclose(back, model.state(model(-0.3)(model.pad(x0))), atol=1e-9)
    with pytest.raises(ValueError, match=r"expected times \(m,\), got shape \(1, 2\)"):
        model.simulate(x0, torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["no padding", "padded", "subspace"])
def test_a_stable_generator_has_no_growing_mode_whatever_is_learned(name):
    model = made(name)
    with torch.no_grad():
        for _ in range(20):
            for p in (model.decay, model.turn, model.rest):
                p.copy_(30 * torch.randn_like(p))
            assert model.generator.eig().values.real.max() <= 0
            assert max(mode.rate for mode in model.spectrum()) <= 0
    free = made("padded, free")
    with torch.no_grad():
        free.decay.fill_(-0.5)
    assert max(mode.rate for mode in free.spectrum()) > 0


# -- modes -----------------------------------------------------------------------------------


def test_eigenfunctions_turn_and_decay_at_the_rates_of_the_spectrum():
    model = made("padded")
    x0 = model.pad(torch.randn(9, 2))
    K = model.generator
    rates = torch.cat([K.values, torch.complex(K.single, torch.zeros_like(K.single))])
    with torch.no_grad():
        z = model.space.coordinates(model(0.9)(x0))
    later = torch.cat([torch.complex(z[:, 0:4:2], z[:, 1:4:2]), z[:, 4:] + 0j], 1)
    first = model.eigenfunctions(x0[:, :2])
    assert first.shape == (9, 4) and torch.allclose(later, first * (0.9 * rates).exp())
    for mode, rate in zip(model.spectrum(), rates.tolist(), strict=True):
        assert mode.rate == pytest.approx(rate.real)
        assert mode.frequency == pytest.approx(abs(rate.imag) / (2 * math.pi))
    spiral, cycle, decay, constant = model.spectrum()
    assert spiral.half_life == pytest.approx(math.log(2) / -spiral.rate)
    assert cycle.rate == 0 and cycle.half_life is None and cycle.period == 1 / cycle.frequency
    assert decay.frequency == 0 and decay.period is None and constant.rate == 0


def test_dropped_and_damped_modes():
    model = made("padded")
    x = points(model, 6)
    with torch.no_grad():
        z = model.space.coordinates(model(1.7)(x))
        less = model.without([0, 2])
        w = less.space.coordinates(less(1.7)(x))
        assert torch.allclose(w[:, [0, 1, 4]], torch.zeros(6, 3), atol=1e-9)
        assert torch.allclose(w[:, [2, 3, 5]], z[:, [2, 3, 5]], atol=1e-9)
        assert torch.allclose(less(0.5)(less(1.2)(x)), less(1.7)(x), atol=1e-8)
        assert less(1.0).rank() == 3 and model(1.0).rank() == 6
        half = model.damp([1], 0.5, rate=0.3)
        w = half.space.coordinates(half(1.7)(x))
        kept = 0.5 * math.exp(-0.3 * 1.7)
        assert torch.allclose(w[:, 2:4], kept * z[:, 2:4], atol=1e-9)
        assert half.spectrum()[1].rate == pytest.approx(-0.3)
        x0 = torch.randn(3, 2)
        states = less.simulate(x0, [1.7])[:, 0]
        assert torch.allclose(states, less.state(less(1.7)(less.pad(x0))), atol=1e-9)
        assert bool((model.factors == 1).all())  # the first model stays as it was
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"expected modes 0 to 3, got {wrong}"):
            model.without([wrong])


def test_a_gaussian_moves_in_closed_form():
    model = made("padded, free")
    n = model.space.dim
    half = torch.randn(n, n)
    mean, S = torch.randn(1, n), half @ half.mT
    moved, spread = model.carry(mean, S, 0.7)
    A = torch.linalg.matrix_exp(0.7 * model.generator.dense())
    assert torch.allclose(moved, mean @ A.mT) and torch.allclose(spread, A @ S @ A.mT)
    before, _ = model.carry(moved, spread, -0.7)
    assert torch.allclose(before, mean)


def test_modes_are_states():
    model = made("subspace")
    assert model.modes(phases=5).shape == (2, 5, 2, 4, 4)
    flat = made("padded")
    ring = flat.modes(phases=8)
    assert ring.shape == (4, 8, 2)
    with torch.no_grad():  # half a cycle on is what half a period makes of it
        z = flat.space.coordinates(flat.pad(torch.zeros(1, 2)))
        z[:] = 0
        z[:, 2] = 1.5 * flat.spread[2:4].square().sum().sqrt()
        start = flat.space.points(z)
        later = flat(flat.spectrum()[1].period / 2)(start)
    assert torch.allclose(flat.state(start), ring[1, :1])
    assert torch.allclose(flat.state(later), ring[1, 4:5], atol=1e-8)


# -- training --------------------------------------------------------------------------------


def linear_moves(n=40, steps=12, seed=0):
    """ẋ = M x with eigenvalues −0.1 ± 2i and −0.5, at uneven times."""
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(3, 3, generator=generator)
    M = torch.tensor([[-0.1, -2.0, 0.0], [2.0, -0.1, 0.0], [0.0, 0.0, -0.5]])
    K = V @ M @ torch.linalg.inv(V)
    t = torch.cat([torch.zeros(n, 1), (0.05 + 0.3 * torch.rand(n, steps - 1)).cumsum(1)], 1)
    x0 = torch.randn(n, 3, generator=generator)
    x = torch.linalg.matrix_exp(t[..., None, None] * K) @ x0[:, None, :, None]
    return Trajectories(t, x[..., 0], 0.2, ("a", "b", "c"))


def source_of(moves):
    return data.Data("linear", *data.pairs(moves, moves.t.shape[1] - 1), ())


def test_the_frequencies_of_a_linear_system_are_found():
    source = source_of(linear_moves())
    config = dynamics.Config(spirals=1, decays=1, blocks=1, hidden=8, **dynamics.facts(source))
    assert config.names == ("a", "b", "c") and 2 < config.horizon < 4
    model = dynamics.Dynamics(config).float()
    training = Training(steps=200, rate=3e-3, batch=128, validate_every=0, log_every=100)
    result = fit(model, dynamics.loss, source.train, training, progress=False)
    assert result.losses["data"] < 2e-3
    dynamics.finish(model, source)
    spiral, decay = model.spectrum()
    assert spiral.frequency == pytest.approx(2 / (2 * math.pi), rel=0.02)
    assert spiral.rate == pytest.approx(-0.1, abs=0.04)
    assert decay.rate == pytest.approx(-0.5, abs=0.1)
    assert spiral.share + decay.share == pytest.approx(1)


def test_the_loss_does_not_reward_a_collapse():
    """A g and half of it have the same loss."""
    model = made("no padding", coordinates=1.0)
    batch = data.Pair(torch.randn(64, 2), torch.rand(64), torch.randn(64, 2))
    with torch.no_grad():
        for p in list(model.space.g)[-1].net.parameters():  # a twist is not linear in the radius
            p.zero_()
        one = dynamics.loss(model, batch, Draw(0))
        layer = dynamics._last_linear(model.space.g)
        dynamics._assign(layer, 0.5 * layer.weight())
        half = dynamics.loss(model, batch, Draw(0))
    assert one.keys() == half.keys() == {"data", "coordinates"}
    assert torch.allclose(one["data"], half["data"])
    assert torch.allclose(one["coordinates"], half["coordinates"], rtol=0.05)


def test_wrong_counts_of_modes_and_flat_states_get_a_sentence():
    with pytest.raises(ValueError, match="take 2 coordinates, but a state has 3 .* more modes"):
        dynamics.Dynamics(dynamics.Config(spirals=1, shape=(3,), names=("a", "b", "c")))
    with pytest.raises(ValueError, match="take 10 coordinates, but a state has 4 .* fewer modes"):
        dynamics.Dynamics(dynamics.Config(spirals=5, shape=(1, 2, 2), names=("u",)))
    model = dynamics.Dynamics(dynamics.Config(spirals=1, hidden=4, blocks=1))
    x = torch.randn(50, 2)
    x[:, 1] = 3.0
    with pytest.raises(ValueError, match="1 is the same in all of the data"):
        model.initialize(data.Pair(x, torch.ones(50), x))
    with pytest.raises(ValueError, match=r"expected states \(n, 2\), got \(4, 3\)"):
        model.pad(torch.zeros(4, 3))


# -- files -----------------------------------------------------------------------------------

GOOD = "trajectory,time,x,v\n" + "".join(
    f"{k},{t},{math.cos(t + k):.6f},{math.sin(t + k):.6f}\n"
    for k in range(8)
    for t in (0, 0.5, 0.9, 1.6, 2.0, 2.2)
)


def test_trajectories_of_ones_own(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(GOOD)
    moves = read_trajectories(file)
    assert moves.x.shape == (8, 6, 2) and moves.names == ("x", "v")
    assert torch.allclose(moves.t[3], torch.tensor([0, 0.5, 0.9, 1.6, 2.0, 2.2]))
    pieces = read_trajectories(file, rows=4)
    assert pieces.x.shape == (16, 4, 2) and (pieces.t[:, 0] == 0).all()
    assert torch.equal(pieces.x[1, -1], moves.x[0, -1])  # the end of the trajectory is kept
    source = TRAJECTORIES.load(DynamicsSettings(name=str(file)), None, None)
    assert source.name == "mine.csv" and source.train.shape == (2,)
    np.savez(tmp_path / "mine.npz", t=moves.t.numpy(), x=moves.x.numpy())
    again = read_trajectories(tmp_path / "mine.npz")
    assert torch.equal(again.x, moves.x) and again.names == ("x0", "x1")


BAD = {
    "no time": ("x,v\n1,2\n3,4\n", "expected a column of times, named time or t, found x, v"),
    "no state": ("trajectory,time\n0,1\n0,2\n", "expected columns of states beside"),
    "text": (GOOD.replace("0,0.5,", "0,0.5,fast,", 1).replace("fast,0.877583", "fast", 1),
             "expected a number in line 3, column 'x', found 'fast'. Mend it, or take the column"),
    "gap": ("time,x\n0,1\n1,\n2,3\n", "expected a number in line 3, column 'x', found none"),
    "twice": ("time,x\n0,1\n1,2\n1,3\n",
              "column 'time': the file has time 1 twice, in lines 3 and 4. Drop one"),
    "back": ("trajectory,time,x\na,0,1\na,2,2\nb,0,1\na,1,3\n",
             "trajectory 'a' goes back from time 2 to 1 in line 5. Sort the rows"),
    "short": ("trajectory,time,x\na,0,1\na,1,2\na,2,2\nb,0,1\n",
              "expected 3 or more rows in every trajectory, but trajectory 'b' has 1"),
    "no number of time": ("time,x\n0,1\n,2\n2,3\n", "expected a time in line 3, column 'time'"),
    "no date": ("date,x\n2020-01-01,1\n2020-01-02,2\nlater,3\n",
                "line 4, column 'date': expected a date .* found 'later'"),
    "few": ("time,x\n0,1\n1,2\n2,3\n3,1\n", "expected 5 or more pieces to train and to test on"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_gets_a_sentence(name, tmp_path):
    text, said = BAD[name]
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        TRAJECTORIES.load(DynamicsSettings(name=str(file)), None, None)


def test_dates_are_told_in_the_users_unit(tmp_path):
    file = tmp_path / "log.csv"
    times = [f"2020-01-{1 + i // 4:02d} {6 * (i % 4):02d}:00" for i in range(40)]
    file.write_text("stamp,x\n" + "".join(f"{t},{math.cos(i)}\n" for i, t in enumerate(times)))
    for unit, step in (("d", 0.25), ("h", 6.0), (None, 21600.0)):
        moves = read_trajectories(file, 8, time="stamp", unit=unit)
        assert moves.t[:, 1].tolist() == pytest.approx([step] * len(moves))
        assert moves.unit == (unit or "s")
    assert read_trajectories(file, 8).unit == "s"  # a first column of dates is found by itself
    with pytest.raises(ValueError, match="expected one of s, min, h, d for dates, got 'year'"):
        read_trajectories(file, unit="year")
    with pytest.raises(ValueError, match="Did you mean 'stamp'"):
        read_trajectories(file, time="stmp")
    loaded = TRAJECTORIES.load(DynamicsSettings(name=str(file), rows=8, unit="d"), None, None)
    assert "which last 1.75 d" in loaded.notes[0]
    assert dynamics.facts(loaded)["unit"] == "d"


def test_rows_with_missing_values_are_left_out_only_if_asked(tmp_path):
    file = tmp_path / "gaps.csv"
    file.write_text("t,x\n0,1\n1,\n2,3\n2.5,-9999\n4,2\n5,1\n")
    with pytest.raises(ValueError, match="line 3, column 'x', found none .* Choose --fill drop"):
        read_trajectories(file)
    moves = read_trajectories(file, missing="drop", sentinel=[-9999.0])
    assert moves.t.tolist() == [[0, 2, 4, 5]] and moves.x.flatten().tolist() == [1, 3, 2, 1]
    assert "-9999 was read as missing: 1 in 'x'" in moves.notes[0]
    assert "2 rows with missing values were dropped" in moves.notes[1]


def test_what_an_npz_lacks_is_said_where(tmp_path):
    t, x = np.arange(6.0), np.random.default_rng(0).normal(size=(7, 6, 2))
    for name, change, said in (
        ("nan", {"x": np.where(np.arange(84).reshape(7, 6, 2) == 39, np.nan, x)},
         "x has NaN or an infinite one in trajectory 3, row 1"),
        ("words", {"x": x.astype(str)}, "expected real numbers in x, found <U"),
        ("back", {"t": t[::-1]}, "expected times that rise, but those of trajectory 0"),
    ):  # fmt: skip
        np.savez(tmp_path / f"{name}.npz", **{"t": t, "x": x, **change})
        with pytest.raises(ValueError, match=said):
            read_trajectories(tmp_path / f"{name}.npz")


def test_systems_that_are_not_known_get_a_sentence():
    def load(**settings):
        return TRAJECTORIES.load(DynamicsSettings(**settings), None, None)

    with pytest.raises(ValueError, match="'pendulm' is neither a system .* Did you mean pendulum"):
        load(name="pendulm")
    with pytest.raises(ValueError, match="expected NAME=NUMBER with commas between, got 'damping'"):
        load(name="pendulum", parameters="damping")
    with pytest.raises(ValueError, match="pendulum has no parameter 'dampin'"):
        load(name="pendulum", parameters="dampin=1")
    with pytest.raises(ValueError, match="parameters: seed is no parameter of a system"):
        load(name="pendulum", parameters="seed=1")
    with pytest.raises(ValueError, match="size: pendulum has no points on a side"):
        load(name="pendulum", size=8)
    moves = load(name="pendulum", parameters="damping=0.3", trajectories=10).train.trajectories
    assert moves.parameters.damping == 0.3 and moves.t.shape == (7, 21)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("0:1:0.25", [0, 0.25, 0.5, 0.75, 1.0]),
        ("0:-1:-0.5", [0, -0.5, -1.0]),
        ("-2:2:2", [-2.0, 0.0, 2.0]),
        ("0.3, -4, 9", [0.3, -4.0, 9.0]),
    ],
)
def test_times_are_read(text, times):
    assert simulating.parse_times(text) == pytest.approx(times)


@pytest.mark.parametrize("text", ["", "0:1", "a:b:c", "0:1:0", "0:1:-1", "0:1:1e-9", "1,nan",
                                  "0:1e300:1e-300", "-1e308:1e308:1e-3"])  # fmt: skip
def test_times_that_cannot_be_read(text):
    with pytest.raises(ValueError, match="^times: "):
        simulating.parse_times(text)


def test_own_trajectories_are_measured_by_their_names(tmp_path):
    def write(name, head, order):
        file = tmp_path / name
        lines = [f"{i},{t / 5},{','.join(f'{v:.6f}' for v in order(math.cos(t / 5 + i), i, t))}"
                 for i in range(10) for t in range(20)]  # fmt: skip
        file.write_text(f"trajectory,time,{head}\n" + "\n".join(lines))
        return TRAJECTORIES.load(DynamicsSettings(name=str(file)), None, None)

    model = made("no padding", names=("x", "v"))
    run = Run(tmp_path, {}, APP, model)
    results = [
        evaluation.evaluate(run, write(name, head, order), tmp_path, None, lambda text: None)
        for name, head, order in (
            ("a.csv", "x,v", lambda x, i, t: (x, x * x)),
            ("b.csv", "w,v,x", lambda x, i, t: (i + t, x * x, x)),
        )
    ]
    assert results[0]["error"]["ours"] == results[1]["error"]["ours"]
    other = write("c.csv", "x", lambda x, i, t: (x,))
    with pytest.raises(ValueError, match="c.csv: expected states of x, v and shape .* got x"):
        evaluation.evaluate(run, other, tmp_path, None, lambda text: None)
    with pytest.raises(ValueError, match="start: expected 2 finite numbers"):
        small = run._replace(model=model.float())
        simulating.simulate(small, "1e300, 0", "0:1:0.5", out=tmp_path / "s.csv")


# -- the commands ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamics") / "pendulum"
    done = type_words(
        "train", "dynamics", "--data", "pendulum", "--trajectories", 40, "--spirals", 2, "--steps",
        250, "--rate", 3e-3, "--blocks", 2, "--hidden", 16, "--validate-every", 125,
        "--no-tensorboard", "-o", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_train_simulate_spectrum_certify(run, tmp_path):
    model = lz.load(run)
    assert model.config.horizon == pytest.approx(5, abs=2) and model.space.dim == 4
    assert len(list((run / "samples").glob("*.png"))) == 2
    out, plot = tmp_path / "out.csv", tmp_path / "out.png"
    done = type_words("simulate", run, "--start", "1.0, 0.0", "--times", "-1:2:0.5", "--drop", 1,
                      "--damp", "0=0.3", "-o", out, "--plot", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rows"] == 7 and result["dropped"] == [1] and plot.stat().st_size > 5000
    rows = np.genfromtxt(out, delimiter=",", names=True, encoding="utf-8")
    assert rows.dtype.names[0] == "time" and len(rows) == 7
    assert result["damped"] == {"0": 0.3}
    states = (
        model.without([1])
        .damp([0], rate=0.3)
        .simulate(torch.tensor([[1.0, 0.0]]).float(), [-1.0, 2.0])[0]
    )
    assert list(rows[0])[1:] == pytest.approx(states[0].tolist(), rel=1e-4, abs=1e-5)
    assert list(rows[-1])[1:] == pytest.approx(states[1].tolist(), rel=1e-4, abs=1e-5)
    result = write_spectrum(run, 4, tmp_path / "spectrum")
    assert len(result["modes"]) == 2
    for name in ("spectrum.png", "modes.png", "eigenfunctions.png"):
        assert (tmp_path / "spectrum" / name).stat().st_size > 5000
    shown = type_words("spectrum", run, "-o", tmp_path / "again")
    assert shown.returncode == 0 and "mode 0: " in shown.stdout and "cycles" in shown.stdout
    assert certify_run(run, 16, "float64", None).passed


def test_simulate_refuses_with_a_sentence(run, tmp_path):
    def said(**changes):
        call = {"start": "1,0", "times": "0:1:1", "out": tmp_path / "x.csv", **changes}
        with pytest.raises(ValueError) as error:
            simulating.simulate(run, **call)
        return str(error.value)

    assert "expected 2 finite numbers with commas between (θ, ω)" in said(start="1")
    assert "expected test:0 to test:7" in said(start="test:8")
    assert "expected modes 0 to 1, got 7" in said(drop=[7])
    assert "ends in .csv or .npz" in said(out=tmp_path / "x.txt")
    assert "expected MODE=RATE, such as 0=0.2, got '0'" in said(damp=["0"])
    assert "expected modes 0 to 1, got 5" in said(damp=["5=1"])
    done = simulating.simulate(run, "test:3", "0,1", out=tmp_path / "x.npz")
    with np.load(done["files"][0]) as file:
        assert file["x"].shape == (1, 2, 2) and file["t"].tolist() == [[0, 1]]
    wrong = type_words("simulate", "mnist-flow", "--start", "0", "--times", "0")
    assert wrong.returncode == 2 and "expected dynamics, but the run holds flow" in wrong.stderr


# -- how good they are -----------------------------------------------------------------------


@pytest.mark.parametrize("even", [True, False])
def test_the_linear_yardstick_solves_a_linear_system(even):
    moves, offset = linear_moves(), torch.tensor([1.0, -2.0, 0.5])
    if even:
        t = 0.2 * torch.arange(12).repeat(40, 1)
        step = torch.linalg.matrix_exp(
            0.2 * torch.tensor([[-0.1, -2, 0], [2, -0.1, 0], [0, 0, -0.5]])
        )
        x = [torch.randn(40, 3)]
        for _ in range(11):
            x.append(x[-1] @ step.mT)
        moves = Trajectories(t, torch.stack(x, 1), 0.2, ("a", "b", "c"))
    moves = Trajectories(moves.t, moves.x + offset, moves.dt, moves.names)
    predict = evaluation._predict_by(*evaluation.fit_dmd(moves))
    close = torch.isclose(predict(moves.x[:, 0], moves.t), moves.x, atol=1e-6 if even else 1e-3)
    assert close.all()


def test_a_run_is_measured_on_trajectories_that_it_has_not_seen(run, tmp_path):
    done = type_words("evaluate", run, "-o", tmp_path / "table", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["error"]) == {"ours", "last value", "linear DMD"}
    assert set(result["error"]["ours"]) == {"1 horizon", "at 1", "10 horizons", "at 10"}
    assert 0 < result["error"]["ours"]["1 horizon"] < result["error"]["last value"]["1 horizon"]
    assert result["trajectories"] == 8
    for name in ("dynamics.json", "error.png"):
        assert (tmp_path / "table" / name).stat().st_size > 300
    few = type_words("evaluate", run, "-o", tmp_path / "table", "-n", 3)
    assert "trajectories 3" in few.stdout and "linear DMD: 1 horizon" in few.stdout


def test_a_file_is_measured_as_far_as_it_goes(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(GOOD)
    source = TRAJECTORIES.load(DynamicsSettings(name=str(file)), None, None)
    model = dynamics.Dynamics(
        dynamics.Config(spirals=1, hidden=4, blocks=1, **dynamics.facts(source))
    )
    model.float().initialize(source.train.batch(torch.arange(len(source.train))))
    opened = Run(tmp_path, {}, APP, model)
    result = evaluation.evaluate(opened, source, tmp_path, None, lambda text: None)
    assert set(result["error"]["ours"]) == {"1 horizon", "at 1"}
    assert result["error"]["linear DMD"]["at 1"] < 1e-3  # the motion is a rotation
    assert (tmp_path / "error.png").exists()
