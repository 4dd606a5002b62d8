r"""Runs: an application, its data and its settings joined into one training, and found again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import apps, data
from .apps.base import App, Refinement
from .certificate import Certificate, certify
from .checkpoint import (
    CONFIG,
    atomic,
    fill,
    find,
    is_shipped,
    load,
    read_config,
    read_tensors,
    tensors_of,
    write_tensors,
    write_weights,
)
from .linearizer import Linearizer
from .networks import runs_code
from .pictures import spectrum
from .progress import Transfer
from .settings import did_you_mean, read_toml, resolve
from .sources import GIVEN, SOURCES, DataSettings, DistilledSettings, distilled_parts
from .teachers import ENCODERS
from .training import STATE, Interrupted, Result, Training, fit

__all__ = ["Opened", "Plan", "certified", "drawn_points", "execute", "exported", "opened", "plan",
           "planned", "points", "run_data", "spectrum_of"]  # fmt: skip

SECTIONS = ("data", "model", "training")


class Plan(NamedTuple):
    """A resolved configuration: all that a run depends on."""

    app: App
    data: DataSettings
    model: dict[str, Any]  #: what was asked for; the data add their facts
    training: Training


def plan(
    app_name: str,
    *,
    file: Path | None = None,
    preset: str | None = None,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Defaults → preset → TOML file → flags, section by section."""
    app = apps.get(app_name)
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
    for key in SOURCES[app.source].paths & chosen.keys():
        chosen[key] = _absolute(chosen[key])
    flags = {**(flags or {}), "data": chosen}
    layers = {s: [named.get(s, {}), tables.get(s, {}), flags.get(s, {})] for s in SECTIONS}
    # Each layer is checked by itself first, so that an error names where it came from.
    model = {k: v for layer in layers["model"] for k, v in layer.items()}
    resolve(app.Config, f"{where} [model]", model)
    return Plan(
        app,
        resolve(
            SOURCES[app.source].Settings, f"{where} [data]", {"name": app.data}, *layers["data"]
        ),
        model,
        resolve(Training, f"{where} [training]", app.training, *layers["training"]),
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


def planned(run: Path, training: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a run that was begun, with changes of its training."""
    config = read_config(find(run))
    if config["app"] is None or not isinstance(config.get("training"), dict):
        raise ValueError(f"{run}: the folder holds a model, but not a training run to resume.")
    where = str(run / CONFIG)
    app = apps.get(config["app"])
    return Plan(
        app,
        resolve(SOURCES[app.source].Settings, f"{where} [data]", config.get("data") or {}),
        dict(config["model"] or {}),
        resolve(Training, f"{where} [training]", config["training"], training or {}),
    )


def execute(
    plan: Plan,
    run: Path,
    *,
    root: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Any = lambda text: None,
    source: data.Data | None = None,
) -> Result:
    """Load the data (or take ``source`` for them), build the model, train it into the folder."""
    if run.exists() and not run.is_dir():
        raise ValueError(f"train: expected a folder for the run, but {run} is a file.")
    if run.is_dir() and not resume and ((run / STATE).exists() or (run / CONFIG).exists()):
        raise ValueError(
            f"{run}: the folder holds a run already. Add --resume to go on with it, or --out for "
            "another folder."
        )
    if run.is_dir() and not (run / CONFIG).exists():
        others = sorted(p.name for p in run.iterdir() if p.name != STATE.parent.name)
        if others:
            raise ValueError(
                f"{run}: the folder is not empty and holds no run ({', '.join(others[:3])} …). "
                "Choose a new folder with --out."
            )
    app = plan.app
    if source is None:
        with Transfer("images") if progress else nullcontext() as transfer:
            seen = transfer.update if transfer is not None else None
            source = SOURCES[app.source].load(plan.data, root, seen)
    for note in source.notes:
        say(note)
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
    config = resolve(app.Config, f"{app.name} [model]", {**plan.model, **facts})
    settings = {
        "app": app.name,
        "metric": {"name": app.metric, "maximize": app.maximize},
        "data": plan.data.model_dump(mode="json"),
        "model": config.model_dump(mode="json"),
        "training": plan.training.model_dump(mode="json"),
    }
    if resume and (run / CONFIG).exists():
        _same(run, settings)

    def preview(model: Any, path: Path) -> None:
        assert app.preview is not None
        app.preview(model, source, path)

    torch.manual_seed(plan.training.seed)
    model = app.model(config)
    if app.start is not None and not (run / STATE).exists():
        app.start(model, source)
    result = fit(
        model,
        app.loss,
        source.train,
        plan.training,
        run,
        validation=source.val,
        measure=app.measure,
        metric=app.metric,
        maximize=app.maximize,
        settings=settings,
        resume=resume,
        preview=preview if app.preview is not None else None,
        progress=progress,
    )
    if (app.refine is None and app.finish is None) or os.environ.get("RANK", "0") != "0":
        return result
    with _alone():
        model = load(run)
        if app.refine is not None:
            _after_first_stage(model, run, result.step)
            if (second := app.refine(model, source)) is not None:
                say(f"second stage: {second.training.get('steps', plan.training.steps):,} steps")
                result = _refine(second, run, plan.training, result, progress)
                model.cpu()
        if app.finish is not None:
            app.finish(model, source)
    write_weights(run, tensors_of(model), settings)
    if app.preview is not None and plan.training.validate_every:
        app.preview(model, source, run / "samples" / f"step-{plan.training.steps:06d}.png")
    return result


@contextmanager
def _alone() -> Iterator[None]:
    """One process, although others were started beside it: a second stage is small."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def _after_first_stage(model: Any, run: Path, step: int) -> None:
    """Keep the weights that the second stage starts from, or go back to them."""
    start = run / "state" / "refine" / "start.safetensors"
    if start.exists():
        tensors, about = read_tensors(start)
        if about.get("step") == step:
            fill(model, tensors, str(start))
            return
    shutil.rmtree(start.parent, ignore_errors=True)
    start.parent.mkdir(parents=True)
    write_tensors(start, tensors_of(model), {"step": step})


def _refine(
    second: Refinement, run: Path, training: Training, first: Result, progress: bool
) -> Result:
    """The second stage, in a folder of its own."""
    changes = {"validate_every": 0, "patience": 0, **second.training}
    try:
        done = fit(
            second.part,
            second.loss,
            second.source,
            resolve(Training, f"{run} [refine]", training.model_dump(), changes),
            run / "state" / "refine",
            resume=True,
            progress=progress,
        )
    except Interrupted as stop:
        # The first stage is done; resuming finds it so, and goes on here.
        raise Interrupted(first._replace(stopped="interrupted"), stop.signal_number) from None
    losses = {**first.losses, **{f"refined {k}": v for k, v in done.losses.items()}}
    return first._replace(seconds=first.seconds + done.seconds, losses=losses)


def _same(run: Path, settings: Mapping[str, Any]) -> None:
    """A run may go on with other training settings, not as another model or on other data."""
    before = read_config(run)
    if before.get("app") == settings["app"] and isinstance(before.get("model"), dict):
        with suppress(ValueError):  # settings that are newer than the run have their defaults
            saved = resolve(apps.get(settings["app"]).Config, str(run), before["model"])
            before["model"] = saved.model_dump(mode="json")
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


class Opened(NamedTuple):
    """A trained run, ready for algebra."""

    folder: Path
    config: dict[str, Any]
    app: App
    model: Any


def opened(run: str | Path) -> Opened:
    """The model of a run or of a shipped name, with its app."""
    folder = find(run)
    config, model = read_config(folder), load(folder)
    if config["app"] is None:
        raise ValueError(
            f"{run}: expected a model of an app, got one that was put together by hand. Open it in "
            "Python: lz.load(run)."
        )
    return Opened(folder, config, apps.get(config["app"]), model)


def run_data(run: Opened, root: Path | None = None) -> data.Data:
    """The data that a run was trained on."""
    if not run.config.get("data"):
        raise ValueError(f"{run.folder}: its {CONFIG} does not say what it was trained on.")
    source = SOURCES[run.app.source]
    saved = resolve(source.Settings, str(run.folder / CONFIG), run.config.get("data") or {})
    if isinstance(saved, DistilledSettings) and runs_code(saved.teacher):
        raise ValueError(
            f"{run.folder}: it was distilled from {saved.teacher}, which is code, or was given in "
            "Python. A run folder does not start code: load the network yourself."
        )
    return source.load(saved, root, None)


def points(run: Opened, n: int, root: Path | None = None) -> torch.Tensor:
    """The first n test samples of the data that a run was trained on."""
    if run.app.source == "distilled":  # what the network gives for them is not asked for
        saved = resolve(DistilledSettings, str(run.folder / CONFIG), run.config.get("data") or {})
        if saved.name.startswith(GIVEN):
            raise ValueError(
                f"{run.folder}: its data were given in Python. Call f.certify(x) there, or "
                "export.export(f, …)."
            )
        test = distilled_parts(saved, root, None)[1][2]
    else:
        test = run_data(run, root).test
    x = test.batch(torch.arange(min(n, len(test)))).x
    return run.model.pad(x) if hasattr(run.model, "pad") else x


def certified(
    run: str | Path,
    n: int | None,
    dtype: str,
    tolerance: float | None,
    root: Path | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """The measured error of every law of a run's map, on n of its test samples.

    Without n they are 64, and 8 where a sample has more than 4,096 numbers.
    """
    one = opened(run)
    kind = getattr(torch, dtype)
    f = one.app.linearizer(one.model.to(kind))
    n = n or (64 if f.source.dim <= 4096 else 8)
    return certify(f, points(one, n, root).to(kind), None, tolerance, seen)


@torch.no_grad()
def drawn_points(f: Linearizer, n: int, seed: int = 0) -> torch.Tensor:
    r"""Points g⁻¹(z) of the source with normal z, (n, \*shape); laws hold at any point."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, f.source.dim, generator=generator, dtype=torch.float64)
    return f.source.points(z.to(f.operator.dtype))


def _beside(one: Opened, name: str) -> Path:
    """Where results go unless told: into the run; for a shipped model, where the user is."""
    shipped = is_shipped(one.folder)
    return Path(f"{one.folder.name}-{name}") if shipped else one.folder / name


def spectrum_of(run: str | Path, k: int, out: Path | None = None) -> dict[str, Any]:
    """Spectrum and pictures of a run's map, in RUN/spectrum unless told."""
    one = opened(run)
    folder = out or _beside(one, "spectrum")
    if one.app.spectrum is not None:
        result = one.app.spectrum(one.model, folder, k)
    else:
        names = getattr(one.model.config, "columns", ())
        result = spectrum(one.app.linearizer(one.model), folder, k, names=names)
    with atomic(folder / "spectrum.json") as part:
        part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return {**result, "files": [*result["files"], str(folder / "spectrum.json")]}


MAPS = {"f": lambda f: f, "pinv": lambda f: f.pinv(), "transpose": lambda f: f.T}
FORMATS = {"onnx": ".onnx", "torch-export": ".pt2", "hub": ""}


def exported(
    run: str | Path, to: str, form: str, out: Path | None = None, root: Path | None = None
) -> dict[str, Any]:
    """A run's map, its pseudo-inverse or its transpose as a file; or all of it for the hub."""
    for value, known, what in ((to, FORMATS, "format"), (form, MAPS, "map")):
        if value not in known:
            raise ValueError(f"export: there is no {what} {value!r}. {did_you_mean(value, known)}")
    if to == "hub" and form != "f":
        raise ValueError("export: hub takes the whole model, so --map does not go with it.")
    one = opened(run)
    if to == "hub":
        from .hub import HubModel

        folder = out or _beside(one, "hub")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"export: hub needs a new or empty folder, but {folder} is not.")
        HubModel.from_run(one.folder).save_pretrained(folder)
        return {"files": sorted(str(p) for p in folder.iterdir())}
    from .export import export

    f = one.app.linearizer(one.model)
    x = points(one, 8, root)
    path = out or _beside(one, f"{form}{FORMATS[to]}")
    with torch.no_grad():
        example = x if form == "f" else f(x)
    result = export(MAPS[form](f), path, to, example)._asdict()
    return {**result, "path": str(path), "files": [str(path)]}
