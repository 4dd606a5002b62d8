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

#: Test images of CelebA's own split.
CELEBA_TEST = 19_962
#: Images as the paper takes them.
SHAPES = {"mnist": (1, 32, 32), "celeba": (3, 64, 64)}

#: The contents of measured JSON files, by the names of the files.
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


def judge(ours: float, paper: float, tolerance: float = 0.0, less: bool = False) -> str:
    """Better, equal (within the tolerance) or worse; ``less`` where less is better."""
    gap = paper - ours if less else ours - paper
    return EQUAL if abs(gap) <= tolerance else BETTER if gap > 0 else WORSE


def count_verdicts(claims: Iterable[Claim]) -> dict[str, int]:
    """How many claims have each verdict; better are those by the same protocol alone."""
    counts = dict.fromkeys((BETTER, OTHERWISE, *VERDICTS[1:]), 0)
    for claim in claims:
        otherwise = claim.verdict == BETTER and not claim.protocol.startswith("yes")
        counts[OTHERWISE if otherwise else claim.verdict] += 1
    return counts


# -- words for numbers -------------------------------------------------------------------------


def spread(value: Any, form: str = ".3f") -> str:
    """A number, or mean ± standard deviation where there are several."""
    if isinstance(value, Sequence):
        mean, std = value
        return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}")
    return f"{value:{form}}"


def middle(value: Any) -> float:
    """The number itself, or the mean."""
    return float(value[0] if isinstance(value, Sequence) else value)


def signed(values: Iterable[float], form: str = "+.3f") -> str:
    """Numbers with their signs."""
    return " / ".join(f"{v:{form}}" for v in values).replace("-", "−")


def describe_images(row: Mapping[str, Any]) -> str:
    """Which images were measured on."""
    n = row["data"]["test_images"]
    if row["data"]["name"] == "celeba" and n < CELEBA_TEST:
        return f"{n:,} test images of a part of CelebA"
    return f"all {n:,} test images"


def describe_size(row: Mapping[str, Any]) -> str:
    """What is to be said where the images are not of the paper's size; else nothing."""
    paper, ours = SHAPES.get(row["data"]["name"]), row["data"].get("shape")
    if paper is None or (ours is not None and tuple(ours) == paper):
        return ""
    shown = "of unknown size" if ours is None else "×".join(map(str, ours))
    return f"; images {shown}, the paper's are {'×'.join(map(str, paper))}"


def describe_time(minutes: float, row: Mapping[str, Any]) -> str:
    """A time, and on what."""
    machine = row.get("machine", {})
    shown = f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
    if device := machine.get("device"):
        return f"{shown}, {device}"
    threads = machine.get("threads", 1)
    cores = "one" if threads == 1 else str(threads)
    return f"{shown}, {cores} of {machine.get('cores', '?')} CPU cores"


# -- what JSON files hold ----------------------------------------------------------------------


def runs_of(rows: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The evaluated runs among the entries of a file."""
    return [(k, v) for k, v in rows.items() if isinstance(v, Mapping) and key in v]


def command_of(found: Found, name: str, usual: str) -> str:
    """The command that does an experiment again."""
    return str(found.get("state", {}).get("commands", {}).get(name, usual))


def time_of(found: Found, rows: Mapping[str, Any], name: str) -> str:
    """How long a run was trained for."""
    row = found.get("shipped", {}).get(name, {})
    minutes = row.get("cpu_minutes", row.get("minutes"))
    if minutes is None:
        return ""
    return describe_time(minutes, {"machine": row.get("machine", rows["machine"])})
