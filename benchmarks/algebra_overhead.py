"""What the algebra costs beside the same arithmetic written by hand, in one run.

Each pair takes turns, many times; the figure is the median of the ratios of neighbouring turns.
One thread: on small tensors the rest is overhead of Python, which is what is measured.

    python benchmarks/algebra_overhead.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import write

from linearizer import Linearizer, Space
from linearizer.bijections import glow, mlp
from linearizer.operators import Dense, LowRank, Spirals

Act = Callable[[], object]


def compare(ours: Act, plain: Act, repeats: int, rounds: int = 40) -> dict[str, float]:
    """Median time of ours over plain."""

    def take(act: Act) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            act()
        return (time.perf_counter() - start) / repeats

    for act in (ours, plain):
        take(act)
    pairs = [(take(ours), take(plain)) for _ in range(rounds)]
    return {
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
        "ours_us": round(1e6 * statistics.median(a for a, _ in pairs), 1),
        "by_hand_us": round(1e6 * statistics.median(b for _, b in pairs), 1),
    }


def small_dense() -> dict[str, float]:
    A, z = Dense(torch.randn(16, 16)), torch.randn(8, 16)
    M = A.matrix
    return compare(lambda: A(z), lambda: F.linear(z, M), 2000)


def spirals() -> dict[str, float]:
    A = Spirals(torch.randn(2048), torch.randn(2048))
    z = torch.randn(256, 4096)
    values = torch.complex(A.real, A.imag)

    def by_hand() -> torch.Tensor:
        pairs = torch.view_as_complex(z.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * values).flatten(-2)

    return compare(lambda: A(z), by_hand, 20)


def back_project() -> dict[str, float]:
    X, Y = Space(mlp(32, hidden=256)), Space(mlp(16, hidden=256))
    f = Linearizer(X, Dense(torch.randn(16, 32)), Y)
    x, y = torch.randn(256, 32), torch.randn(256, 16)
    back = f.operator.pinv()
    A, P = f.operator.matrix.mT, back.matrix.mT

    def by_hand() -> torch.Tensor:
        z = X.g(x)
        return X.g.inverse(z + (Y.g(y) - z @ A) @ P)

    return compare(lambda: f.back_project(x, y), by_hand, 3)


def solve() -> dict[str, float]:
    A, w = Dense(torch.randn(256, 256)), torch.randn(64, 256)
    M = A.matrix
    return compare(lambda: A.solve(w), lambda: torch.linalg.solve(M, w.mT).mT, 20)


def call(g: torch.nn.Module, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    X = Space(g)
    n = X.dim
    f = Linearizer(X, LowRank(torch.randn(n, 4), torch.randn(n, 4)), X)
    x = torch.randn(*shape)
    U, V = f.operator.U.mT, f.operator.V

    def by_hand() -> torch.Tensor:
        z = x
        for layer in X.g.layers:
            z = layer.forward(z)
        z = z @ V @ U
        for layer in reversed(X.g.layers):
            z = layer.inverse(z)
        return z

    return compare(lambda: f(x), by_hand, repeats)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {
        "Dense 16 × 16 on 8 rows, beside F.linear": small_dense(),
        "Spirals of 2,048 planes on 256 rows, beside one complex product": spirals(),
        "back_project, beside one pass through each g": back_project(),
        "solve of 256 × 256 for 64 rows, beside torch.linalg.solve": solve(),
        "f(x), mlp of 32 on 256 rows, beside its layers": call(mlp(32, hidden=256), (256, 32), 3),
        "f(x), glow of 1×16×16 on 16 images, beside its layers": call(
            glow((1, 16, 16), blocks=2), (16, 1, 16, 16), 3
        ),
    }
    for name, row in rows.items():
        print(f"{row['ratio']:6.3f}  {name}", row, flush=True)
    write("algebra_overhead", {"rows": rows})


if __name__ == "__main__":
    main()
