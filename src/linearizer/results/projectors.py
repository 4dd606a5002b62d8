"""Projectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .claims import SILENT, Claim, Found, Section, command_of, runs_of, time_of, took


def projector_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.3, for one evaluated projector."""
    worst = max(row["idempotency_float32"].values())
    exact = row.get("idempotency_float64")
    double = f", {max(exact.values()):.0e} in float64" if exact else ""
    name = row.get("run", "")
    rank, psnr = row.get("rank"), row["reconstruction"]["psnr_mean_over_images"]
    lost = ": everything goes to one image" if rank == 0 else ""
    rows = [
        ("rank, and PSNR of test images", "pictures", f"{rank}{lost}; {psnr:.1f} dB"),
    ]
    if rank != 0:  # a constant is idempotent, and says nothing
        rows.insert(0, ("largest |f(f(x)) − f(x)| over data, noise, photos and others",
                        "f(f(x)) = f(x), exactly", f"{worst:.0e}{double}"))  # fmt: skip
    noise = row.get("projected", {}).get("noise 1")
    if noise and rank != 0:
        classes = sum(n > 0 for n in noise["classes"])
        rows.append(
            ("projected noise (σ = 1) of which a digit classifier is sure", "pictures",
             f"{noise['share_confident']:.0%}, of {classes} of 10 classes")
        )  # fmt: skip
    return [
        Claim(f"{name}: {what}" if name else what, said, ours, SILENT, "–", time, command)
        for what, said, ours in rows
    ]


def projector_section(found: Found) -> Section:
    rows = found["projector"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in sorted(runs_of(rows, "idempotency_float32"), key=lambda r: r[0] == "paper"):
        own = "run" in row
        if not own and name != "paper":
            continue  # baselines, and recipes of ours
        command = f"linearizer evaluate projector {name}" if own else (
            f"linearizer train projector --preset {name} --data mnist --size 32"
        )  # fmt: skip
        title = name if own else f"preset `{name}`, {row['steps']:,} steps"
        time = time_of(found, rows, name) if own else took(row["cpu_seconds"] / 60, rows)
        claims += projector_claims(
            {**row, "run": title}, time, command_of(found, "projector", command)
        )
        notes += row.get("data", {}).get("notes", [])
    if "ign" in rows:
        error = rows["ign"]["idempotency_float32"]
        claims.append(Claim(
            "IGN, whose idempotency is trained: |f(f(x)) − f(x)| on data, on noise (σ = 10)",
            "“only around the training data”", f"{error['data']:.2g}, {error['noise 10']:.2g}",
            SILENT, "our own IGN, with a network of ours",
            took(rows["ign"]["cpu_seconds"] / 60, rows), "python benchmarks/projector.py ign",
        ))  # fmt: skip
    text = "The paper shows pictures and has no number. It proves idempotency; here it is measured."
    return Section("projector", "Idempotent projectors (section 4.3)", text, claims, notes)
