"""Peak memory of a training step of glow against depth, plain and with save_memory.

Each point is a process of its own; its peak resident memory less the peak before the step. The
processes run with a low mmap threshold, so that memory which torch frees is given back at once and
the peak is that of live tensors, not of the allocator's fragments.

    python benchmarks/memory_depth.py
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from common import HERE, peak_mib, write

from linearizer.bijections import glow

DEPTHS, BATCH = (4, 8, 16, 32), 256


def one(blocks: int, save_memory: bool) -> float:
    torch.manual_seed(0)
    g = glow((1, 32, 32), blocks=blocks, save_memory=save_memory)

    def step(batch: int) -> None:
        z, log_det = g.with_log_det(torch.rand(batch, 1, 32, 32))
        (0.5 * z.square().sum(1) - log_det).mean().backward()

    step(1)  # gradients and libraries are in memory from here on
    before = peak_mib()
    step(BATCH)
    return peak_mib() - before


def plot(rows: list[dict[str, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(DEPTHS, [r["plain_mib"] for r in rows], "o-", label="plain")
    axes.plot(DEPTHS, [r["save_memory_mib"] for r in rows], "o-", label="save_memory=True")
    axes.set(xlabel="blocks", ylabel="memory of a step, MiB", xticks=DEPTHS, ylim=(0, None),
             title=f"glow, batch {BATCH} of 1×32×32")  # fmt: skip
    axes.legend()
    figure.savefig(HERE / "memory_depth.png")


def main() -> None:
    rows = []
    for blocks in DEPTHS:
        row: dict[str, float] = {"blocks": blocks}
        for name in ("plain", "save_memory"):
            command = [sys.executable, __file__, str(blocks), str(int(name == "save_memory"))]
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            row[f"{name}_mib"] = round(float(done.stdout), 1)
        rows.append(row)
        print(row, flush=True)
    plot(rows)
    write("memory_depth", {"batch": BATCH, "shape": [1, 32, 32], "rows": rows})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(one(int(sys.argv[1]), bool(int(sys.argv[2]))))
    else:
        main()
