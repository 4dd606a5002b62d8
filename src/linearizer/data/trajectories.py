r"""Trajectories from files: a CSV with a time column, or an NPZ of arrays."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ..training.settings import did_you_mean
from .dates import DATE, clock, find_unreadable
from .dynamics import SYSTEMS, Trajectories, pairs, simulate
from .files import Progress, option, shorten
from .kinds import COLUMNS, FILL, Data, DataSettings, Kind
from .series import parse_numbers
from .tables import (
    NUMERIC,
    count_cells,
    find_cells,
    find_time_column,
    mark_missing,
    parse_columns,
    read_text,
    split_rows,
)
from .tables import TIMES as TIME_NAMES

__all__ = [
    "TRAJECTORIES",
    "UNITS",
    "DynamicsSettings",
    "parse_parameters",
    "read_trajectories",
    "simulate_for",
]

TIMES = ("time", "t", *sorted(TIME_NAMES))
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
    columns: Literal["all", "numeric"] = "all",
) -> Trajectories:
    r"""Read the trajectories of a .csv (or .csv.gz) or an .npz file, in pieces of one length.

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
        columns: "numeric" leaves out those with text, and notes which.
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
        found = _csv(path, time, unit, missing, sentinel, columns == "numeric")
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
        torch.stack(t),
        torch.stack(x),
        float(gaps.mean()),
        found.names,
        unit=found.unit or unit or "",
        notes=found.notes,
    )


class _Found(NamedTuple):
    """Trajectories of several lengths, with a word for each."""

    t: list[Tensor]
    x: list[Tensor]
    names: tuple[str, ...]
    which: list[str]
    unit: str = ""
    notes: tuple[str, ...] = ()


def _csv(
    path: Path,
    time: str | None,
    unit: str | None,
    missing: str,
    sentinel: Sequence[float],
    numeric: bool,
) -> _Found:
    header, rows, lines = split_rows(path, read_text(path))
    lower = [name.lower() for name in header]
    when = _find_times(path, header, rows[0], time)
    which = lower.index(WHICH) if WHICH in lower else None
    columns = [i for i in range(len(header)) if i not in (when, which)]
    if not columns:
        raise ValueError(f"{path}: expected columns of states beside {shorten(header)}.")
    cells = list(zip(*rows, strict=True))
    hint = f"Mend it, or take the column out: {NUMERIC} leaves out text."
    states, names, notes = parse_columns(
        path, [header[i] for i in columns], [cells[i] for i in columns], lines, hint, numeric
    )
    notes += mark_missing(path.name, states, names, sentinel)
    times, unit = _times(path, header[when], cells[when], lines, unit)
    kept = _keep_rows(path, states, names, lines, missing, notes)
    whose = [""] * len(rows) if which is None else list(cells[which])
    parts: dict[str, list[int]] = {}
    for i in kept:
        parts.setdefault(whose[i], []).append(i)
    words = [f"trajectory {name.strip()!r}" if which is not None else "the file" for name in parts]
    for word, at in zip(words, parts.values(), strict=True):
        _require_rising(f"{path}: column {header[when]!r}: {word}", times, cells[when], lines, at)
    return _Found(
        [torch.from_numpy(times[at].copy()) for at in parts.values()],
        [torch.from_numpy(states[at].copy()) for at in parts.values()],
        names,
        words,
        unit,
        tuple(notes),
    )


def _find_times(path: Path, header: list[str], row: list[str], time: str | None) -> int:
    """Return where the column of times stands."""
    lower = [name.lower() for name in header]
    known = next((lower.index(name) for name in TIMES if name in lower), None)
    when = (
        known if time is None and known is not None else find_time_column(path, header, row, time)
    )
    if when is None:
        raise ValueError(
            f"{path}: expected a column of times, named time or t, found {shorten(header)}. "
            f"Name it with {option('--time', 'time=')}."
        )
    return when


def _keep_rows(
    path: Path,
    states: np.ndarray,
    names: Sequence[str],
    lines: Sequence[int],
    missing: str,
    notes: list[str],
) -> list[int]:
    """Return the rows without missing values, noting how many others there were."""
    gaps = np.isnan(states)
    kept = np.flatnonzero(~gaps.any(1)).tolist()
    if gaps.any() and missing == "error":
        raise ValueError(
            f"{path}: expected a number in {find_cells(gaps, names, lines)}, found none "
            f"({count_cells(gaps, names)}). Choose {option('--fill drop', 'missing=')} to leave "
            "such rows out: times may be uneven."
        )
    if not kept:
        raise ValueError(f"{path}: every row has a missing value, so drop leaves none.")
    if gaps.any():
        notes.append(
            f"{path.name}: {len(states) - len(kept):,} rows with missing values were dropped: "
            f"{count_cells(gaps, names)}"
        )
    return kept


def _require_rising(
    where: str, times: np.ndarray, cells: Sequence[str], lines: Sequence[int], rows: Sequence[int]
) -> None:
    """Raise an error at the first of these rows whose time is not after the one before."""
    for before, now in pairwise(rows):
        one, two = cells[before].strip(), cells[now].strip()
        if times[now] == times[before]:
            raise ValueError(
                f"{where} has time {one} twice, in lines {lines[before]} and {lines[now]}. Drop "
                "one of the rows."
            )
        if times[now] < times[before]:
            raise ValueError(
                f"{where} goes back from time {one} to {two} in line {lines[now]}. Sort the rows "
                "by time."
            )


