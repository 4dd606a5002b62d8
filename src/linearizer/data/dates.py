r"""Times as they stand in tables: how they are read, scaled to equal steps, and continued."""

from __future__ import annotations

import bisect
import calendar
import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["DATE", "Scale", "clock", "continue_times", "find_unreadable", "scale"]

DATE = re.compile(r"\s*(\d{4}[-/]\d{1,2}\b|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b)")
ZONE = re.compile(r"(?<=\d)(Z|[+-]\d{2}:?\d{2})$")
UTC = datetime.timezone.utc
#: Dates that start with the day are tried before those that start with the month.
FORMATS = tuple(
    f"{day}{hour}"
    for day in ("%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y", "%m/%d/%Y", "%m-%d-%Y")
    for hour in (" %H:%M:%S", " %H:%M", "")
)
MONTH = 28 * 86400.0


class Scale(NamedTuple):
    r"""Where each row stands on a scale on which equal steps are equal."""

    at: np.ndarray  #: (n,) float64
    unit: str  #: "s", "months", or "" for plain numbers

    @property
    def step(self) -> float:
        """The usual step, which is the median."""
        return float(np.median(np.diff(self.at))) if len(self.at) > 1 else 0.0


def clock(times: Sequence[str]) -> np.ndarray | None:
    r"""Return times in seconds since 1970 (n,), or None if they are not all readable dates.

    2020-01-31, 2020/01/31, 31.01.2020, 31/01/2020, and 01/31/2020 where days tell that the month
    comes first; each with or without hours and minutes. A zone (Z, +01:00) is respected after the
    first two.

    Example:
        >>> clock(["1970-01-02", "1970-01-02 00:10"]).tolist()
        [86400.0, 87000.0]
        >>> clock(["1970-01-02T01:00+01:00"]).tolist()
        [86400.0]
    """
    words = [t.strip() for t in times]
    if not words or not DATE.match(words[0]):
        return None
    try:
        if words[0][:4].isdigit():
            plain = [w.replace("/", "-") for w in words]
            if any(ZONE.search(w) and ":" in w for w in plain):
                read = [datetime.datetime.fromisoformat(w) for w in plain]
                return np.array([_utc(r).timestamp() for r in read])
            moments = np.array(plain, dtype="datetime64[ms]")  # an empty word is no time
            return None if np.isnat(moments).any() else moments.astype(np.int64) / 1000.0
        form = _find_form(words)
        if form is None:
            return None
        return np.array([_utc(datetime.datetime.strptime(w, form)).timestamp() for w in words])
    except ValueError:
        return None


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _find_form(words: Sequence[str]) -> str | None:
    """Return the first of FORMATS in which all are written."""
    for form in FORMATS:
        try:
            for word in words:
                datetime.datetime.strptime(word, form)
        except ValueError:
            continue
        return form
    return None


def scale(times: Sequence[str]) -> Scale | None:
    r"""Return times in seconds, in months where the calendar counts them, or as plain numbers.

    Example:
        >>> scale(["2020-01-31", "2020-02-29", "2020-03-31"]).step
        1.0
    """
    if (at := clock(times)) is not None:
        months = _months(at)
        return Scale(at, "s") if months is None else Scale(months, "months")
    try:
        numbers = np.array([float(t) for t in times])
    except ValueError:
        return None
    return Scale(numbers, "") if len(numbers) and bool(np.isfinite(numbers).all()) else None


def _months(at: np.ndarray) -> np.ndarray | None:
    """Return months since year 0 if all are the same day, or the last one, of months."""
    if len(at) < 2 or float(np.median(np.diff(at))) < MONTH:
        return None
    days = [datetime.datetime.fromtimestamp(float(a), UTC) for a in at]
    same = len({d.day for d in days}) == 1 or all(map(_ends_month, days))
    if not same or len({a % 86400 for a in at.tolist()}) > 1:
        return None
    return np.array([12.0 * d.year + d.month - 1 for d in days])


def _ends_month(day: datetime.datetime) -> bool:
    return day.day == calendar.monthrange(day.year, day.month)[1]


def find_unreadable(times: Sequence[str]) -> int | None:
    r"""Return the first row whose time cannot be read as those before it, or None if all can.

    Example:
        >>> find_unreadable(["2020-01-01", "2020-01-02", "later"])
        2
    """
    # Whether the first k can be read only changes once as k grows.
    lengths = range(1, len(times) + 1)
    k = bisect.bisect_left(lengths, True, key=lambda k: scale(times[:k]) is None)
    return None if k == len(times) else k


def continue_times(times: Sequence[str], n: int) -> list[str]:
    r"""Return the n times after those of a table, in its own step; 1, 2, … where it has none.

    Example:
        >>> continue_times(["2020-01-31 22:00", "2020-01-31 23:00"], 2)
        ['2020-02-01 00:00', '2020-02-01 01:00']
        >>> continue_times(["2020-10", "2020-11", "2020-12"], 2)
        ['2021-01', '2021-02']
        >>> continue_times(["10", "20"], 2)
        ['30', '40']
    """
    found = scale(times) if len(times) > 1 else None
    if found is None or found.step <= 0:
        return [str(i) for i in range(1, n + 1)]
    last = float(found.at[-1])
    if not found.unit:
        return [f"{last + found.step * i:.12g}" for i in range(1, n + 1)]
    words = [t.strip() for t in times]
    if found.unit == "s":
        at = [last + found.step * i for i in range(1, n + 1)]
        return [_write_time(datetime.datetime.fromtimestamp(a, UTC), words) for a in at]
    seconds = clock(words)
    assert seconds is not None
    end = datetime.datetime.fromtimestamp(float(seconds[-1]), UTC)
    last_day = all(_ends_month(datetime.datetime.fromtimestamp(float(s), UTC)) for s in seconds)
    ends = []
    for i in range(1, n + 1):
        year, month = divmod(int(last + found.step * i), 12)
        most = calendar.monthrange(year, month + 1)[1]
        ends.append(end.replace(year=year, month=month + 1, day=most if last_day else end.day))
    return [_write_time(moment, words) for moment in ends]


def _write_time(moment: datetime.datetime, words: Sequence[str]) -> str:
    """Write a time as the last of the words is written."""
    example = words[-1]
    if not example[:4].isdigit():
        return moment.strftime(_find_form(words) or "%Y-%m-%d %H:%M:%S")
    zone = ZONE.search(example) if ":" in example else None
    if zone is not None:
        here = datetime.datetime.fromisoformat(example.replace("/", "-")).tzinfo
        moment = moment.astimezone(here)
        example = example[: zone.start()]
    between = "T" if "T" in example else " "
    day, _, hour = example.replace("T", " ").partition(" ")
    text = moment.strftime("%Y/%m/%d" if "/" in day else "%Y-%m-%d")
    if day.count("-") + day.count("/") == 1:
        text = text[:7]
    if hour:
        whole, _, part = hour.partition(".")
        text += between + moment.strftime("%H:%M:%S" if whole.count(":") == 2 else "%H:%M")
        if part:
            text += "." + f"{moment.microsecond:06d}"[: len(part)]
    return text + (zone[0] if zone is not None else "")
