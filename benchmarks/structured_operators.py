"""αI + UVᵀ at d = 12,288, rank 16, against the dense way: time and peak memory.

Every measurement is a process of its own; its peak memory counts the operand, the result and all
between, over the loaded libraries. The dense way runs at smaller d, its growth is fitted
as c·d^p on the two largest, and the figure at full d is that extrapolation, marked as such.

    python benchmarks/structured_operators.py
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time

import torch
from common import peak_mib, write

from linearizer.operators import Dense, Operator, ScaledIdentityPlusLowRank

FULL, RANK, SMALL = 12_288, 16, (512, 1024, 2048)
ACTIONS = {
    "product": lambda A: A @ A,
    "inverse": lambda A: A.inverse(),
    "svd16": lambda A: A.svd(16),
}


def one(kind: str, action: str, d: int) -> dict[str, float]:
    torch.manual_seed(0)
    tiny = ScaledIdentityPlusLowRank(0.7, *torch.randn(2, 64, RANK, dtype=torch.float64))
    ACTIONS[action](Dense(tiny.dense()) if kind == "dense" else tiny)  # load the libraries
    before = peak_mib()
    U, V = torch.randn(2, d, RANK, dtype=torch.float64) / d**0.5
    A: Operator = ScaledIdentityPlusLowRank(0.7, U, V)
    if kind == "dense":
        A = Dense(A.dense(limit=None))
    times = []
    for _ in range(9 if kind == "structured" else 3):
        start = time.perf_counter()
        ACTIONS[action](A)
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return {"seconds": seconds, "peak_mib": peak_mib() - before}


def measure(kind: str, action: str, d: int) -> dict[str, float]:
    command = [sys.executable, __file__, kind, action, str(d)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {k: round(v, 5) for k, v in json.loads(out).items()}


def main() -> None:
    result: dict[str, dict] = {}
    for action in ACTIONS:
        dense = {d: measure("dense", action, d) for d in SMALL}
        full = measure("structured", action, FULL)
        (a, b), (s, t) = SMALL[-2:], (dense[d]["seconds"] for d in SMALL[-2:])
        power = math.log(t / s) / math.log(b / a)
        predicted = t * (FULL / b) ** power
        result[action] = {
            "structured_12288": full,
            "dense": dense,
            "dense_growth_exponent": round(power, 2),
            "dense_12288_seconds_extrapolated": round(predicted, 1),
            "dense_12288_matrix_mib": FULL * FULL * 8 / 2**20,
            "dense_12288_peak_mib_extrapolated": round(dense[b]["peak_mib"] * (FULL / b) ** 2),
            "ratio_extrapolated": round(predicted / full["seconds"]),
        }
        print(action, json.dumps(result[action]), flush=True)
    write("structured_operators", {"d": FULL, "rank": RANK, "dtype": "float64", "actions": result})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main()
