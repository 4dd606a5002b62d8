"""An application in one file outside the package: the tutorial's commands, as a user types them."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

import conftest
import linearizer as lz
from conftest import PATIENCE

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "inpaint.py"
PAGE = ROOT / "docs" / "tutorials" / "6-your-own-application.md"
APP = ("--app", "inpaint.py:APP")
QUICK = ("--no-tensorboard", "--quiet", "--blocks", "1", "--hidden", "8")


def linearizer(*words, cwd, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "linearizer.cli", *words], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the file and a run of it, trained and then resumed for more steps."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copy(FILE, folder)
    train = ("train", "inpaint.py:APP", "--out", "runs/inpaint", *QUICK)
    linearizer(*train, "--steps", "4", cwd=folder)
    done = linearizer(*train, "--steps", "6", "--resume", cwd=folder)
    assert "6 steps" in done.stdout
    return folder


def test_the_tutorial_has_the_file_and_it_is_short():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 60
    assert f"```py\n{text}```" in PAGE.read_text()


def test_its_run_is_certified_evaluated_reported_and_exported(folder):
    def type_words(command, *words):
        done = conftest.type_words(*APP, command, "runs/inpaint", *words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "pass: " in type_words("certify", "-n", "4")
    assert "psnr" in type_words("evaluate", "-n", "20")
    run = folder / "runs" / "inpaint"
    assert {p.name for p in (run / "evaluation").iterdir()} == {
        "inpaint.json",
        "inpaint.png",
        "report.html",
    }
    (run / "report.html").unlink()
    type_words("report")
    assert "alf an image to the whole image" in (run / "report.html").read_text()
    type_words("export", "--format", "onnx")
    assert (run / "f.onnx").stat().st_size > 1000
    type_words("resume", "--steps", "7", "--quiet")
    assert "7/7" in linearizer("runs", cwd=folder).stdout


def test_it_is_loaded_in_python(folder):
    with pytest.raises(ValueError, match="'inpaint' is not known here.*lz.apps.load_app"):
        lz.load(folder / "runs" / "inpaint")
    app = lz.apps.load_app(f"{folder / 'inpaint.py'}:APP")
    model = lz.load(folder / "runs" / "inpaint")
    assert model.config.blocks == 1 and lz.apps.find_app("inpaint") is app
    x = torch.rand(3, 1, 8, 8, dtype=torch.float32)
    with torch.no_grad():
        assert model()(x).shape == x.shape


def test_the_studio_has_its_page(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "linearizer.cli", *APP, "serve", "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
        try:
            page = _fetch(f"http://127.0.0.1:{port}/")
            models = _fetch(f"http://127.0.0.1:{port}/api/models")
        finally:
            server.terminate()
    assert 'id="inpaint"' in page and "alf an image to the whole image" in page
    assert re.search(r'"id":\s*"runs/inpaint"', models)


def _fetch(address):
    for _ in range(4 * PATIENCE):
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"no answer from {address}")


def test_a_run_never_imports_code_by_itself(folder):
    (line,) = linearizer("certify", "runs/inpaint", cwd=folder, code=2).stderr.splitlines()
    assert "runs/inpaint: its application 'inpaint' is not known here" in line
    assert "--app FILE.py:APP" in line


@pytest.fixture
def type_words(folder):
    """Run a command in this process; its exit code and what it wrote to stderr."""

    def run(*words):
        done = conftest.type_words(*words, cwd=folder)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("command", ["evaluate", "report", "export", "spectrum", "resume"])
def test_no_command_imports_code_by_itself(type_words, command):
    code, line = type_words(command, "runs/inpaint")
    assert code == 2 and "'inpaint' is not known here" in line and "--app FILE.py:APP" in line


WRONG = [
    ("train inpaint", "No such application 'inpaint'.*Known: flow.*FILE.py:APP"),
    ("train inpaint.py:APPP", "no 'APPP' in inpaint.py. Did you mean 'APP'"),
    ("train inpaint.py:Config", "inpaint.py:Config: expected an App"),
    ("train missing.py:APP", "missing.py: expected Python code .* no such file"),
    ("--app inpaint runs", "expected FILE.py:NAME or MODULE:NAME, got 'inpaint'"),
    ("train clash.py:APP", "inpaint: two settings .* are called 'steps'.* Rename"),
    ("train taken.py:APP", "'flow' is an application of linearizer itself"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_what_cannot_be_trained_is_said_before_training(folder, type_words, words, sentence):
    text = FILE.read_text()
    (folder / "clash.py").write_text(text.replace("    blocks: int", "    steps: int"))
    (folder / "taken.py").write_text(text.replace('name="inpaint"', 'name="flow"'))
    before = set(folder.rglob("*"))
    code, line = type_words(*words.split())
    assert code == 2 and re.search(sentence, " ".join(line.split())), line
    assert all("__pycache__" in p.parts for p in set(folder.rglob("*")) - before)
