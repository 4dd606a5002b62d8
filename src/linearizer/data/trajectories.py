r"""Trajectories from files: a CSV with a time column, or an NPZ of arrays."""

from __future__ import annotations

import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dynamics import Trajectories
from .tables import _numbers, _rows

__all__ = ["read_trajectories"]

TIMES = ("time", "t")
WHICH = "trajectory"


def read_trajectories(path: str | Path, rows: int = 64) -> Trajectories:
    r"""Trajectories of a .csv (or .csv.gz) or an .npz file, in pieces of one length.

    A CSV has a header with a column ``time`` (or ``t``), a column ``trajectory`` unless there is
    only one, and a column for each number of a state. An NPZ has ``t`` (n, steps) or (steps,) and
    ``x`` (n, steps, \*shape). Times must rise in each trajectory, in any steps.

    Each piece starts at time 0. Trajectories of several lengths are cut into pieces as long as the
    shortest, of at most ``rows`` rows; a piece begins where the one before ends, and the last one
    ends with its trajectory.
    """
    path = Path(path)
    if rows < 2:
        raise ValueError(f"read_trajectories: expected pieces of 2 or more rows, got {rows}.")
    if path.suffix.lower() == ".npz":
        times, states, names = _npz(path)
    else:
        times, states, names = _csv(path)
    length = min(rows, *(len(t) for t in times))
    if length < 3:
        raise ValueError(
            f"{path}: expected 3 or more rows in every trajectory, but one has {length}. Leave it "
            "out."
        )
    t, x = [], []
    for time, state in zip(times, states, strict=True):
        starts = [*range(0, len(time) - length, length - 1), len(time) - length]
        t += [time[i : i + length] - time[i] for i in starts]
        x += [state[i : i + length] for i in starts]
    gaps = torch.cat([one.diff() for one in t])
    return Trajectories(torch.stack(t), torch.stack(x), float(gaps.mean()), names)


def _csv(path: Path) -> tuple[list[Tensor], list[Tensor], tuple[str, ...]]:
    header, rows, lines = _rows(path)
    lower = [name.lower() for name in header]
    when = next((lower.index(name) for name in TIMES if name in lower), None)
    if when is None:
        raise ValueError(
            f"{path}: expected a column of times, named time or t, found {', '.join(header)}."
        )
    which = lower.index(WHICH) if WHICH in lower else None
    columns = [i for i in range(len(header)) if i not in (when, which)]
    if not columns:
        raise ValueError(f"{path}: expected columns of states beside {', '.join(header)}.")
    cells = list(zip(*rows, strict=True))
    values = np.stack(
        [_numbers(path, header[i], cells[i], lines) for i in (when, *columns)], axis=1
    )
    missing = np.argwhere(np.isnan(values))
    if len(missing):
        i, j = missing[0]
        raise ValueError(
            f"{path}: expected a number in line {lines[i]}, column "
            f"{header[(when, *columns)[j]]!r}, found none. Leave the row out: times may be uneven."
        )
    names = [""] * len(rows) if which is None else list(cells[which])
    times, states = [], []
    for name in dict.fromkeys(names):
        at = [i for i, n in enumerate(names) if n == name]
        time = values[at, 0]
        for before, now in pairwise(at):
            one, two = values[before, 0], values[now, 0]
            if two <= one:
                whose = f"trajectory {name.strip()!r}" if which is not None else "the file"
                what = (
                    f"has time {one:g} twice, in lines {lines[before]} and {lines[now]}. Drop one "
                    "of the rows"
                    if one == two
                    else f"goes back from time {one:g} to {two:g} in line {lines[now]}. Sort the "
                    "rows by time"
                )
                raise ValueError(f"{path}: {whose} {what}.")
        times.append(torch.from_numpy(time.copy()))
        states.append(torch.from_numpy(values[at, 1:].copy()))
    return times, states, tuple(header[i] for i in columns)


def _npz(path: Path) -> tuple[list[Tensor], list[Tensor], tuple[str, ...]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("t", "x") if name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: expected an .npz file of numbers, but {error}.") from error
    if len(arrays) < 2:
        raise ValueError(
            f"{path}: expected arrays t and x, found {', '.join(arrays) or 'neither'}."
        )
    t, x = (a.astype(np.float64) for a in (arrays["t"], arrays["x"]))
    if t.ndim == 1:
        t = np.repeat(t[None], len(x), 0) if x.ndim > 2 else t[None]
        x = x if x.ndim > 2 else x[None]
    if t.ndim != 2 or x.ndim < 3 or x.shape[:2] != t.shape:
        raise ValueError(
            f"{path}: expected t (n, steps) or (steps,) and x (n, steps, …), got {t.shape} and "
            f"{x.shape}."
        )
    if not (np.isfinite(t).all() and np.isfinite(x).all()):
        raise ValueError(f"{path}: expected numbers, but some are NaN or infinite.")
    falls = (np.diff(t, axis=1) <= 0).any(1)
    if falls.any():
        raise ValueError(
            f"{path}: expected times that rise, but those of trajectory {int(falls.argmax())} do "
            "not. Sort them and drop doubles."
        )
    count = x.shape[2]
    names = tuple(f"x{i}" for i in range(count))
    return list(torch.from_numpy(t)), list(torch.from_numpy(x)), names
