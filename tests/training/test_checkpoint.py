"""Files are whole or not there, hold no code, and say what is wrong with them."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import linearizer as lz
from conftest import PATIENCE
from linearizer.apps.attributes.model import Attributes, Config
from linearizer.bijections import mlp
from linearizer.operators import Dense
from linearizer.runs.store import open_run
from linearizer.training import checkpoint
from linearizer.training.checkpoint import (
    best_measures,
    read_metrics,
    read_tensors,
    tensors_of,
    write_tensors,
)


def small():
    return Attributes(Config(shape=(1, 4, 4), names=("a", "b"), blocks=1, hidden=8))


@pytest.fixture
def run(tmp_path):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    return lz.save(small(), tmp_path / "run")


def test_a_model_comes_back_from_its_settings_and_weights(run):
    torch.manual_seed(1)
    model, again = small(), lz.load(run)
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(model()(x), again()(x)) and not again.training
    assert again.config == model.config
    assert {p.name for p in run.iterdir()} == {"config.json", "weights.safetensors"}
    assert json.loads((run / "config.json").read_text())["app"] == "attributes"
    assert torch.equal(lz.load(run / "config.json")()(x), model()(x))


def test_a_space_used_twice_is_stored_once(tmp_path):
    def build():
        X = lz.Space(mlp(4, blocks=1))
        return lz.Linearizer(X, Dense(nn.Parameter(torch.randn(4, 4))), X)

    f = build()
    lz.save(f, tmp_path / "f")
    tensors, _ = read_tensors(tmp_path / "f" / "weights.safetensors")
    assert not any(name.startswith("target") for name in tensors)
    assert len(tensors) * 2 - 1 == len(f.state_dict())
    h = lz.load(tmp_path / "f", into=build())
    x = torch.randn(5, 4)
    assert torch.equal(f(x), h(x)) and h.source is h.target
    h = lz.load(tmp_path / "f")
    assert torch.equal(f(x), h(x)) and h.source is h.target
    lz.save(f, tmp_path / "f", weights_only=True)
    assert torch.equal(f(x), lz.load(tmp_path / "f", into=build())(x))
    with pytest.raises(ValueError, match=r"saved without its parts.*load\(run, into=model\)"):
        lz.load(tmp_path / "f")


def test_what_needs_an_app_says_so(tmp_path):
    from linearizer.runs.hub import HubModel

    lz.save(Dense(torch.eye(2)), tmp_path / "A")
    for use in (open_run, HubModel.from_run):
        with pytest.raises(ValueError, match=r"a model of an app, .* put together by hand\."):
            use(tmp_path / "A")


def test_every_flipped_bit_is_found(run):
    path = run / "weights.safetensors"
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(whole) * 8, (40,), generator=generator).tolist()
    for bit in [0, 3, 62, 64, 80, *places]:
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"weights\.safetensors: ") as error:
            lz.load(run)
        assert "\n" not in str(error.value)
    path.write_bytes(whole)
    lz.load(run)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 0.5, 0.999])
def test_a_truncated_file_is_named(run, keep):
    path = run / "weights.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(ValueError, match=r"weights\.safetensors: .*(cut off|empty|not one)"):
        lz.load(run)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was opened')",))


@pytest.mark.parametrize("kind", ["torch.save", "pickle", "zip", "text", "safetensors", "folder"])
def test_a_foreign_file_is_refused_and_never_run(run, kind):
    path = run / "weights.safetensors"
    path.unlink()
    if kind == "torch.save":
        torch.save({"w": torch.zeros(3), "evil": Evil()}, path)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x", "y")
    elif kind == "text":
        path.write_text("<html>404 Not Found</html>" * 20)
    elif kind == "safetensors":
        save_file({"w": torch.zeros(3)}, path)
    else:
        path.mkdir()
    wanted = {
        "torch.save": "pickle or a zip", "pickle": "pickle or a zip", "zip": "pickle or a zip",
        "text": "not one", "safetensors": "not one that linearizer wrote", "folder": "a folder",
    }[kind]  # fmt: skip
    with pytest.raises(ValueError, match=wanted):
        lz.load(run)


def test_a_newer_format_asks_for_an_upgrade(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 7)
    newer = lz.save(small(), run.parent / "newer")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"config\.json: written in format 7.*Upgrade"):
        lz.load(newer)
    config = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps({**config, "format": 1}))
    with pytest.raises(ValueError, match=r"weights\.safetensors: written in format 7.*Upgrade"):
        lz.load(newer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: "{", r"config\.json: expected JSON"),
        (lambda c: "[]", "another JSON file"),
        (lambda c: json.dumps({"model_type": "bert"}), "another JSON file"),
        (lambda c: json.dumps({**c, "app": "atributes"}), "Did you mean attributes"),
        (lambda c: json.dumps({**c, "model": {**c["model"], "bloks": 2}}), "Did you mean blocks"),
        (lambda c: json.dumps({**c, "model": {**c["model"], "blocks": 0}}), "blocks should be"),
        (lambda c: json.dumps({**c, "model": {**c["model"], "blocks": 3}}), "belong together"),
        (lambda c: json.dumps({**c, "model": {**c["model"], "noise": 0.1}}), "belong together"),
    ],
)
def test_a_changed_configuration_is_found(run, change, message):
    path = run / "config.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=message):
        lz.load(run)


EDITS = [("app", 5), ("app", []), ("model", 5), ("model", "x"), ("model", [1]), ("data", 5),
         ("training", 5), ("metric", "x"), ("plain", "x"), ("parts", "x"), ("format", "1"),
         ("format", None)]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), EDITS)
def test_an_edited_configuration_is_a_sentence(run, key, value):
    from linearizer.runs.listing import list_runs

    path = run / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=r"config\.json: expected"):
        lz.load(run)
    (row,) = list_runs(run.parent)
    assert "config.json: expected" in row.problem


def test_a_stranger_nests_without_end(run):
    from linearizer.runs.listing import list_runs

    (run / "metrics.jsonl").write_text(
        "[" * 100_000 + '\n{"step": 3, "validation": 5}\n{"step": 4, "seconds": "x"}\n{"step": 5}\n'
    )
    assert [r["step"] for r in read_metrics(run / "metrics.jsonl")] == [5]
    for text in ("[]", '"x"', "5", "null", '{"format": "x"}', "[" * 100_000):
        save_file({"a": torch.zeros(1)}, run / "weights.safetensors", {"linearizer": text})
        with pytest.raises(ValueError, match="not one that linearizer wrote"):
            read_tensors(run / "weights.safetensors")
    (run / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="expected JSON"):
        lz.load(run)
    assert "expected JSON" in list_runs(run.parent)[0].problem


def test_awkward_tensors_are_stored(tmp_path):
    base = torch.randn(4, 3)
    tensors = {"view": base[1:], "base": base, "turned": base.mT, "none": torch.empty(0, 2),
               "one": torch.tensor(3.0), "flag": torch.tensor(True),
               "half": torch.ones(2, dtype=torch.bfloat16)}  # fmt: skip
    write_tensors(tmp_path / "x.safetensors", tensors, {"a": 1})
    read, about = read_tensors(tmp_path / "x.safetensors")
    assert about["a"] == 1 and all(torch.equal(read[k], tensors[k]) for k in tensors)
    mode = (tmp_path / "x.safetensors").stat().st_mode & 0o777
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert mode == plain.stat().st_mode & 0o777  # as readable as any other file


def test_with_patience_the_best_validation_counts():
    config = {"metric": {"name": "a", "maximize": True}, "training": {"patience": 2}}
    rows = [{"step": i, "validation": {"a": a}} for i, a in enumerate((0.1, 0.5, 0.2, None))]
    assert best_measures(config, rows) == {"a": 0.5}
    assert best_measures({**config, "training": {}}, rows[:3]) == {"a": 0.2}
    assert best_measures(config, []) == {}


def test_missing_things_are_named(run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Did you mean .*run\?"):
        lz.load(tmp_path / "runn")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        lz.load(tmp_path)
    (run / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no weights\.safetensors yet"):
        lz.load(run)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        lz.save(small(), file)
    assert file.read_text() == "mine"


def test_weights_of_another_model_are_refused(run):
    other = Attributes(Config(shape=(1, 4, 4), names=("a", "b"), blocks=2, hidden=8))
    with pytest.raises(ValueError, match="of another model than this one: the file lacks"):
        lz.load(run, into=other)
    wide = Attributes(Config(shape=(1, 4, 4), names=("a", "b"), blocks=1, hidden=9))
    with pytest.raises(ValueError, match=r"has shape \(.*\), expected"):
        lz.load(run, into=wide)


def test_a_failed_write_leaves_the_old_file(run, monkeypatch):
    before = (run / "weights.safetensors").read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save", full)
    with pytest.raises(OSError, match="No space"):
        lz.save(small(), run)
    assert (run / "weights.safetensors").read_bytes() == before
    assert not list(run.glob(".*"))


def test_shipped_models_load():
    for name in lz.models():
        assert lz.load(name) is not None


# -- strangers, full disks and devices -----------------------------------------------------


def test_a_file_may_be_cut_while_its_tensors_are_used(run):
    code = (
        "import os, sys; from linearizer.training.checkpoint import read_tensors; "
        "tensors, _ = read_tensors(__import__('pathlib').Path(sys.argv[1])); "
        "os.truncate(sys.argv[1], 0); "
        "print(all(bool(t.isfinite().all()) for t in tensors.values()))"
    )
    write_tensors(run / "weights.safetensors", {"a": torch.zeros(2**20)}, {})
    done = subprocess.run(
        [sys.executable, "-c", code, run / "weights.safetensors"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and links")
@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "device"])
def test_nothing_but_a_file_is_replaced(tmp_path, kind):
    from linearizer.apps.images import make_parent
    from linearizer.runs.export import _check_request
    from linearizer.runs.pictures import image_grid

    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "mine")
    else:
        path = Path("/dev/null")
    writers = (
        lambda: write_tensors(path, {"a": torch.zeros(2)}, {}),
        lambda: image_grid(path, [torch.rand(1, 1, 4, 4)]),
        lambda: make_parent(path),
        lambda: _check_request(None, path, "onnx", None, 1e-4),
    )
    before = path.lstat().st_mode
    for write in writers:
        with pytest.raises(ValueError, match=f"expected a file (to write|name), but .* a {kind}"):
            write()
    assert path.lstat().st_mode == before and not (tmp_path / "mine").exists()


def test_a_full_disk_names_the_file_and_the_checkpoint_kept(run, monkeypatch):
    (run / "state").mkdir()
    (run / "state" / "latest.safetensors").touch()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    wanted = r"weights\.safetensors: cannot be written .*checkpoint .*latest\.safetensors is kept"
    with pytest.raises(OSError, match=wanted):
        checkpoint.write_weights(run, {}, {"app": None, "model": None})
    metrics = run / "metrics.jsonl"
    wanted = r"metrics\.jsonl: cannot be written \(No space.*latest\.safetensors is kept"
    with pytest.raises(OSError, match=wanted), checkpoint.name_full_disk(metrics):
        full()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_unless_asked_for(run, value):
    tensors, about = read_tensors(run / "weights.safetensors")
    name = next(n for n, t in tensors.items() if t.is_floating_point())
    tensors[name].view(-1)[0] = value
    write_tensors(run / "weights.safetensors", tensors, about)
    with pytest.raises(ValueError, match=f"expected finite weights, but {name} has"):
        lz.load(run)
    assert not tensors_of(lz.load(run, check=False))[name].isfinite().all()


def header(facts, data=b""):
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    return len(text).to_bytes(8, "little") + text + data


def table(metadata='{"format": 1}', **entry):
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}
    return {"__metadata__": {"linearizer": metadata}, "a": whole}


MALFORMED = [
    b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"{}", header(b"{"), header(b"[]"), header(b"5"),
    header(b"\xff\xfe"), header(b"[" * 10**6), header({}), header({"__metadata__": []}),
    header({"__metadata__": {"linearizer": 5}}), header(table(metadata='{"format": NaN}')),
    header(table(metadata='{"format": true}')), header(table(metadata="[" * 10**6)),
    header(table(), bytes(7)), header(table(), bytes(9)), header(table(dtype="F31"), bytes(8)),
    header(table(dtype=5), bytes(8)), header(table(dtype="F64"), bytes(8)),
    header(table(shape=[-2]), bytes(8)), header(table(shape=[-1, -2]), bytes(8)),
    header(table(shape=2), bytes(8)), header(table(shape=[2.0]), bytes(8)),
    header(table(shape=[True, 2]), bytes(8)), header(table(shape=None), bytes(8)),
    header(table(shape=[2**62, 2**62, 0], data_offsets=[0, 0])),
    header(table(shape=[2**62], data_offsets=[0, 2**64])),
    header(table(data_offsets=[8, 0]), bytes(8)), header(table(data_offsets=[4, 12]), bytes(12)),
    header(table(data_offsets="x"), bytes(8)), header(table(data_offsets=[0]), bytes(8)),
    header({**table(), "b": 5}, bytes(8)), header({**table(), "b": table()["a"]}, bytes(8)),
    header(table(shape=[10**400]), bytes(8)),
]  # fmt: skip


@pytest.mark.parametrize("content", MALFORMED)
def test_malformed_weights_are_a_sentence(run, content):
    (run / "weights.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"weights\.safetensors: ") as error:
        lz.load(run)
    assert type(error.value) is ValueError and len(str(error.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 10**6, '{"a":' * 10**6, "\x00", "\ufeff{}", " " * (2**24 + 1) + "{}",
     '{"format": NaN}', '{"format": true}', '{"format": 1, "model": ' + "[" * 500 + "]" * 500 + "}",
     '{"format": ' + "1" * 5000 + "}"],
)  # fmt: skip
def test_malformed_configurations_are_a_sentence(run, text):
    (run / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json: expected") as error:
        lz.load(run)
    assert type(error.value) is ValueError and len(str(error.value)) < 500


TOP = ("app", "model", "data", "training", "origin", "parts", "format")
WRONG = [-1, 1.5, True, "\ud800", [[]], {"a": {}}, float("nan"), 10**400]


def test_wrong_values_anywhere_in_a_configuration_are_a_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # slow, and nothing here is to last
    parts = lz.save(lz.Space(mlp(2, blocks=1)), tmp_path / "parts")
    for folder in (run, parts):
        whole = json.loads((folder / "config.json").read_text())
        tensors, _ = read_tensors(folder / "weights.safetensors")
        places = [
            (key,) for key in ["app", "model", "data", "training", "origin", "parts", "format"]
        ]
        places += [("model", key) for key in whole["model"] or {}]
        for number, part in enumerate(whole.get("parts") or []):
            places += [("parts", number), *(("parts", number, key) for key in part)]
            for key in ("values", "buffers", "parameters", "parts"):
                places += [("parts", number, key, name) for name in part.get(key, {})]
        for place in places:
            for wrong in WRONG:
                config = json.loads(json.dumps(whole))
                inner = config
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = wrong
                (folder / "config.json").write_text(json.dumps(config))
                checkpoint.write_weights(folder, tensors, {"app": None, "model": None, **config})
                with contextlib.suppress(ValueError, FileNotFoundError):
                    lz.load(folder)
