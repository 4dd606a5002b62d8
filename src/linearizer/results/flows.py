"""One-step flows."""

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
    runs_of,
    time_of,
    took,
)

#: Test images of CelebA's own split.
CELEBA_TEST = 19_962
#: Images as the paper takes them.
SHAPES = {"mnist": (1, 32, 32), "celeba": (3, 64, 64)}
#: Whole steps of the paper go through g and g⁻¹, and ours do not.
LOOP = "our loop stays in coordinates"


def flow_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.1 and figure 5, for one evaluated flow."""
    data, paper = row["data"]["name"], row.get("paper", {})
    part = _part(row)
    claims = []

    def add(what: str, said: Any, ours: Any, form: str, verdict: str, protocol: str) -> None:
        shown = "–" if said is None else f"{said:{form}}"
        claims.append(Claim(f"{data}: {what}", shown, ours, verdict, protocol, time, command))

    once = row["one_against_many"]["100"]
    said = paper.get("one_against_100_steps", {})
    same = f"no: {LOOP}; the paper does not say how many samples{_size(row)}"
    if not said:
        same = f"the same noise, 64 samples; {LOOP}"
    mse = once["mse_float32"]
    add("one step against 100, mean squared difference", said.get("mse"),
        f"{mse:.0e} ({once['mse_float64']:.0e} in float64)", ".0e",
        judged(mse, said["mse"], less=True) if said else SILENT, same)  # fmt: skip
    add("one step against 100, PSNR in dB", said.get("psnr"), f"{once['psnr']:.1f}", ".1f",
        judged(once["psnr"], said["psnr"], 0.05) if said else SILENT, same)  # fmt: skip
    if "lpips" in once:
        add("one step against 100, LPIPS", said.get("lpips"), f"{once['lpips']:.0e}", ".3f",
            judged(once["lpips"], said["lpips"], 0.0005, less=True) if said else SILENT,
            same)  # fmt: skip
    elif said:
        add("one step against 100, LPIPS", said["lpips"], _unmeasured(row), ".3f", MISSING, "–")
    inverse, said = row["inversion"], paper.get("inversion", {})
    how = f"rank {inverse['rank']}, {part}"
    if said:
        how = (
            f"no: ours is at the rank of B, {inverse['rank']}; the paper's 16 is the rank of A_t, "
            f"and its B = I + low rank is generically full; {part}{_size(row)}"
        )
    psnr = inverse["psnr_mean_over_images"]
    add("inversion f(f†(x)), PSNR in dB", said.get("psnr"), f"{psnr:.1f}", ".1f",
        APART if said else SILENT, how)  # fmt: skip
    if "lpips_alex" in inverse:
        value = inverse["lpips_alex"]
        add("inversion f(f†(x)), LPIPS", said.get("lpips"), f"{value:.3f}", ".3f",
            APART if said else SILENT, how + "; AlexNet, the paper does not say")  # fmt: skip
    elif said:
        add("inversion f(f†(x)), LPIPS", said["lpips"], _unmeasured(row), ".3f", MISSING, "–")
    return claims + _fid_claims(row, time, command)


def _part(row: Mapping[str, Any]) -> str:
    """Which images were measured on."""
    n = row["data"]["test_images"]
    if row["data"]["name"] == "celeba" and n < CELEBA_TEST:
        return f"{n:,} test images of a part of CelebA"
    return f"all {n:,} test images"


def _size(row: Mapping[str, Any]) -> str:
    """What is to be said where the images are not of the paper's size; else nothing."""
    paper, ours = SHAPES.get(row["data"]["name"]), row["data"].get("shape")
    if paper is None or (ours is not None and tuple(ours) == paper):
        return ""
    shown = "of unknown size" if ours is None else "×".join(map(str, ours))
    return f"; images {shown}, the paper's are {'×'.join(map(str, paper))}"


def _unmeasured(row: Mapping[str, Any]) -> str:
    return f"not measured here: {row.get('lpips', 'no LPIPS weights')}"


