r"""Plans: an application, its data and its settings, resolved before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from .. import data
from ..apps.base import App
from ..apps.registry import current_name, find_app
from ..data.kinds import Data, DataSettings
from ..data.teachers import ENCODERS
from ..training.checkpoint import CONFIG, METRICS, WEIGHTS, read_about, read_config, recover_config
from ..training.loop import STATE, Training
from ..training.settings import Settings, did_you_mean, read_toml, resolve
from .store import find

__all__ = [
    "Plan",
    "adapt",
    "check_folder",
    "go_on",
    "make_plan",
    "plan_of",
    "require_same",
    "settle",
]

SECTIONS = ("data", "model", "training")


class Plan(NamedTuple):
    """A resolved configuration: all that a run depends on."""

    app: App[Any, Any, Any]
    data: DataSettings
    model: dict[str, Any]  #: what was asked for; the data add their facts
    training: Training
    asked: frozenset[str] = frozenset()  #: training settings that were asked for


def make_plan(
    app_name: str,
    *,
    file: Path | None = None,
    preset: str | None = None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Defaults → preset → TOML file → flags, section by section."""
    app = find_app(app_name)
    named: Mapping[str, Mapping[str, Any]] = {}
    if preset is not None:
        if preset not in app.presets:
            raise ValueError(
                f"{app_name}: there is no preset {preset!r}. {did_you_mean(preset, app.presets)}"
            )
        named = app.presets[preset]
    tables = _tables(file, app_name) if file is not None else {}
    where = str(file) if file is not None else app_name
    chosen = dict((flags or {}).get("data", {}))
    for key in app.kind.paths & chosen.keys():
        chosen[key] = _absolute(chosen[key])
    flags = {**(flags or {}), "data": chosen}
    layers = {s: [named.get(s, {}), tables.get(s, {}), flags.get(s, {})] for s in SECTIONS}
    # Each layer is checked by itself first, so that an error names where it came from.
    model = {k: v for layer in layers["model"] for k, v in layer.items()}
    config = resolve(app.Config, f"{where} [model]", model)
    training = resolve(Training, f"{where} [training]", app.training, *layers["training"])
    if "steps" in layers["training"][-1]:  # further stages become longer or shorter by as much
        usual = resolve(Training, where, app.training, *layers["training"][:-1]).steps
        for name in app.stage_steps:
            if name not in layers["model"][-1] and (steps := getattr(config, name)):
                model[name] = max(1, round(steps * training.steps / usual))
    return Plan(
        app,
        resolve(app.kind.Settings, f"{where} [data]", {"name": app.data}, *layers["data"]),
        model,
        training,
        frozenset(key for layer in layers["training"] for key in layer),
    )


def _absolute(name: str) -> str:
    """A path as it is from any folder, also with :NAME or #NAME behind it; other names stay."""
    if not name or name in data.NAMES or name in ENCODERS:
        return name
    for mark in ("", ":", "#"):
        path, found, rest = name.rpartition(mark) if mark else ("", "", name)
        path, rest = (path, found + rest) if mark else (name, "")
        if path and Path(path).exists():
            return str(Path(path).absolute()) + rest
    return name


def _tables(file: Path, app_name: str) -> dict[str, dict[str, Any]]:
    tables = read_toml(file)
    if (named := tables.pop("app", app_name)) != app_name:
        raise ValueError(f"{file}: it is for the app {named!r}, not for {app_name!r}.")
    for name, table in tables.items():
        if name not in SECTIONS:
            raise ValueError(f"{file}: there is no table [{name}]. {did_you_mean(name, SECTIONS)}")
        if not isinstance(table, dict):
            raise ValueError(f"{file}: expected [{name}] as a table, got {table!r}.")
    return tables


