"""What a run ends with: the best weights, a yardstick beside them, and what is said of both."""

import json

import pytest
import torch

from conftest import type_words
from linearizer.apps.distill.use import distill
from linearizer.apps.registry import find_app
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import close, execute
from linearizer.runs.listing import list_runs
from linearizer.runs.plan import make_plan, plan_of
from linearizer.runs.store import load
from linearizer.training.checkpoint import read_config, read_metrics
from linearizer.training.loop import Result

SMALL = {"steps": 20, "validate_every": 10, "tensorboard": False}


@pytest.fixture(autouse=True)
def single_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


def train(run, app, training=(), model=(), **options):
    flags = {"training": {**SMALL, **dict(training)}, "model": dict(model)}
    return execute(make_plan(app, flags=flags), run, progress=False, **options)


@pytest.mark.parametrize(
    ("app", "model", "name"),
    [
        ("flow", {"rank": 8, "hidden": 16, "flow_hidden": 16, "blocks": 1}, "PCA of rank 8"),
        ("projector", {"rank": 8, "hidden": 16, "flow_hidden": 16, "blocks": 1}, "PCA of rank 8"),
        ("attributes", {"blocks": 1, "hidden": 16}, "a linear probe of the pixels"),
        ("dynamics", {"blocks": 1, "hidden": 8}, "DMD"),
    ],
)
def test_a_run_has_its_yardstick(tmp_path, app, model, name):
    result = train(tmp_path / "run", app, model=model)
    metric = find_app(app).metric
    assert result.yardstick["name"] == name and result.yardstick[metric] > 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["yardstick"] == result.yardstick and rows[-1]["seconds"] >= result.seconds
    (row,) = list_runs(tmp_path)
    assert (row.value, row.yardstick) == (result.metrics[metric], result.yardstick[metric])
    again = execute(plan_of(tmp_path / "run"), tmp_path / "run", resume=True, progress=False)
    assert again.yardstick[metric] == pytest.approx(result.yardstick[metric])
    assert again.metrics == pytest.approx(result.metrics, 1e-5)


@pytest.mark.parametrize(
    ("app", "model"),
    [
        ("projector", {"rank": 8, "hidden": 16, "flow_hidden": 16, "blocks": 1, "refine": 0}),
        ("attributes", {"blocks": 1, "hidden": 16}),
        ("dynamics", {"blocks": 1, "hidden": 8}),
    ],
)
def test_a_run_keeps_the_plain_method_where_training_found_no_better(tmp_path, app, model):
    run, metric = tmp_path / "run", find_app(app).metric
    result = train(run, app, {"rate": 1e-9, "steps": 10}, model)
    assert result.plain and result.metrics[metric] == pytest.approx(result.yardstick[metric], 1e-4)
    lines, good = close(result, find_app(app), 20)
    assert good and "training found no better, so the run keeps it" in lines[0]
    f = find_app(app).linearizer(load(run))
    x = f.source.points(torch.randn(5, f.source.dim))
    y = find_app(app).linearizer(result.model)(x)
    assert torch.allclose(f(x), y, atol=1e-4 * y.abs().max().item())
    (row,) = list_runs(tmp_path)
    assert row.value == result.metrics[metric] and (run / "trained.safetensors").exists()
    # More steps go on with the model that was trained, and may find better.
    again = execute(plan_of(run), run, resume=True, progress=False)
    assert again.plain and again.metrics == pytest.approx(result.metrics, 1e-5)
    assert evaluate_run(run, tmp_path / "out", None, 50, lambda text: None)


def test_a_run_that_fell_back_goes_on_with_what_was_trained(tmp_path):
    run, model = tmp_path / "run", {"blocks": 2, "hidden": 16, "spirals": 2}
    first = train(run, "dynamics", {"rate": 1e-9, "steps": 10}, model)
    assert first.plain and "plain" in json.loads((run / "config.json").read_text())
    flags = {"training": {**SMALL, "steps": 250, "rate": 3e-3, "validate_every": 125},
             "model": model}  # fmt: skip
    later = execute(make_plan("dynamics", flags=flags), run, resume=True, progress=False)
    assert not later.plain and later.metrics["error"] < first.metrics["error"]
    assert "plain" not in json.loads((run / "config.json").read_text())
    assert not (run / "trained.safetensors").exists() and load(run).space.dim == 4
    (row,) = list_runs(tmp_path)
    assert row.value == later.metrics["error"]


def test_a_run_that_fell_back_opens_while_it_is_resumed(tmp_path, monkeypatch):
    """Stopped before a better validation: what was trained is there, and not the plain method."""
    run, model = tmp_path / "run", {"blocks": 1, "hidden": 8, "spirals": 2}
    train(run, "dynamics", {"rate": 1e-9, "steps": 10}, model)
    monkeypatch.setattr("linearizer.runs.execute._compare", lambda result, *_: result)
    flags = {"training": {**SMALL, "steps": 12, "rate": 1e-9}, "model": model}
    execute(make_plan("dynamics", flags=flags), run, resume=True, progress=False)
    assert load(run).space.dim == 4


def test_a_plain_method_that_cannot_be_a_model_costs_no_training(tmp_path, monkeypatch):
    from linearizer.apps.dynamics import evaluate as evaluation

    def fails(*_):
        raise torch.linalg.LinAlgError("singular")

    monkeypatch.setattr(evaluation.Dynamics, "become", fails)
    said = []
    result = train(tmp_path / "run", "dynamics", {"rate": 1e-9, "steps": 10},
                   {"blocks": 1, "hidden": 8}, say=said.append)  # fmt: skip
    assert not result.plain and load(tmp_path / "run") is not None
    assert said[-1] == "DMD is better, but could not be made the model: singular"


