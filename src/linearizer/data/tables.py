r"""Tables of numbers over time, and windows of past and future cut from them."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from .dates import DATE, clock, find_unreadable, scale
from .files import DamagedError, Progress, download, missing, option, read, shorten
from .images import Batch, check_index

__all__ = ["Moment", "Table", "Timed", "Windows", "load_series", "read_csv", "windows"]

MISSING = {"", "nan", "na", "n/a", "null", "none"}
POLICIES = ("error", "interpolate", "previous", "drop")
TIMES = {"date", "time", "datetime", "date time", "date_time", "timestamp", "ds"}
SENTINELS = (-99999.0, -9999.0, -999.0, 999.0, 9999.0, 99999.0)
#: Bytes that a table may have, unpacked: its cells take ten times as much memory.
LARGEST_FILE = 1 << 29
#: Size of the numbers in it: beyond, float32 overflows on the way.
LARGEST = 1e30
NUMERIC = option("--columns numeric", 'columns="numeric"')

WEATHER_URL = (
    "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/weather/weather.csv"
)
WEATHER_SHAPE = (52696, 21)


@final
@dataclass(frozen=True, eq=False)
class Table:
    r"""Rows of numbers: values (n, channels), one name for each channel, one time for each row."""

    values: Tensor  #: (n, channels) float64
    columns: tuple[str, ...]
    times: tuple[str, ...] = ()  #: as written in the file; () without a time column
    notes: tuple[str, ...] = ()  #: what was done to the values, or looks odd in them
    time: str = ""  #: name of the time column

    def __post_init__(self) -> None:
        shape = (len(self.times) or len(self.values), len(self.columns))
        if self.values.dtype != torch.float64 or self.values.shape != shape:
            raise ValueError(
                f"Table: expected float64 values of shape {shape}, got {self.values.dtype} of "
                f"shape {tuple(self.values.shape)}."
            )


def read_csv(
    path: str | Path,
    time: str | None = None,
    missing: str = "error",
    sentinel: float | Sequence[float] = (),
    equal: bool = False,
    columns: Sequence[str] | Literal["numeric"] | None = None,
    text: str | None = None,
) -> Table:
    r"""Read a .csv or .csv.gz file with a header (comma, semicolon or tab between cells).

    Arguments:
        time: The column of times; found by itself if it is called date, time or the like, or if
            it comes first and holds dates.
        missing: What becomes of empty, NaN or NA cells: "error", "interpolate" (straight lines, the
            nearest value at the ends), "previous" (the last value seen) or "drop" (the whole row).
        sentinel: Numbers that stand for a missing value, such as -9999.
        equal: Whether times that repeat, go back or leave a gap are an error; else they are noted.
        columns: Take these alone, in this order; the others may hold anything. "numeric" takes
            those in which every cell is a number or missing, and notes which were left out.
        text: The table itself, where it is in no file; errors call it by ``path``.

    A first column without a name that counts the rows is left out.
    """
    path = Path(path)
    if missing not in POLICIES:
        raise ValueError(f"read_csv: expected missing one of {POLICIES}, got {missing!r}.")
    header, rows, lines = split_rows(path, read_text(path) if text is None else text)
    when = find_time_column(path, header, rows[0], time)
    cells = list(zip(*rows, strict=True))
    numeric = columns == "numeric"
    notes = []
    places = [i for i in range(len(header)) if i != when]
    if not header[0] and when != 0 and counts_rows(cells[0]):
        places.remove(0)
        notes.append(f"{path.name}: the first column has no name and counts the rows: left out")
    places = _places(path, header, places, None if numeric else columns)
    hint = (
        "Mend it, name the column of times with --time, or take other columns: "
        f"{NUMERIC} leaves out text."
    )
    values, names, left = parse_columns(
        path, [header[i] for i in places], [cells[i] for i in places], lines, hint, numeric
    )
    notes += left
    times = () if when is None else tuple(cells[when])
    if equal and when is not None:
        notes += _equal_steps(path, header[when], times, lines)
    sentinels = [sentinel] if isinstance(sentinel, (int, float)) else list(sentinel)
    notes += mark_missing(path.name, values, names, sentinels)
    notes += _suspects(path.name, values, names)
    values, kept, said = _fill(path, values, names, missing, lines)
    times = tuple(t for t, keep in zip(times, kept, strict=True) if keep) if times else ()
    said = [*said, *_steps(path.name, times)] if bool(kept.all()) else said
    named = "" if when is None else header[when]
    return Table(torch.from_numpy(values), names, times, (*notes, *said), named)


def counts_rows(cells: Sequence[str]) -> bool:
    """Return whether they are 0, 1, 2, … or 1, 2, 3, …, as an index that a data frame writes."""
    return any(list(cells) == [str(i + first) for i in range(len(cells))] for first in (0, 1))


def _places(
    path: Path, header: Sequence[str], places: list[int], columns: Sequence[str] | None
) -> list[int]:
    """Return where the asked columns stand, of those in ``places``."""
    where = {header[i]: i for i in places}
    counts = Counter(header[i] for i in places)
    wanted = list(where) if columns is None else list(columns)
    for name in wanted:
        if name not in where:
            raise ValueError(
                f"{path}: there is no column {name!r} of numbers. {_suggest(name, list(where))}"
            )
        if counts[name] > 1:
            raise ValueError(f"{path}: {counts[name]} columns are named {name!r}. Rename one.")
    if not wanted:
        raise ValueError(f"{path}: expected columns of numbers, found only {header[0]!r}.")
    return [where[name] for name in wanted]


def _suggest(name: str, names: Sequence[str]) -> str:
    """Say which of the names was meant, or what they are."""
    near = difflib.get_close_matches(name, names[:1000], 1)
    return f"Did you mean {near[0]!r}?" if near else f"It has {shorten(names)}."


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked if it ends in .gz."""
    try:
        return read(path, limit=LARGEST_FILE).decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: there is no such file. Check the path (here is {Path.cwd()})."
        ) from None


