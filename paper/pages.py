"""The page of all experiments, and the claims of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .attributes import attributes_claims, attributes_section
from .claims import BETTER, EQUAL, WORSE, Claim, Found, Section, command_of, counted
from .encoders import disentangle_claims, disentangle_section
from .flows import flow_claims, flow_section
from .projectors import projector_claims, projector_section
from .styles import style_claims, style_section
from .theory import theory_section
from .weather import weather_claims, weather_section


class Experiment(NamedTuple):
    """What `linearizer reproduce` calls it, the JSON files that it needs, and its section."""

    title: str
    files: tuple[str, ...]
    section: Callable[[Found], Section]


EXPERIMENTS = {
    "flow": Experiment("One-step flows", ("flow",), flow_section),
    "projector": Experiment("Projectors", ("projector",), projector_section),
    "style": Experiment("Styles", ("style",), style_section),
    "disentangle": Experiment("Distilled encoders", ("disentanglement",), disentangle_section),
    "attributes": Experiment("Attributes", ("attributes",), attributes_section),
    "weather": Experiment("Weather", ("weather",), weather_section),
}
#: Other files that the page takes from where they are.
BESIDE = ("shipped", "collapse", "finite_fit", "quickstart", "state")

#: One evaluation alone: what its file is called, and the claims that it has a number for.
CLAIMS: dict[str, Callable[[Mapping[str, Any]], list[Claim]]] = {
    "flow": flow_claims,
    "projector": projector_claims,
    "style": style_claims,
    "disentanglement": disentangle_claims,
    "attributes": attributes_claims,
    "weather": weather_claims,
}


def claims_of(kind: str, result: Mapping[str, Any]) -> list[Claim]:
    """The paper's numbers beside those of one evaluation; none where the paper has no such thing.

    Arguments:
        kind: What the evaluation's file is called: flow, projector, style, and so on.
        result: What is in it.
    """
    if kind not in CLAIMS or (kind == "disentanglement" and "encoder" in result):
        return []
    return CLAIMS[kind](result)


def gathered(folder: Path) -> dict[str, Any]:
    """The JSON files of a folder that the page is made of; what is not there is left out."""
    names = [*(f for e in EXPERIMENTS.values() for f in e.files), *BESIDE]
    found = {}
    for name in names:
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


def _read(found: Found, name: str, experiment: Experiment) -> Section:
    """The section of an experiment; JSON that is not of its shape is one sentence."""
    try:
        return experiment.section(found)
    except (LookupError, TypeError, AttributeError, ValueError) as problem:
        files = ", ".join(f"{file}.json" for file in experiment.files)
        why = f"{problem} is not there" if isinstance(problem, KeyError) else str(problem)
        raise ValueError(
            f"{files}: expected what `linearizer reproduce {name}` writes, but {why}. Measure it "
            "again, or leave it out."
        ) from None


def sections(found: Found) -> list[Section]:
    """All experiments in the paper's order; one without its JSON has no claims and says so."""
    every = []
    for name, experiment in EXPERIMENTS.items():
        if all(file in found for file in experiment.files):
            every.append(_read(found, name, experiment))
        else:
            note = f"Not measured yet: `linearizer reproduce {name}`."
            every.append(Section(name, experiment.title, "", [], [note]))
    theory = theory_section(found)
    return [*every, theory] if theory.claims else every


def page(found: Found, origin: str = "benchmarks") -> str:
    """The page as Markdown; the same JSON gives the same page."""
    every = sections(found)
    lines = [
        "# The paper's numbers, and ours",
        "",
        f"From the JSON files in `{origin}/`, by `linearizer reproduce --from {origin}`. "
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
    columns = list(counted([]))
    lines += ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for section in every:
        counts = counted(section.claims).values()
        lines.append(f"| {section.title} | " + " | ".join(str(n or "–") for n in counts) + " |")
    claims = [c for section in every for c in section.claims]
    for verdict in (BETTER, EQUAL, WORSE):
        for same, how in ((True, "the same protocol"), (False, "another protocol")):
            which = [c.what for c in claims
                     if c.verdict == verdict and c.protocol.startswith("yes") == same]  # fmt: skip
            if which:
                lines += ["", f"**{verdict.capitalize()}, by {how}**: {'; '.join(which)}."]
    for section in every:
        lines += ["", f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        if section.claims:
            lines += table(section.claims)
        if section.claims and section.name in EXPERIMENTS:
            command = command_of(found, section.name, f"linearizer reproduce {section.name}")
            lines += [
                "",
                "All of it again, training included, rows with a command of their own (`python …`) "
                f"apart: `{command}`.",
            ]
        notes = [f"- {note}" for note in dict.fromkeys(section.notes)]
        lines += ["", *notes] if section.claims and notes else notes
    return "\n".join(lines).rstrip() + "\n"


HEAD = ("what", "paper", "ours", "how we compare", "same protocol?", "time and hardware", "command")


def table(claims: Iterable[Claim]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for claim in claims:
        verdict = f"**{claim.verdict}**" if claim.verdict in (BETTER, EQUAL, WORSE) else (
            claim.verdict
        )  # fmt: skip
        command = f"`{claim.command}`" if claim.command else ""
        cells = (*claim[:3], verdict, claim.protocol, claim.time, command)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return lines
