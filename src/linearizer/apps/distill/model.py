r"""A student that is a Linearizer: f(x) = g_y⁻¹(A g_x(x)) ≈ teacher(x) on given data.

Paper: appendix E (further experiments): encoders of VAE, FactorVAE and β-VAE on dSprites.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ...bijections import ActNorm
from ...data.kinds import Data
from ...nets import Layers, describe_layers
from ...runs.pictures import image_grid
from ...training.draws import Draw
from ..base import Stage
from ..readout.model import Readout, ReadoutConfig, ReadoutModel, Samples, draw_spectrum, kind_of

__all__ = ["Config", "Student", "loss", "measure"]

#: Errors of an output that are not learned from: in its standard deviations, and of its own size.
ROUNDING, RELATIVE = 1e-4, 1e-6


class Config(ReadoutConfig):
    """Settings of the model."""

    shape: tuple[int, ...] = Field((1, 64, 64), description="of what the network takes")
    outputs: int = Field(10, ge=1, description="numbers that the network gives")
    net: Literal["auto", "conv", "residual", "same"] = Field(  # type: ignore[assignment]
        "auto",
        description="network of encoder, which starts from nothing (auto is residual from 32×32 in "
        "colour on), or has the layers of the teacher and starts as it (same)",
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


class Student(ReadoutModel):
    """``model()`` is the Linearizer that gives what the teacher gives."""

    config: Config
    mean: Tensor
    spread: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.read = Readout(config, config.outputs, _copy_layers(config))
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

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [str(i) for i in range(self.config.outputs)]

    @property
    def output_kind(self) -> str:
        """What the outputs are: plain numbers."""
        return "numbers"

    def initialize(self, batch: Samples) -> None:
        """Set what depends on data in both g."""
        self.read.initialize(batch.x, batch.y)


def _copy_layers(config: Config) -> Layers | None:
    """Build the layers of the teacher anew where the settings ask for them."""
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


def loss(model: Student, batch: Samples, draw: Draw) -> dict[str, Tensor]:
    r"""error·‖(f(x) − y)/s‖²/k with s the spread of each output, and what g_x is trained for.

    Errors below 1e-4·s + 1e-6·|y| are those of rounding: nothing is learned of them, so that a
    model which is its network exactly stays so.
    """
    y, terms = model.read.terms(batch.x, draw)
    gap = (y - batch.y) / model.spread
    least = ROUNDING + RELATIVE * batch.y.abs() / model.spread
    error = (gap.square() - least.square()).clamp_min(0).mean()
    return {"outputs": model.config.error * error, **terms}


def measure(model: Student, batch: Samples, draw: Draw) -> dict[str, Tensor]:
    """Return 1 − ‖(f(x) − y)/s‖²/k of each sample, whose mean is R², and the largest error."""
    gap = model.read.outputs_of(batch.x) - batch.y
    return {
        "R2": 1 - (gap / model.spread).square().mean(1),
        "largest error": gap.abs().amax(1),
    }


@torch.no_grad()
def start(model: Student, data: Data) -> None:
    """Find mean and spread of the teacher's outputs, from samples all over the data."""
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


def refine(model: Student, data: Data) -> Stage | None:
    """Train the decoder alone."""
    return model.read.decoder_stage(data)


@torch.no_grad()
def finish(model: Student, data: Data) -> None:
    """Make the coordinates uncorrelated."""
    model.read.settle(data.train)


def facts(data: Data) -> dict[str, Any]:
    """Return the shapes, which the data and the teacher decide."""
    train = data.train
    layers = describe_layers(train.network.chain)
    return {"shape": train.shape, "outputs": train.outputs, "layers": layers}


@torch.no_grad()
def preview(model: Student, data: Data, path: Path) -> None:
    """Draw images, what their outputs alone say of them, and walks along some outputs."""
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


def spectrum(model: Student, folder: Path, k: int) -> dict[str, Any]:
    """Draw the directions of the data that the outputs depend on most."""
    names = [f"output {i}" for i in range(model.config.outputs)]
    return draw_spectrum(model.read, names, folder, k)
