"""Classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .claims import (
    APART,
    MISSING,
    SILENT,
    Claim,
    Found,
    Section,
    command_of,
    judged,
    middle,
    runs_of,
    spread,
    time_of,
)
from .flows import _part, _size
from .weather import _signed

#: Points of accuracy within which two are called equal: the error of a mean over a thousand faces.
POINTS = 0.005


def attributes_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Accuracies of appendix E, for one evaluated classifier."""
    data, paper = row["data"]["name"], row.get("paper")
    ours, base = row["linearizer"]["accuracy"], middle(row["majority"]["accuracy"])
    shown = f"{spread(ours, '.1%')} (majority: {base:.1%})"
    part = f"{row['data'].get('train_images', 0):,} training images, {_part(row)}"
    if paper is None:
        return [Claim(f"{data}: accuracy", "–", shown, SILENT, part, time, command)]
    part += _size(row)
    how = f"no: {part}" if "part of" in part or _size(row) else f"yes: {part}"
    claims = [
        Claim(f"{data}: mean accuracy over 40 attributes", f"{paper['linearizer']:.1%}", shown,
              judged(middle(ours), paper["linearizer"], POINTS), how, time, command)
    ]  # fmt: skip
    said = paper["linearizer"] - paper["resnet50"]
    if "resnet18" not in row:
        why = "not measured here: --baseline-minutes trains a ResNet-18"
        return [*claims, Claim(f"{data}: residual network", f"{paper['resnet50']:.1%}", why,
                               MISSING, "–", time, command)]  # fmt: skip
    other = middle(row["resnet18"]["accuracy"])
    gap = middle(ours) - other
    ratio = f"no: {part}; ResNet-18 of equal training time, the paper's is a ResNet-50"
    return [
        *claims,
        Claim(f"{data}: residual network, to compare with", f"{paper['resnet50']:.1%}",
              spread(row["resnet18"]["accuracy"], ".1%"), APART, ratio, time, command),
        Claim(f"{data}: Linearizer over the residual network, points",
              _signed([100 * said], "+.1f"), _signed([100 * gap], "+.1f"),
              judged(gap, said, POINTS), ratio, time, command),
    ]  # fmt: skip


def attributes_section(found: Found) -> Section:
    rows = found["attributes"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in runs_of(rows, "majority"):
        command = command_of(found, "attributes", f"linearizer evaluate attributes {name}")
        claims += attributes_claims(row, time_of(found, rows, name), command)
        notes += row["data"]["notes"]
    text = (
        f"Accuracies within {100 * POINTS:g} points are called equal: that is what a mean over a "
        "thousand faces is good for."
    )
    return Section("attributes", "Attributes of faces (appendix E)", text, claims, notes)
