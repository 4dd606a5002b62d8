"""What the loop costs: fit() against a bare loop, the data against the training, and the options.

python benchmarks/training_loop.py

Everything is measured side by side in one process, in turns, and compared by ratios. MNIST comes
from the data root ($LINEARIZER_DATA) where it is, and is made up of noise of the same size where
it is not: the timing is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import write

from linearizer import data
from linearizer.apps.attributes import model as attributes
from linearizer.training.checkpoint import read_metrics
from linearizer.training.draws import Draw, Order
from linearizer.training.loop import Training, fit

BATCH, STEPS, TURNS = 256, 20, 7


def mnist() -> tuple[Any, bool]:
    try:
        return data.load("mnist", size=28).train, True
    except OSError:
        images = torch.randint(0, 256, (55_000, 1, 28, 28), dtype=torch.uint8)
        return data.Images(images, torch.randint(0, 10, (55_000,)), tuple("0123456789")), False


def build(images: Any, g: str, **changes: Any) -> attributes.Attributes:
    torch.manual_seed(0)
    sizes = {"mlp": {"hidden": 256, "blocks": 4}, "glow": {"hidden": 16, "blocks": 4}}[g]
    config = attributes.Config(shape=images.shape, names=images.names, g=g, **sizes, **changes)
    model = attributes.Attributes(config)
    model.initialize(images.batch(torch.arange(1024)))
    model.initialize = lambda batch: None  # type: ignore[method-assign]
    return model


def bare(model: Any, images: Any, steps: int) -> float:
    """A loop as one would write it by hand: the same loss, data, clipping and optimiser."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0, fused=True)
    order = torch.randperm(len(images))
    start = time.perf_counter()
    for step in range(steps):
        places = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
        batch = images.batch(places)
        terms = attributes.loss(model, batch, Draw(step))
        loss = sum(terms.values())
        loss.backward()  # type: ignore[union-attr]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not math.isfinite(float(norm)):
            raise ValueError("NaN")
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - start) / steps


def looped(model: Any, images: Any, steps: int, **changes: Any) -> float:
    """fit() with its defaults: metrics every ten steps, a run folder with TensorBoard events."""
    import tempfile

    settings = {"steps": steps, "batch": BATCH, "validate_every": 0, "checkpoint_every": 10**6}
    with tempfile.TemporaryDirectory() as folder:
        result = fit(model, attributes.loss, images, Training(**{**settings, **changes}), folder,
                     progress=False)  # fmt: skip
    return result.seconds / result.step


def steady(model: Any, images: Any, **changes: Any) -> float:
    """Seconds of a step of fit() once it runs, without the first six (compiling takes those)."""
    import tempfile

    settings = {"steps": 14, "batch": BATCH, "validate_every": 0, "log_every": 1}
    with tempfile.TemporaryDirectory() as folder:
        fit(model, attributes.loss, images, Training(**{**settings, **changes}), folder,
            progress=False)  # fmt: skip
        times = [row["seconds"] for row in read_metrics(Path(folder) / "metrics.jsonl")]
    return median(b - a for a, b in pairwise(times[6:]))


def loader(images: Any, steps: int) -> float:
    """The data alone: order, batch, conversion to floats."""
    order = Order(len(images), 0)
    start = time.perf_counter()
    for step in range(steps):
        images.batch(order.take(step * BATCH, BATCH))
    return (time.perf_counter() - start) / steps


def in_turns(turns: int, **cases: Callable[[], float]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        names = list(cases) if turn % 2 else list(reversed(cases))
        for name in names:
            seconds = cases[name]()
            if turn:  # the first turn warms up
                times[name].append(seconds)
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """Median over turns of the time of a over that of b, which ran next to each other."""
    return median(x / y for x, y in zip(times[a], times[b], strict=True))


def case(g: str, images: Any) -> dict[str, Any]:
    model = build(images, g)
    times = in_turns(
        TURNS,
        bare=lambda: bare(model, images, STEPS),
        fit=lambda: looped(model, images, STEPS),
        loader=lambda: loader(images, 10 * STEPS),
    )
    row: dict[str, Any] = {
        "g": g,
        "image": list(images.shape),
        "parameters": sum(p.numel() for p in model.parameters()),
        "milliseconds": {k: 1000 * median(v) for k, v in times.items()},
        "fit_over_bare": ratio(times, "fit", "bare"),
        "training_over_loader": ratio(times, "fit", "loader"),
    }
    print(row, flush=True)
    options: dict[str, dict[str, Any]] = {
        "compile": {"compile": True}, "bf16": {"precision": "bf16"}, "ema": {"ema": 0.999},
    }  # fmt: skip
    for name, changes in options.items():
        variant = build(images, g)
        if name == "compile":
            begun = time.perf_counter()
            looped(variant, images, 3, **changes)
            row["compile_first_seconds"] = time.perf_counter() - begun
        turns = in_turns(
            2,
            plain=lambda: steady(model, images),
            option=lambda v=variant, c=changes: steady(v, images, **c),  # type: ignore[misc]
        )
        row[f"{name}_over_plain"] = ratio(turns, "option", "plain")
        print(name, row[f"{name}_over_plain"], flush=True)
    return row


def main() -> None:
    digits, real = mnist()
    rows = [case("mlp", data.load("digits").train), case("glow", digits)]
    write("training_loop", {"batch": BATCH, "mnist": real, "rows": rows})


if __name__ == "__main__":
    main()
