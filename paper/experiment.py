r"""The contract of an experiment, and what experiments share.

To add an experiment: write a module that ends with ``EXPERIMENT = Experiment(…)`` and name it in
``pages.py``. Its numbers are committed in benchmarks/FILE.json; the page and the tables of the
documents are functions of these files.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from linearizer.apps.base import Say
from linearizer.runs.evaluate import round_numbers
from linearizer.training.checkpoint import atomic
from linearizer.training.loop import Loss, Training, fit

from .claims import Claim, Found, Section

__all__ = [
    "EVALUATED",
    "FOLDER",
    "RUNS",
    "Experiment",
    "Measure",
    "Recipe",
    "data_of",
    "extend_table",
    "machine",
    "read_numbers",
    "train_for",
    "train_minutes",
    "write_json",
]

#: The committed numbers; and where runs and pictures of a new measurement go.
FOLDER = Path(__file__).parent.parent / "benchmarks"
RUNS = FOLDER.parent / "runs"
EVALUATED = RUNS / "evaluated"

#: (run, folder of results, data root, say, minutes of its training) ↦ numbers
Measure = Callable[[Path, Path, Path | None, Say, float], dict[str, Any]]


class Recipe(NamedTuple):
    """One run: an application's preset with some flags, and how it is measured."""

    name: str
    app: str
    preset: str | None
    flags: Mapping[str, Mapping[str, Any]]
    measure: Measure


@dataclass(frozen=True)
class Experiment:
    """One experiment: its runs, its numbers, its claims and its tables."""

    name: str
    title: str
    #: Its numbers are in FILE.json.
    file: str
    #: Numbers of one evaluation ↦ the paper's numbers beside them.
    claims: Callable[[Mapping[str, Any]], list[Claim]] = lambda row: []
    #: All files ↦ its section of the page, where the paper has this experiment.
    section: Callable[[Found], Section] | None = None
    #: The runs to train, by scale;
    recipes: Mapping[str, Sequence[Recipe]] = field(default_factory=dict)
    #: or, where one table trains what it needs, that function and its settings by scale.
    table: Callable[..., dict[str, Any]] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Numbers of that table ↦ those that FILE.json keeps.
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row
    #: What `python -m paper record` measures for FILE.json: part ↦ entries of the file.
    records: Mapping[str, Callable[[Say], dict[str, Any]]] = field(default_factory=dict)
    #: Tables of the documents, by page and mark.
    tables: Mapping[tuple[str, str], Callable[[], str]] = field(default_factory=dict)


def machine() -> dict[str, Any]:
    """What numbers were measured with."""
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name()
    return facts


def read_numbers(name: str) -> dict[str, Any]:
    """The committed numbers of benchmarks/NAME.json."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write numbers of four digits; the file is whole at any time."""
    with atomic(path) as part:
        part.write_text(json.dumps(round_numbers(value), indent=2) + "\n", encoding="utf-8")


def data_of(result: Mapping[str, Any], n: int | None = None) -> dict[str, Any]:
    """Return which images an evaluation was of, at most n of them, in the words of the claims."""
    data = result["data"]
    return {
        "name": data["name"],
        "shape": list(result["shape"]),
        "test_images": min(data["test_samples"], n or data["test_samples"]),
        "notes": [*data["notes"], *result.get("notes", ())],
    }


def extend_table(result: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add numbers to those of an evaluation, in its file as well; "pictures" join its files."""
    pictures = [str(path) for path in more.get("pictures", ())]
    numbers = {**result, **{k: v for k, v in more.items() if k != "pictures"}}
    files = numbers.pop("files")
    write_json(Path(files[0]), numbers)
    return {**round_numbers(numbers), "files": [*files, *pictures]}


def train_minutes(name: str) -> float:
    """Minutes of one core that a shipped model was trained for."""
    return read_numbers("shipped")[name]["cpu_minutes"]


def train_for(
    seconds: float, model: nn.Module, loss: Loss, data: Any, training: Training
) -> dict[str, Any]:
    """Train for about this much time of the processor, judged by a few steps."""
    trial = copy.deepcopy(model)
    short = training.model_copy(update={"steps": 10, "validate_every": 0, "tensorboard": False})
    fit(trial, loss, data, short, progress=False)
    begun = time.process_time()
    fit(trial, loss, data, short, progress=False)
    steps = max(10, round(seconds / (time.process_time() - begun) * 10))
    begun = time.process_time()
    fit(model, loss, data, short.model_copy(update={"steps": steps}))
    return {"steps": steps, "cpu_seconds": time.process_time() - begun}
