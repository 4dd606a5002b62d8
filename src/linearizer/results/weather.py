"""Forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import apps
from ..evaluation.forecast import HORIZONS, PUBLISHED
from .claims import APART, MISSING, SILENT, Claim, Found, Section, command_of, judged, took


def weather_claims(
    row: Mapping[str, Any], time: Callable[[float], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows."""
    ours = row["rows"].get("strict", {})
    daily, small = row["rows"].get("daily", {}), row["rows"].get("PatchTST, small", {})
    paper, patch, auto = (
        dict(zip(map(str, HORIZONS), PUBLISHED[name][1], strict=True))
        for name in ("Linearizer (the paper)", "PatchTST (in the paper)",
                     "Autoformer (in the paper)")
    )  # fmt: skip
    planned = apps.get("forecast").training["steps"]
    back = PUBLISHED["Linearizer (the paper)"][0]

    def how(h: str) -> str:
        if row["look_back"] != back:
            return f"no: look-back {row['look_back']}, the paper's is {back}"
        if (steps := ours[h].get("steps", 0)) < planned:
            return f"no: {steps:,} training steps, the preset's are {planned:,}"
        return (
            f"yes: look-back {back}, every test window; some choices were made with looks at test "
            "rows (docs/forecast.md, “What was chosen”)"
        )

    horizons = [h for h in map(str, HORIZONS) if h in ours]
    every = f"weather: {' / '.join(horizons)}"
    claims = []
    for h in horizons:
        mse = ours[h]["mse"]
        beside = f" (a core that follows the day: {daily[h]['mse']:.3f})" if h in daily else ""
        spent = time(ours[h]["cpu_seconds"])
        claims.append(Claim(f"weather: {h} steps, MSE", f"{paper[h]:.3f}", f"{mse:.3f}{beside}",
                            judged(mse, paper[h], 0.0005, less=True), how(h), spent,
                            command))  # fmt: skip
    for name, other in (("PatchTST", patch), ("Autoformer", auto)) if horizons else ():
        theirs = [paper[h] - other[h] for h in horizons]
        gaps = [ours[h]["mse"] - other[h] for h in horizons]
        below = sum(gap < 0 for gap in gaps)
        claims.append(Claim(
            f"{every} steps: MSE less that of {name}, as the paper prints it",
            _signed(theirs), f"{_signed(gaps)}: below it at {below} of {len(gaps)} horizons",
            APART, f"no: {name} is the paper's in both, so this is the rows above once more",
            time(sum(ours[h]["cpu_seconds"] for h in horizons)), command,
        ))  # fmt: skip
    for name, ridge in row["rows"].items():
        if name.startswith("ridge") and (at := [h for h in horizons if h in ridge]):
            claims.append(Claim(
                f"weather: {' / '.join(at)} steps, MSE of the baseline “{name}”", "–",
                " / ".join(f"{ridge[h]['mse']:.3f}" for h in at), SILENT,
                f"look-back {row['look_back']}, every test window; closed form, no network",
                time(sum(ridge[h]["cpu_seconds"] for h in at)), command,
            ))  # fmt: skip
    for h in (h for h in horizons if h in small):
        spent = small[h]["cpu_seconds"]
        claims.append(Claim(
            f"weather: {h} steps, MSE of a PatchTST", f"{patch[h]:.3f}", f"{small[h]['mse']:.3f}",
            APART,
            f"no: a small one of {small[h]['parameters']:,} numbers, {small[h]['steps']:,} steps",
            time(spent), command,
        ))  # fmt: skip
    if horizons:
        why = "not measured here: Autoformer was not trained"
        said = " / ".join(f"{auto[h]:.3f}" for h in horizons)
        claims.append(Claim(f"{every} steps, MSE of an Autoformer", said, why, MISSING,
                            "–", "", command))  # fmt: skip
    return claims


def _signed(values: Iterable[float], form: str = "+.3f") -> str:
    return " / ".join(f"{v:{form}}" for v in values).replace("-", "−")


def weather_section(found: Found) -> Section:
    row = found["weather"]
    command = command_of(found, "weather", "linearizer evaluate weather")
    claims = weather_claims(row, lambda seconds: took(seconds / 60, row), command)
    text = (
        "One fixed core (preset `strict`) is compared; the preset `daily` has a core for each time "
        "of day."
    )
    return Section("weather", "Weather (appendix E)", text, claims, [row["data"]])