def plan_of(run: Path, training: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a run that was begun, with changes of its training."""
    recover_config(run)
    if run.is_dir() and not (run / CONFIG).exists() and (run / STATE.parent).is_dir():
        raise ValueError(
            f"{run}: the run was stopped before its {CONFIG} was written. Give its command of "
            "training again, with --resume."
        )
    config = read_config(find(run))
    if config["app"] is None or not isinstance(config.get("training"), dict):
        raise ValueError(f"{run}: the folder holds a model, but not a training run to resume.")
    where = str(run / CONFIG)
    events = {} if find_spec("tensorboard") else {"tensorboard": False}  # it may be gone since
    app = find_app(config["app"], str(run), str(config.get("origin") or ""))
    return Plan(
        app,
        resolve(app.kind.Settings, f"{where} [data]", config.get("data") or {}),
        dict(config["model"] or {}),
        resolve(Training, f"{where} [training]", config["training"], events, training or {}),
        frozenset(Training.model_fields),
    )


def adapt(plan: Plan, source: Data) -> tuple[Plan, str]:
    """Return the plan with settings that suit the amount of data, and a sentence about them."""
    if plan.app.adapt is None:
        return plan, ""
    found = plan.app.adapt(source)
    model = {k: v for k, v in found.get("model", {}).items() if k not in plan.model}
    training = {k: v for k, v in found.get("training", {}).items() if k not in plan.asked}
    if not model and not training:
        return plan, ""
    said = ", ".join(f"{k} = {v}" for k, v in {**model, **training}.items())
    return plan._replace(
        model={**plan.model, **model}, training=plan.training.model_copy(update=training)
    ), f"{len(source.train):,} samples are few: {said}, unless you set it"


def settle(plan: Plan, source: Data) -> Settings:
    """The settings of the model, with those that the data decide."""
    app = plan.app
    facts = app.facts(source)
    for key in facts.keys() & plan.model.keys():
        # Through the schema and as JSON, where lists and tuples are one.
        asked, found = (
            resolve(app.Config, f"{app.name} [model]", {**plan.model, key: v}).model_dump(
                mode="json"
            )
            for v in (plan.model[key], facts[key])
        )
        if asked != found:
            raise ValueError(
                f"{app.name}: {key} is {plan.model[key]!r} in the settings, but {source.name} has "
                f"{facts[key]!r}. Leave it out, or name other data."
            )
    return resolve(app.Config, f"{app.name} [model]", {**plan.model, **facts})


def check_folder(run: Path, resume: bool) -> None:
    """Refuse a folder that a new run would damage."""
    if run.exists() and not run.is_dir():
        raise ValueError(f"train: expected a folder for the run, but {run} is a file.")
    if not run.is_dir():
        return
    if not resume and ((run / STATE).exists() or (run / CONFIG).exists()):
        raise ValueError(
            f"{run}: the folder holds a run already. Add --resume to go on with it, or --out for "
            "another folder."
        )
    # What a kill leaves of the first write is no one's file.
    left = tuple(f".{name}." for name in (CONFIG, WEIGHTS, METRICS))
    names = (p.name for p in run.iterdir() if p.name != STATE.parent.name)
    others = sorted(n for n in names if not (n.startswith(left) and n.endswith(".part")))
    if others and not (run / CONFIG).exists():
        raise ValueError(
            f"{run}: the folder is not empty and holds no run ({', '.join(others[:3])} …). "
            "Choose a new folder with --out."
        )


def require_same(run: Path, settings: Mapping[str, Any]) -> None:
    """A run may go on with other training settings, not as another model or on other data."""
    before = read_config(run)
    before["app"] = current_name(before["app"])
    app = find_app(settings["app"]) if before.get("app") == settings["app"] else None
    for section in ("data", "model"):
        if app is not None and isinstance(before.get(section), dict):
            kind = app.Config if section == "model" else app.kind.Settings
            with suppress(ValueError):  # settings that are newer than the run have their defaults
                saved = resolve(kind, str(run), before[section])
                before[section] = saved.model_dump(mode="json")
    for section in ("app", "data", "model"):
        if before.get(section) == settings[section]:
            continue
        what = section
        if isinstance(before.get(section), dict) and isinstance(settings[section], dict):
            old, new = before[section], settings[section]
            key = next(k for k in {**old, **new} if old.get(k) != new.get(k))
            what = f"{section}.{key} ({old.get(key)!r} before, {new.get(key)!r} now)"
        raise ValueError(
            f"{run}: cannot resume, since {what} differs from the run's {CONFIG}. Leave it as it "
            "was, or train into another folder."
        )


def go_on(run: Path, settings: Mapping[str, Any], training: Training) -> dict[str, Any]:
    """Refuse what contradicts a run's past; return the history of its changes, if it has one."""
    require_same(run, settings)
    config = read_config(run)
    step = read_about(run / STATE).get("step", 0) if (run / STATE).exists() else 0
    if training.steps < step:
        raise ValueError(
            f"{run}: cannot stop at step {training.steps}, since the run has reached step {step}. "
            "Name at least as many steps, or leave them out."
        )
    history = list(config.get("history") or [])
    before, now = config["training"] or {}, training.model_dump(mode="json")
    changes = {k: [before[k], v] for k, v in now.items() if k in before and before[k] != v}
    history += [{"step": step, "changes": changes}] if changes else []
    return {"history": history} if history else {}