def test_times_of_any_unit_have_a_linear_model():
    from linearizer.apps.dynamics.model import split_modes

    for unit in (1.0, 1e9, 1e-9):
        values = torch.tensor([0.1 + 2j, 0.1 - 2j, 0.3, 0.0]) * unit
        pairs, singles = split_modes(values.to(torch.complex128))
        assert pairs.tolist() == [True, False, False, False] and int(singles.sum()) == 2


def test_a_linear_student_is_the_ridge_regression(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Tanh())
    student = distill(net, torch.randn(400, 6), run=tmp_path / "run", progress=False,
                      training={**SMALL, "rate": 1e-9})  # fmt: skip
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["validation"]["R2"] == pytest.approx(rows[-1]["yardstick"]["R2"], abs=1e-4)
    x = torch.randn(2, 50, 6)
    f = student()
    middle = f((x[0] + x[1]) / 2)  # affine in x
    assert torch.allclose(middle, (f(x[0]) + f(x[1])) / 2, atol=1e-5)


def test_a_subspace_flow_starts_as_its_yardstick_and_ends_no_worse(tmp_path):
    """Also where training makes it worse at once, as a rate of ten does."""
    model = {"rank": 8, "hidden": 16, "flow_hidden": 16, "blocks": 1, "refine": 0}
    result = train(tmp_path / "run", "flow", {"rate": 10.0}, model)
    assert result.best_step == 0 and abs(result.metrics["psnr"] - result.yardstick["psnr"]) < 1e-3
    rows = [r["validation"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl")
            if "validation" in r]  # fmt: skip
    assert rows[-1]["psnr"] < rows[0]["psnr"] - 1
    lines, good = close(result, find_app("flow"), 20)
    assert good and lines[0] == "validation was best at step 0 of 20, and is kept"
    assert "PCA of rank 8" in lines[1] and "as good or better" in lines[1]


def test_a_revnet_keeps_its_last_weights(tmp_path):
    result = train(tmp_path / "run", "projector", model={"g": "revnet", "blocks": 1})
    assert result.best_step is None
    assert read_config(tmp_path / "run")["training"]["keep"] == "last"


@pytest.mark.parametrize(
    ("app", "value", "plain", "good"),
    [
        ("dynamics", 2.8e10, 0.5, False),
        ("dynamics", float("nan"), None, False),
        ("dynamics", 1.0, 1e-3, False),
        ("dynamics", 0.01, 0.5, True),
        ("dynamics", 1e-5, 1e-9, True),
        ("flow", 20.0, 18.0, True),
    ],
)
def test_a_run_that_learned_nothing_is_told(app, value, plain, good):
    app = find_app(app)
    yardstick = None if plain is None else {"name": "plain", app.metric: plain}
    result = Result(10, "done", {app.metric: value}, {}, 1.0, 5, None, yardstick)
    lines, found = close(result, app, 10)
    assert found is good and ("learned nothing" in lines[-1]) is not good


def test_the_command_says_how_it_ended_and_fails_where_nothing_was_learned(tmp_path, monkeypatch):
    done = type_words("train", "dynamics", "--data", "pendulum", "--steps", 4, "--hidden", 8,
                      "--blocks", 1, "-q", "-o", tmp_path / "run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "DMD, the plain linear method, has error" in done.stdout
    assert "training found no better, so the run keeps it" in done.stdout
    assert "linear" in type_words("runs", tmp_path).stdout.splitlines()[0]
    (row,) = json.loads(type_words("runs", tmp_path, "--json").stdout)
    assert row["yardstick"] > 0
    monkeypatch.setattr("linearizer.runs.execute.close", lambda *_: (["nothing"], False))
    done = type_words("train", "dynamics", "--data", "pendulum", "--steps", 4, "--hidden", 8,
                      "--blocks", 1, "-q", "-o", tmp_path / "other")  # fmt: skip
    assert done.returncode == 1 and "nothing" in done.stdout


def test_few_samples_change_what_was_not_asked_for(tmp_path):
    said = []
    train(tmp_path / "run", "flow", model={"rank": 8, "hidden": 16, "blocks": 1}, say=said.append)
    assert "1,200 samples are few: batch = 32, unless you set it" in said
    assert read_config(tmp_path / "run")["training"]["batch"] == 32
    train(tmp_path / "own", "flow", {"batch": 64}, {"rank": 8, "hidden": 16, "blocks": 1})
    assert read_config(tmp_path / "own")["training"]["batch"] == 64
    assert plan_of(tmp_path / "run").training.batch == 32


def test_steps_scale_further_stages():
    app = find_app("flow")
    usual = make_plan("flow").training.steps
    assert "refine" not in make_plan("flow").model
    half = make_plan("flow", flags={"training": {"steps": usual // 2}})
    assert half.model["refine"] == app.Config().refine // 2
    own = make_plan("flow", flags={"training": {"steps": 10}, "model": {"refine": 7}})
    assert own.model["refine"] == 7
    preset = make_plan("flow", preset="mnist", flags={"training": {"steps": 1}})
    assert preset.model["refine"] < app.presets["mnist"]["model"]["refine"] // 100
