"""The table of README.md, made from the JSON files beside this script.

python benchmarks/readme_table.py     rewrites the table; a test keeps the two equal.
"""

from __future__ import annotations

import json
from typing import Any

from common import HERE

README = HERE.parent / "README.md"
START, END = "<!-- benchmarks -->\n", "<!-- /benchmarks -->\n"


def read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def rows() -> list[tuple[str, str, str]]:
    tour, fit = read("quickstart"), read("finite_fit")
    actions = read("structured_operators")["actions"]
    memory, glow = read("memory_depth")["rows"], read("glow_step")["cases"]
    few, many = memory[0], memory[-1]
    structured = [a["structured_12288"] for a in actions.values()]
    dense = [
        actions[a]["dense_12288_seconds_extrapolated"] for a in ("product", "inverse", "svd16")
    ]
    ratios = {
        name: " and ".join(f"{c['rows'][name]['time_over_ours']:.2f}×" for c in glow)
        for name in ("FrEIA", "normflows", "linearizer, save_memory")
    }
    return [
        (
            "every law, on a Linearizer trained on digits",
            "`make quickstart`",
            f"worst relative error {tour['worst_law_float64']:.0e} in float64, "
            f"{tour['worst_law_float32']:.0e} in float32; {tour['test_accuracy']:.1%} test "
            f"accuracy after {tour['training_seconds']:.0f} s of training",
        ),
        (
            "αI + UVᵀ at d = 12,288, rank 16: product, inverse, 16 singular triples",
            "`python benchmarks/structured_operators.py`",
            " / ".join(f"{1000 * s['seconds']:.0f}" for s in structured)
            + " ms and "
            + " / ".join(f"{s['peak_mib']:.0f}" for s in structured)
            + " MiB; the dense way, extrapolated from d ≤ 2,048, "
            + " / ".join(f"{s:.0f}" for s in dense)
            + f" s and {actions['product']['dense_12288_matrix_mib']:.0f} MiB for each matrix",
        ),
        (
            f"memory of a training step of glow, {few['blocks']} → {many['blocks']} blocks",
            "`python benchmarks/memory_depth.py`",
            f"{few['save_memory_mib']:.0f} → {many['save_memory_mib']:.0f} MiB with "
            f"`save_memory=True`, {few['plain_mib']:.0f} → {many['plain_mib']:.0f} MiB "
            f"without; a step then takes {ratios['linearizer, save_memory']} the time",
        ),
        (
            "training step of glow on 64×1×32×32, peers' time over ours at "
            + " and ".join(str(c["hidden"]) for c in glow)
            + " channels",
            "`python benchmarks/glow_step.py`",
            f"FrEIA {ratios['FrEIA']}, normflows {ratios['normflows']}: equal within noise, since "
            "the same conditioner dominates all three",
        ),
        (
            "64 random labels ℝ⁸ → ℝ³, fitted (theorem H.5)",
            "`python examples/finite_fit.py`",
            f"largest error {fit['sup_error']:.0e}",
        ),
    ]


def table() -> str:
    lines = ["| what | command | measured |", "|---|---|---|"]
    return "\n".join(lines + [f"| {a} | {b} | {c} |" for a, b, c in rows()]) + "\n"


def main() -> None:
    text = README.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    README.write_text(before + START + table() + END + after)
    print(f"wrote the table of {README.name}")


if __name__ == "__main__":
    main()
