"""Which applications are known, and what a run folder may do."""

import json
import pickle
import sys
import types

import pytest
import torch

import linearizer as lz
from linearizer.apps import registry
from linearizer.apps.base import App
from linearizer.apps.registry import (
    BUILT_IN,
    app_of,
    describe_apps,
    find_app,
    foreign_apps,
    register,
)
from linearizer.runs.store import open_run


class Point:
    """An installed entry point."""

    dist = types.SimpleNamespace(name="their-package")
    module = "theirs"

    def __init__(self, name, value):
        self.name, self.value = name, value

    def load(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages with these entry points are installed."""
    points = {}
    monkeypatch.setattr(registry, "_installed", lambda: points)
    monkeypatch.setattr(registry, "_registered", {})
    return points


def like(name):
    flow = find_app("flow")
    return App(**{**{f: getattr(flow, f) for f in flow.__dataclass_fields__}, "name": name})


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_application_has_the_same_parts(name):
    app = find_app(name)
    assert app.name == name and app.summary == BUILT_IN[name]
    assert app.evaluate is not None and app.page is not None and app.commands is not None
    assert set(app.decided) <= set(app.Config.model_fields)
    assert (app.metric and "f(x)" in app.formula) or "x(t)" in app.formula


def test_an_installed_application_is_found_by_its_name(installed):
    installed["theirs"] = Point("theirs", like("theirs"))
    assert describe_apps()["theirs"] == "from the package their-package"
    assert find_app("theirs").name == "theirs"
    assert [a.name for a in foreign_apps(print)] == ["theirs"]


def test_one_that_cannot_be_imported_is_told_of_and_left_out(installed):
    installed["broken"] = Point("broken", ImportError("no such thing"))
    said = []
    assert foreign_apps(said.append) == []
    assert "'broken' of the package their-package cannot be used: no such thing" in said[0]


def test_its_entry_point_has_its_name(installed):
    installed["painter"] = Point("painter", like("inpaint"))
    with pytest.raises(ValueError, match=r"their-package: its entry point is called 'painter'"):
        find_app("painter")


@pytest.mark.parametrize("name", ["In Paint", "../x", "", "9"])
def test_names_are_plain(installed, name):
    with pytest.raises(ValueError, match="expected a name of small letters"):
        register(like(name))


def test_a_name_of_ours_is_refused(installed):
    for name in ("flow", "disentangle"):
        with pytest.raises(ValueError, match="an application of linearizer itself"):
            register(like(name))


def test_a_run_folder_imports_nothing(installed, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    config = {"format": 1, "app": "evil", "origin": f"--app {tmp_path}/evil.py:APP", "model": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "weights.safetensors").write_bytes(b"")
    before = set(sys.modules)
    with pytest.raises(
        ValueError, match=r"its application 'evil' is not known here\. It was trained"
    ):
        open_run(tmp_path)
    assert not [name for name in set(sys.modules) - before if "evil" in name]


def test_models_of_an_application_are_pickled_and_copied():
    model = lz.load("pendulum")
    again = pickle.loads(pickle.dumps(model))
    assert app_of(again) is app_of(model) is find_app("dynamics")
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_a_folder_under_a_former_name_loads_and_saves(tmp_path):
    from linearizer.apps.distill.model import Config, Student

    lz.save(Student(Config(shape=(4,), outputs=2, blocks=1, hidden=8)).float(), tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"distill"', '"disentangle"'))
    assert type(lz.load(tmp_path / "run")) is Student
    assert open_run(tmp_path / "run").app is find_app("distill")
