r"""Tables of numbers over time, and windows of past and future cut from them."""

from __future__ import annotations

import csv
import datetime
import difflib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from .files import DamagedError, Progress, download, missing, read
from .images import Batch, check_index

__all__ = ["Moment", "Table", "Timed", "Windows", "clock", "read_csv", "series", "windows"]

MISSING = {"", "nan", "na", "n/a", "null", "none"}
POLICIES = ("error", "interpolate", "previous", "drop")
TIMES = {"date", "time", "datetime", "date time", "date_time", "timestamp", "ds"}
DATE = re.compile(r"\s*(\d{4}[-/]\d{1,2}\b|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b)")
SENTINELS = (-99999.0, -9999.0, -999.0, 999.0, 9999.0, 99999.0)

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
) -> Table:
    r"""The numbers of a .csv or .csv.gz file with a header (comma, semicolon or tab between cells).

    Arguments:
        time: The column of times; found by itself if it is called date, time or the like, or if
            it comes first and holds dates.
        missing: What becomes of empty, NaN or NA cells: "error", "interpolate" (straight lines, the
            nearest value at the ends), "previous" (the last value seen) or "drop" (the whole row).
        sentinel: Numbers that stand for a missing value, such as -9999.
        equal: Whether times that repeat, go back or leave a gap are an error; else they are noted.
    """
    path = Path(path)
    if missing not in POLICIES:
        raise ValueError(f"read_csv: expected missing one of {POLICIES}, got {missing!r}.")
    header, rows, lines = _rows(path)
    when = _time_column(path, header, rows[0], time)
    columns = [i for i in range(len(header)) if i != when]
    if not columns:
        raise ValueError(f"{path}: expected columns of numbers, found only {header[when or 0]!r}.")
    cells = list(zip(*rows, strict=True))
    values = np.stack([_numbers(path, header[i], cells[i], lines) for i in columns], axis=1)
    names = tuple(header[i] for i in columns)
    times = () if when is None else tuple(cells[when])
    if equal and when is not None:
        _equal_steps(path, header[when], times, lines)
    sentinels = [sentinel] if isinstance(sentinel, (int, float)) else list(sentinel)
    notes = []
    for number in sentinels:
        found = values == number
        values[found] = np.nan
        notes.append(f"{path.name}: {number:g} was read as missing: {_counts(found, names)}")
    notes += _suspects(path.name, values, names)
    values, kept, said = _fill(path, values, names, missing)
    times = tuple(t for t, keep in zip(times, kept, strict=True) if keep) if times else ()
    said = [*said, *_steps(path.name, times)] if bool(kept.all()) else said
    return Table(torch.from_numpy(values), names, times, (*notes, *said))


def _rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, rows and the line that each row starts on; all rows have the header's length."""
    try:
        text = read(path).decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: there is no such file. Check the path (here is {Path.cwd()})."
        ) from None
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


def _time_column(path: Path, header: list[str], row: list[str], time: str | None) -> int | None:
    if time is not None:
        if time not in header:
            near = difflib.get_close_matches(time, header, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(header)}."
            raise ValueError(f"{path}: expected a column {time!r} for the time. {hint}")
        return header.index(time)
    for i, name in enumerate(header):
        if name.lower() in TIMES:
            return i
    return 0 if DATE.match(row[0]) else None


def _numbers(path: Path, name: str, cells: Sequence[str], lines: Sequence[int]) -> np.ndarray:
    """The cells as numbers, NaN where missing."""
    try:
        values = np.array(list(map(float, cells)))
    except ValueError:
        values = np.empty(len(cells))
        for i, cell in enumerate(cells):
            try:
                values[i] = math.nan if cell.strip().lower() in MISSING else float(cell)
            except ValueError:
                raise _not_a_number(path, name, cell, lines[i]) from None
    if np.isinf(values).any():
        i = int(np.isinf(values).argmax())
        raise _not_a_number(path, name, cells[i], lines[i])
    return values


