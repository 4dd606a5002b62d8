"""What is proved (sections 2 and 3, appendix H), and what a computer makes of it."""

from __future__ import annotations

from .claims import SILENT, Claim, Found, Section

__all__ = ["theory_section"]


def theory_section(found: Found) -> Section:
    """Errors of what is exact in the paper."""
    claims = []
    if fit := found.get("finite_fit"):
        claims.append(
            Claim(
                "64 random labels ℝ⁸ → ℝ³, largest error (theorem H.5: below any ε)",
                "proved",
                f"{fit['sup_error']:.0e} after {fit['steps']:,} steps",
                SILENT,
                "–",
                "",
                "python examples/finite_fit.py",
            )
        )
    if tour := found.get("quickstart"):
        claims.append(
            Claim(
                "every law of f on digits (section 2), worst relative error",
                "proved",
                f"{tour['worst_law_float64']:.0e} in float64, {tour['worst_law_float32']:.0e} in "
                "float32",
                SILENT,
                "–",
                f"{tour['training_seconds']:.0f} s of training",
                "linearizer quickstart",
            )
        )
    return Section("theory", "What is proved (sections 2 and 3, appendix H)", "", claims, [])
