"""Collapse of 100 and 1,000 RK4 steps at d = 12,288, rank 16, against the dense way.

The family is a TimeLowRank whose hidden and last weights are enlarged (2 and 8 times), so that it
moves in time as much as a trained one may; a fresh one is smoother and cheaper. Every measurement
is a process of its own; its peak memory counts everything over the loaded libraries and the family.
The dense way (d × d products for each RK4 step, and pinv by a dense SVD) runs at d ≤ 2,048; its
growth is fitted as c·d^p on the two largest, and figures at full d are that extrapolation, marked
as such. One product of two matrices is measured at full d as well: four of them for each step are
less than the dense way takes.

    python benchmarks/collapse.py
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import torch
from common import peak_mib, write

from linearizer.families import TimeLowRank
from linearizer.operators import Dense
from linearizer.solvers import collapse, integrate

FULL, RANK, SMALL = 12_288, 16, (512, 1024, 2048)


def lively(d: int) -> TimeLowRank:
    torch.manual_seed(0)
    family = TimeLowRank(d, RANK)
    for net in (family.left, family.right):
        for layer in (net.layers[0], net.layers[2]):
            layer.weight *= 2
        net.layers[-1].weight *= 8
    return family


def structured(steps: int) -> dict:
    family = lively(FULL)
    collapse(lively(64), steps=3).pinv()  # load the libraries
    family(0.5)
    before = peak_mib()
    start = time.perf_counter()
    B = collapse(family, steps=steps)
    seconds, peak = time.perf_counter() - start, peak_mib() - before
    start = time.perf_counter()
    inverse = B.pinv()
    pinv = time.perf_counter() - start
    z = torch.randn(16, FULL)
    start = time.perf_counter()
    loop = integrate(family, z, steps=steps)
    loop_seconds = time.perf_counter() - start
    start = time.perf_counter()
    once = B(z)
    once_seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "peak_mib": peak,
        "rank_of_B_minus_identity": B.U.shape[-1],
        "rank_at_rtol_1e-3": collapse(family, steps=steps, rtol=1e-3).U.shape[-1]
        if steps <= 100
        else None,
        "factors_mib": (B.U.numel() + B.V.numel()) * 4 / 2**20,
        "relative_error_to_the_loop": float((once - loop).norm() / loop.norm()),
        "pinv_seconds": pinv,
        "pinv_round_trip": float((inverse(once) - z).norm() / z.norm()),
        "loop_16_samples_seconds": loop_seconds,
        "once_16_samples_seconds": once_seconds,
    }


def dense(d: int) -> dict:
    family, n = lively(d), 3
    B, h = torch.eye(d), 1 / n
    B @ B
    before, start = peak_mib(), time.perf_counter()
    for i in range(n):
        A0, A1, A2 = (family(t).dense() for t in (i * h, (i + 0.5) * h, (i + 1) * h))
        k1 = A0 @ B
        k2 = A1 @ (B + h / 2 * k1)
        k3 = A1 @ (B + h / 2 * k2)
        B = B + h / 6 * (k1 + 2 * k2 + 2 * k3 + A2 @ (B + h * k3))
    seconds, peak = (time.perf_counter() - start) / n, peak_mib() - before
    start = time.perf_counter()
    Dense(B).pinv()
    return {
        "seconds_per_step": seconds,
        "peak_mib": peak,
        "pinv_seconds": time.perf_counter() - start,
    }


def product(d: int) -> dict:
    """One product of two d × d matrices, of which each RK4 step of the dense way takes four."""
    A, B = torch.randn(d, d), torch.randn(d, d)
    start = time.perf_counter()
    A @ B
    return {"seconds": time.perf_counter() - start}


def fidelity(name: str) -> dict:
    """Mean squared difference between one step and N, on 64 normal vectors at d = 1,024."""
    family = lively(1024).to(getattr(torch, name))
    z = torch.randn(64, 1024).to(getattr(torch, name))
    return {
        str(steps): float(
            (collapse(family, steps=steps)(z) - integrate(family, z, steps=steps)).square().mean()
        )
        for steps in (10, 100, 1000)
    }


def measure(*arguments: str) -> dict:
    command = [sys.executable, __file__, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(out)
    print(*arguments, json.dumps(found), flush=True)
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}


def main() -> None:
    small = {d: measure("dense", str(d)) for d in SMALL}
    (a, b), extrapolated = SMALL[-2:], {}
    for key in ("seconds_per_step", "pinv_seconds"):
        power = math.log(small[b][key] / small[a][key]) / math.log(b / a)
        extrapolated[key] = float(f"{small[b][key] * (FULL / b) ** power:.4g}")
        extrapolated[f"{key}_exponent"] = round(power, 2)
    per_step = extrapolated["seconds_per_step"]
    extrapolated["hours_for_1000_steps"] = round(1000 * per_step / 3600, 2)
    extrapolated["one_matrix_mib"] = FULL**2 * 4 / 2**20
    extrapolated["peak_mib"] = round(small[b]["peak_mib"] * (FULL / b) ** 2)
    result = {
        "d": FULL,
        "rank": RANK,
        "solver": "rk4",
        "dtype": "float32",
        "structured": {n: measure("structured", n) for n in ("100", "1000")},
        "dense": small,
        "dense_12288_extrapolated": extrapolated,
        "dense_12288_one_product": measure("product", str(FULL)),
        "one_step_against_many_mse_d1024": {
            name: measure("fidelity", name) for name in ("float32", "float64")
        },
    }
    write("collapse", result)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        action, argument = sys.argv[1:]
        with torch.no_grad():
            if action == "fidelity":
                print(json.dumps(fidelity(argument)))
            else:
                run = {"structured": structured, "dense": dense, "product": product}[action]
                print(json.dumps(run(int(argument))))
    else:
        main()