def _not_a_number(path: Path, name: str, cell: str, line: int) -> ValueError:
    return ValueError(
        f"{path}: expected a number in line {line}, column {name!r}, found {cell[:40]!r}. Mend it, "
        "or name the column of times with time=…."
    )


def _counts(found: np.ndarray, names: Sequence[str]) -> str:
    counts = [(int(c), n) for c, n in zip(found.sum(0), names, strict=True) if c]
    return ", ".join(f"{c:,} in {n!r}" for c, n in counts) or "none found"


def _suspects(file: str, values: np.ndarray, names: Sequence[str]) -> list[str]:
    """Numbers that look like marks for missing ones: far from all others of their column."""
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
                f"{_counts(found, names)}; kept, as no sentinel names it"
            )
    return notes


def _fill(
    path: Path, values: np.ndarray, names: Sequence[str], policy: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The values without gaps, which rows were kept, and what to say about it."""
    gaps = np.isnan(values)
    kept = np.ones(len(values), dtype=bool)
    if not gaps.any():
        return values, kept, []
    counts = _counts(gaps, names)
    if policy == "error":
        raise ValueError(
            f"{path}: expected a number in every cell, but some are missing: {counts}. Choose "
            'missing="interpolate", "previous" or "drop".'
        )
    if empty := [n for n, gap in zip(names, gaps.T, strict=True) if gap.all()]:
        raise ValueError(f"{path}: column {empty[0]!r} has no number at all. Remove it.")
    if policy == "drop":
        kept = ~gaps.any(1)
        note = f"{path.name}: {(~kept).sum():,} rows with missing values were dropped: {counts}"
        if not kept.any():
            raise ValueError(f"{path}: every row has a missing value, so drop leaves none.")
        return values[kept], kept, [note]
    if policy == "previous" and gaps[0].any():
        first = names[int(gaps[0].argmax())]
        raise ValueError(
            f"{path}: the first value of column {first!r} is missing and has no previous one. "
            'Choose missing="interpolate" or "drop".'
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


FORMATS = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y", "%d/%m/%Y %H:%M:%S",
           "%d/%m/%Y %H:%M", "%d/%m/%Y")  # fmt: skip


def clock(times: Sequence[str]) -> np.ndarray | None:
    r"""Times in seconds since 1970 (n,), or None where they are not all dates that can be read.

    2020-01-31, 2020/01/31 and 31.01.2020 or 31/01/2020, each with or without hours and minutes.

    Example:
        >>> clock(["1970-01-02", "1970-01-02 00:10"]).tolist()
        [86400.0, 87000.0]
    """
    words = [t.strip() for t in times]
    if not words or not DATE.match(words[0]):
        return None
    iso = words[0][:4].isdigit()
    try:
        if iso:
            plain = [w.replace("/", "-").removesuffix("Z") for w in words]
            return np.array(plain, dtype="datetime64[ms]").astype(np.int64) / 1000.0
        for form in FORMATS:
            try:
                zone = datetime.timezone.utc
                read = [datetime.datetime.strptime(w, form).replace(tzinfo=zone) for w in words]
            except ValueError:
                continue
            return np.array([r.timestamp() for r in read])
    except ValueError:
        return None
    return None


def _steps(file: str, times: Sequence[str]) -> list[str]:
    """Whether the times rise by equal steps, where they can be read."""
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


def _equal_steps(path: Path, name: str, times: Sequence[str], lines: Sequence[int]) -> None:
    """An error that names the first line whose time is not one step after the one before."""
    at = clock(times)
    if at is None:
        try:
            at = np.array([float(t) for t in times])
        except ValueError:
            _readable(path, name, times, lines)
            return
    step = np.diff(at)
    if not len(step):
        return
    usual = float(np.median(step))
    wrong = np.abs(step - usual) > 1e-6 * abs(usual)
    # A calendar's months and years are no two of one length.
    if usual >= 28 * 86400 and not (step <= 0).any() and float(step.max()) < 1.2 * usual:
        return
    if usual <= 0:
        wrong = step <= 0
    if not wrong.any():
        return
    i = int(wrong.argmax())
    what = "repeats" if step[i] == 0 else "goes back after" if step[i] < 0 else "leaves a gap after"
    raise ValueError(
        f"{path}: line {lines[i + 1]}, column {name!r}: {times[i + 1].strip()!r} {what} "
        f"{times[i].strip()!r}, but rows must follow each other in equal steps. Mend the rows, or "
        'take them as they come with spacing="any".'
    )


def _readable(path: Path, name: str, times: Sequence[str], lines: Sequence[int]) -> None:
    """Times in words of their own are let be; one among dates that is none is an error."""
    if not DATE.match(times[0]):
        return
    for time, line in zip(times, lines, strict=True):
        if clock([time]) is None:
            raise ValueError(
                f"{path}: line {line}, column {name!r}: expected a date as in the first row "
                f"({times[0].strip()!r}), found {time[:40]!r}. Mend it."
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
    r"""Train, val and test windows of the first 70%, the next 10% and the last 20% of the rows.

    Values are scaled by mean and standard deviation of the training rows. The windows of val and
    test start ``look_back`` rows early, so that their first future is their first own row.
    """
    n = len(table.values)
    train, test = int(0.7 * n), int(0.2 * n)
    if min(train - look_back, n - train - test, test) < horizon:
        raise ValueError(
            f"windows: {n:,} rows split {train:,}/{n - train - test:,}/{test:,} are too few for "
            f"look_back={look_back} and horizon={horizon}. Shorten them or bring more rows."
        )
    std, mean = torch.std_mean(table.values[:train], 0, correction=0)
    low, high = table.values[:train].aminmax(dim=0)
    std = torch.where(high > low, std, 1.0)  # rounding makes the std of equal values not quite 0
    rows = ((table.values - mean) / std).to(torch.float32)
    bounds = ((0, train), (train - look_back, n - test), (n - test - look_back, n))
    first, second, third = (
        Windows(rows[a:b], look_back, horizon, mean.float(), std.float(), table.columns)
        for a, b in bounds
    )
    return first, second, third


def load_csv(
    path: Path,
    look_back: int = 96,
    horizon: int = 96,
    time: str | None = None,
    missing: str = "error",
    sentinel: float | Sequence[float] = (),
) -> tuple[tuple[Windows, Windows, Windows], tuple[str, ...]]:
    """Windows of a CSV file, split 70/10/20, and the notes about it."""
    table = read_csv(path, time, missing, sentinel)
    parts = windows(table, look_back, horizon)
    n, channels = table.values.shape
    flat = table.values[: int(0.7 * n)]
    constant = [c for c, v in zip(table.columns, flat.T, strict=True) if bool((v == v[0]).all())]
    notes = [
        f"{path.name}: {n:,} rows of {channels} channels, split 70/10/20 in time; look-back "
        f"{look_back}, horizon {horizon}; scaled by the training rows",
        *table.notes,
    ]
    if constant:
        notes.append(f"{path.name}: constant over the training rows: {', '.join(constant)}")
    return parts, tuple(notes)


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
    """

    def __init__(self, windows: Windows, day: Tensor | None = None) -> None:
        if day is not None and day.shape != (len(windows.rows),):
            raise ValueError(
                f"Timed: expected a time of day for each of {len(windows.rows)} rows, got "
                f"{tuple(day.shape)}."
            )
        self.windows = windows
        self.day = day

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
    """The time of day of each row as a share of 24 hours, (n,), or None if it cannot be read."""
    at = clock(times)
    return None if at is None else torch.from_numpy(at % 86400 / 86400).to(torch.float32)


def series(
    path: Path,
    look_back: int = 96,
    horizon: int = 96,
    time: str | None = None,
    target: str = "all",
    missing: str = "error",
    sentinel: float | Sequence[float] = (),
    equal: bool = True,
    constant: bool = False,
) -> tuple[tuple[Timed, Timed, Timed], tuple[str, ...]]:
    r"""Windows of a CSV file with their times of day, split 70/10/20, and the notes about it.

    Arguments:
        target: "all" columns, or the names of those to take, with commas between.
        equal: Whether times must follow each other in equal steps.
        constant: Whether a column may stand still over the training rows.

    The other arguments are those of :func:`read_csv` and :func:`windows`.
    """
    table = chosen(read_csv(path, time, missing, sentinel, equal), target, path)
    parts = windows(table, look_back, horizon)
    n, channels = table.values.shape
    train, test = int(0.7 * n), int(0.2 * n)
    flat = (table.values[:train] == table.values[:1]).all(0)
    if bool(flat.any()) and not constant:
        i = int(flat.to(torch.uint8).argmax())
        raise ValueError(
            f"{path}: column {table.columns[i]!r} is {float(table.values[0, i]):g} in all of the "
            f"training rows, 1 to {train:,}, so there is nothing to learn. Leave it out of target."
        )
    notes = [
        f"{path.name}: {n:,} rows of {channels} channels, split 70/10/20 in time; look-back "
        f"{look_back}, horizon {horizon}; scaled by the training rows",
        *table.notes,
    ]
    day = day_of(table.times)
    bounds = ((0, train), (train - look_back, n - test), (n - test - look_back, n))
    timed = [
        Timed(part, None if day is None else day[a:b])
        for part, (a, b) in zip(parts, bounds, strict=True)
    ]
    return (timed[0], timed[1], timed[2]), tuple(notes)


def chosen(table: Table, target: str, path: Path) -> Table:
    """The table with the named columns only, in the order they are named."""
    names = [name.strip() for name in target.split(",") if name.strip()]
    if names == ["all"]:
        return table
    for name in names:
        if name not in table.columns:
            near = difflib.get_close_matches(name, table.columns, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(table.columns)}."
            raise ValueError(f"{path}: there is no column {name!r} to forecast. {hint}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path}: expected different columns to forecast, got {target!r}.")
    values = table.values[:, [table.columns.index(name) for name in names]]
    return Table(values, tuple(names), table.times, table.notes)


# -- the weather benchmark ---------------------------------------------------------------------


def find_weather(root: Path) -> Path | None:
    folder = root / "weather"
    choices = (folder / "weather.csv", folder / "weather.csv.gz")
    return next((p for p in choices if p.is_file()), None)


def load_weather(
    root: Path, look_back: int = 96, horizon: int = 96
) -> tuple[tuple[Windows, Windows, Windows], tuple[str, ...]]:
    """The weather benchmark of 52,696 rows and 21 channels, its −9999 left as published."""
    path = find_weather(root)
    if path is None:
        raise missing("weather", root / "weather", "weather.csv or weather.csv.gz", True)
    parts, notes = load_csv(path, look_back, horizon)
    train, val, test = parts
    rows = len(train.rows) + len(val.rows) + len(test.rows) - 2 * look_back
    if (rows, train.shape[1]) != WEATHER_SHAPE:
        raise _not_the_benchmark(path, rows, train.shape[1])
    return parts, notes


def weather_series(
    root: Path, look_back: int = 96, horizon: int = 96
) -> tuple[tuple[Timed, Timed, Timed], tuple[str, ...]]:
    """The weather benchmark with its times of day: one row stands twice, nine are missing."""
    path = find_weather(root)
    if path is None:
        raise missing("weather", root / "weather", "weather.csv or weather.csv.gz", True)
    parts, notes = series(path, look_back, horizon, equal=False)
    rows = sum(len(part.windows.rows) for part in parts) - 2 * look_back
    if (rows, parts[0].shape[1]) != WEATHER_SHAPE:
        raise _not_the_benchmark(path, rows, parts[0].shape[1])
    return parts, notes


def _not_the_benchmark(path: Path, rows: int, channels: int) -> DamagedError:
    expected = "{:,} rows of {} channels".format(*WEATHER_SHAPE)
    return DamagedError(path, f"expected {expected}, found {rows:,} of {channels}", "weather")


def fetch_weather(root: Path, progress: Progress | None) -> Path:
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
