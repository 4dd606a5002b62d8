"""Runs beside other methods: what `python -m paper measure` adds to `linearizer evaluate`."""

import json

import pytest
import torch

from linearizer import data
from linearizer.apps.attributes.evaluate import in_batches
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.runs.store import open_run
from linearizer.training.loop import Training, fit
from paper import attributes, flow, pages, projector
from paper.__main__ import main
from paper.experiment import extend_table, train_for
from paper.projector import Autoencoder, autoencoder_loss, ign_loss

SMALL = {"hidden": 8, "blocks": 2, "flow_hidden": 16}


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)


def train(folder, app, preset=None, steps=10, **model):
    training = {"steps": steps, "tensorboard": False, "validate_every": steps}
    flags = {"data": {"name": "digits"}, "model": model, "training": training}
    execute(make_plan(app, preset=preset, flags=flags), folder, progress=False)
    return folder


def test_a_flow_has_the_paper_s_numbers_for_its_data_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("linearizer.apps.flow.evaluate._export", lambda *_: None)  # takes long
    run = train(tmp_path / "run", "flow", "best", **SMALL, rank=6, refine=5)
    result = flow.measure(run, tmp_path / "out", samples=100)
    written = json.loads((tmp_path / "out" / "flow.json").read_text())
    assert written["data"] == result["data"] and result["data"]["test_images"] == 100
    assert result["paper"] == {} and result["data"]["shape"] == [1, 8, 8]  # digits are not in it
    found = pages.claims_of("flow", {**result, "paper": flow.PAPER["mnist"]})
    assert {"32.4", "31.6"} <= {claim.paper for claim in found}


def test_a_projector_is_measured_beside_networks_without_its_architecture(tmp_path):
    run = train(tmp_path / "run", "projector", **SMALL, rank=6, refine=5)
    result = projector.measure(run, tmp_path / "out", baseline_minutes=0.02)
    assert max(result["idempotency_float32"].values()) < 1e-4
    for name in ("autoencoder", "ign"):
        row = result["baselines"][name]
        assert row["steps"] >= 10 and row["idempotency_float32"]["data"] > 1e-8
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 1000
    assert "noise of its training" in result["baselines"]["ign"]["idempotency_float32"]
    assert [claim.ours for claim in pages.claims_of("projector", result)]


def test_baselines_of_a_projector_learn():
    train = data.load("digits").train
    x = train.batch(torch.arange(200)).x
    for loss in (autoencoder_loss, ign_loss):
        torch.manual_seed(0)
        net = Autoencoder((1, 8, 8), 12, 8)
        before = float((net(x) - x).square().mean().detach())
        fit(net, loss, train, Training(steps=60, rate=3e-3, tensorboard=False), progress=False)
        assert float((net(x) - x).square().mean().detach()) < 0.7 * before
    spent = train_for(0.5, net, autoencoder_loss, train, Training(batch=32))
    assert spent["steps"] >= 10 and spent["cpu_seconds"] > 0


def test_a_classifier_is_measured_beside_a_resnet_that_is_kept(tmp_path):
    run = train(tmp_path / "run", "attributes", steps=60, blocks=2, hidden=16)
    result = attributes.measure(run, tmp_path / "out", baseline_minutes=0.02)
    assert result["linearizer"]["accuracy"] > result["majority"]["accuracy"]
    assert result["resnet18"]["steps"] >= 10
    assert 0 <= result["null_space"]["resnet18_outputs_unchanged"] <= 1
    assert result["data"]["train_images"] == 1200 and result["data"]["test_images"] == 297
    again = attributes.measure(run, tmp_path / "out", baseline_minutes=0.02)
    assert again["resnet18"] == result["resnet18"]  # the trained one is read
    with pytest.raises(ValueError, match="expected attributes, but the run holds flow"):
        attributes.measure("mnist-flow", tmp_path)


def test_another_network_judges_edits():
    run = open_run("celeba-attributes")
    model = run.model
    x = torch.rand(12, *model.config.shape)
    y = torch.zeros(12, len(model.config.names))
    names = [n for n in ("Smiling", "Eyeglasses") if n in model.config.names]
    edits = {name: {"images": 12, "hold": {"score_error": 0.0}} for name in names}

    def net(x):  # says that an attribute is there where the model does
        return in_batches(model.read.outputs_of, x)

    with torch.no_grad():
        rows = attributes._judge_edits(model, net, x, y, edits)
    for name in names:
        row = rows[name]["hold"]
        assert row["score_error"] == 0.0 and row["resnet18_saw_it"] == 0.0
        assert row["resnet18_sees_it"] > 0.5 and "follow" not in rows[name]


def test_the_size_of_a_resnet():
    net = attributes.ResNet18(3, 4).eval()
    assert net(torch.rand(2, 3, 20, 17)).shape == (2, 4)
    assert 11.1e6 < sum(p.numel() for p in net.parameters()) < 11.3e6


def test_numbers_are_added_to_the_file_of_an_evaluation(tmp_path):
    path = tmp_path / "flow.json"
    path.write_text("{}")
    more = {"b": 0.123456, "pictures": [tmp_path / "b.png"]}
    result = extend_table({"a": 1, "files": [str(path)]}, more)
    assert result == {"a": 1, "b": 0.1235, "files": [str(path), str(tmp_path / "b.png")]}
    assert json.loads(path.read_text()) == {"a": 1, "b": 0.1235}


def test_commands_say_what_they_do_not_know(tmp_path, capsys):
    for words, said in (
        (["record", "flw"], "paper: record: there is no experiment 'flw'. Did you mean flow?"),
        (["record", "flow", "learnd"], "paper: record: flow has no part 'learnd'. Did you mean"),
        (["verify", str(tmp_path)], "expected a folder that `python -m paper` has filled"),
        (["measure", "attributes", "mnist-flow"], "expected attributes, but the run holds flow"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert main(["measure", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("flow", "weather", "distill"))
