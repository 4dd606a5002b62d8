r"""The list of runs below a folder, read without torch so that it comes at once."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from ..training.checkpoint import (
    CONFIG,
    HUB_WEIGHTS,
    METRICS,
    WEIGHTS,
    best_measures,
    find_yardstick,
    read_config,
    read_metrics,
)

__all__ = ["Row", "list_runs"]

#: What is read of the end of metrics.jsonl: the last validations and the best one of a patient run.
TAIL = 2**20


class Row(NamedTuple):
    """One line of the list of runs."""

    run: str
    app: str
    data: str
    step: int
    steps: int
    metric: str
    value: float | None
    yardstick: float | None  #: the same of a plain linear method
    seconds: float
    changed: str
    problem: str


def list_runs(folder: Path) -> list[Row]:
    """All runs below a folder, the latest first; a broken one is a line with its problem."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"runs: expected a folder, but {folder} is a file.")
    found = {p.parent for p in folder.rglob(CONFIG)} if folder.exists() else set()
    # Neither an export is a run, nor a second stage, which lies in the state of one.
    runs = (
        run
        for run in found
        if not (run / HUB_WEIGHTS).exists() and "state" not in run.relative_to(folder).parts
    )
    root = folder.resolve()
    return sorted((_row(run, root) for run in runs), key=lambda row: row.changed, reverse=True)


def _row(run: Path, root: Path) -> Row:
    changed = ""
    try:
        files = [p for p in (run / CONFIG, run / METRICS, run / WEIGHTS) if p.exists()]
        for path in files:
            if root not in path.resolve().parents:
                raise ValueError(f"{path}: expected a file in {root.name}, got a link out of it.")
        when = datetime.fromtimestamp(max(p.stat().st_mtime for p in files), timezone.utc)
        changed = when.astimezone().isoformat(sep=" ", timespec="seconds")
        config = read_config(run)
        rows = read_metrics(run / METRICS, TAIL)
        measured = best_measures(config, rows)
    except (ValueError, OSError, OverflowError) as problem:
        return Row(str(run), "?", "?", 0, 0, "", None, None, 0.0, changed, str(problem))
    metric = str((config["metric"] or {}).get("name", ""))
    steps = (config["training"] or {}).get("steps")
    return Row(
        str(run),
        config["app"] or "–",
        str((config["data"] or {}).get("name", "–")),
        max((r["step"] for r in rows), default=0),
        steps if isinstance(steps, int) else 0,
        metric,
        measured.get(metric),
        find_yardstick(rows).get(metric),
        max((r.get("seconds") or 0.0 for r in rows), default=0.0),
        changed,
        "" if (run / WEIGHTS).is_file() else "no weights yet",
    )