def _times(
    path: Path, name: str, cells: Sequence[str], lines: Sequence[int], unit: str | None
) -> tuple[np.ndarray, str]:
    """Return times as numbers, and their unit; dates count from the first one."""
    if not DATE.match(cells[0]):
        hint = f"Mend it, or name the column of times with {option('--time', 'time=')}."
        numbers = parse_columns(path, [name], [cells], lines, hint)[0][:, 0]
        if np.isnan(numbers).any():
            i = int(np.isnan(numbers).argmax())
            raise ValueError(
                f"{path}: expected a time in line {lines[i]}, column {name!r}, found none."
            )
        return numbers, unit or ""
    at = clock(cells)
    if at is None:
        i = find_unreadable(cells) or 0
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


# -- the kind of data ----------------------------------------------------------------------


class DynamicsSettings(DataSettings):
    """Trajectories, of a known system or of one's own."""

    name: str = Field(
        "pendulum",
        min_length=1,
        description="a system (" + ", ".join(SYSTEMS) + "), or a CSV or NPZ of trajectories",
    )
    size: int | None = Field(None, ge=4, description="points on a side, of systems with frames")
    trajectories: int = Field(200, ge=5, description="how many are simulated")
    rows: int | None = Field(
        None,
        ge=3,
        description="states of each one; 21 if not given, and for a file at most 64",
    )
    horizon_time: float | None = Field(
        None, gt=0, description="time that each one lasts, if not as usual for the system"
    )
    even: bool = Field(False, description="equal steps of time; uneven ones otherwise")
    starts: int = Field(0, ge=0, lt=2**63, description="seed of the random starts")
    parameters: str = Field("", description="of the system, as in damping=0.2,frequency=2")
    time: str | None = Field(None, description="column of times in a CSV, numbers or dates")
    unit: str | None = Field(
        None, description="of time: dates are told in s, min, h or d; for numbers a name to print"
    )
    missing: Literal["error", "drop"] = Field(
        "error",
        validation_alias=FILL,
        description="what becomes of rows of a CSV with empty cells",
    )
    columns: Literal["all", "numeric"] = COLUMNS
    sentinel: str = Field(
        "", description="numbers that mean missing, with commas between, such as -9999"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DynamicsSettings:
        parse_numbers(self.sentinel)
        return self


#: How long a training trajectory lasts where it is not said.
DURATIONS = {
    "pendulum": 5.0,
    "duffing": 5.0,
    "van-der-pol": 7.0,
    "lorenz": 1.0,
    "kuramoto-sivashinsky": 5.0,
    "lambda-omega": 6.0,
}


def _load_trajectories(
    settings: DynamicsSettings, root: Path | None, progress: Progress | None
) -> Data:
    """Load pairs of states, all that lie in one trajectory."""
    path = Path(settings.name).expanduser()
    if settings.name in SYSTEMS:
        moves = dataclasses.replace(simulate_for(settings), unit=settings.unit or "")
        name, lag = settings.name, moves.t.shape[1] - 1
        notes: tuple[str, ...] = ()
    elif path.name.lower().endswith((".csv", ".csv.gz", ".npz")):
        moves = read_trajectories(
            path,
            settings.rows or 64,
            settings.time,
            settings.unit,
            settings.missing,
            parse_numbers(settings.sentinel),
            settings.columns,
        )
        if len(moves) < 5:
            raise ValueError(
                f"{path}: expected 5 or more pieces to train and to test on, got {len(moves)} of "
                f"{moves.t.shape[1]} rows. Give more trajectories, or fewer rows for each piece."
            )
        name, lag = path.name, min(20, moves.t.shape[1] - 1)
        lasts = float((moves.t[:, -1] - moves.t[:, 0]).mean())
        notes = (
            f"{path.name}: {len(moves)} pieces of {moves.t.shape[1]} rows, which last "
            f"{lasts:.4g} {moves.unit or 'units of time'}",
            *moves.notes,
        )
    else:
        raise ValueError(
            f"trajectories: {settings.name!r} is neither a system nor a CSV or NPZ file. "
            f"{did_you_mean(settings.name, SYSTEMS)}"
        )
    return Data(name, *pairs(moves, lag), notes)


def simulate_for(settings: DynamicsSettings, **changes: Any) -> Trajectories:
    """Simulate the trajectories of a system that the settings ask for, with changes."""
    rows = settings.rows or 21
    lasts = settings.horizon_time or DURATIONS[settings.name]
    parameters = parse_parameters(settings)
    asked: dict[str, Any] = {
        "trajectories": settings.trajectories,
        "steps": rows,
        "dt": lasts / (rows - 1),
        "seed": settings.starts,
        "irregular": not settings.even,
    }
    if taken := sorted(parameters.keys() & asked.keys()):
        raise ValueError(f"parameters: {taken[0]} is no parameter of a system; it has a flag.")
    return simulate(settings.name, **{**parameters, **asked, **changes})


def parse_parameters(settings: DynamicsSettings) -> dict[str, float]:
    """Return the parameters of the system that are not as usual."""
    parameters: dict[str, float] = {}
    for word in filter(None, (w.strip() for w in settings.parameters.split(","))):
        key, found, value = word.partition("=")
        try:
            whole = value.strip().isdigit()
            parameters[key.strip()] = int(value) if whole else float(value)
        except ValueError:
            found = ""
        if not found:
            raise ValueError(
                "parameters: expected NAME=NUMBER with commas between, got "
                f"{settings.parameters!r}."
            )
    if settings.size is not None:
        if settings.name not in ("kuramoto-sivashinsky", "lambda-omega"):
            raise ValueError(f"size: {settings.name} has no points on a side. Leave it out.")
        parameters["points"] = settings.size
    return parameters


TRAJECTORIES = Kind(DynamicsSettings, _load_trajectories)
