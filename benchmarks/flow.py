"""The tables of docs/flow.md: both shipped flows, and a learned core beside the closed form.

    python benchmarks/flow.py [mnist-flow] [celeba-flow] [learned]      (all three by default)

LINEARIZER_DATA must have mnist, celeba and lpips; pictures go to runs/evaluated.

For each shipped model it runs what `linearizer evaluate flow` runs. On MNIST it also trains a
time-dependent core (x1-prediction) by the flow matching loss on the shipped coordinates without
their detail, and compares its one-step samples with those of the closed form without detail.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from common import HERE, write

from linearizer import evaluation
from linearizer.apps.flow import Flow
from linearizer.families import Leading, Prediction, TimeLowRank
from linearizer.metrics import digit_features, frechet
from linearizer.runs import run_data
from linearizer.sampling import flow_of
from linearizer.training import Training, fit


class Coordinates:
    def __init__(self, z):
        self.z = z

    def __len__(self):
        return len(self.z)

    def batch(self, index):
        return (self.z[index],)


def learned(name: str, samples: int) -> dict:
    """‖D_t((1−t)z₀ + t z₁) − z₁‖² on the leading coordinates of the training images."""
    one = flow_of(name)
    model, source = one.model, run_data(one)
    r = model.config.rank
    with torch.no_grad():
        index = torch.arange(len(source.train)).split(500)
        z = torch.cat([model.target.coordinates(source.train.batch(i).x)[:, :r] for i in index])
    family = TimeLowRank(r, r)

    def loss(family, batch, draw):
        (z1,) = batch
        z0, t = draw.normal(z1), draw.uniform(z1[:, 0])
        zt = (1 - t[:, None]) * z0 + t[:, None] * z1
        return {"induced": (family(t)(zt) - z1).square().mean()}

    result = fit(family, loss, Coordinates(z), Training(steps=600, batch=512, rate=5e-3, ema=0.99,
                                                        tensorboard=False))  # fmt: skip
    other = Flow(model.source, Prediction(Leading(family, model.target.dim)), model.target)
    noise = model.noise(64, 7)
    row = {"training_seconds": round(result.seconds), "induced_loss": result.losses["induced"]}
    with torch.no_grad():
        for steps in (10, 100, 1000):
            gap = other.collapse("rk4", steps)(noise) - other.integrate(noise, "rk4", steps)
            row[f"one_against_{steps}_mse_float32"] = float(gap.square().mean())
        x = torch.cat([source.test.batch(i).x for i in torch.arange(10_000).split(1000)])
        f = other.collapse("rk4", 1000)
        some = torch.cat([f(other.noise(500, 1000 + i)) for i in range(samples // 500)])
        row["fid_one_step"] = frechet(digit_features(some.clamp(0, 1)), digit_features(x))
        row["rank"] = f.rank()
        closed = model.collapse("rk4", 1000)

        def leading(noise):
            return closed(
                (noise.flatten(1) * (torch.arange(other.target.dim) < r)).reshape_as(noise)
            )

        row["mse_to_the_closed_form"] = float((f(noise) - leading(noise)).square().mean())
        some = torch.cat([leading(other.noise(500, 1000 + i)) for i in range(samples // 500)])
        row["fid_closed_form"] = frechet(digit_features(some.clamp(0, 1)), digit_features(x))
        double = other.double()
        gap = double.collapse("rk4", 100)(noise.double())
        gap = gap - double.integrate(noise.double(), "rk4", 100)
        row["one_against_100_mse_float64"] = float(gap.square().mean())
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}


def main(names: list[str]) -> None:
    result = {}
    for name, samples in (("mnist-flow", 10_000), ("celeba-flow", 1_000)):
        if name in names:
            out = Path("runs/evaluated") / name
            result[name] = evaluation.flow(name, samples, out, say=print)
            result[name].pop("files")
    if "learned" in names:
        result["learned core on mnist-flow"] = learned("mnist-flow", 10_000)
    path = HERE / "flow.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    before.pop("machine", None)
    write("flow", {**before, **result})


if __name__ == "__main__":
    main(sys.argv[1:] or ["mnist-flow", "celeba-flow", "learned"])
