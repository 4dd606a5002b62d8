"""A run that was killed goes on, and what it goes on with does not contradict its past."""

import json

import pytest
import torch

from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan, plan_of
from linearizer.training.checkpoint import read_config

FLAGS = {
    "data": {"name": "digits"},
    "model": {"blocks": 1, "hidden": 8},
    "training": {"steps": 4, "batch": 8, "validate_every": 0, "checkpoint_every": 2,
                 "tensorboard": False},
}  # fmt: skip


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)


def train(run, resume=True, plan=None):
    return execute(plan or make_plan("attributes", flags=FLAGS), run, resume=resume, progress=False)


@pytest.mark.parametrize("left", [(), (".config.json.17.part",), (".weights.safetensors.17.part",)])
@pytest.mark.parametrize("resume", [True, False])
def test_a_kill_in_the_first_write_does_not_lose_the_folder(tmp_path, left, resume):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").touch()
    for name in left:
        (tmp_path / name).write_text('{"format": 1, "app": "attr')
    assert train(tmp_path, resume).step == 4
    assert not list(tmp_path.glob(".*.part"))


def test_the_plan_of_a_run_that_was_killed_at_first(tmp_path):
    train(tmp_path / "run")
    text = (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "new" / "state").mkdir(parents=True)
    part = tmp_path / "new" / ".config.json.17.part"
    part.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"before its config\.json .* command of training again"):
        plan_of(tmp_path / "new")
    part.write_text(text)  # it was whole, but had another name
    assert train(tmp_path / "new", plan=plan_of(tmp_path / "new")).step == 4


def test_a_folder_of_others_is_refused_still(tmp_path):
    (tmp_path / ".thesis.17.part").write_text("mine")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        train(tmp_path)


def test_a_run_does_not_go_back(tmp_path):
    train(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match="cannot stop at step 3, since the run has reached step 4"):
        train(tmp_path, plan=plan_of(tmp_path, {"steps": 3}))
    assert (tmp_path / "config.json").read_bytes() == before


def test_what_a_run_goes_on_with_is_recorded(tmp_path):
    train(tmp_path)
    assert "history" not in read_config(tmp_path)
    train(tmp_path, plan=plan_of(tmp_path, {"steps": 6, "rate": 0.01}))
    train(tmp_path, plan=plan_of(tmp_path))
    train(tmp_path, plan=plan_of(tmp_path, {"steps": 8}))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["history"] == [
        {"step": 4, "changes": {"steps": [4, 6], "rate": [0.002, 0.01]}},
        {"step": 6, "changes": {"steps": [6, 8]}},
    ]
    assert config["training"]["rate"] == 0.01
