"""A number of the paper beside ours, and how they compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

#: How ours stands to the paper's number; the first three where there are two to compare.
BETTER, EQUAL, WORSE = "better", "equal", "worse"
APART, SILENT, MISSING = "not comparable", "no number in the paper", "not measured"
VERDICTS = (BETTER, EQUAL, WORSE, APART, SILENT, MISSING)
#: What is counted apart: a better number by another protocol is no better result.
OTHERWISE = "better by another protocol"

Found = Mapping[str, Any]


class Claim(NamedTuple):
    """A number of the paper, and ours."""

    what: str
    paper: str
    ours: str
    verdict: str
    #: "yes", or "no: why"
    protocol: str
    time: str = ""
    command: str = ""


class Section(NamedTuple):
    """One experiment of the paper."""

    name: str
    title: str
    text: str
    claims: list[Claim]
    notes: list[str]


def judged(ours: float, paper: float, tolerance: float = 0.0, less: bool = False) -> str:
    """Better, equal (within the tolerance) or worse; ``less`` where less is better."""
    gap = paper - ours if less else ours - paper
    return EQUAL if abs(gap) <= tolerance else BETTER if gap > 0 else WORSE


def spread(value: Any, form: str = ".3f") -> str:
    """A number, or mean ± standard deviation where there are several."""
    if isinstance(value, Sequence):
        mean, std = value
        return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}")
    return f"{value:{form}}"


def middle(value: Any) -> float:
    """The number itself, or the mean."""
    return float(value[0] if isinstance(value, Sequence) else value)


def counted(claims: Iterable[Claim]) -> dict[str, int]:
    """How many claims have each verdict; better are those by the same protocol alone."""
    counts = dict.fromkeys((BETTER, OTHERWISE, *VERDICTS[1:]), 0)
    for claim in claims:
        otherwise = claim.verdict == BETTER and not claim.protocol.startswith("yes")
        counts[OTHERWISE if otherwise else claim.verdict] += 1
    return counts


def runs_of(rows: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The evaluated runs among the entries of a file."""
    return [(k, v) for k, v in rows.items() if isinstance(v, Mapping) and key in v]


def command_of(found: Found, name: str, usual: str) -> str:
    """What does an experiment again."""
    return str(found.get("state", {}).get("commands", {}).get(name, usual))


def time_of(found: Found, rows: Mapping[str, Any], name: str) -> str:
    """How long a run was trained for."""
    row = found.get("shipped", {}).get(name, {})
    minutes = row.get("cpu_minutes", row.get("minutes"))
    return (
        "" if minutes is None else took(minutes, {"machine": row.get("machine", rows["machine"])})
    )


def took(minutes: float, row: Mapping[str, Any]) -> str:
    """A time, and on what."""
    machine = row.get("machine", {})
    shown = f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
    if device := machine.get("device"):
        return f"{shown}, {device}"
    threads = machine.get("threads", 1)
    cores = "one" if threads == 1 else str(threads)
    return f"{shown}, {cores} of {machine.get('cores', '?')} CPU cores"
