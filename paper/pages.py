"""The page of all experiments: the paper's numbers and ours, from measured JSON alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from . import attributes, distill, dynamics, flow, projector, style, weather
from .claims import BETTER, EQUAL, WORSE, Claim, Found, Section, command_of, count_verdicts
from .experiment import Experiment
from .theory import theory_section

__all__ = ["EVERY", "EXPERIMENTS", "claims_of", "make_page", "make_sections", "read_folder"]

MODULES = (flow, projector, style, distill, attributes, weather, dynamics)
#: All experiments, by name.
EVERY: dict[str, Experiment] = {m.EXPERIMENT.name: m.EXPERIMENT for m in MODULES}
#: Those that the paper has too, in the order of the page.
EXPERIMENTS = {name: e for name, e in EVERY.items() if e.section is not None}
#: Other files that the page takes from where they are.
BESIDE = ("shipped", "collapse", "finite_fit", "quickstart", "state")

HEAD = ("what", "paper", "ours", "how we compare", "same protocol?", "time and hardware", "command")


def claims_of(name: str, result: Mapping[str, Any]) -> list[Claim]:
    """The paper's numbers beside those of one evaluation; none where the paper has no such thing.

    Arguments:
        name: Of the experiment.
        result: What the evaluation found.
    """
    return EVERY[name].claims(result)


def read_folder(folder: Path) -> dict[str, Any]:
    """The JSON files of a folder that the page is made of; what is not there is left out."""
    found = {}
    for name in (*(e.file for e in EXPERIMENTS.values()), *BESIDE):
        path = folder / f"{name}.json"
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as problem:
            raise ValueError(f"{path}: expected JSON, but {problem}.") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected a JSON object, got a {type(value).__name__}.")
        found[name] = value
    return found


def _read_section(found: Found, experiment: Experiment) -> Section:
    """The section of an experiment; JSON that is not of its shape is one sentence."""
    assert experiment.section is not None
    try:
        return experiment.section(found)
    except (LookupError, TypeError, AttributeError, ValueError) as problem:
        why = f"{problem} is not there" if isinstance(problem, KeyError) else str(problem)
        raise ValueError(
            f"{experiment.file}.json: expected what `python -m paper {experiment.name}` writes, "
            f"but {why}. Measure it again, or leave it out."
        ) from None


def make_sections(found: Found) -> list[Section]:
    """All experiments in the paper's order; one without its JSON has no claims and says so."""
    every = []
    for name, experiment in EXPERIMENTS.items():
        if experiment.file in found:
            every.append(_read_section(found, experiment))
        else:
            note = f"Not measured yet: `python -m paper {name}`."
            every.append(Section(name, experiment.title, "", [], [note]))
    theory = theory_section(found)
    return [*every, theory] if theory.claims else every


def make_page(found: Found, origin: str = "benchmarks") -> str:
    """The page as Markdown; the same JSON gives the same page."""
    every = make_sections(found)
    lines = [
        "# The paper's numbers, and ours",
        "",
        f"From the JSON files in `{origin}/`, by `python -m paper --from {origin}`. "
        "Every number that the paper prints is here, with ours beside it, better or worse. "
        "“Same protocol?” says whether both measure the same thing in the same way: a better "
        "number by another protocol is no better result. Times are those of training; rows of the "
        "collapse (appendix F) have its own.",
        "",
    ]
    if scale := found.get("state", {}).get("scale"):
        lines += [f"Scale: `{scale}`.", ""]
    for part, problem in found.get("state", {}).get("problems", {}).items():
        lines += [f"**Not done**: {part}. {problem}", ""]
    lines += _count_lines(every)
    for section in every:
        lines += _section_lines(section, found)
    return "\n".join(lines).rstrip() + "\n"


def _count_lines(every: Iterable[Section]) -> list[str]:
    """How many claims have each verdict, and which are better, equal or worse."""
    every = list(every)
    columns = list(count_verdicts([]))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for section in every:
        counts = count_verdicts(section.claims).values()
        lines.append(f"| {section.title} | " + " | ".join(str(n or "–") for n in counts) + " |")
    claims = [claim for section in every for claim in section.claims]
    for verdict in (BETTER, EQUAL, WORSE):
        for same, how in ((True, "the same protocol"), (False, "another protocol")):
            which = [
                claim.what
                for claim in claims
                if claim.verdict == verdict and claim.protocol.startswith("yes") == same
            ]
            if which:
                lines += ["", f"**{verdict.capitalize()}, by {how}**: {'; '.join(which)}."]
    return lines


def _section_lines(section: Section, found: Found) -> list[str]:
    lines = ["", f"## {section.title}", ""]
    if section.text:
        lines += [section.text, ""]
    if section.claims:
        lines += claims_table(section.claims)
    if section.claims and section.name in EXPERIMENTS:
        command = command_of(found, section.name, f"python -m paper {section.name}")
        lines += [
            "",
            "All of it again, training included, rows with a command of their own "
            f"(`python -m paper record …`, `python benchmarks/…`) apart: `{command}`.",
        ]
    notes = [f"- {note}" for note in dict.fromkeys(section.notes)]
    return [*lines, *(["", *notes] if section.claims and notes else notes)]


def claims_table(claims: Iterable[Claim]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for claim in claims:
        strong = claim.verdict in (BETTER, EQUAL, WORSE)
        verdict = f"**{claim.verdict}**" if strong else claim.verdict
        command = f"`{claim.command}`" if claim.command else ""
        cells = (*claim[:3], verdict, claim.protocol, claim.time, command)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return lines
