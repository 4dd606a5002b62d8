r"""Evaluation of any run: its measures on test data, as one JSON file with pictures beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..apps.base import App, Run, Say
from ..data.files import root_folder
from ..data.kinds import Data, Part
from ..metrics.perceptual import LPIPS, load_lpips
from ..training.checkpoint import CONFIG, atomic
from ..training.draws import Draw
from ..training.settings import resolve
from .store import load_data, open_run, place

__all__ = ["average_measures", "evaluate_run", "lpips_or_why", "round_numbers", "write_table"]


@torch.no_grad()
def evaluate_run(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    n: int | None = None,
    say: Say = lambda text: None,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure a run on its test data, or on other data of the same kind; numbers and files.

    Arguments:
        out: Folder of the results; RUN/evaluation unless told.
        n: How many samples to take at most.
        data: Settings of the data that differ from the run's, such as {"name": "my/images"}.
    """
    opened = open_run(run)
    folder = out or place(opened, "evaluation")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"evaluate: expected a folder, but {folder} is a file.")
    about: dict[str, Any] = {"run": opened.folder.name, "app": opened.app.name}
    alone = opened.app.evaluate_alone
    try:
        source = _load(opened, root, data)
    except FileNotFoundError as problem:
        if data or alone is None:
            raise
        say(f"what needs no data is measured, since {problem}")
        folder.mkdir(parents=True, exist_ok=True)
        about["data"] = {"name": opened.data_name, "test_samples": 0, "notes": [str(problem)]}
        result = {**about, **alone(opened, folder, n, say)}
    else:
        folder.mkdir(parents=True, exist_ok=True)
        say(f"{source.name}: {len(source.test):,} test samples")
        about["data"] = {
            "name": source.name,
            "test_samples": len(source.test),
            "notes": list(source.notes),
        }
        result = {**about, **(opened.app.evaluate or _averages)(opened, source, folder, n, say)}
    pictures = result.pop("pictures", [])
    return write_table(result, folder / f"{opened.app.name}.json", pictures)


def _load(run: Run, root: Path | None, changes: Mapping[str, Any] | None) -> Data:
    if not changes:
        return load_data(run, root)
    kind = run.app.kind
    before = {k: v for k, v in (run.config.get("data") or {}).items() if k not in changes}
    settings = resolve(kind.Settings, str(run.folder / CONFIG), before, changes)
    # Code runs only where the user names it here, never because a run folder does.
    named_here = kind.refuse(resolve(kind.Settings, "evaluate", changes))
    if (why := kind.refuse(settings)) and not named_here:
        raise ValueError(f"{run.folder}: {why}")
    return kind.load(settings, root, None)


@torch.no_grad()
def average_measures(
    app: App[Any, Any, Any], model: Any, part: Part, count: int | None = None
) -> dict[str, float]:
    """Return the means of an application's measures over the first samples of a part, or all."""
    count = count or len(part)
    sums: dict[str, float] = {}
    for index in torch.arange(count).split(256):
        for name, value in app.measure(model, part.batch(index), Draw(int(index[0]))).items():
            sums[name] = sums.get(name, 0.0) + float(value.double().sum())
    return {name: total / count for name, total in sums.items()}


def _averages(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure the test part as training measures validation."""
    part = data.test if hasattr(data.test, "batch") else data.val
    count = min(len(part), n or len(part))
    if not count:
        raise ValueError(f"evaluate: {data.name} has no test samples.")
    means = average_measures(run.app, run.model, part, count)
    result: dict[str, Any] = {"samples": count, **means}
    if run.app.preview is not None:
        path = folder / f"{run.app.name}.png"
        run.app.preview(run.model, data, path)
        result["pictures"] = [path]
    return result


def lpips_or_why(root: Path | None) -> tuple[LPIPS | None, str]:
    """LPIPS on AlexNet, or why it cannot be measured."""
    try:
        return load_lpips("alex", root_folder(root) / "lpips"), ""
    except (ValueError, OSError) as error:
        return None, f"not measured: {error}"


def round_numbers(value: object) -> Any:
    """Four digits are what such figures are good for."""
    if isinstance(value, Mapping):
        return {k: round_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [round_numbers(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write_table(result: Mapping[str, Any], path: Path, pictures: list[Path]) -> dict[str, Any]:
    """Write the numbers as JSON; they come back with the names of the files."""
    numbers = round_numbers(result)
    with atomic(path) as part:
        part.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return {**numbers, "files": [str(p) for p in (path, *pictures)]}
