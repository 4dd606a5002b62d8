r"""Training: a plan is carried out into a run folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..apps.base import App, Say, Stage
from ..apps.registry import origin_of
from ..data.kinds import Data
from ..training.checkpoint import (
    CONFIG,
    METRICS,
    WEIGHTS,
    finite,
    read_config,
    tensors_of,
    write_config,
    write_weights,
)
from ..training.loop import STATE, Interrupted, Result, Training, fit
from ..training.progress import Display, Transfer
from ..training.settings import Settings, resolve
from .evaluate import average_measures
from .plan import Plan, adapt, check_folder, go_on, settle
from .store import load

__all__ = ["close", "execute"]

#: The weights that were trained, where a run ends with the plain method.
TRAINED = "trained.safetensors"
#: What ``write_config`` writes itself.
ABOUT = ("format", "linearizer")


def execute(
    plan: Plan,
    run: Path,
    *,
    root: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Say = lambda text: None,
    source: Data | None = None,
) -> Result:
    """Load the data (or take ``source`` for them), build the model, train it into the folder."""
    check_folder(run, resume)
    app = plan.app
    source = _load(plan, root, progress) if source is None else source
    plan, adapted = adapt(plan, source)
    for note in (*source.notes, *filter(None, [adapted])):
        say(note)
    config, training = settle(plan, source), plan.training
    if not app.tells_best(config):
        training = training.model_copy(update={"keep": "last"})
    settings = _describe(plan, config, training)
    if resume and (run / CONFIG).exists():
        settings |= go_on(run, settings, training)
        _restore_trained(run)
    torch.manual_seed(training.seed)
    model = app.make(config)
    if app.start is not None and not (run / STATE).exists():
        app.start(model, source)
    preview = None if app.preview is None else partial(_preview, app.preview, source)
    result = fit(
        model,
        app.loss,
        source.train,
        training,
        run,
        validation=source.val,
        measure=app.measure,
        metric=app.metric,
        maximize=app.maximize,
        settings=settings,
        resume=resume,
        preview=preview,
        progress=progress and _watch(app, config),
    )
    result = result._replace(model=model)
    if os.environ.get("RANK", "0") != "0":
        return result
    if not (app.stages or app.finish):
        return _compare(result, plan, source, run, settings, say)
    result = _train_further(model, plan, source, run, result, progress, say)
    write_weights(run, tensors_of(result.model), settings)
    if preview is not None and training.validate_every:
        (run / "samples").mkdir(exist_ok=True)
        preview(result.model, run / "samples" / f"step-{training.steps:06d}.png")
    return _compare(result, plan, source, run, settings, say)


def _restore_trained(run: Path) -> None:
    """Make the trained weights those of a run again, if it ended with the plain method."""
    config = read_config(run)
    if config.get("plain") is not None and os.environ.get("RANK", "0") == "0":
        if (run / TRAINED).exists():
            os.replace(run / TRAINED, run / WEIGHTS)
        write_config(run, {k: v for k, v in config.items() if k not in ("plain", *ABOUT)})


def _watch(app: App[Any, Any, Any], config: Any) -> Callable[[int, int], Display]:
    """Show the first stage, with the time to go of all of them."""
    after = sum(getattr(config, name) for name in app.stage_steps)
    label = f"stage 1 of {1 + len(app.stages)}" if after else "training"
    return partial(Display, label=label, after=after)


def _load(plan: Plan, root: Path | None, progress: bool) -> Data:
    with Transfer("images") if progress else nullcontext() as transfer:
        seen = transfer.update if transfer is not None else None
        return plan.app.kind.load(plan.data, root, seen)


def _describe(plan: Plan, config: Settings, training: Training) -> dict[str, Any]:
    """Return the whole resolved configuration, which config.json holds."""
    app = plan.app
    settings: dict[str, Any] = {
        "app": app.name,
        "metric": {"name": app.metric, "maximize": app.maximize},
        "data": plan.data.model_dump(mode="json"),
        "model": config.model_dump(mode="json"),
        "training": training.model_dump(mode="json"),
    }
    if origin := origin_of(app.name):
        settings["origin"] = origin
    return settings


def _compare(
    result: Result, plan: Plan, source: Data, run: Path, settings: dict[str, Any], say: Say
) -> Result:
    """Measure the plain linear yardstick, and keep it where training found no better.

    What is measured, and the whole time, are added to the metrics.
    """
    found = None
    if plan.app.yardstick is not None and result.metrics:
        try:
            found = plan.app.yardstick(result.model.eval(), source)
        except (ValueError, RuntimeError) as problem:  # the training is done, and is not lost
            say(f"no yardstick: {problem}")
    row: dict[str, Any] = {"step": result.step, "seconds": result.seconds}
    if found is not None:
        row["yardstick"] = {"name": found.name, **found.measures}
        if _is_better(plan.app, found.measures, result.metrics):
            try:
                result = _fall_back(result, plan, source, run, settings)
            except (ValueError, RuntimeError) as problem:
                say(f"{found.name} is better, but could not be made the model: {problem}")
    if result.plain:
        row |= {"validation": result.metrics, "plain": True}
    with open(run / METRICS, "a", encoding="utf-8") as file:
        file.write(json.dumps(finite(row), allow_nan=False) + "\n")
    return result._replace(yardstick=row.get("yardstick"))


def _is_better(app: App[Any, Any, Any], one: Mapping[str, float], other: Any) -> bool:
    sign, new, old = (
        1 if app.maximize else -1,
        one.get(app.metric, math.nan),
        other.get(app.metric, math.nan),
    )
    return math.isfinite(new) and (not math.isfinite(old) or sign * (new - old) > 0)


def _fall_back(
    result: Result, plan: Plan, source: Data, run: Path, settings: dict[str, Any]
) -> Result:
    """Make the plain linear method the model of the run, if it validates better as a model, too.

    The weights that were trained stay beside it, as ``trained.safetensors``.
    """
    app = plan.app
    model = None if app.plain is None else app.plain(result.model, source)
    if model is None:
        return result
    model.app_name = app.name
    measured = average_measures(app, model.eval(), source.val)
    if not _is_better(app, measured, result.metrics):
        return result
    write_weights(run, tensors_of(result.model), settings, TRAINED)
    settings = settings | {"plain": model.config.model_dump(mode="json")}
    write_config(run, settings)
    write_weights(run, tensors_of(model), settings)
    return result._replace(model=model, metrics=measured, best_step=None, plain=True)


def _train_further(
    model: Any, plan: Plan, source: Data, run: Path, result: Result, progress: bool, say: Say
) -> Result:
    """Train the further stages, and set what is known in closed form after training."""
    app, training = plan.app, plan.training
    with _alone():
        if training.strategy == "fsdp":  # this process may hold shards alone
            model = load(run)
        model.cpu()
        for number, make in enumerate(app.stages, 2):
            if (stage := make(model, source)) is not None:
                steps = stage.training.get("steps", training.steps)
                label = f"stage {number} of {1 + len(app.stages)}, {stage.name}"
                say(f"{label}: {steps:,} steps")
                # Named by the step, so that more steps of the first stage begin this one anew.
                folder = run / "state" / f"stage-{number}-after-{result.step}"
                result = _train_stage(stage, folder, training, result, progress and label)
        if app.finish is not None:
            app.finish(model.cpu(), source)
    return result._replace(model=model)


def close(result: Result, app: App[Any, Any, Any], steps: int) -> tuple[list[str], bool]:
    """Say how a run ended, and whether it has learned anything at all.

    It has not if its measure is no number, or a hundred times further off than the yardstick.
    """
    lines = []
    if result.best_step is not None:
        lines.append(f"validation was best at step {result.best_step:,} of {steps:,}, and is kept")
    value = result.metrics.get(app.metric)
    if value is None:
        return lines, True
    plain = (result.yardstick or {}).get(app.metric)
    good = math.isfinite(value) and abs(value) < 1e6
    if plain is not None and math.isfinite(plain):
        name, sign = (result.yardstick or {})["name"], 1 if app.maximize else -1
        said = f"{name}, the plain linear method, has {app.metric} {plain:.4g}"
        if result.plain:
            said += ": training found no better, so the run keeps it"
        elif sign * (value - plain) <= 0.01 * abs(plain):
            said += ": it is as good or better, so take it, or bring more data"
        lines.append(said)
        good &= app.maximize or value <= 100 * max(plain, 1e-6)
    if not good:
        lines.append(
            f"this run has learned nothing: {app.metric} {value:.4g}. Look at the data for jumps "
            "and units, and lower the rate"
        )
    return lines, good


def _preview(draw: Any, source: Data, model: Any, path: Path) -> None:
    draw(model, source, path)


@contextmanager
def _alone() -> Iterator[None]:
    """One process, although others were started beside it: a further stage is small."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


def _train_stage(
    stage: Stage, folder: Path, training: Training, before: Result, progress: bool | str
) -> Result:
    """A further stage, in a folder of its own; the first one is done, and resuming finds it so."""
    changes = {"validate_every": 0, **stage.training}
    how = resolve(Training, f"{folder} [training]", training.model_dump(), changes)
    try:
        done = fit(
            stage.part, stage.loss, stage.source, how, folder, resume=True, progress=progress
        )
    except Interrupted as stop:
        raise Interrupted(before._replace(stopped="interrupted"), stop.signal_number) from None
    losses = {**before.losses, **{f"{stage.name} {k}": v for k, v in done.losses.items()}}
    return before._replace(seconds=before.seconds + done.seconds, losses=losses)
