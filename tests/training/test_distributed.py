"""Two real processes on loopback train as one does."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import linearizer as lz
from conftest import PATIENCE
from linearizer.training.checkpoint import read_metrics, read_tensors

CASE = Path(__file__).parent / "distributed_case.py"
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


def launch(run, processes=1, model=(), **changes):
    arguments = [str(CASE), str(run), json.dumps(changes), json.dumps(dict(model))]
    return json.loads(start(arguments, processes, run).splitlines()[-1])


def start(arguments, processes, run):
    """Run it, once more if torch's own threads bring the first try down (SIGABRT, SIGSEGV)."""
    kept = run.with_name(f"{run.name}-before")
    if run.exists():
        shutil.copytree(run, kept, dirs_exist_ok=True)
    code, out, err = try_once(arguments, processes)
    if code and ("Signal 6 (SIGABRT)" in err or "Signal 11 (SIGSEGV)" in err):
        print("torch came down, and the command runs once more:", err[:3000], sep="\n")
        shutil.rmtree(run, ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, run)
        code, out, err = try_once(arguments, processes)
    assert code == 0, err[:3000]
    assert "Warning" not in err, err
    return out


def try_once(arguments, processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes),
                "--master-addr", "127.0.0.1", "--master-port", str(port)]  # fmt: skip
    command = [sys.executable, *(torchrun if processes > 1 else []), *arguments]
    done = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = done.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGKILL)  # no orphans, whatever happened
    return done.returncode, out, err


def losses(run):
    return torch.tensor([r["loss"] for r in read_metrics(run / "metrics.jsonl") if "loss" in r])


def weights(run):
    return read_tensors(run / "weights.safetensors")[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    torch.set_default_dtype(torch.float32)
    return run, launch(run, steps=12, ema=0.9)


@pytest.mark.parametrize(
    ("name", "changes", "model"),
    [
        ("ddp", {}, {}),
        ("ddp, accumulated, saving memory", {"accumulate": 2}, {"save_memory": True}),
        ("fsdp", {"strategy": "fsdp"}, {}),
    ],
)
def test_two_processes_train_as_one(tmp_path, alone, name, changes, model):
    one, wanted = alone
    run = tmp_path / "run"
    first = launch(run, 2, model, steps=12, ema=0.9, **changes)
    assert first["world"] == 2 and first["initialized"] == 1 and first["step"] == 12
    assert torch.allclose(losses(run), losses(one), rtol=0, atol=1e-5)
    assert abs(first["metrics"]["score error"] - wanted["metrics"]["score error"]) < 1e-5
    a, b = weights(run), weights(one)
    assert a.keys() == b.keys()
    for key in a:
        assert torch.allclose(a[key], b[key], atol=1e-5) if a[key].is_floating_point() else (
            torch.equal(a[key], b[key])
        ), key  # fmt: skip
    lz.load(run)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [(1, 2, {}), (2, 1, {}), (2, 1, {"strategy": "fsdp"}), (1, 2, {"strategy": "fsdp"})],
)
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, alone, before, after, changes):
    one, _ = alone
    run = tmp_path / "run"
    half = launch(run, before, steps=12, ema=0.9, stop_after=9, **changes)
    assert half["stopped"] == "interrupted" and 4 < half["step"] < 12
    assert read_tensors(run / "state" / "latest.safetensors")[1]["step"] == half["step"]
    done = launch(run, after, steps=12, ema=0.9, **changes)
    assert done["step"] == 12 and done["stopped"] == "done" and done["initialized"] == 0
    assert torch.allclose(losses(run), losses(one), rtol=0, atol=1e-5)


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="does not divide into 2 equal parts"):
        launch(tmp_path / "run", 2, steps=4, batch=33)


def test_the_command_line_runs_under_torchrun(tmp_path):
    def train(name, processes):
        text = (
            "--steps 6 --blocks 1 --hidden 16 --batch 32 --log-every 1 --validate-every 3 "
            "--checkpoint-every 3 --no-tensorboard"
        )
        flags = text.split()
        command = ["-m", "linearizer.cli", "train", "attributes", "--out", str(tmp_path / name)]
        return start([*command, *flags], processes, tmp_path / name)

    one, two = train("one", 1), train("two", 2)
    assert torch.allclose(losses(tmp_path / "one"), losses(tmp_path / "two"), rtol=0, atol=1e-5)
    assert two.count("6 steps in") == 1 and two.splitlines()[0][:20] == one.splitlines()[0][:20]
    assert len(list((tmp_path / "two" / "samples").iterdir())) == 2


def test_the_second_stage_of_a_flow_runs_beside_waiting_processes(tmp_path):
    def train(name, processes):
        text = (
            "--steps 4 --rank 6 --blocks 1 --hidden 16 --flow-hidden 16 --refine 5 --batch 32 "
            "--log-every 1 --validate-every 0 --no-tensorboard"
        )
        command = ["-m", "linearizer.cli", "train", "flow", "--out", str(tmp_path / name)]
        start([*command, *text.split()], processes, tmp_path / name)
        return read_tensors(tmp_path / name / "weights.safetensors")[0]

    one, two = train("one", 1), train("two", 2)
    assert all(torch.allclose(one[k].float(), two[k].float(), atol=1e-4) for k in one)
    assert bool((two["family.values"] != 1).any())  # the closed form is there
