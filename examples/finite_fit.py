r"""The finite-fit theorem, run: a Linearizer fits any finite dataset (paper, theorem H.5).

64 distinct points of ℝ⁸ get random labels in ℝ³. Nothing connects the two, so the map is as
nonlinear as a table; f(x) = g_y⁻¹(A g_x(x)) is trained until the largest error is below 1e-3.

    python examples/finite_fit.py --out runs/finite-fit
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import linearizer as lz
from linearizer.bijections import mlp
from linearizer.operators import Dense


def dataset(points: int = 64, inputs: int = 8, outputs: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(points, inputs), torch.randn(points, outputs)


def fit(
    x: Tensor, y: Tensor, steps: int = 600, polish: int = 200
) -> tuple[lz.Linearizer, list[float]]:
    """A Linearizer trained on the pairs, and its sup error max_i ‖f(x_i) − y_i‖ on the way.

    Adam finds the basin, L-BFGS goes to its bottom.
    """
    n, m = x.shape[1], y.shape[1]
    X, Y = lz.Space(mlp(n, blocks=6).initialize(x)), lz.Space(mlp(m, blocks=1).initialize(y))
    f = lz.Linearizer(X, Dense(nn.Parameter(torch.eye(m, n))), Y)
    errors: list[float] = []

    def loss(optimizer: torch.optim.Optimizer) -> Tensor:
        off = f(x) - y
        errors.append(off.detach().norm(dim=1).max().item())
        optimizer.zero_grad()
        total = off.square().sum(1).mean()
        total.backward()
        return total

    rate = 2e-3
    adam = torch.optim.Adam(f.parameters(), rate)
    for step in range(steps):
        adam.param_groups[0]["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        loss(adam)
        adam.step()
    lbfgs = torch.optim.LBFGS(
        f.parameters(), max_iter=polish, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=1e-12, tolerance_change=1e-16,
    )  # fmt: skip
    lbfgs.step(lambda: loss(lbfgs))
    with torch.no_grad():
        errors.append((f(x) - y).norm(dim=1).max().item())
    return f, errors


def plot(errors: list[float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(errors, linewidth=0.8)
    axes.axhline(1e-3, color="gray", linestyle="--", label="1e-3")
    axes.set(xlabel="evaluation", ylabel="max ‖f(x) − y‖ over the 64 points",
             title=f"Random labels, fitted to {errors[-1]:.1e}")  # fmt: skip
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/finite-fit"))
    parser.add_argument("--steps", type=int, default=600, help="of Adam; L-BFGS follows")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float64)
    x, y = dataset()
    f, errors = fit(x, y, args.steps)
    worst = f.certify(x).worst
    plot(errors, args.out / "error.png")
    result = {"steps": args.steps, "sup_error": errors[-1], "start": errors[0], "worst_law": worst}
    (args.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"sup error {errors[0]:.2g} → {errors[-1]:.1e}; every law to {worst:.0e} in float64")
    print(f"wrote {args.out / 'error.png'} and {args.out / 'result.json'}")


if __name__ == "__main__":
    main()
