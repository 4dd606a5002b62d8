r"""Trajectories from files: a CSV with a time column, or an NPZ of arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .dates import DATE, clock, unreadable
from .dynamics import Trajectories
from .tables import TIMES as NAMES
from .tables import _counts, _numbers, _rows, _time_column

__all__ = ["UNITS", "read_trajectories"]

TIMES = ("time", "t", *sorted(NAMES))
WHICH = "trajectory"
#: Seconds in a unit of time that dates can be told in.
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_trajectories(
    path: str | Path,
    rows: int = 64,
    time: str | None = None,
    unit: str | None = None,
    missing: str = "error",
    sentinel: Sequence[float] = (),
) -> Trajectories:
    r"""Trajectories of a .csv (or .csv.gz) or an .npz file, in pieces of one length.

    A CSV has a header with a column of times, a column ``trajectory`` unless there is only one, and
    a column for each number of a state. An NPZ has ``t`` (n, steps) or (steps,) and ``x``
    (n, steps, \*shape). Times must rise in each trajectory, in any steps.

    Each piece starts at time 0. Trajectories of several lengths are cut into pieces as long as the
    shortest, of at most ``rows`` rows; a piece begins where the one before ends, and the last one
    ends with its trajectory.

    Arguments:
        time: The column of times: numbers or dates; found by itself if it is called time, t, date
            or the like.
        unit: Of time. Dates are told in it (s, min, h or d; s if none); for numbers it is a name
            to print.
        missing: What becomes of rows with empty cells: "error" or "drop", as times may be uneven.
        sentinel: Numbers that stand for a missing value.
    """
    path = Path(path)
    if rows < 2:
        raise ValueError(f"read_trajectories: expected pieces of 2 or more rows, got {rows}.")
    if missing not in ("error", "drop"):
        raise ValueError(f"read_trajectories: expected missing error or drop, got {missing!r}.")
    if path.suffix.lower() == ".npz":
        if time is not None or missing != "error" or sentinel:
            raise ValueError(f"{path}: time, missing and sentinel are for CSV files.")
        found = _npz(path)
    else:
        found = _csv(path, time, unit, missing, sentinel)
    shortest = min(range(len(found.t)), key=lambda i: len(found.t[i]))
    length = min(rows, len(found.t[shortest]))
    if length < 3:
        raise ValueError(
            f"{path}: expected 3 or more rows in every trajectory, but "
            f"{found.which[shortest]} has {length}. Leave it out."
        )
    t, x = [], []
    for times, state in zip(found.t, found.x, strict=True):
        starts = [*range(0, len(times) - length, length - 1), len(times) - length]
        t += [times[i : i + length] - times[i] for i in starts]
        x += [state[i : i + length] for i in starts]
    gaps = torch.cat([one.diff() for one in t])
    return Trajectories(
        torch.stack(t), torch.stack(x), float(gaps.mean()), found.names,
        unit=found.unit or unit or "", notes=found.notes,
    )  # fmt: skip


class _Found(NamedTuple):
    """Trajectories of several lengths, with a word for each."""

    t: list[Tensor]
    x: list[Tensor]
    names: tuple[str, ...]
    which: list[str]
    unit: str = ""
    notes: tuple[str, ...] = ()


def _csv(
    path: Path, time: str | None, unit: str | None, missing: str, sentinel: Sequence[float]
) -> _Found:
    header, rows, lines = _rows(path)
    lower = [name.lower() for name in header]
    when: int | None
    if time is None:
        when = next((lower.index(name) for name in TIMES if name in lower), None)
        when = 0 if when is None and DATE.match(rows[0][0]) else when
    else:
        when = _time_column(path, header, rows[0], time)
    if when is None:
        raise ValueError(
            f"{path}: expected a column of times, named time or t, found {', '.join(header)}. Name "
            "it with time."
        )
    which = lower.index(WHICH) if WHICH in lower else None
    columns = [i for i in range(len(header)) if i not in (when, which)]
    if not columns:
        raise ValueError(f"{path}: expected columns of states beside {', '.join(header)}.")
    cells = list(zip(*rows, strict=True))
    notes = []
    hint = "Mend it, or take the column out of the file."
    states = np.stack([_numbers(path, header[i], cells[i], lines, hint) for i in columns], axis=1)
    names = tuple(header[i] for i in columns)
    for number in sentinel:
        found = states == number
        states[found] = np.nan
        notes.append(f"{path.name}: {number:g} was read as missing: {_counts(found, names)}")
    times, unit = _times(path, header[when], cells[when], lines, unit)
    absent = np.argwhere(np.isnan(states))
    kept = list(range(len(rows)))
    if len(absent) and missing == "error":
        i, j = absent[0]
        raise ValueError(
            f"{path}: expected a number in line {lines[i]}, column {names[j]!r}, found none. "
            'Choose missing="drop" to leave such rows out: times may be uneven.'
        )
    if len(absent):
        gone = set(absent[:, 0].tolist())
        kept = [i for i in kept if i not in gone]
        notes.append(
            f"{path.name}: {len(gone):,} rows with missing values were dropped: "
            f"{_counts(np.isnan(states), names)}"
        )
        if not kept:
            raise ValueError(f"{path}: every row has a missing value, so drop leaves none.")
    flat = (states[kept] == states[kept[0]]).all(0)
    if flat.any():
        j = int(flat.argmax())
        raise ValueError(
            f"{path}: column {names[j]!r} is {states[kept[0], j]:g} in all of the rows, so it has "
            "no dynamics. Take it out of the file."
        )
    whose = [""] * len(rows) if which is None else list(cells[which])
    parts: dict[str, list[int]] = {}
    for i in kept:
        parts.setdefault(whose[i], []).append(i)
    words = [f"trajectory {name.strip()!r}" if which is not None else "the file" for name in parts]
    for word, at in zip(words, parts.values(), strict=True):
        for before, now in pairwise(at):
            if times[now] <= times[before]:
                one, two = (cells[when][i].strip() for i in (before, now))
                what = (
                    f"has time {one} twice, in lines {lines[before]} and {lines[now]}. Drop one "
                    "of the rows"
                    if times[now] == times[before]
                    else f"goes back from time {one} to {two} in line {lines[now]}. Sort the rows "
                    "by time"
                )
                raise ValueError(f"{path}: column {header[when]!r}: {word} {what}.")
    return _Found(
        [torch.from_numpy(times[at].copy()) for at in parts.values()],
        [torch.from_numpy(states[at].copy()) for at in parts.values()],
        names, words, unit, tuple(notes),
    )  # fmt: skip


def _times(
    path: Path, name: str, cells: Sequence[str], lines: Sequence[int], unit: str | None
) -> tuple[np.ndarray, str]:
    """Times as numbers, and their unit: of dates the time since the first one."""
    if not DATE.match(cells[0]):
        hint = "Mend it, or name the column of times with time."
        numbers = _numbers(path, name, cells, lines, hint)
        if np.isnan(numbers).any():
            i = int(np.isnan(numbers).argmax())
            raise ValueError(
                f"{path}: expected a time in line {lines[i]}, column {name!r}, found none."
            )
        return numbers, unit or ""
    at = clock(cells)
    if at is None:
        i = unreadable(cells) or 0
        raise ValueError(
            f"{path}: line {lines[i]}, column {name!r}: expected a date such as 2020-01-31 12:00, "
            f"written as the others, found {cells[i][:40]!r}. Mend it."
        )
    unit = unit or "s"
    if unit not in UNITS:
        raise ValueError(f"unit: expected one of {', '.join(UNITS)} for dates, got {unit!r}.")
    return (at - at.min()) / UNITS[unit], unit


def _npz(path: Path) -> _Found:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("t", "x") if name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: expected an .npz file of numbers, but {error}.") from error
    if len(arrays) < 2:
        raise ValueError(
            f"{path}: expected arrays t and x, found {', '.join(arrays) or 'neither'}."
        )
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
            raise ValueError(f"{path}: expected real numbers in {name}, found {array.dtype}.")
    t, x = (a.astype(np.float64) for a in (arrays["t"], arrays["x"]))
    if t.ndim == 1:
        t = np.repeat(t[None], len(x), 0) if x.ndim > 2 else t[None]
        x = x if x.ndim > 2 else x[None]
    if t.ndim != 2 or x.ndim < 3 or x.shape[:2] != t.shape:
        raise ValueError(
            f"{path}: expected t (n, steps) or (steps,) and x (n, steps, …), got {t.shape} and "
            f"{x.shape}."
        )
    for name, bad in (("t", ~np.isfinite(t)), ("x", ~np.isfinite(x).reshape(*t.shape, -1).all(2))):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(
                f"{path}: expected numbers, but {name} has NaN or an infinite one in trajectory "
                f"{i}, row {j}."
            )
    falls = (np.diff(t, axis=1) <= 0).any(1)
    if falls.any():
        raise ValueError(
            f"{path}: expected times that rise, but those of trajectory {int(falls.argmax())} do "
            "not. Sort them and drop doubles."
        )
    count = x.shape[2]
    names = tuple(f"x{i}" for i in range(count))
    which = [f"trajectory {i}" for i in range(len(t))]
    return _Found(list(torch.from_numpy(t)), list(torch.from_numpy(x)), names, which)