def _fid_claims(row: Mapping[str, Any], time: str, command: str) -> list[Claim]:
    data, fid = row["data"]["name"], row["fid"]
    paper = row.get("paper", {}).get("inception_fid")
    if fid.get("features") is None:
        if paper is None:
            return []
        why = "not measured here: no weights of a network for features"
        return [Claim(f"{data}: FID in one step (1,000)", f"{paper['1000 in one']}", why, MISSING,
                      "–", time, command)]  # fmt: skip
    how = f"{fid['features']}, {fid['samples']:,} samples, {fid['reference']}"
    one = {n: fid[f"one step ({n} of rk4)"] for n in ("10", "100", "1000")}
    if paper is None:
        shown = f"{one['1000']:.3g} (real training images: {fid['real_training_images']:.2g})"
        return [Claim(f"{data}: FID in one step (1,000)", "–", shown, SILENT, how, time, command)]
    other = f"no: the paper takes Inception's features, we {how}"
    loop, apart = fid["10 steps in a loop"], abs(one["10"] - fid["10 steps in a loop"])
    once = row["one_against_many"]
    rows = [
        ("FID, 1 full step", "405", "not measured here: loops of 10 steps are the shortest",
         MISSING, "–"),
        ("FID, 10 full steps", "152", f"{loop:.1f} in other features", APART, other),
        ("FID, 100 full steps", "127",
         "not measured here: its samples are those of one step, to "
         f"{once['100']['mse_float32']:.0e} mean square", MISSING, "–"),
        ("FID, one step (100)", "131", f"{one['100']:.1f} in other features", APART, other),
        ("FID, one step (1,000)", "123",
         f"{one['1000']:.1f} in other features (real training images: "
         f"{fid['real_training_images']:.1f})", APART, other),
        ("FID of one step less that of as many full ones", "4 (131 − 127)", f"{apart:.2g}",
         APART, "no: other features; 10 steps, the paper's are 100"),
        ("FID that 1,000 steps gain over 100, both in one", "8 (131 − 123)",
         f"{one['100'] - one['1000']:.2g}: {10 if apart < 0.05 else 100} steps are enough here",
         APART, other),
    ]  # fmt: skip
    return [
        Claim(f"{data}: {what}", said, ours, verdict, protocol, time, command)
        for what, said, ours, verdict, protocol in rows
    ]


def flow_section(found: Found) -> Section:
    rows = found["flow"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in runs_of(rows, "one_against_many"):
        command = command_of(found, "flow", f"linearizer evaluate flow {name}")
        claims += flow_claims(row, time_of(found, rows, name), command)
        notes += row["data"]["notes"]
    for name, row in rows.items():
        if isinstance(row, Mapping) and "one_against_100_mse_float32" in row:
            mse = row["one_against_100_mse_float32"]
            claims.append(Claim(
                f"{name}, time-dependent as the paper's: one step against 100", "3e-04",
                f"{mse:.0e} ({row['one_against_100_mse_float64']:.0e} in float64)",
                judged(mse, 3e-4, less=True),
                f"no: rank {row['rank']}, prediction of x₁, g given; the loop stays in coordinates",
                took(row["training_seconds"] / 60, rows), "python benchmarks/flow.py learned",
            ))  # fmt: skip
    for steps, row in found.get("collapse", {}).get("structured", {}).items():
        claims.append(Claim(
            f"appendix F: {int(steps):,} RK4 steps of a core of rank "
            f"{found['collapse']['rank']} at d = {found['collapse']['d']:,} in one operator",
            "derived", f"{row['relative_error_to_the_loop']:.0e} relative error to the loop",
            SILENT, "float32", took(row["seconds"] / 60, found["collapse"]),
            "python benchmarks/collapse.py",
        ))  # fmt: skip
    return Section("flow", "One-step flows (section 4.1, figure 5, appendix F)", "", claims, notes)
