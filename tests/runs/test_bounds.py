"""A stranger's settings ask for no more than the weights beside them fill."""

import json
import subprocess
import sys

import pytest
import torch

import linearizer as lz
from conftest import PATIENCE
from linearizer.apps.registry import describe_apps, find_app
from linearizer.runs.bounds import build_within
from linearizer.training.checkpoint import read_config, read_tensors, tensors_of, write_weights

LOAD = """
import resource, sys
import linearizer as lz
lz.load("mnist-attributes")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    lz.load(sys.argv[1])
except ValueError as problem:
    print(problem)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""

HOSTILE = [
    ("mnist-attributes", {"output_blocks": 10**9}),
    ("mnist-attributes", {"hidden": 30_000}),
    ("mnist-attributes", {"shape": [1, 30_000, 28]}),
    ("mnist-flow", {"flow_hidden": 10**30}),
    ("duffing", {"blocks": 10**9}),
    ("styles", {"shape": [3, 10**6, 128]}),
]


@pytest.mark.skipif(sys.platform == "win32", reason="needs the module resource")
@pytest.mark.parametrize(("name", "change"), HOSTILE)
def test_a_model_larger_than_its_weights_is_not_built(tmp_path, name, change):
    folder = lz.save(lz.load(name), tmp_path / "run")
    config = read_config(folder)
    config["model"] |= change
    tensors, _ = read_tensors(folder / "weights.safetensors")
    write_weights(folder, tensors, config)
    (folder / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, folder], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    message, grown = done.stdout.splitlines()
    assert "larger model than its weights fill" in message and int(grown) < 400, done.stdout


@pytest.mark.parametrize("name", describe_apps())
def test_every_application_builds_within_its_weights(name):
    app = find_app(name)
    config = app.Config()
    torch.manual_seed(0)
    wanted = tensors_of(app.make(config))
    torch.manual_seed(0)
    found = tensors_of(build_within(lambda: app.make(config), wanted, "here"))
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_an_error_in_building_is_a_sentence():
    with pytest.raises(ValueError, match=r"here: no model can be built .*: division by zero\."):
        build_within(lambda: 1 / 0, {}, "here")
