r"""A network of others as a Linearizer: f(x) = g_y⁻¹(A g_x(x)) ≈ the network, by distillation.

Paper: appendix E (further experiments): encoders of VAE, FactorVAE and β-VAE on dSprites.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..bijections import ActNorm
from ..draws import Draw
from ..linearizer import Linearizer
from ..nets import Layers, described
from ..pictures import image_grid
from . import readout
from .base import App, Refinement
from .readout import Readout, ReadoutConfig, kind_of

__all__ = ["APP", "Config", "Distillation", "loss", "measure"]

#: Errors of an output that are not learned from: in its standard deviations, and of its own size.
ROUNDING, RELATIVE = 1e-4, 1e-6


class Config(ReadoutConfig):
    """Settings of the model."""

    shape: tuple[int, ...] = Field((1, 64, 64), description="of what the network takes")
    outputs: int = Field(10, ge=1, description="numbers that the network gives")
    net: Literal["auto", "conv", "residual", "same"] = Field(  # type: ignore[assignment]
        "auto",
        description="network of encoder, which starts from nothing (auto is residual from 32×32 in "
        "colour on), or has the layers of the one that is distilled and starts as that (same)",
    )
    layers: tuple[dict[str, Any], ...] = Field((), description="of the network, for net = same")
    output_blocks: int = Field(1, ge=0, description="blocks on the outputs; 0 for scales alone")
    likelihood: float = Field(0.1, ge=0, description="weight of −log p(x)/dim of mlp and glow")
    noise: float = Field(0.0, ge=0, description="added to the data of mlp and glow")
    spread: float = Field(
        0.02, gt=0, description="deviation of the finest waves of the data, which encoder adds to"
    )
    agree: float = Field(
        0.05, ge=0, description="weight of how far the network is from what the decoder was given"
    )
    error: float = Field(10.0, ge=0, description="weight of the error of the outputs")

    @model_validator(mode="before")
    @classmethod
    def _only_the_same(cls, values: Any) -> Any:
        """Layers are of no use to the other networks."""
        if isinstance(values, dict) and values.get("net") != "same":
            return {k: v for k, v in values.items() if k != "layers"}
        return values


class Distillation(nn.Module):
    """``model()`` is the Linearizer that stands in for the network."""

    mean: Tensor
    spread: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.read = Readout(config, config.outputs, _same(config))
        # Units are set from data and stay: data and outputs may be of any size, steps are not.
        spaces = [self.read.target] if self.read.encodes else [self.read.target, self.read.source]
        for space in spaces:
            for layer in space.modules():
                if isinstance(layer, ActNorm):
                    layer.requires_grad_(False)
                    break
        #: Mean and standard deviation of each output of the network.
        self.register_buffer("mean", torch.zeros(config.outputs))
        self.register_buffer("spread", torch.ones(config.outputs))

    def forward(self) -> Linearizer:
        return self.read()

    def initialize(self, batch: Any) -> None:
        """What depends on data in both g."""
        self.read.initialize(batch.x, batch.y)


def _same(config: Config) -> Layers | None:
    if config.net != "same":
        return None
    if not config.layers:
        raise ValueError(
            "distill: net = same needs a network whose layers are known: an encoder by its name, "
            "or an nn.Sequential of convolutions, linear layers, pooling and activations. Take "
            "net = auto for this one."
        )
    if kind_of(config) != "encoder" or len(config.shape) != 3:
        raise ValueError(
            f"distill: same layers are for images (C, H, W) and g = encoder, but here are data of "
            f"shape {config.shape}. Leave out --same (net = same), or set g = encoder for images."
        )
    return Layers(config.layers, config.shape, config.outputs)


def loss(model: Distillation, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""error·‖(f(x) − y)/s‖²/k with s the spread of each output, and what g_x is trained for.

    Errors below 1e-4·s + 1e-6·|y| are those of rounding: nothing is learned of them, so that a
    model which is its network exactly stays so.
    """
    y, terms = model.read.terms(batch.x, draw)
    gap = (y - batch.y) / model.spread
    least = ROUNDING + RELATIVE * batch.y.abs() / model.spread
    error = (gap.square() - least.square()).clamp_min(0).mean()
    return {"outputs": model.config.error * error, **terms}