def split_rows(path: Path, text: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Split a table into its header, its rows and the line that each row starts on.

    All rows have the header's length.
    """
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    rows, lines, line = [], [], 1
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}: expected a CSV table, but line {line}: {error}.") from error
    if len(rows) < 2:
        raise ValueError(f"{path}: expected a header and rows, found {len(rows)} lines.")
    header = [name.strip() for name in rows[0]]
    for row, number in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"{path}: expected {len(header)} cells in every line, as in the header, but line "
                f"{number} has {len(row)}."
            )
    return header, rows[1:], lines[1:]


def find_time_column(path: Path, header: list[str], row: list[str], time: str | None) -> int | None:
    """Return where the column of times stands, by its name or by what the first row holds."""
    if time is not None:
        if time not in header:
            raise ValueError(
                f"{path}: expected a column {time!r} for the time. {_suggest(time, header)}"
            )
        return header.index(time)
    for i, name in enumerate(header):
        if name.lower() in TIMES:
            return i
    return 0 if DATE.match(row[0]) else None


def parse_columns(
    path: Path,
    names: Sequence[str],
    columns: Sequence[Sequence[str]],
    lines: Sequence[int],
    hint: str,
    numeric: bool = False,
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Return the cells as numbers (n, columns), NaN where one is missing, names and notes.

    Cells that are no numbers are named in one error; ``numeric`` leaves their columns out instead,
    and those without any number.
    """
    kept, found, left, wrong = [], [], [], []
    for name, cells in zip(names, columns, strict=True):
        values, bad = _parse_cells(cells)
        if numeric and (bad or np.isnan(values).all()):
            left.append(repr(name))
            continue
        kept.append(name)
        found.append(values)
        wrong += [(lines[i], name, cells[i]) for i in bad]
    if wrong:
        wrong.sort(key=lambda one: one[0])
        each = (
            f"line {line}, column {name!r}, found {cell[:40]!r}{_how_large(cell)}"
            for line, name, cell in wrong
        )
        gaps = sum(int(np.isnan(v).sum()) for v in found) - len(wrong)
        more = f" ({gaps:,} more are missing)" if gaps else ""
        raise ValueError(f"{path}: expected a number in {shorten(each, '; ')}{more}. {hint}")
    if not found:
        raise ValueError(f"{path}: expected columns of numbers, found only text.")
    notes = (
        [f"{path.name}: left out, as not all cells are numbers: {shorten(left)}"] if left else []
    )
    return np.stack(found, axis=1), tuple(kept), notes


def _how_large(cell: str) -> str:
    try:
        return f", beyond {LARGEST:g}" if math.isfinite(float(cell)) else ""
    except ValueError:
        return ""


def _parse_cells(cells: Sequence[str]) -> tuple[np.ndarray, list[int]]:
    """Return the cells as numbers, NaN where there is none, and which of them are no numbers."""
    wrong = []
    try:
        values = np.array(list(map(float, cells)))
    except ValueError:
        values = np.full(len(cells), math.nan)
        for i, cell in enumerate(cells):
            try:
                values[i] = math.nan if cell.strip().lower() in MISSING else float(cell)
            except ValueError:
                wrong.append(i)
    large = np.abs(values) > LARGEST
    values[large] = math.nan
    return values, [*wrong, *np.flatnonzero(large).tolist()]


def mark_missing(
    file: str, values: np.ndarray, names: Sequence[str], sentinels: Sequence[float]
) -> list[str]:
    """Replace the numbers that mean missing by NaN, in place, and say how many there were."""
    notes = []
    for number in sentinels:
        found = values == number
        values[found] = np.nan
        notes.append(f"{file}: {number:g} was read as missing: {count_cells(found, names)}")
    return notes


def count_cells(found: np.ndarray, names: Sequence[str]) -> str:
    """Say how many cells were found in each column."""
    counts = [(int(c), n) for c, n in zip(found.sum(0), names, strict=True) if c]
    return shorten(f"{c:,} in {n!r}" for c, n in counts) or "none found"


def find_cells(found: np.ndarray, names: Sequence[str], lines: Sequence[int]) -> str:
    """Say in which line and column the first cells are that were found."""
    places = np.argwhere(found)
    each = "; ".join(f"line {lines[i]}, column {names[j]!r}" for i, j in places[:10])
    return f"{each} …" if len(places) > 10 else each


def _suspects(file: str, values: np.ndarray, names: Sequence[str]) -> list[str]:
    """Name numbers that look like marks for missing ones: far from all others of their column."""
    notes = []
    for number in SENTINELS:
        found = values == number
        for j in np.flatnonzero(found.any(0)):
            rest = values[~found[:, j], j]
            rest = rest[~np.isnan(rest)]
            low, high = (rest.min(), rest.max()) if len(rest) else (0.0, 0.0)
            found[:, j] &= max(low - number, number - high) > high - low
        if found.any():
            notes.append(
                f"{file}: {number:g} is far from all other values and may mean missing: "
                f"{count_cells(found, names)}; kept, unless --sentinel {number:g} names it"
            )
    return notes


def _fill(
    path: Path, values: np.ndarray, names: Sequence[str], policy: str, lines: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the values without gaps, which rows were kept, and what to say about it."""
    gaps = np.isnan(values)
    kept = np.ones(len(values), dtype=bool)
    if not gaps.any():
        return values, kept, []
    counts = count_cells(gaps, names)
    if policy == "error":
        raise ValueError(
            f"{path}: expected a number in every cell, but some are missing: {counts}. Choose "
            f"{option('--fill interpolate, previous or drop', 'missing=')}. They are in "
            f"{find_cells(gaps, names, lines)}."
        )
    if empty := [n for n, gap in zip(names, gaps.T, strict=True) if gap.all()]:
        raise ValueError(f"{path}: column {empty[0]!r} has no number at all. Remove it.")
    if policy == "drop":
        kept = ~gaps.any(1)
        note = (
            f"{path.name}: {(~kept).sum():,} rows with missing values were dropped: {counts}; "
            "windows go on across them"
        )
        if not kept.any():
            raise ValueError(f"{path}: every row has a missing value, so drop leaves none.")
        return values[kept], kept, [note]
    if policy == "previous" and gaps[0].any():
        first = names[int(gaps[0].argmax())]
        raise ValueError(
            f"{path}: the first value of column {first!r} is missing (line {lines[0]}) and has no "
            f"previous one. Choose {option('--fill interpolate or drop', 'missing=')}."
        )
    row = np.arange(len(values))
    filled = values.copy()
    for j in np.flatnonzero(gaps.any(0)):
        known = row[~gaps[:, j]]
        if policy == "previous":
            last = np.maximum.accumulate(np.where(gaps[:, j], 0, row))
            filled[:, j] = values[last, j]
        else:
            filled[:, j] = np.interp(row, known, values[known, j])
    how = "the previous value" if policy == "previous" else "interpolation"
    return filled, kept, [f"{path.name}: missing values were filled by {how}: {counts}"]


def _steps(file: str, times: Sequence[str]) -> list[str]:
    """Say where times do not rise by equal steps, if they can be read."""
    if (at := clock(times)) is None or len(at) < 2:
        return []
    step = np.diff(at)
    usual = float(np.median(step))
    odd = int((step != usual).sum())
    if (step <= 0).any():
        back = int((step <= 0).argmax())
        return [f"{file}: times repeat or go back: {times[back + 1]} follows {times[back]}"]
    if odd:
        return [f"{file}: {odd:,} of {len(step):,} time steps differ from the usual {usual:g} s"]
    return []


#: By how much of a step it may differ from the usual one: times are rounded as they are written.
ROUNDED = 0.01


def _equal_steps(path: Path, name: str, times: Sequence[str], lines: Sequence[int]) -> list[str]:
    """Raise an error that names the first line whose time is not one step after the one before.

    Times that cannot be read cannot be checked, which is noted.
    """
    found = scale(times)
    if found is None:
        i = find_unreadable(times) or 0
        if not i and not DATE.match(times[0]):
            return [
                f"{path.name}: times such as {times[0][:40]!r} in column {name!r} cannot be read: "
                "rows are taken to follow each other in equal steps"
            ]
        like = f"one as in the row before ({times[i - 1].strip()!r})" if i else "2020-01-31 12:00"
        raise ValueError(
            f"{path}: line {lines[i]}, column {name!r}: expected a time such as {like}, found "
            f"{times[i][:40]!r}. Mend it."
        )
    step, usual = np.diff(found.at), found.step
    wrong = np.abs(step - usual) > ROUNDED * usual if usual > 0 else step <= 0
    if not wrong.any():
        return []
    i = int(wrong.argmax())
    if step[i] == 0:
        what, do = "repeats", "Drop one of them"
    elif step[i] < 0:
        what, do = "goes back after", "Sort the rows by time"
    elif step[i] < usual:
        what, do = "comes too early after", "Leave it out"
    else:
        what, do = "leaves a gap after", "Fill in the rows between"
    raise ValueError(
        f"{path}: line {lines[i + 1]}, column {name!r}: {times[i + 1].strip()!r} {what} "
        f"{times[i].strip()!r}, but rows must follow each other in equal steps. {do}, or take "
        f"the rows as they come with {option('--spacing any', 'equal=False')}."
    )


# -- windows -----------------------------------------------------------------------------------


@final
class Windows:
    r"""Windows of a table: past (look_back, channels) and future (horizon, channels), scaled.

    Row i is the window that starts at row i; nothing is copied until a batch is asked for.

    Arguments:
        rows: (n, channels) float32, already scaled: (value − mean) / std.
        mean, std: What scaled them, (channels,).

    Example:
        >>> rows = torch.arange(10, dtype=torch.float32)[:, None]
        >>> data = Windows(rows, 3, 2)
        >>> past, future = data.batch(torch.tensor([5]))
        >>> len(data), past.flatten().tolist(), future.flatten().tolist()
        (6, [5.0, 6.0, 7.0], [8.0, 9.0])
    """

    def __init__(
        self,
        rows: Tensor,
        look_back: int,
        horizon: int,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        if rows.dtype != torch.float32 or rows.ndim != 2:
            raise ValueError(
                f"Windows: expected float32 rows of shape (n, channels), got {rows.dtype} of "
                f"shape {tuple(rows.shape)}."
            )
        if look_back < 1 or horizon < 1:
            raise ValueError(
                f"Windows: expected look_back and horizon of 1 or more, got {look_back} and "
                f"{horizon}."
            )
        if len(rows) < look_back + horizon:
            raise ValueError(
                f"Windows: expected {look_back + horizon} or more rows for look_back={look_back} "
                f"and horizon={horizon}, got {len(rows)}. Shorten them or bring more rows."
            )
        channels = rows.shape[1]
        self.rows = rows
        self.look_back = look_back
        self.horizon = horizon
        self.mean = torch.zeros(channels, dtype=torch.float32) if mean is None else mean
        self.std = torch.ones(channels, dtype=torch.float32) if std is None else std
        self.columns = tuple(columns) or tuple(str(i) for i in range(channels))
        if self.mean.shape != (channels,) or self.std.shape != (channels,):
            raise ValueError(
                f"Windows: expected mean and std of shape ({channels},), got "
                f"{tuple(self.mean.shape)} and {tuple(self.std.shape)}."
            )
        if len(self.columns) != channels:
            raise ValueError(f"Windows: expected {channels} column names, got {len(self.columns)}.")

    def __len__(self) -> int:
        return len(self.rows) - self.look_back - self.horizon + 1

    def __repr__(self) -> str:
        return f"Windows({len(self):,} of {self.shape} → ({self.horizon}, {self.rows.shape[1]}))"

    @property
    def shape(self) -> tuple[int, int]:
        """(look_back, channels) of one past."""
        return self.look_back, self.rows.shape[1]

    def batch(self, index: Tensor) -> Batch:
        """Past x (n, look_back, channels) and future y (n, horizon, channels)."""
        check_index(index, len(self), "Windows.batch")
        span = torch.arange(self.look_back + self.horizon)
        both = self.rows.index_select(0, (index[:, None] + span).flatten())
        both = both.view(len(index), len(span), -1)
        return Batch(both[:, : self.look_back], both[:, self.look_back :])


def windows(
    table: Table, look_back: int = 96, horizon: int = 96
) -> tuple[Windows, Windows, Windows]:
    r"""Cut train, val and test windows from the first 70%, next 10% and last 20% of the rows.

    Values are scaled by mean and standard deviation of the training rows. The windows of val and
    test start ``look_back`` rows early, so that their first future is their first own row.
    """
    n = len(table.values)
    train, test = int(0.7 * n), int(0.2 * n)
    if min(train - look_back, n - train - test, test) < horizon:
        raise ValueError(
            f"windows: {n:,} rows split {train:,}/{n - train - test:,}/{test:,} are too few for "
            f"look_back={look_back} and horizon={horizon}. Bring more rows, or shorten --look-back "
            "and --horizon."
        )
    std, mean = torch.std_mean(table.values[:train], 0, correction=0)
    low, high = table.values[:train].aminmax(dim=0)
    std = torch.where(high > low, std, 1.0)  # rounding makes the std of equal values not quite 0
    rows = ((table.values - mean) / std).to(torch.float32)
    first, second, third = (
        Windows(rows[part], look_back, horizon, mean.float(), std.float(), table.columns)
        for part in _parts(n, look_back)
    )
    return first, second, third


def _parts(n: int, look_back: int) -> tuple[slice, slice, slice]:
    """Return the rows of train, val and test."""
    train, test = int(0.7 * n), int(0.2 * n)
    return slice(train), slice(train - look_back, n - test), slice(n - test - look_back, n)


def load_csv(
    path: Path,
    look_back: int = 96,
    horizon: int = 96,
    time: str | None = None,
    missing: str = "error",
    sentinel: float | Sequence[float] = (),
    columns: Literal["all", "numeric"] = "all",
) -> tuple[tuple[Windows, Windows, Windows], tuple[str, ...]]:
    """Load windows of a CSV file without their times of day, and the notes about it."""
    parts, notes = load_series(
        path, look_back, horizon, time, "all", missing, sentinel, False, columns
    )
    return _without_times(parts), notes


def _without_times(parts: tuple[Timed, Timed, Timed]) -> tuple[Windows, Windows, Windows]:
    return parts[0].windows, parts[1].windows, parts[2].windows


# -- series with the time of day ---------------------------------------------------------------


class Moment(NamedTuple):
    r"""Windows, and where in the day their pasts end."""

    x: Tensor  #: (n, look_back, channels) float32
    y: Tensor  #: (n, horizon, channels) float32
    t: Tensor  #: (n,) float32, of the last row of the past: 0 is midnight, 0.5 noon


@final
class Timed:
    r"""Windows whose batches tell the time of day at which the past ends.

    Arguments:
        windows: What is handed out.
        day: (rows,) the time of day of each row as a share of 24 hours, or None where it is not
            known; it then counts as 0.
        step: The usual time between two rows and its unit, where it is known.
        times: Of all rows, as written, where they are known.
    """

    def __init__(
        self,
        windows: Windows,
        day: Tensor | None = None,
        step: tuple[float, str] | None = None,
        times: Sequence[str] = (),
    ) -> None:
        if day is not None and day.shape != (len(windows.rows),):
            raise ValueError(
                f"Timed: expected a time of day for each of {len(windows.rows)} rows, got "
                f"{tuple(day.shape)}."
            )
        self.windows = windows
        self.day = day
        self.step = step
        self.times = times

    def __len__(self) -> int:
        return len(self.windows)

    def __repr__(self) -> str:
        return f"Timed({self.windows})"

    @property
    def shape(self) -> tuple[int, int]:
        """(look_back, channels) of one past."""
        return self.windows.shape

    def batch(self, index: Tensor) -> Moment:
        x, y = self.windows.batch(index)
        assert y is not None
        t = x.new_zeros(len(x)) if self.day is None else self.day[index + self.shape[0] - 1]
        return Moment(x, y, t.to(x))


def day_of(times: Sequence[str]) -> Tensor | None:
    """Return the time of day of each row as a share of 24 hours, (n,); None if unknown."""
    at = clock(times)
    return None if at is None else torch.from_numpy(at % 86400 / 86400).to(torch.float32)


def step_of(times: Sequence[str]) -> tuple[float, str] | None:
    """Return the usual time between two rows and its unit, or None if it cannot be read."""
    found = scale(times) if len(times) > 1 else None
    return None if found is None or found.step <= 0 else (found.step, found.unit)


def load_series(
    path: Path,
    look_back: int = 96,
    horizon: int = 96,
    time: str | None = None,
    target: str = "all",
    missing: str = "error",
    sentinel: float | Sequence[float] = (),
    equal: bool = True,
    columns: Literal["all", "numeric"] = "all",
) -> tuple[tuple[Timed, Timed, Timed], tuple[str, ...]]:
    r"""Load windows of a CSV file with their times of day, split 70/10/20, and notes about it.

    Arguments:
        target: "all" columns, or the names of those to take, with commas between.
        equal: Whether times must follow each other in equal steps.
        columns: "numeric" leaves out those with text, where ``target`` is "all".

    The other arguments are those of :func:`read_csv` and :func:`windows`.
    """
    chosen = parse_targets(target) or ("numeric" if columns == "numeric" else None)
    table = read_csv(path, time, missing, sentinel, equal, chosen)
    try:
        parts = windows(table, look_back, horizon)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    n, channels = table.values.shape
    notes = [
        f"{path.name}: {n:,} rows of {channels} channels, split 70/10/20 in time; look-back "
        f"{look_back}, horizon {horizon}; scaled by the training rows",
        *table.notes,
    ]
    places = _parts(n, look_back)
    flat = (table.values[places[0]] == table.values[:1]).all(0).nonzero().flatten().tolist()
    if flat:
        still = shorten(table.columns[i] for i in flat)
        notes.append(f"{path.name}: constant over the training rows: {still}")
    day, step = day_of(table.times), step_of(table.times)
    train, val, test = (
        Timed(part, None if day is None else day[place], step, table.times[place])
        for part, place in zip(parts, places, strict=True)
    )
    return (train, val, test), tuple(notes)


def parse_targets(words: str) -> list[str] | None:
    """Return the names of columns in a text with commas between; None for all of them."""
    names = [name.strip() for name in words.split(",") if name.strip()]
    if names == ["all"]:
        return None
    if not names or len(set(names)) < len(names):
        raise ValueError(f"target: expected different columns to forecast, got {words!r}.")
    return names


# -- the weather benchmark ---------------------------------------------------------------------


def find_weather(root: Path) -> Path | None:
    """Return the file of the weather benchmark, packed or not, if it is there."""
    folder = root / "weather"
    choices = (folder / "weather.csv", folder / "weather.csv.gz")
    return next((p for p in choices if p.is_file()), None)


def load_weather(
    root: Path, look_back: int = 96, horizon: int = 96
) -> tuple[tuple[Windows, Windows, Windows], tuple[str, ...]]:
    """Load the weather benchmark without its times of day, its −9999 left as published."""
    parts, notes = load_weather_series(root, look_back, horizon)
    return _without_times(parts), notes


def load_weather_series(
    root: Path, look_back: int = 96, horizon: int = 96
) -> tuple[tuple[Timed, Timed, Timed], tuple[str, ...]]:
    """Load the weather benchmark with its times of day: one row stands twice, nine are missing."""
    path = find_weather(root)
    if path is None:
        raise missing("weather", root / "weather", "weather.csv or weather.csv.gz", True)
    parts, notes = load_series(path, look_back, horizon, equal=False)
    rows = sum(len(part.windows.rows) for part in parts) - 2 * look_back
    if (rows, parts[0].shape[1]) != WEATHER_SHAPE:
        raise _not_the_benchmark(path, rows, parts[0].shape[1])
    return parts, notes


def _not_the_benchmark(path: Path, rows: int, channels: int) -> DamagedError:
    expected = "{:,} rows of {} channels".format(*WEATHER_SHAPE)
    return DamagedError(path, f"expected {expected}, found {rows:,} of {channels}", "weather")


def fetch_weather(root: Path, progress: Progress | None) -> Path:
    """Download the weather benchmark unless it is there, and return its folder."""

    def check(part: Path) -> None:
        try:
            shape = read_csv(part).values.shape
        except ValueError as error:
            raise DamagedError(part, f"expected the weather table, but {error}") from error
        if tuple(shape) != WEATHER_SHAPE:
            raise _not_the_benchmark(part, *shape)

    path = find_weather(root) or root / "weather" / "weather.csv"
    if not path.is_file():
        download([WEATHER_URL], path, check, progress)
    return path.parent
