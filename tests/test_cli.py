"""The command line, through real subprocesses."""

import json
import subprocess
import sys

import pytest


def linearizer(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "linearizer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def test_quickstart_writes_its_pictures_and_says_so(tmp_path):
    from PIL import Image

    done = linearizer("quickstart", "--out", tmp_path / "tour", "--steps", 20)
    assert done.returncode == 0, done.stderr
    names = {"certificate.txt", "geodesics.png", "null-space.png", "pseudo-inverse.png",
             "round-trip.png", "singular-vectors.png", "summary.json"}  # fmt: skip
    assert {p.name for p in (tmp_path / "tour").iterdir()} == names
    assert all(name in done.stdout for name in names)
    assert "step 20/20" in done.stdout
    for path in (tmp_path / "tour").glob("*.png"):
        with Image.open(path) as image:
            low, high = image.convert("L").getextrema()
            assert min(image.size) > 150 and high - low > 200
    numbers = json.loads((tmp_path / "tour" / "summary.json").read_text())
    assert numbers["worst_law_float64"] < 1e-8 and numbers["round_trip_float32"] < 1e-4
    certificate = (tmp_path / "tour" / "certificate.txt").read_text()
    assert certificate.count("pass: ") == 2 and "FAIL" not in certificate


def test_quickstart_is_reproducible(tmp_path):
    numbers = []
    for name in ("one", "two"):
        assert linearizer("quickstart", "-o", tmp_path / name, "--steps", 5).returncode == 0
        numbers.append(json.loads((tmp_path / name / "summary.json").read_text()))
        numbers[-1].pop("training_seconds")
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quickstart", "--out", "FILE"), "needs a folder, but"),
        (("quickstart", "--out", "FILE/below"), "Not a directory|needs a folder"),
        (
            ("quickstart", "--steps", "0"),
            "Invalid value for .--steps.: .*greater than or equal to 1",
        ),
        (("quickstart", "--steps", "many"), "Invalid value for .--steps.: .*valid integer"),
        (("quickstrat",), "No such command.*Did you mean .quickstart"),
    ],
)
def test_a_bad_request_is_one_sentence_and_exit_2(tmp_path, arguments, message):
    import re

    file = tmp_path / "file"
    file.write_text("mine")
    done = linearizer(*(a.replace("FILE", str(file)) for a in arguments))
    assert done.returncode == 2
    assert re.search(message, done.stderr) and "Traceback" not in done.stderr
    assert file.read_text() == "mine"


def test_version_and_help():
    import linearizer as lz

    assert linearizer("version").stdout.strip() == lz.__version__
    help_text = linearizer("quickstart", "--help").stdout
    assert "Example:" in help_text and "1000" in help_text
