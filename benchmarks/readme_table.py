"""The tables of README.md and docs/training.md, made from the JSON files beside this script.

python benchmarks/readme_table.py     rewrites them; a test keeps documents and files equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import HERE

README, TRAINING = HERE.parent / "README.md", HERE.parent / "docs" / "training.md"


def read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def rows() -> list[tuple[str, str, str]]:
    tour, fit = read("quickstart"), read("finite_fit")
    actions = read("structured_operators")["actions"]
    memory, glow = read("memory_depth")["rows"], read("glow_step")["cases"]
    few, many = memory[0], memory[-1]
    loop = read("training_loop")["rows"]
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
            "`fit`, the training loop, over a bare hand-written one; a training step of MNIST over "
            "the loading of its batch of 256",
            "`python benchmarks/training_loop.py`",
            " and ".join(f"{c['fit_over_bare']:.3f}×" for c in loop)
            + " (mlp and glow); "
            + f"{loop[1]['training_over_loader']:,.0f}×",
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


def loop_table() -> str:
    """What the training loop and its options cost."""
    cases = read("training_loop")["rows"]
    names = [f"{c['g']} on {'×'.join(map(str, c['image']))}" for c in cases]
    lines = [
        ("time of a step, ms", [f"{c['milliseconds']['fit']:.0f}" for c in cases]),
        ("`fit` over a bare loop", [f"{c['fit_over_bare']:.3f}×" for c in cases]),
        ("step over its data", [f"{c['training_over_loader']:,.0f}×" for c in cases]),
        ("`--ema 0.999`", [f"{c['ema_over_plain']:.2f}×" for c in cases]),
        (
            "`--compile` (after its first step)",
            [f"{c['compile_over_plain']:.2f}×, {c['compile_first_seconds']:.0f} s" for c in cases],
        ),
        ("`--precision bf16`", [f"{c['bf16_over_plain']:.1f}×" for c in cases]),
    ]
    head = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    return "\n".join(head + [f"| {a} | {' | '.join(b)} |" for a, b in lines]) + "\n"


def put(path: Path, mark: str, text: str) -> None:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    old = path.read_text()
    path.write_text(old.split(start)[0] + start + text + end + old.split(end)[1])
    print(f"wrote the table of {path.name}")


def main() -> None:
    put(README, "benchmarks", table())
    put(TRAINING, "loop", loop_table())


if __name__ == "__main__":
    main()
