"""Styles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .claims import SILENT, Claim, Found, Section, command_of, runs_of, time_of, took

#: Held-out photos that are undone, and blended, at most.
UNDONE, BLENDED = 20, 8


def style_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.2, for one evaluated style model."""

    def mean(way: str, key: str) -> float | None:
        values = [r[way].get(key) for r in row["fidelity"].values() if way in r]
        return sum(values) / len(values) if values and None not in values else None

    def photos(n: int) -> str:
        some = min(n, row["photos"])
        if not row.get("held_out", True):
            return "its own photo"
        return f"{some} held-out photo{'s' if some != 1 else ''}"

    where = photos(row["photos"])
    claims = []

    def add(what: str, ours: str, how: str = where) -> None:
        claims.append(Claim(what, "pictures", ours, SILENT, how, time, command))

    for key, form, unit in (("psnr", ".1f", " dB"), ("lpips", ".3f", "")):
        ours, linear = mean("ours", key), mean("linear", key)
        if ours is not None and linear is not None:
            add(f"{key.upper()} to the style network, mean of {len(row['fidelity'])} styles",
                f"{ours:{form}}{unit} (best linear filter: {linear:{form}}{unit})")  # fmt: skip
    if "blend" in row:
        blend = row["blend"]
        add(f"blend of {blend['from']} and {blend['to']}: largest step over the mean one",
            f"{blend['operator']['largest_over_mean']:.2f} by operator, "
            f"{blend['index']['largest_over_mean']:.2f} by index",
            f"{photos(BLENDED)}, 11 steps; the paper says nothing of a measure")  # fmt: skip
    if row.get("undo"):
        least = min(r["psnr"] for r in row["undo"].values())
        add("undone by f†, PSNR", f"at least {least:.0f} dB",
            f"{photos(UNDONE)}; the least of the styles' means")  # fmt: skip
    return claims


def style_section(found: Found) -> Section:
    rows = found["style"]
    claims: list[Claim] = []
    for name, row in runs_of(rows, "condition_number"):
        command = command_of(found, "style", f"linearizer evaluate style {name}")
        claims += [
            c._replace(what=f"{name}: {c.what}")
            for c in style_claims(row, time_of(found, rows, name), command)
        ]
    paper = rows.get("paper", {})
    if "fidelity" in paper and "cpu_seconds" in paper:
        kinds = {
            way: [r[way]["lpips"] for r in paper["fidelity"].values()] for way in ("paper", "ours")
        }
        means = {way: sum(v) / len(v) for way, v in kinds.items()}
        claims.append(Claim(
            "preset `paper` (glow, 4×4 kernels): LPIPS to the style network, mean of "
            f"{len(paper['fidelity'])} styles", "pictures",
            f"{means['paper']:.3f} (shipped: {means['ours']:.3f})", SILENT,
            f"{paper['photos']} held-out photos", took(paper["cpu_seconds"] / 60, rows),
            "python benchmarks/style.py paper",
        ))  # fmt: skip
    text = "The paper shows pictures and has no number."
    return Section("style", "Styles (section 4.2)", text, claims, [])
