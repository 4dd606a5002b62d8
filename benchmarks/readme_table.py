"""What README.md and docs/ quote of speed and memory, from the JSON files beside this script.

python benchmarks/readme_table.py     rewrites the tables; a test keeps documents and files equal.
"""

from __future__ import annotations

from pathlib import Path

from common import HERE, read
from docs_tables import (
    collapse_table,
    faults_line,
    kept_line,
    loop_table,
    peers_table,
    small_table,
    studio_table,
)

DOCS = HERE.parent / "docs"


def numbers() -> dict[str, str]:
    """One number of each application, as README.md has it."""
    many = read("flow")["mnist-matching"]["one_against_many"]
    flow = many["100 through data"]["mse_float32"]
    project = max(read("projector")["mnist-projector"]["idempotency_float32"].values())
    lpips = [row["ours"]["lpips"] for row in read("style")["styles"]["fidelity"].values()]
    mse = [row["mse"] for row in read("weather")["rows"]["strict"].values()]
    faces = read("attributes")["celeba-attributes"]["linearizer"]["accuracy"]
    r2 = read("disentanglement")["rows"]["Linearizer-BetaH"]["r2"]
    return {
        "flow": f"{flow:.0e}",
        "projector": f"{project:.0e}",
        "style": f"{sum(lpips) / len(lpips):.3f}",
        "forecast": f"{sum(mse) / len(mse):.3f}",
        "dynamics": f"{read('dynamics')['pendulum']['error']['ours']['at 10']:.2g}",
        "attributes": f"{faces:.1%}",
        "distill": f"{r2:.3f}",
    }


def table() -> str:
    """Speed and memory, for docs/benchmarks.md."""
    lines = ["| what | command | measured |", "|---|---|---|"]
    return "\n".join(lines + [f"| {a} | `{b}` | {c} |" for a, b, c in _rows()]) + "\n"


def _rows() -> list[tuple[str, str, str]]:
    return [_collapse_row(), _operators_row(), _memory_row(), _glow_row(), *_other_rows()]


def _collapse_row() -> tuple[str, str, str]:
    found = read("collapse")
    costs = (f"{r['seconds']:.2g} s, {r['peak_mib']:.0f} MiB" for r in found["structured"].values())
    product = found["dense_12288_one_product"]["seconds"]
    return (
        "RK4 steps of a rank-16 core at d = 12,288 collapsed into one operator: 100, 1,000",
        "python benchmarks/collapse.py",
        f"{' and '.join(costs)}; the dense way needs four products for each step, of "
        f"{product:.0f} s each (measured)",
    )


def _operators_row() -> tuple[str, str, str]:
    actions = read("structured_operators")["actions"]
    ours = [action["structured_12288"] for action in actions.values()]
    dense = [action["dense_12288_seconds_extrapolated"] for action in actions.values()]
    times = " / ".join(f"{1000 * row['seconds']:.0f}" for row in ours)
    peaks = " / ".join(f"{row['peak_mib']:.0f}" for row in ours)
    return (
        "αI + UVᵀ at d = 12,288, rank 16: product, inverse, 16 singular triples",
        "python benchmarks/structured_operators.py",
        f"{times} ms and {peaks} MiB; the dense way, extrapolated from d ≤ 2,048, "
        f"{' / '.join(f'{s:.0f}' for s in dense)} s and "
        f"{actions['product']['dense_12288_matrix_mib']:.0f} MiB for each matrix",
    )


def _ratios(name: str) -> str:
    cases = read("glow_step")["cases"]
    return " and ".join(f"{case['rows'][name]['time_over_ours']:.2f}×" for case in cases)


def _memory_row() -> tuple[str, str, str]:
    few, *_, many = read("memory_depth")["rows"]
    return (
        f"memory of a training step of glow, {few['blocks']} → {many['blocks']} blocks",
        "python benchmarks/memory_depth.py",
        f"{few['save_memory_mib']:.0f} → {many['save_memory_mib']:.0f} MiB with "
        f"`save_memory=True`, {few['plain_mib']:.0f} → {many['plain_mib']:.0f} MiB without; a step "
        f"then takes {_ratios('linearizer, save_memory')} the time",
    )


def _glow_row() -> tuple[str, str, str]:
    channels = " and ".join(str(case["hidden"]) for case in read("glow_step")["cases"])
    return (
        f"training step of glow on 64×1×32×32, peers' time over ours at {channels} channels",
        "python benchmarks/glow_step.py",
        f"FrEIA {_ratios('FrEIA')}, normflows {_ratios('normflows')}; the conditioners alone, "
        f"the same in all three, {_ratios('conditioners alone')}",
    )


def _other_rows() -> list[tuple[str, str, str]]:
    mlp, glow = read("training_loop")["rows"]
    tour = read("quickstart")
    return [
        (
            "`fit`, the training loop, over a bare hand-written one; a training step of MNIST over "
            "the loading of its batch of 256",
            "python benchmarks/training_loop.py",
            f"{mlp['fit_over_bare']:.3f}× and {glow['fit_over_bare']:.3f}× (mlp and glow); "
            f"{glow['training_over_loader']:,.0f}×",
        ),
        (
            "one-step flow on 8×8 digits: 1,000 RK4 steps in one; every law",
            "make quickstart",
            f"after {tour['training_seconds']:.0f} s of training: mean squared difference to the "
            f"loop {tour['one_against_1000_steps_mse']:.0e}, worst relative error of a law "
            f"{tour['worst_law_float64']:.0e} in float64, {tour['worst_law_float32']:.0e} in "
            "float32",
        ),
    ]


def main() -> None:
    for page, mark, text in (
        ("benchmarks.md", "benchmarks", table()),
        ("peers.md", "peers", peers_table()),
        ("training.md", "loop", loop_table()),
        ("training.md", "kept", kept_line()),
        ("training.md", "faults", faults_line()),
        ("training.md", "small", small_table()),
        ("flow.md", "collapse", collapse_table()),
        ("studio.md", "studio", studio_table()),
    ):
        _put(DOCS / page, mark, text)
    print("README.md quotes", numbers())


def _put(path: Path, mark: str, text: str) -> None:
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    old = path.read_text(encoding="utf-8")
    path.write_text(old.split(start)[0] + start + text + end + old.split(end)[1], encoding="utf-8")
    print(f"wrote the table {mark} of {path.name}")


if __name__ == "__main__":
    main()
