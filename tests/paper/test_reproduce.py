"""The paper's experiments again: at a tiny scale, stopped and resumed, and with data missing."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from conftest import PATIENCE
from linearizer.runs.execute import execute
from linearizer.runs.store import find, models
from linearizer.training.checkpoint import read_config, read_metrics
from paper import claims, pages, reproduce
from paper.__main__ import main
from paper.experiment import Recipe
from paper.pages import EXPERIMENTS
from paper.reproduce import SCALES, plan_recipe

ROOT = Path(__file__).parents[2]


def command(*words):
    return [sys.executable, "-m", "paper", *map(str, words)]


def paper(*words, **options):
    """What the command line does; ``python -m paper`` is run where the repository is."""
    options = {"cwd": ROOT, **options}
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=PATIENCE, **options
    )


def measured(run, out, root, say, minutes):
    """A cheap stand-in for the evaluation of a classifier, in its shape."""
    say("accuracies")
    out.mkdir(parents=True, exist_ok=True)
    row = {"run": run.name, "data": {"name": "digits", "test_images": 297, "train_images": 1200,
                                     "notes": ["split by a fixed seed"]},
           "linearizer": {"accuracy": 0.5}, "majority": {"accuracy": 0.1}}  # fmt: skip
    (out / "attributes.json").write_text(json.dumps(row))
    return {**row, "files": [str(out / "attributes.json")]}


def recipe(name="digits", **training):
    flags = {"data": {"name": "digits"}, "model": {"blocks": 1, "hidden": 8},
             "training": {"batch": 16, "tensorboard": False, **training}}  # fmt: skip
    return Recipe(name, "attributes", None, flags, measured)


def use(monkeypatch, steps, *recipes):
    """Let the scale "tiny" be these runs of one experiment."""
    torch.set_default_dtype(torch.float32)
    small = dataclasses.replace(EXPERIMENTS["attributes"], recipes={"tiny": recipes})
    monkeypatch.setitem(EXPERIMENTS, "attributes", small)
    monkeypatch.setitem(SCALES, "tiny", steps)


@pytest.fixture
def small(monkeypatch):
    """A scale of two quick runs of one experiment."""
    use(monkeypatch, 4, recipe("first"), recipe("second"))


def test_all_is_trained_measured_and_compared(small, tmp_path):
    said = []
    result = reproduce.reproduce(["attributes"], "tiny", tmp_path / "r", say=said.append)
    assert result["problems"] == {} and result["files"] == [str(tmp_path / "r" / "results.md")]
    assert "[1/2] first: training" in said and "[2/2] second: accuracies" in said
    found = pages.read_folder(tmp_path / "r")
    assert found["attributes"].keys() == {"machine", "first", "second"}
    assert found["state"]["done"] == ["first trained", "first measured", "second trained",
                                      "second measured"]  # fmt: skip
    assert found["shipped"]["first"]["steps"] == 4 and found["shipped"]["first"]["minutes"] > 0
    text = (tmp_path / "r" / "results.md").read_text()
    assert text == pages.make_page(found, (tmp_path / "r").as_posix())
    assert "| 50.0% (majority: 10.0%) | no number in the paper |" in text
    assert "`python -m paper attributes --scale tiny`" in text and "Scale: `tiny`." in text
    for run in ("first", "second"):
        assert (tmp_path / "r" / run / "report.html").exists()
        assert (tmp_path / "r" / run / "evaluation" / "report.html").exists()


def test_what_is_done_is_not_done_again(small, tmp_path, monkeypatch):
    reproduce.reproduce(["attributes"], "tiny", tmp_path)
    text = (tmp_path / "results.md").read_text()
    said = []
    monkeypatch.setattr(reproduce, "execute", None)
    reproduce.reproduce(["attributes"], "tiny", tmp_path, say=said.append)
    assert said == ["[1/2] first: done before", "[2/2] second: done before"]
    assert (tmp_path / "results.md").read_text() == text


def test_two_at_once_keep_what_the_other_has_done(tmp_path, monkeypatch):
    def meanwhile(*arguments):
        other = reproduce._Work(tmp_path, "tiny", None, None, lambda text: None, False)
        other.do(EXPERIMENTS["attributes"], "inner")
        return measured(*arguments)

    outer = recipe("outer")._replace(measure=meanwhile)
    use(monkeypatch, 2, outer, recipe("inner"))
    work = reproduce._Work(tmp_path, "tiny", None, None, lambda text: None, False)
    work.do(EXPERIMENTS["attributes"], "outer")
    found = pages.read_folder(tmp_path)
    assert found["attributes"].keys() == {"machine", "inner", "outer"}
    assert found["shipped"].keys() == {"inner", "outer"}
    assert found["state"]["done"] == ["outer trained", "inner trained", "inner measured",
                                      "outer measured"]  # fmt: skip


def test_a_stop_between_training_and_measuring_keeps_the_training(small, tmp_path, monkeypatch):
    minutes = []

    def stopped(*arguments):
        minutes.append(arguments[-1])
        raise KeyboardInterrupt

    def again(*arguments):
        minutes.append(arguments[-1])
        return measured(*arguments)

    with monkeypatch.context() as patch:
        use(patch, 3, recipe()._replace(measure=stopped))
        with pytest.raises(KeyboardInterrupt):
            reproduce.reproduce(["attributes"], "tiny", tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["done"] == ["digits trained"]
    use(monkeypatch, 3, recipe()._replace(measure=again))
    monkeypatch.setattr(reproduce, "execute", None)
    assert reproduce.reproduce(["attributes"], "tiny", tmp_path)["problems"] == {}
    assert minutes[0] == minutes[1]  # so that a baseline of equal time is known again


def test_a_lost_file_begins_its_part_anew(small, tmp_path, monkeypatch):
    reproduce.reproduce(["attributes"], "tiny", tmp_path)
    text = (tmp_path / "results.md").read_text()
    spent = json.loads((tmp_path / "shipped.json").read_text())["first"]["minutes"]
    (tmp_path / "attributes.json").write_text("[]")  # broken: said, and nothing else is lost
    broken = reproduce.reproduce(["attributes"], "tiny", tmp_path)["problems"]
    assert broken.keys() == {"first", "second", "page"}
    assert all("attributes.json: expected" in problem for problem in broken.values())
    (tmp_path / "attributes.json").unlink()
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "execute", None)  # what is trained stays so
        again = reproduce.reproduce(["attributes"], "tiny", tmp_path, say=said.append)
    assert again["problems"] == {} and "[1/2] first: measuring" in said
    assert (tmp_path / "results.md").read_text() == text
    (tmp_path / "shipped.json").unlink()
    (tmp_path / "attributes.json").unlink()
    again = reproduce.reproduce(["attributes"], "tiny", tmp_path)
    assert again["problems"] == {}
    rows = json.loads((tmp_path / "shipped.json").read_text())
    assert rows.keys() == {"first", "second"} and rows["first"]["steps"] == 4
    assert rows["first"]["minutes"] >= 0.9 * spent  # of the training, not of finding it done
    done = json.loads((tmp_path / "state.json").read_text())["done"]
    assert len(done) == len(set(done)) == 4


def test_an_error_of_one_part_leaves_the_others(tmp_path, monkeypatch):
    def fails(*arguments):
        raise KeyError("psnr\nof")

    use(monkeypatch, 2, recipe("bad")._replace(measure=fails), recipe())
    result = reproduce.reproduce(["attributes"], "tiny", tmp_path)
    assert result["problems"].keys() == {"bad"} and "KeyError: " in result["problems"]["bad"]
    text = (tmp_path / "results.md").read_text()
    assert "**Not done**: bad. KeyError" in text and "50.0%" in text


def test_a_stop_leaves_the_page_of_what_is_done(tmp_path, monkeypatch):
    def stopped(*arguments):
        raise KeyboardInterrupt

    use(monkeypatch, 2, recipe(), recipe("late")._replace(measure=stopped))
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(["attributes"], "tiny", tmp_path)
    assert "50.0%" in (tmp_path / "results.md").read_text()


def test_a_part_of_the_experiments_leaves_the_page_of_all_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/results.md").write_text("of all")
    Path("some").mkdir()
    names = [e.file for e in EXPERIMENTS.values()]
    for name in names[:-1]:
        shutil.copy(ROOT / "benchmarks" / f"{name}.json", "some")
    assert reproduce.compare(Path("some"))["files"] == ["some/results.md"]
    assert Path("docs/results.md").read_text() == "of all"
    shutil.copy(ROOT / "benchmarks" / f"{names[-1]}.json", "some")
    Path("some/state.json").write_text('{"scale": "tiny"}')
    assert reproduce.compare(Path("some"))["files"] == ["some/results.md"]
    Path("some/state.json").unlink()
    assert reproduce.compare(Path("some"))["files"] == ["docs/results.md"]
    assert Path("docs/results.md").read_text() != "of all"
    Path("empty").mkdir()
    Path("empty/flow.json").write_text('{"machine": {}}')  # a file without a claim
    with pytest.raises(ValueError, match="holds no measured JSON"):
        reproduce.compare(Path("empty"), Path("docs/results.md"))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("flow", lambda flow: [flow], r"flow\.json: expected a JSON object, got a list"),
        ("flow", lambda flow: {k: v for k, v in flow.items() if k != "machine"},
         r"flow\.json: expected what `python -m paper flow` writes, but 'machine' is not"),
        ("flow", lambda flow: {**flow, "mnist-flow": {"one_against_many": 3}}, r"flow\.json: exp"),
        ("weather", lambda weather: {**weather, "rows": []}, r"weather\.json: expected what"),
    ],
)  # fmt: skip
def test_json_of_another_shape_is_one_sentence(name, change, says, tmp_path, capsys):
    for file in (name, "shipped"):
        shutil.copy(ROOT / "benchmarks" / f"{file}.json", tmp_path)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert main(["--from", str(tmp_path), "-o", str(tmp_path / "page.md")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("paper: ") and re.search(says, said)
    assert not (tmp_path / "page.md").exists()


def test_missing_data_are_said_after_the_others_are_done(tmp_path, monkeypatch):
    use(monkeypatch, 2, recipe("faces")._replace(flags={"data": {"name": "celeba"}}), recipe())
    names = ["weather", "distill", "attributes"]
    result = reproduce.reproduce(names, "tiny", tmp_path / "r", root=tmp_path / "none")
    assert result["problems"].keys() == {"weather", "distill", "faces"}
    assert "linearizer data fetch weather" in result["problems"]["weather"]
    assert "celeba: expected img_align_celeba.zip" in result["problems"]["faces"]
    assert all(not re.search(r"\n", p) for p in result["problems"].values())
    text = Path(result["files"][0]).read_text()
    assert "**Not done**: faces. " in text and "50.0%" in text
    assert "Not measured yet: `python -m paper weather`." in text


def test_evaluations_that_train_by_themselves_are_kept(tmp_path, monkeypatch):
    asked = {}

    def table(name, row):
        def measured(**settings):
            asked[name] = settings
            settings["out"].mkdir(parents=True)
            path = settings["out"] / f"{name}.json"
            path.write_text(json.dumps(row))
            return {**row, "files": [str(path)]}

        return measured

    weather, encoders = (json.loads((ROOT / "benchmarks" / f"{n}.json").read_text())
                         for n in ("weather", "disentanglement"))  # fmt: skip
    for rows in weather["rows"].values():
        for errors in rows.values():
            first, last = errors.pop("mse_first_step"), errors.pop("mse_last_step")
            errors["mse_by_step"] = [first, last]
    for name, file, rows in (
        ("weather", "weather", weather),
        ("distill", "disentanglement", encoders),
    ):
        stand_in = dataclasses.replace(EXPERIMENTS[name], table=table(file, rows))
        monkeypatch.setitem(EXPERIMENTS, name, stand_in)
    result = reproduce.reproduce(["weather", "distill"], "here", tmp_path / "r",
                                 tmp_path / "page.md", steps=7)  # fmt: skip
    assert result["problems"] == {} and asked["disentanglement"]["seeds"] == 10
    assert asked["weather"]["steps"] == asked["disentanglement"]["steps"] == 7
    found = pages.read_folder(tmp_path / "r")
    committed = pages.read_folder(ROOT / "benchmarks")
    assert found["weather"]["rows"] == committed["weather"]["rows"]
    ours, theirs = (
        {c.what: c.ours for s in pages.make_sections(f) for c in s.claims if s.name == "distill"}
        for f in (found, committed)
    )
    assert ours == theirs


def test_another_scale_or_number_of_steps_needs_another_folder(small, tmp_path):
    reproduce.reproduce(["attributes"], "tiny", tmp_path)
    with pytest.raises(ValueError, match="begun with steps None, not 9. Go on so, or choose"):
        reproduce.reproduce(["attributes"], "tiny", tmp_path, steps=9)
    with pytest.raises(ValueError, match="begun with scale tiny, not here"):
        reproduce.reproduce(["attributes"], "here", tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json: expected JSON"):
        reproduce.reproduce(["attributes"], "tiny", tmp_path)


def test_requests_that_cannot_be_met(small, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no experiment 'wether'. Did you mean weather"):
        reproduce.reproduce(["wether"], "tiny", tmp_path)
    with pytest.raises(ValueError, match="no scale 'large'"):
        reproduce.reproduce(["all"], "large", tmp_path)
    with pytest.raises(ValueError, match="expected a file for the page"):
        reproduce.reproduce(["attributes"], "tiny", tmp_path / "r", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expected a folder, but"):
        reproduce.reproduce(["attributes"], "tiny", tmp_path / "file", tmp_path / "p.md")
    with pytest.raises(ValueError, match="holds no measured JSON"):
        reproduce.compare(tmp_path, tmp_path / "p.md")
    with pytest.raises(ValueError, match="expected a folder of measured JSON"):
        reproduce.compare(tmp_path / "none", tmp_path / "p.md")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="expected one process"):
        reproduce.reproduce(["attributes"], "tiny", tmp_path)


@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_can_be_planned(scale):
    """Of each scale, with and without steps: names of presets, flags and data are right."""
    for experiment in EXPERIMENTS.values():
        assert (scale in experiment.recipes) != (scale in experiment.settings), experiment.name
        assert (experiment.table is not None) == (scale in experiment.settings)
        for steps in (None, 7):
            for one in experiment.recipes.get(scale, ()):
                plan = plan_recipe(one, steps)
                if steps is not None:
                    assert plan.training.steps == 7 and plan.training.checkpoint_every == 1
                    assert plan.model.get("refine", 7) in (0, 7)


def test_shipped_models_come_from_the_recipes():
    """What `reproduce` trains at this scale is what the shipped models were trained by."""
    seen = 0
    for experiment in EXPERIMENTS.values():
        for one in experiment.recipes.get("here", ()):
            if one.name not in models():
                continue
            seen += 1
            plan = plan_recipe(one, None)
            config = read_config(find(one.name))
            model = plan.app.Config(**plan.model).model_dump(mode="json")
            free = [k for k in config["model"] if k not in plan.app.decided]
            assert {k: model[k] for k in free} == {k: config["model"][k] for k in free}
            now = plan.training.model_dump(mode="json")
            for key in ("steps", "batch", "rate", "ema", "seed", "weight_decay"):
                assert now[key] == config["training"][key], (one.name, key)
            assert plan.data.model_dump(mode="json").items() >= config["data"].items()
    assert seen == 5


# -- the command ---------------------------------------------------------------------------


def test_from_writes_the_committed_page(tmp_path):
    out = tmp_path / "page.md"
    done = paper("--from", "benchmarks", "-o", out, "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert out.read_text() == (ROOT / "docs" / "results.md").read_text()
    counts = json.loads(done.stdout)["verdicts"]
    assert counts["better"] > 0 and set(counts) == {*claims.VERDICTS, claims.OTHERWISE}
    wrong = paper("flow", "--from", "benchmarks", cwd=ROOT)
    assert wrong.returncode == 2 and "--from runs nothing" in wrong.stderr


def test_killed_and_stopped_it_goes_on_to_the_same_page(tmp_path):
    """kill -9 in its training, then Ctrl-C, then to the end; beside a run that was let be."""
    settings = ("attributes", "--scale", "tiny", "--steps", 60)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    env = {**os.environ, "LINEARIZER_DATA": str(tmp_path / "none")}
    torch.set_default_dtype(torch.float32)
    (one,) = EXPERIMENTS["attributes"].recipes["tiny"]
    execute(plan_recipe(one, 60), whole, progress=False)
    for number, at in ((signal.SIGKILL, 20), (signal.SIGINT, 40)):
        child = subprocess.Popen(command(*settings, "--folder", parts), stderr=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)  # fmt: skip
        while child.poll() is None:
            rows = read_metrics(parts / "digits-attributes" / "metrics.jsonl")
            if max((r["step"] for r in rows), default=0) >= at:
                child.send_signal(number)
                break
            time.sleep(0.005)
        _, err = child.communicate(timeout=PATIENCE)
        if child.returncode == 130:  # unless it was done before the signal came
            assert "the same command goes on" in err or "stopped" in err
            assert "Traceback" not in err
    done = paper(*settings, "--folder", parts, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == {}
    ours, theirs = ((f / "weights.safetensors").read_bytes()
                    for f in (parts / "digits-attributes", whole))  # fmt: skip
    assert ours == theirs
    found = pages.read_folder(parts)
    accuracy = found["attributes"]["digits-attributes"]["linearizer"]["accuracy"]
    assert f"| {accuracy:.1%} (majority: " in (parts / "results.md").read_text()
    assert found["state"]["done"] == ["digits-attributes trained", "digits-attributes measured"]


def test_a_missing_data_set_is_a_sentence_and_exit_2(tmp_path):
    done = paper("weather", "--scale", "tiny", "--folder", tmp_path / "r", "--data-root",
                      tmp_path / "none", "-q")  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.fullmatch(r"paper: weather was not done\. .*linearizer data fetch weather.*\n",
                        done.stderr)  # fmt: skip
    assert not (tmp_path / "r" / "results.md").exists()  # nothing is measured
