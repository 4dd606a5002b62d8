"""Distilled encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..evaluation.disentanglement import COLUMNS
from .claims import APART, EQUAL, Claim, Found, Section, command_of, judged, middle, spread, took


def disentangle_claims(
    row: Mapping[str, Any], time: Callable[[float | None], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows."""
    rows, claims = row["rows"], []
    drawn = any("re-rendered" in note for note in row["data"])
    seeds = row["seeds"]
    several = f"{seeds} seed{'s' if seeds != 1 else ''}"
    how = f"no: re-rendered dSprites, {several}" if drawn else f"yes: {several}"
    equal: dict[str, bool] = {}
    for name, r in rows.items():
        if "paper" not in r:
            continue
        ours, said = (" / ".join(spread(s[k], f) for k in COLUMNS)
                      for s, f in ((r, ".3f"), (r["paper"], ".2f")))  # fmt: skip
        verdicts = {_close(r[k], r["paper"][k]) for k in COLUMNS}
        same = EQUAL if verdicts == {EQUAL} else APART
        spent = r.get("training_seconds")
        equal[name] = same == EQUAL and not drawn
        claims.append(Claim(name, said, ours, same, how, time(spent), command))
    for name, r in rows.items():
        teacher_name = name.removeprefix("Linearizer-").partition(",")[0]
        teacher = rows.get(teacher_name)
        if not name.startswith("Linearizer-") or teacher is None or "paper" not in r:
            continue
        gaps = {k: abs(middle(r[k]) - middle(teacher[k])) for k in COLUMNS}
        theirs = {k: abs(r["paper"][k][0] - teacher["paper"][k][0]) for k in COLUMNS}
        far, paper_far = max(gaps, key=lambda k: gaps[k]), max(theirs, key=lambda k: theirs[k])
        stds = [s[far][1] for s in (r, teacher)]
        std = None if None in stds else math.hypot(*stds)
        # The paper's numbers are rounded, and those of few seeds.
        tolerance = 0.01 + max(s["paper"][paper_far][1] for s in (r, teacher))
        fair = equal.get(teacher_name, False)
        claims.append(Claim(
            f"{name}: largest difference of a score to its teacher's",
            f"{theirs[paper_far]:.2f} ({COLUMNS[paper_far]})",
            f"{spread((gaps[far], std))} ({COLUMNS[far]}); R² {r['r2']:.4f} on held-out images",
            judged(gaps[far], theirs[paper_far], tolerance, less=True) if fair else APART,
            how if fair else f"no: its teacher does not have the paper's scores; {several}",
            time(r.get("training_seconds")), command,
        ))  # fmt: skip
    return claims


def _close(ours: Sequence[float | None], paper: Sequence[float]) -> str:
    """Equal where they are within both deviations and the paper's rounding."""
    apart = abs((ours[0] or 0.0) - paper[0])
    return EQUAL if apart <= (ours[1] or 0.0) + paper[1] + 0.005 else APART


def disentangle_section(found: Found) -> Section:
    row = found["disentanglement"]
    command = command_of(found, "disentangle", "linearizer evaluate disentanglement")

    def time(seconds: float | None) -> str:
        return "published encoder" if seconds is None else took(seconds / 60, row)

    claims = disentangle_claims(row, time, command)
    several = "of one seed" if row["seeds"] == 1 else (
        f"mean ± standard deviation over {row['seeds']} seeds of the scores"
    )  # fmt: skip
    text = (
        f"Scores in the order {' / '.join(COLUMNS.values())}, {several}. Teachers are the "
        "published encoders that the paper distils. Where a teacher does not get the paper's "
        "scores, definitions or images differ, and nothing can be compared: the last rows then "
        "only say how near a Linearizer is to its teacher. “Same layers” has the teacher's layers "
        "inside g and starts as the teacher; the others start from nothing."
    )
    title = "Distilled encoders of dSprites (appendix E)"
    return Section("disentangle", title, text, claims, list(row["data"]))
