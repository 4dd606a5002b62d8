"""What `make` installs is what the locks say, and tests are patient."""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import PATIENCE
from locks.make_locks import LOCKS, find_needed, read_pins

ROOT = Path(__file__).parents[1]


def read_lock(name):
    """The lines of a lock: requirements, each with its hashes."""
    lines = (ROOT / "locks" / f"{name}.txt").read_text().replace("\\\n", "").splitlines()
    found = [re.split(r"\s+--hash=sha256:", line) for line in lines if not line.startswith("#")]
    return [(Requirement(pin), hashes) for pin, *hashes in found]


def test_the_locks_are_the_pins_with_hashes():
    pins = {str(pin) for found in read_pins().values() for pin in found}
    names = []
    for lock in LOCKS:
        for pin, hashes in read_lock(lock):
            assert str(pin) in pins, f"{pin} is not in constraints.txt: run make lock"
            assert hashes and all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes), pin
            names.append(canonicalize_name(pin.name))
            versions = {str(p) for p in read_pins()[names[-1]]}
            assert versions <= {str(p) for p, _ in read_lock(lock)}, f"run make lock: {versions}"
    assert "torch" not in names and "numpy" in names


def test_the_locks_have_whatever_the_project_needs():
    held = set()
    for lock, root in LOCKS.items():
        held |= {canonicalize_name(pin.name) for pin, _ in read_lock(lock)}
        missing = (find_needed(root) & set(read_pins())) - held
        assert not missing, f"locks/{lock}.txt lacks {missing}: run make lock"
    # Here, with the versions that are installed, nothing but torch comes without a hash.
    here = find_needed(LOCKS["dev"], [{}]) - find_needed("torch", [{}])
    assert not here - held, "neither in constraints.txt nor in locks/"


def test_make_installs_by_hashes_first():
    if not shutil.which("make"):
        pytest.skip("there is no make")
    told = subprocess.run(["make", "--dry-run", "--always-make", ".venv/.installed-dev"], cwd=ROOT,
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    steps = [
        line.split(" pip install ")[1] for line in told.splitlines() if " pip install " in line
    ]
    kinds = ["--require-hashes --no-deps" in step for step in steps]
    assert kinds == [True, False, True, False], told
    assert all(step.endswith(f"-r locks/{lock}.txt")
               for step, lock in zip(steps[::2], LOCKS, strict=True))  # fmt: skip


def test_a_file_of_another_hash_is_refused(tmp_path):
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny-1.0.dist-info/METADATA", about)
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
    true = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for digest, code in ((true, 0), ("0" * 64, 1)):
        (tmp_path / "lock.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--require-hashes", "--no-deps",
             "--no-index", "--find-links", str(tmp_path), "-r", str(tmp_path / "lock.txt")],
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert ("DO NOT MATCH" in done.stderr) == bool(code)


def test_no_test_gives_up_before_its_time():
    short = re.compile(r"timeout=\d|wait_for\(.*, \d+\)\)?$|\.wait\(\d|range\(\d{3,}\):.*\n\s*try:")
    for file in (ROOT / "tests").rglob("*.py"):
        for found in short.finditer(file.read_text()):
            assert file.name == "test_setup.py", f"{file}: {found[0]}: use PATIENCE of conftest"
