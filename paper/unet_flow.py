"""The baseline for generation: flow matching with a small U-Net, on MNIST digits of 32×32.

    python -m paper.unet_flow --seconds 850 --out runs/unet-flow

x_t = (1 − t) x₀ + t x₁ from noise x₀ to digits x₁ in [−1, 1]; the U-Net predicts x₁ − x₀ by least
squares. It trains by ``fit`` for as many steps as the seconds allow, judged by the time of 20 steps
after a warm-up. Samples are those of Euler's method, from the same noise for every number of steps;
the FID is that of ``linearizer.metrics``, in the digit classifier's 64 features, against the 10,000
test digits. If --out holds a run already, it is resumed with its own number of steps; if that was
finished, it is only sampled.

Writes benchmarks/unet_flow.json and, into --out, the run and samples.png.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linearizer import data
from linearizer.metrics import digit_features, frechet
from linearizer.runs.pictures import image_grid
from linearizer.training.draws import Draw
from linearizer.training.loop import Training, fit

from .experiment import FOLDER, machine, write_json

STEPS, SHOWN = (1, 2, 5, 10, 100), (1, 10, 100)
GROUPS, TIMED = 8, 64


class Block(nn.Module):
    """x + conv(SiLU(norm(conv(SiLU(norm(x)))))), where time scales and shifts the inner norm."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(GROUPS, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.norm = nn.GroupNorm(GROUPS, outputs)
        self.time = nn.Linear(embedding, 2 * outputs)
        self.second = nn.Sequential(
            nn.SiLU(), zero_layer(nn.Conv2d(outputs, outputs, 3, padding=1))
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time(t)[..., None, None].chunk(2, 1)
        return self.skip(x) + self.second(self.norm(self.first(x)) * (1 + scale) + shift)


class TimeUNet(nn.Module):
    """Velocity of images (n, 1, H, W) at times (n,); H and W are halved once for each width.

    The first halving folds 2×2 pixels into channels: convolutions at full size would take half of
    the time.
    """

    frequencies: Tensor

    def __init__(self, widths: tuple[int, ...] = (48, 64, 96), embedding: int = 128) -> None:
        super().__init__()
        before = (widths[0], *widths)
        self.register_buffer("frequencies", torch.logspace(0, 3, embedding // 2))
        self.time = nn.Sequential(nn.Linear(embedding, embedding), nn.SiLU())
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            Block(a, b, embedding) for a, b in zip(before, widths, strict=False)
        )
        self.halve = nn.ModuleList(nn.Conv2d(c, c, 3, stride=2, padding=1) for c in widths[:-1])
        self.middle = nn.ModuleList(Block(widths[-1], widths[-1], embedding) for _ in range(2))
        self.up = nn.ModuleList(
            Block(2 * b, a, embedding) for a, b in reversed([*zip(before, widths, strict=False)])
        )
        self.last = nn.Sequential(
            nn.GroupNorm(GROUPS, widths[0]),
            nn.SiLU(),
            zero_layer(nn.Conv2d(widths[0], 4, 3, padding=1)),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * self.frequencies
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h, skips = self.first(F.pixel_unshuffle(x, 2)), []
        for i, block in enumerate(self.down):
            h = block(self.halve[i - 1](h) if i else h, t)
            skips.append(h)
        for block in self.middle:
            h = block(h, t)
        for i, block in enumerate(self.up):
            h = F.interpolate(h, scale_factor=2.0) if i else h
            h = block(torch.cat([h, skips.pop()], 1), t)
        return F.pixel_shuffle(self.last(h), 2)


def zero_layer(layer: nn.Conv2d) -> nn.Conv2d:
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def loss(model: nn.Module, batch: data.Batch, draw: Draw) -> dict[str, Tensor]:
    x1 = 2 * batch.x - 1
    x0, t = draw.normal(x1), draw.uniform(x1[:, 0, 0, 0])
    s = t[:, None, None, None]
    return {"mse": F.mse_loss(model((1 - s) * x0 + s * x1, t), x1 - x0)}


def plan(model: nn.Module, images: Any, seconds: float, batch: int, out: Path) -> Training:
    """As many steps as the seconds allow, or what the run in ``out`` was begun with."""
    begun = out / "config.json"
    if begun.is_file():
        return Training(**json.loads(begun.read_text("utf-8"))["training"])
    config = Training(
        batch=batch, rate=2e-3, warmup=100, ema=0.99, validate_every=0, tensorboard=False
    )
    trial, each = copy.deepcopy(model), 0.0
    for count in (5, 20):  # the first warm up
        part = config.model_copy(update={"steps": count})
        each = fit(trial, loss, images, part, progress=False).seconds / count
    steps = max(1, round(seconds / each))
    print(f"{each:.3f} s a step: {steps:,} steps in {seconds:g} s", flush=True)
    return config.model_copy(update={"steps": steps})


@torch.no_grad()
def euler(model: nn.Module, x: Tensor, steps: int) -> Tensor:
    """Images in [0, 1] from noise x."""
    for i in range(steps):
        x = x + model(x, x.new_full((len(x),), i / steps)) / steps
    return ((x + 1) / 2).clamp(0, 1)


def seconds_per_image(model: nn.Module, steps: int, repeats: int) -> float:
    x, times = torch.randn(TIMED, 1, 32, 32), []
    euler(model, x, 1)
    for _ in range(repeats):
        start = time.perf_counter()
        euler(model, x, steps)
        times.append(time.perf_counter() - start)
    return median(times) / TIMED


def tiles(images: Tensor) -> Tensor:
    """Up to 64 images (n, 1, H, W) as one, eight in a row."""
    padded = F.pad(images[:64], (1, 1, 1, 1), value=0.5)
    padded = F.pad(padded, (0, 0, 0, 0, 0, 0, 0, -len(padded) % 8), value=0.5)
    rows = padded.unflatten(0, (-1, 8)).permute(2, 0, 3, 1, 4)  # (1, rows, H, 8, W)
    return rows.flatten(3, 4).flatten(1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a U-Net by flow matching, and sample it.")
    parser.add_argument("--seconds", type=float, default=850.0, help="of training")
    parser.add_argument("--samples", type=int, default=10_000, help="for each FID, at least 64")
    parser.add_argument("--batch", type=int, default=32, help="of training")
    parser.add_argument("--out", type=Path, default=Path("runs/unet-flow"), help="folder")
    arguments = parser.parse_args()
    if arguments.samples < 64 or arguments.seconds <= 0:
        parser.error("expected --samples ≥ 64 and --seconds > 0")
    digits = data.load("mnist", size=32)
    test = digits.test.batch(torch.arange(len(digits.test))).x
    target = digit_features(test)  # before training, so that absent weights are told at once

    torch.manual_seed(0)
    model = TimeUNet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = plan(model, digits.train, arguments.seconds, arguments.batch, arguments.out)
    result = fit(model, loss, digits.train, config, arguments.out, resume=True)
    speed = {n: seconds_per_image(model, n, 10 if n == 1 else 1) for n in (1, 100)}
    row = {
        "machine": machine(),
        "data": "mnist, 32×32, 55,000 training digits",
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_seconds": round(result.seconds, 1),
        "steps": result.step,
        "batch": config.batch,
        "loss": result.losses["loss"],
        "solver": "euler",
        "samples": arguments.samples,
        "fid_reference": f"{len(test):,} test digits, linearizer.metrics.digit_features",
        "fid": sample(model, target, arguments.samples, arguments.out / "samples.png"),
        "timed_batch": TIMED,
        "milliseconds_per_image": {n: 1000 * s for n, s in speed.items()},
    }
    write_json(FOLDER / "unet_flow.json", row)


def sample(model: nn.Module, target: Tensor, samples: int, path: Path) -> dict[int, float]:
    """FID of samples in each number of steps, from the same noise; some are drawn."""
    noise = torch.randn(samples, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    fids, shown = {}, []
    for steps in STEPS:
        start = time.perf_counter()
        x = torch.cat([euler(model, part, steps) for part in noise.split(256)])
        fids[steps] = frechet(digit_features(x), target)
        spent = time.perf_counter() - start
        print(f"steps {steps}: FID {fids[steps]:.3f}, {spent:.0f} s", flush=True)
        if steps in SHOWN:
            shown.append(tiles(x))
    labels = [f"{n} step{'s' if n > 1 else ''}, FID {fids[n]:.1f}" for n in SHOWN]
    image_grid(path, [torch.stack(shown)], column_labels=labels, cell=3.6)
    return fids


if __name__ == "__main__":
    main()
