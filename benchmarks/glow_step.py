"""One training step of a Glow on 64×1×32×32, beside FrEIA and normflows, in one run.

All three: squeeze to 4×16×16, then blocks of ActNorm, two affine couplings and a mixing of
channels, with the same conditioner (nets.ResidualConv), likelihood loss and Adam. Steps of the
three take turns in random order; the figure is the median of the ratios of neighbouring steps.
The conditioners alone, one after the other, are what no library can save. All are compiled as well
(``linearizer train --compile``).

    python benchmarks/glow_step.py
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import FrEIA.framework as ff
import FrEIA.modules as fm
import normflows as nf
import torch
import torch.nn.functional as F
from common import write
from torch import Tensor, nn

from linearizer.bijections import glow
from linearizer.nets import ResidualConv

Loss = Callable[[Tensor], Tensor]


def gaussian(z: Tensor, log_det: Tensor) -> Tensor:
    return (0.5 * z.flatten(1).square().sum(1) - log_det).mean()


def ours(blocks: int, hidden: int, save_memory: bool = False) -> tuple[nn.Module, Loss]:
    g = glow((1, 32, 32), blocks, hidden, save_memory=save_memory)
    return g, lambda x: gaussian(*g.with_log_det(x))


def freia(blocks: int, hidden: int) -> tuple[nn.Module, Loss]:
    inn = ff.SequenceINN(4, 16, 16)
    for _ in range(blocks):
        inn.append(fm.ActNorm)
        inn.append(fm.GLOWCouplingBlock, clamp=1.0,
                   subnet_constructor=lambda i, o: ResidualConv(i, o, hidden))  # fmt: skip
        # Not learned, so cheaper than the mixing of the other two.
        inn.append(fm.Fixed1x1Conv, M=torch.linalg.qr(torch.randn(4, 4))[0])
    return inn, lambda x: gaussian(*inn(F.pixel_unshuffle(x, 2)))


def normflows(blocks: int, hidden: int) -> tuple[nn.Module, Loss]:
    flows: list[nn.Module] = []
    for _ in range(blocks):
        for mode in ("channel", "channel_inv"):
            net = ResidualConv(2, 4, hidden)
            flows.append(nf.flows.AffineCouplingBlock(net, split_mode=mode))
        flows += [nf.flows.Invertible1x1Conv(4, use_lu=True), nf.flows.ActNorm((4, 1, 1))]
    model = nn.ModuleList(flows)

    def loss(x: Tensor) -> Tensor:
        z, total = F.pixel_unshuffle(x, 2), x.new_zeros(len(x))
        for flow in reversed(flows):
            z, log_det = flow.inverse(z)
            total = total + log_det
        return gaussian(z, total)

    return model, loss


def stepper(model: nn.Module, loss: Loss, x: Tensor) -> Callable[[], float]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def conditioners(blocks: int, hidden: int) -> tuple[nn.Module, Loss]:
    nets = nn.Sequential(*(ResidualConv(2, 2, hidden) for _ in range(2 * blocks - 1)))
    nets.append(ResidualConv(2, 4, hidden))
    return nets, lambda x: nets(F.pixel_unshuffle(x, 2)[:, :2].contiguous()).square().mean()


def compiled(peer: tuple[nn.Module, Loss]) -> tuple[nn.Module, Loss]:
    model, loss = peer
    return model, torch.compile(loss)


def compare(blocks: int, hidden: int, rounds: int) -> dict[str, object]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.rand(64, 1, 32, 32)
    peers = {
        "linearizer": ours(blocks, hidden),
        "linearizer, save_memory": ours(blocks, hidden, True),
        "linearizer, compiled": compiled(ours(blocks, hidden)),
        "FrEIA": freia(blocks, hidden),
        "FrEIA, compiled": compiled(freia(blocks, hidden)),
        "normflows": normflows(blocks, hidden),
        "normflows, compiled": compiled(normflows(blocks, hidden)),
        "conditioners alone": conditioners(blocks, hidden),
    }
    steps = {name: stepper(*peer, x) for name, peer in peers.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, shuffle = list(steps), random.Random(0).shuffle
    for round_ in range(rounds + 3):
        shuffle(order)
        for name in order:
            seconds = steps[name]()
            if round_ >= 3:
                times[name].append(seconds)
    base = times["linearizer"]
    rows = {
        name: {
            "median_ms": round(1000 * statistics.median(t), 1),
            "time_over_ours": round(
                statistics.median(a / b for a, b in zip(t, base, strict=True)), 3
            ),
            "parameters": sum(p.numel() for p in peers[name][0].parameters()),
        }
        for name, t in times.items()
    }
    print(blocks, hidden, rows, flush=True)
    return {"blocks": blocks, "hidden": hidden, "rounds": rounds, "rows": rows}


def main() -> None:
    cases = [compare(6, 16, 60), compare(6, 64, 30)]
    write("glow_step", {"batch": [64, 1, 32, 32], "cases": cases})


if __name__ == "__main__":
    main()
