"""The one loop: schedule, averages, accumulation, stopping, NaN, resuming."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import linearizer as lz
from conftest import PATIENCE
from linearizer.bijections import mlp
from linearizer.training.checkpoint import read_metrics, read_tensors, tensors_of
from linearizer.training.loop import DivergedError, Interrupted, Training
from linearizer.training.progress import Display
from linearizer.training.settings import read_toml, resolve


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


class Pairs:
    """y = M x with a little noise."""

    def __init__(self, n, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 4, generator=generator)
        M = torch.randn(2, 4, generator=torch.Generator().manual_seed(9))
        self.y = self.x @ M.mT + 0.01 * torch.randn(n, 2, generator=generator)

    def __len__(self):
        return len(self.x)

    def batch(self, index):
        return Batch(self.x[index], self.y[index])


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)
        self.used = 0

    def initialize(self, batch):
        self.used += len(batch.x)


def loss(model, batch, draw):
    noise = 0.01 * draw.normal(batch.x)
    error = model.layer(batch.x + noise) - batch.y
    return {"error": error.square().mean(), "size": 1e-4 * model.layer.weight.square().mean()}


def measure(model, batch, draw):
    return {"error": (model.layer(batch.x) - batch.y).square().mean(1)}


def settings(**changes):
    general = {"steps": 60, "batch": 16, "rate": 0.05, "warmup": 5, "validate_every": 20,
               "checkpoint_every": 20, "log_every": 1, "tensorboard": False}  # fmt: skip
    return Training(**{**general, **changes})


def train(run=None, model=None, data=None, **options):
    config = {k: options.pop(k) for k in list(options) if k in Training.model_fields}
    model = model or Linear()
    result = lz.fit(
        model, options.pop("loss", loss), data or Pairs(200), settings(**config), run,
        validation=Pairs(37, 1), measure=options.pop("measure", measure), progress=False, **options,
    )  # fmt: skip
    return model, result


def test_it_learns_writes_and_leaves_the_model_trained(tmp_path):
    model, result = train(tmp_path / "run", steps=300)
    assert result.stopped == "done" and result.step == 300 and not model.training
    assert result.metrics["error"] < 1e-2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = [r for r in rows if "loss" in r]
    assert [r["step"] for r in losses] == list(range(1, 301))
    assert math.isclose(losses[0]["loss"], losses[0]["error"] + losses[0]["size"])
    assert losses[-1]["error"] < 0.05 * losses[0]["error"]
    assert [r["step"] for r in rows if "validation" in r] == list(range(0, 301, 20))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.json", "weights.safetensors", "metrics.jsonl", "state"}  # fmt: skip
    tensors, _ = read_tensors(tmp_path / "run" / "weights.safetensors")
    assert torch.equal(tensors["layer.weight"], model.layer.weight)
    assert model.used == 200  # initialised once, with what there is


def test_the_mean_over_the_validation_set_counts_every_sample(tmp_path):
    model, result = train(tmp_path, batch=16)  # 37 samples: a tail of five
    wanted = measure(model, Pairs(37, 1).batch(torch.arange(37)), None)["error"].mean()
    assert math.isclose(result.metrics["error"], wanted.item(), rel_tol=1e-12)


def test_the_schedule_warms_up_and_falls(tmp_path):
    train(tmp_path, final_rate=0.1)
    rates = [r["rate"] for r in read_metrics(tmp_path / "metrics.jsonl") if "rate" in r]
    assert math.isclose(rates[0], 0.05 / 5, rel_tol=1e-6)
    assert max(rates) == rates[4] and all(a > b for a, b in pairwise(rates[4:]))
    assert 0.005 <= rates[-1] < 0.006


def test_accumulation_is_the_same_training(tmp_path):
    one, _ = train(tmp_path / "one")
    four, _ = train(tmp_path / "four", accumulate=4)
    for a, b in zip(one.parameters(), four.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    logs = [[r["loss"] for r in read_metrics(tmp_path / n / "metrics.jsonl") if "loss" in r]
            for n in ("one", "four")]  # fmt: skip
    assert torch.allclose(*map(torch.tensor, logs), rtol=1e-9)
    with pytest.raises(ValueError, match=r"16 does not divide into 3 equal parts"):
        train(accumulate=3)


def test_the_average_is_the_weights_that_are_kept(tmp_path):
    """Against the recurrence, followed by hand with plain Adam."""
    model, result = train(tmp_path, ema=0.9, steps=30, clip=0.0)
    state, _ = read_tensors(tmp_path / "state" / "latest.safetensors")
    assert torch.equal(state["average/layer.weight"], model.layer.weight)
    assert not torch.equal(state["model/layer.weight"], model.layer.weight)
    plain = [train(steps=30, clip=0.0, patience=0, ema=0.0)[0].layer.weight]
    assert torch.equal(state["model/layer.weight"], plain[0])  # averaging does not steer
    wanted = measure(model, Pairs(37, 1).batch(torch.arange(37)), None)["error"].mean()
    assert math.isclose(result.metrics["error"], wanted.item(), rel_tol=1e-12)
    average = Linear().layer.weight.detach().clone()
    for step in range(1, 31):
        # The weights after each step, from a run that stops there but has the same schedule.
        weight = _weight_after(step)
        average.lerp_(weight, 1 - min(0.9, step / (step + 9)))
    assert torch.allclose(average, model.layer.weight, atol=1e-12)


def _weight_after(step):
    seen = []

    def watch(model, batch, draw):
        seen.append(model.layer.weight.detach().clone())
        return loss(model, batch, draw)

    model, _ = train(loss=watch, steps=30, clip=0.0, validate_every=0)
    return ([*seen[1:], model.layer.weight.detach()])[step - 1]


def test_patience_stops_and_keeps_the_best(tmp_path):
    steps_seen = []

    def worse_later(model, batch, draw):
        return {"error": torch.full((len(batch.x),), abs(len(steps_seen) - 3.0))}

    def count(model, path):
        steps_seen.append(model.layer.weight.detach().clone())

    model, result = train(tmp_path, steps=400, patience=2, measure=worse_later, preview=count)
    # Measured 3 at the start, then 3, 2, 1, 0, 1, 2: the fourth is best, two more end it.
    assert result.stopped == "early" and result.step == 120 and result.metrics == {"error": 0.0}
    assert result.best_step == 80
    assert torch.equal(model.layer.weight, steps_seen[3])
    tensors, _ = read_tensors(tmp_path / "weights.safetensors")
    assert torch.equal(tensors["layer.weight"], steps_seen[3])


def test_patience_works_without_a_run_folder():
    kept = []

    def best_at_once(model, batch, draw):
        if not kept or len(batch.x) == 5:  # the tail comes last
            kept.append(model.layer.weight.detach().clone())
        return {"error": torch.full((len(batch.x),), float(len(kept)))}

    model, result = train(steps=400, patience=1, measure=best_at_once)
    assert result.stopped == "early" and (result.step, result.best_step) == (20, 0)
    assert torch.equal(model.layer.weight, kept[0])


def test_the_best_weights_are_kept_unless_the_last_are_asked_for():
    """Without a word about it: a start that training makes worse is what it ends with."""
    start = Linear()
    before = start.layer.weight.detach().clone()

    def away(model, batch, draw):
        return {"error": (model.layer.weight - before).square().sum().expand(len(batch.x))}

    model, result = train(model=start, steps=40, measure=away)
    assert torch.equal(model.layer.weight, before) and result.best_step == 0
    model, result = train(model=start, steps=40, measure=away, keep="last")
    assert not torch.equal(model.layer.weight, before) and result.best_step is None
    assert result.stopped == "done" and result.metrics["error"] > 0


def test_the_start_of_a_run_that_was_killed_is_measured_once(tmp_path):
    def dies(model, batch, draw):
        raise KilledError

    with pytest.raises(KilledError):
        train(tmp_path, loss=dies)
    train(tmp_path, resume=True)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in rows if "validation" in r] == [0, 20, 40, 60]


def test_a_model_that_maximizes(tmp_path):
    values = iter([0.05, 0.1, 0.5, 0.2, 0.3])

    def accuracy(model, batch, draw):
        if batch.x.shape[0] == 16 and not hasattr(accuracy, "left"):
            accuracy.value, accuracy.left = next(values), 2
        else:
            accuracy.left -= 1
            if not accuracy.left:
                del accuracy.left
        return {"accuracy": torch.full((len(batch.x),), accuracy.value)}

    _, result = train(tmp_path, steps=400, patience=2, measure=accuracy, metric="accuracy",
                      maximize=True)  # fmt: skip
    assert result.step == 80 and math.isclose(result.metrics["accuracy"], 0.5)
    with pytest.raises(ValueError, match="no measure 'acuracy'"):
        train(metric="acuracy")


def test_nan_stops_with_a_sentence_and_the_last_good_checkpoint(tmp_path):
    def explodes(model, batch, draw):
        terms = loss(model, batch, draw)
        explodes.calls += 1
        if explodes.calls == 33:
            terms["error"] = terms["error"] * float("nan")
        return terms

    explodes.calls = 0
    message = (
        r"the loss \(error\) became NaN or infinite at step 33\. The last good checkpoint, step 20"
    )
    with pytest.raises(DivergedError, match=message):
        train(tmp_path, loss=explodes)
    tensors, about = read_tensors(tmp_path / "state" / "latest.safetensors")
    assert about["step"] == 20 and all(bool(t.isfinite().all()) for t in tensors.values())
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r][-1] == 32
    model, result = train(tmp_path, resume=True)  # and the run goes on from there
    assert result.step == 60 and torch.equal(model.layer.weight, train()[0].layer.weight)


def test_a_nan_gradient_with_a_finite_loss_is_found():
    def steep(model, batch, draw):
        zero = (model.layer.weight - model.layer.weight.detach()).abs().sum()
        return {"error": zero.sqrt() + loss(model, batch, draw)["error"]}

    with pytest.raises(DivergedError, match="the gradient became NaN or infinite at step 1"):
        train(loss=steep)


class KilledError(Exception):
    """Stands for a kill, in this process."""


@pytest.mark.parametrize("at", [1, 20, 21, 39, 45])
@pytest.mark.parametrize(
    "options", [{}, {"ema": 0.9}, {"patience": 3}, {"accumulate": 2}, {"optimizer": "muon"}]
)
def test_a_resumed_run_is_bit_identical(tmp_path, at, options):
    def dies(model, batch, draw):
        dies.step += 1 / options.get("accumulate", 1)
        if dies.step > at:
            raise KilledError
        return loss(model, batch, draw)

    dies.step = 0
    with pytest.raises(KilledError):
        train(tmp_path / "run", loss=dies, **options)
    model, result = train(tmp_path / "run", resume=True, **options)
    whole, wanted = train(tmp_path / "whole", **options)
    files = [(tmp_path / n / "weights.safetensors").read_bytes() for n in ("run", "whole")]
    assert files[0] == files[1]
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
    assert result[:4] == wanted[:4]
    rows = [read_metrics(tmp_path / n / "metrics.jsonl") for n in ("run", "whole")]
    for row in (*rows[0], *rows[1]):
        row.pop("seconds", None)
    assert rows[0] == rows[1]


def test_randomness_outside_draw_is_resumed_too(tmp_path):
    def drops(model, batch, draw):
        drops.step += 1
        if drops.step == 30:
            raise KilledError
        x = nn.functional.dropout(batch.x, 0.3)
        return {"error": (model.layer(x) - batch.y).square().mean()}

    drops.step = 0
    with pytest.raises(KilledError):
        train(tmp_path, loss=drops)
    drops.step = 100
    model, _ = train(tmp_path, loss=drops, resume=True)
    assert torch.equal(model.layer.weight, train(loss=drops)[0].layer.weight)


def test_a_half_written_line_of_metrics_is_dropped(tmp_path):
    train(tmp_path, steps=20)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "lo')
    train(tmp_path, steps=40, resume=True)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in rows if "loss" in r] == list(range(1, 41))
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_a_folder_is_not_overwritten_or_shared(tmp_path):
    train(tmp_path, steps=20)
    before = (tmp_path / "weights.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds a run already"):
        train(tmp_path)
    assert (tmp_path / "weights.safetensors").read_bytes() == before
    inside = threading.Event()
    problems = []

    def second(model, batch, draw):
        if not inside.is_set():
            inside.set()
            try:
                train(tmp_path, resume=True)
            except ValueError as problem:
                problems.append(str(problem))
        return loss(model, batch, draw)

    train(tmp_path, steps=40, resume=True, loss=second)
    assert len(problems) == 1 and "another process is training into this folder" in problems[0]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        train(tmp_path / "file")


def test_a_finished_run_resumes_to_itself(tmp_path):
    one, _ = train(tmp_path, ema=0.9)
    two, result = train(tmp_path, ema=0.9, resume=True)
    assert result.step == 60 and torch.equal(one.layer.weight, two.layer.weight)


def test_bf16_keeps_the_round_trip_and_learns(tmp_path):
    torch.set_default_dtype(torch.float32)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.g = mlp(4, blocks=2, hidden=16)

    def likelihood(model, batch, draw):
        z, log_det = model.g.with_log_det(batch.x)
        assert z.dtype == torch.float32
        return {"-log p": (0.5 * z.square().sum(1) - log_det).mean()}

    data = Pairs(200)
    data.x = data.x.float() * 3 + 1
    data.y = data.y.float()
    losses = {}
    for precision in ("float32", "bf16"):
        model, result = train(model=Flow(), data=data, loss=likelihood, precision=precision,
                              rate=0.01, validate_every=0)  # fmt: skip
        losses[precision] = result.losses["loss"]
        x = data.x[:50]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            assert torch.allclose(model.g.inverse(model.g(x)), x, atol=1e-4)
    assert losses["bf16"] != losses["float32"] and abs(losses["bf16"] - losses["float32"]) < 0.1


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own
def test_compile_trains_the_same():
    torch.set_default_dtype(torch.float32)

    class Small(Linear):
        pass

    data = Pairs(64)
    data.x, data.y = data.x.float(), data.y.float()
    plain, _ = train(model=Small(), data=data, steps=6, validate_every=0)
    fast, _ = train(model=Small(), data=data, steps=6, validate_every=0, compile=True)
    assert torch.allclose(plain.layer.weight, fast.layer.weight, atol=1e-5)
    torch.compiler.reset()


def test_tensorboard_is_written_where_it_is_installed(tmp_path, monkeypatch):
    assert Training().tensorboard
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from linearizer.training.loop import Training; assert not Training().tensorboard"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r'pip install "linearizer\[tensorboard\]"'):
        train(tmp_path, tensorboard=True, steps=2)


def test_tensorboard_events_hold_the_losses(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, tensorboard=True, steps=20)
    train(tmp_path, tensorboard=True, steps=40, resume=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    rows = {r["step"]: r["loss"] for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r}
    scalars = {e.step: e.value for e in events.Scalars("loss")}
    assert scalars.keys() == rows.keys()
    assert all(math.isclose(scalars[s], rows[s], rel_tol=1e-5) for s in rows)
    assert [e.step for e in events.Scalars("validation/error")] == [0, 20, 40]


def test_progress_is_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    lz.fit(Linear(), loss, Pairs(50), settings(), progress=True)
    err = capsys.readouterr().err
    assert "training: step 60/60  " in err and "steps/s  0:00 to go  loss" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stps": 3}, r"no setting 'stps'. Did you mean steps\?"),
        ({"steps": 0}, "steps should be greater than or equal to 1, got 0"),
        ({"steps": "many"}, "steps should be a valid integer.*got 'many'"),
        ({"rate": -1.0}, "rate should be greater than 0"),
        ({"precision": "fp8"}, "precision should be 'float32' or 'bf16', got 'fp8'"),
        ({"patience": 3, "validate_every": 0}, "patience needs validations"),
    ],
)
def test_bad_settings_are_one_sentence(values, message):
    with pytest.raises(ValueError, match=message) as error:
        resolve(Training, "here", values)
    assert "\n" not in str(error.value)


def test_toml_files_say_what_is_wrong(tmp_path):
    path = tmp_path / "x.toml"
    with pytest.raises(FileNotFoundError, match="no such settings file"):
        read_toml(path)
    path.write_text("[training\nsteps = 3")
    with pytest.raises(ValueError, match=r"x\.toml: expected TOML, but .*line 1"):
        read_toml(path)


def test_cuda_is_refused_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ValueError, match="finds no CUDA device"):
        train(device="cuda")


def test_parameters_without_a_gradient_are_kept_and_resumed(tmp_path):
    class Partly(Linear):
        def __init__(self):
            super().__init__()
            self.idle = nn.Parameter(torch.ones(3))
            self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    train(tmp_path, model=Partly(), steps=20)
    model, _ = train(tmp_path, model=Partly(), steps=40, resume=True)
    assert torch.equal(model.idle, torch.ones(3)) and "fixed" in tensors_of(model)


def test_an_interrupt_raises_after_its_checkpoint(tmp_path):
    def asks(model, batch, draw):
        asks.step += 1
        if asks.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(model, batch, draw)

    before = signal.getsignal(signal.SIGTERM)
    for options in ({}, {"patience": 2}):  # with patience: before the first validation
        asks.step = 0
        folder = tmp_path / str(len(options))
        with pytest.raises(Interrupted) as stop:
            train(folder, loss=asks, **options)
        assert stop.value.result.step == 7 and stop.value.result.stopped == "interrupted"
        assert stop.value.signal_number == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before
        model, result = train(folder, resume=True, **options)
        assert result.step == 60 and torch.equal(model.layer.weight, train()[0].layer.weight)


def test_an_early_stop_stays(tmp_path):
    worse = {"measure": lambda m, b, d: {"error": b.x.new_full((len(b.x),), next(counter))}}
    counter = iter(range(10_000))
    _, first = train(tmp_path, steps=400, patience=1, **worse)
    _, again = train(tmp_path, steps=400, patience=1, resume=True, **worse)
    assert first.stopped == again.stopped == "early" and first.step == again.step == 20
    with pytest.raises(ValueError, match="patience needs validation data"):
        lz.fit(Linear(), loss, Pairs(20), settings(patience=1), progress=False)
    with pytest.raises(ValueError, match="validation data, got an empty set"):
        lz.fit(Linear(), loss, Pairs(20), settings(), validation=Pairs(0), measure=measure)


def test_a_trained_model_without_a_state_is_not_trained_over(tmp_path):
    train(tmp_path, steps=20)
    (tmp_path / "state" / "latest.safetensors").unlink()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"has weights\.safetensors, but no .* to resume from"):
            train(tmp_path, resume=resume)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_weights_that_overflow_are_never_kept(tmp_path):
    with pytest.raises(DivergedError, match="the weights became NaN or infinite"):
        train(tmp_path, rate=1e308, warmup=0, checkpoint_every=1, clip=0.0, validate_every=0)
    assert not (tmp_path / "weights.safetensors").exists()

    def infinite(model, batch, draw):
        return {**loss(model, batch, draw), "extra": torch.tensor(float("inf"))}

    with pytest.raises(DivergedError, match=r"the loss \(extra\)"):
        train(loss=infinite)


def test_a_nan_measure_is_never_the_best(tmp_path):
    values = iter([float("nan"), 1.0, 2.0, 3.0, 4.0])

    def wild(model, batch, draw):
        if len(batch.x) == 5:
            wild.value = next(values)
        return {"error": torch.full((len(batch.x),), wild.value)}

    wild.value = float("nan")
    _, result = train(tmp_path, steps=80, patience=5, measure=wild)
    assert math.isfinite(result.metrics["error"])
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_clean_up_leaves_the_files_of_others(tmp_path):
    mine = [tmp_path / ".precious.part", tmp_path / "deep" / ".weights.safetensors.1.part"]
    ours = tmp_path / "state" / ".latest.safetensors.99.part"
    for path in (*mine, ours):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    train(tmp_path, steps=20)
    assert all(p.exists() for p in mine) and not ours.exists()


# -- ten kills -----------------------------------------------------------------------------

DRIVER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import matplotlib.figure
from linearizer import data
from linearizer.runs import listing, store
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.training import checkpoint
data.load("digits")  # what the children would load each for itself
folder = Path(sys.argv[1])
flags = {
    "model": {"blocks": 1, "hidden": 16},
    "training": {"steps": 120, "batch": 32, "checkpoint_every": 3, "log_every": 1, "ema": 0.99,
                 "validate_every": 20, "tensorboard": False},
}
plan = make_plan("attributes", flags=flags)
def train(name):
    execute(plan, folder / name, resume=True, progress=False)
random.seed(int(sys.argv[2]))
targets = sorted(random.sample(range(5, 110), 10))
kills = []
for target in targets:
    child = os.fork()
    if not child:
        train("killed")
        os._exit(0)
    path = folder / "killed" / "metrics.jsonl"
    def step():
        rows = checkpoint.read_metrics(path)
        return max((r["step"] for r in rows), default=0)
    while step() < target and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    time.sleep(random.random() * 0.02)
    reached = step()
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was done before it was killed"
    tensors, about = checkpoint.read_tensors(folder / "killed" / "state" / "latest.safetensors")
    assert reached - about["step"] <= 3, (reached, about["step"])
    if (folder / "killed" / "weights.safetensors").exists():
        store.load(folder / "killed")
    listing.list_runs(folder)
    kills.append(about["step"])
train("killed")
train("whole")
one, two = ((folder / n / "weights.safetensors").read_bytes() for n in ("killed", "whole"))
assert one == two, "the weights differ"
assert not list((folder / "killed").rglob(".*.part")), "rubbish is left"
print(len(kills), "kills", kills)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_ten_kills_lose_at_most_the_work_since_a_checkpoint(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), "0"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10 kills")


# -- memory ------------------------------------------------------------------------------------

FAULTS = """
import resource, sys
import torch
from linearizer.training.processes import keep_memory
print(keep_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
x = torch.ones(10_000_000)
for _ in range(3):
    x + 1
before = faults()
for _ in range(20):
    x + 1
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is of Linux")
def test_memory_that_is_freed_is_kept():
    def run(**changes):
        own = ("GLIBC_TUNABLES", "LINEARIZER_KEEP_MEMORY")
        kept = {k: v for k, v in os.environ.items()
                if k not in own and not k.startswith("MALLOC_")}  # fmt: skip
        done = subprocess.run([sys.executable, "-c", FAULTS], env={**kept, **changes},
                              capture_output=True, text=True, check=True)  # fmt: skip
        arranged, count = done.stdout.split()
        return arranged == "True", int(count)

    arranged, few = run()
    if not arranged:
        pytest.skip("this C library has no mallopt")
    off, many = run(LINEARIZER_KEEP_MEMORY="0")
    assert not off and not run(MALLOC_ARENA_MAX="2")[0]
    assert few < 500
    if many < 10 * 500:
        pytest.skip(f"this system gives pages in large pieces: {many} of them either way")
    assert few < many / 10


def test_the_time_to_go_counts_the_stages_that_follow(monkeypatch, capsys):
    at = iter([0.0, 20.0, 20.0])
    monkeypatch.setattr("linearizer.training.progress.time.perf_counter", lambda: next(at))
    Display(20, 0, "stage 1 of 2", after=90).update(10, {})  # 110 of 120 steps are left
    assert "stage 1 of 2: step 10/20  2.0 s/step  3:20 to go" in capsys.readouterr().err