def measure(model: Distillation, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """For each sample 1 − ‖(f(x) − y)/s‖²/k, whose mean is R² over the outputs; and the error."""
    gap = model.read.outputs_of(batch.x) - batch.y
    return {
        "R2": 1 - (gap / model.spread).square().mean(1),
        "largest error": gap.abs().amax(1),
    }


@torch.no_grad()
def start(model: Distillation, data: Any) -> None:
    """Mean and spread of the network's outputs, from samples all over the data."""
    model.read.check(data)
    train = data.train
    model.read.find_pixels(getattr(train, "part", train))  # the images without outputs
    index = torch.randint(len(train), (4096,), generator=torch.Generator().manual_seed(0))
    y = torch.cat([train.batch(i).y for i in index.split(512)])
    spread = y.std(0)
    if dead := (spread <= 1e-6 * y.abs().mean(0)).nonzero().flatten().tolist():
        raise ValueError(
            f"distill: output {', '.join(map(str, dead[:8]))} of {y.shape[1]} of the network is "
            "the same for all data, so nothing can be learned of it. Leave it out, or give other "
            "data."
        )
    model.mean.copy_(y.mean(0))
    model.spread.copy_(spread)
    for first in model.modules():
        if isinstance(first, Layers):
            x = train.batch(index[:8]).x
            missed = first.take(train.network.chain)(x.to(spread)) - y[:8]
            if not bool((missed.abs() <= 1e-2 * spread + 1e-4 * y[:8].abs()).all()):
                raise ValueError(
                    "distill: net = same built the network's layers anew, but they do not give "
                    "what the network gives: it does more than its layers say. Take net = auto."
                )


def refine(model: Distillation, data: Any) -> Refinement | None:
    """The decoder alone."""
    return model.read.refinement(data)


@torch.no_grad()
def finish(model: Distillation, data: Any) -> None:
    """Uncorrelated coordinates."""
    model.read.settle(data.train)


def facts(data: Any) -> dict[str, Any]:
    """Shapes, which the data and the network decide."""
    train = data.train
    layers = described(train.network.chain)
    return {"shape": train.shape, "outputs": train.outputs, "layers": layers}


@torch.no_grad()
def preview(model: Distillation, data: Any, path: Path) -> None:
    """Images, what their outputs alone say of them, and walks along some outputs by f†."""
    f = model()
    if len(f.source.shape) != 3 or f.source.shape[0] not in (1, 3):
        return
    index = torch.linspace(0, len(data.val) - 1, 10).long()
    x = data.val.batch(index).x.to(model.spread)
    back = f.pinv()
    rows, labels = [x, back(f(x))], ["x", "f†(f(x))"]
    for k in range(min(6, model.config.outputs)):
        y = f(x[4:5]).repeat(10, 1)
        y[:, k] = model.mean[k] + model.spread[k] * torch.linspace(-2, 2, 10)
        rows.append(f.back_project(x[4:5].expand(10, -1, -1, -1), y))
        labels.append(f"output {k}")
    image_grid(path, rows, labels, [""] * 10, "Images, least-norm images, and one changed output")


def spectrum(model: Distillation, folder: Path, k: int) -> dict[str, Any]:
    """The directions of the data that the outputs depend on most."""
    names = [f"output {i}" for i in range(model.config.outputs)]
    return readout.spectrum(model.read, names, folder, k)


_SPRITES = {
    "g": "encoder", "net": "conv", "hidden": 16, "decoder_hidden": 16,
    "decode": 0.0, "refine": 2000, "pixels": True,
}  # fmt: skip
#: Muon leaves less error than Adam in the same time.
_LONG = {
    "optimizer": "muon", "steps": 4000, "rate": 8e-3, "warmup": 200, "ema": 0.995,
    "validate_every": 1000, "checkpoint_every": 500,
}  # fmt: skip
#: A network that starts as its teacher has next to nothing to learn.
_SAME = {
    "steps": 300, "rate": 1e-4, "warmup": 50, "ema": 0.97, "validate_every": 100,
    "checkpoint_every": 100,
}  # fmt: skip

APP = App(
    name="disentangle",
    Config=Config,
    model=Distillation,
    loss=loss,
    measure=measure,
    metric="R2",
    maximize=True,
    linearizer=Distillation.forward,
    facts=facts,
    decided=("shape", "outputs", "layers"),
    preview=preview,
    start=start,
    refine=refine,
    finish=finish,
    spectrum=spectrum,
    data="dsprites",
    source="distilled",
    training={"steps": 2000, "batch": 128, "rate": 3e-3, "beta2": 0.99, "ema": 0.99,
              "validate_every": 500, "checkpoint_every": 500},
    presets={
        "dsprites": {"data": {"name": "dsprites"}, "model": _SPRITES, "training": _LONG},
        "same": {"data": {"name": "dsprites"}, "model": {**_SPRITES, "net": "same"},
                 "training": _SAME},
    },
)  # fmt: skip
