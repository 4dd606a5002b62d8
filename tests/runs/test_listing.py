"""The list of runs reads files only, inside its folder, and not all of a long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import linearizer as lz
from conftest import PATIENCE
from linearizer.cli import app
from linearizer.operators import Identity
from linearizer.runs import listing
from linearizer.runs.listing import list_runs
from linearizer.training.checkpoint import open_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and links")
LIST = "import sys, pathlib; from linearizer.runs.listing import list_runs; " \
    "print(list_runs(pathlib.Path(sys.argv[1]))[0].problem)"  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return lz.save(Identity(2), tmp_path / "runs" / "one")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_what_is_no_file_of_the_folder_is_a_problem(run, tmp_path, name, kind):
    (run / name).unlink(missing_ok=True)
    secret = tmp_path / "secret"
    secret.write_text('{"format": 1, "step": 7}\n')
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero" if kind == "device" else secret)
    done = subprocess.run(
        [sys.executable, "-c", LIST, run.parent], capture_output=True, text=True, timeout=PATIENCE
    )
    wanted = "expected a file, got a pipe" if kind == "pipe" else "got a link out of it"
    assert name in done.stdout and wanted in done.stdout, done.stderr


def test_a_device_is_not_read():
    with pytest.raises(ValueError, match="expected a file, got a device"):
        open_file(Path("/dev/zero"))


def test_only_the_end_of_long_metrics_is_read(run, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    metric = {"metric": {"name": "a", "maximize": True}, "training": {"steps": 9}}
    (run / "config.json").write_text(json.dumps({**config, **metric}))
    rows = [{"step": i, "seconds": i, "validation": {"a": i / 2}} for i in range(10_000)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = []
    monkeypatch.setattr(listing, "TAIL", 1000)
    monkeypatch.setattr(
        "linearizer.training.checkpoint._is_row", lambda row: bool(row and not read.append(row))
    )
    (row,) = list_runs(run.parent)
    assert (row.step, row.value, row.problem) == (9999, 4999.5, "") and len(read) < 30


def test_an_integer_that_no_float_holds_is_left_out(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "metric": {"name": "a"}}))
    row = {"step": 1, "seconds": 10**400, "validation": {"a": 10**400}}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 10**400}) + "\n" + json.dumps(row))
    done = CliRunner().invoke(app, ["runs", str(run.parent)])
    assert done.exit_code == 0 and "one" in done.output, done.exception
