r"""What maps of images are compared with: an autoencoder, idempotency by training, a ResNet-18."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn

from ..draws import Draw
from ..nets import FromVector, ToVector
from ..training import Loss, Training, fit

__all__ = ["Autoencoder", "ResNet18", "autoencoder_loss", "ign_loss", "ign_noise", "train_for"]


class Autoencoder(nn.Module):
    r"""x ↦ decode(encode(x)), with the networks that a subspace has as E and D.

    Arguments:
        shape: (C, H, W).
        rank: Length of the code.
        hidden: Channels.
    """

    def __init__(self, shape: tuple[int, int, int], rank: int, hidden: int = 16) -> None:
        super().__init__()
        dense = max(256, 8 * hidden)
        self.encode = ToVector(shape, rank, hidden, dense)
        self.decode = FromVector(rank, shape, hidden, dense)
        # A coupling starts at zero; an autoencoder would stay there.
        last = self.encode.layers[-1]
        assert isinstance(last, nn.Linear)
        last.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class ResNet18(nn.Module):
    r"""He et al., *Deep Residual Learning*, 2016: 7×7 of stride 2, eight blocks of two 3×3.

    Arguments:
        channels: Of the images, in [0, 1].
        outputs: How many scores.
    """

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        ]  # fmt: skip
        inputs = 64
        for width in (64, 128, 256, 512):
            layers += [_Basic(inputs, width), _Basic(width, width)]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = (4 * x - 2).contiguous(memory_format=torch.channels_last)
        return self.last(self.layers(x))


class _Basic(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        stride = 1 if inputs == width else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.match: nn.Module = nn.Identity()
        if stride == 2:
            self.match = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride=2, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.match(x)).relu()


def autoencoder_loss(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """‖f(x) − x‖²."""
    return {"reconstruction": (model(batch.x) - batch.x).flatten(1).square().sum(1).mean()}


def ign_noise(x: Tensor, draw: Draw) -> Tensor:
    """What an idempotent generative network is trained to make images of."""
    return 0.5 + 0.3 * draw.normal(x)


def ign_loss(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""Idempotency by training: 20·‖f(x) − x‖ + 20·‖f′(f(z)) − f(z)‖ − 2.5·‖f(f′(z)) − f′(z)‖.

    f′ takes no gradient, z is noise, and the last term, which tightens the range, is held below 1.5
    times the first by a tanh. Distances are mean absolute differences.

    Shocher et al., Idempotent Generative Network, 2024.
    """
    x = batch.x
    fixed = copy.deepcopy(model).requires_grad_(False)
    z = ign_noise(x, draw)
    fx, fz = model(x), model(z)
    kept = fz.detach()
    rec = (fx - x).abs().flatten(1).mean(1)
    idempotent = (fixed(fz) - fz).abs().mean()
    tight = -(model(kept) - kept).abs().flatten(1).mean(1)
    limit = 1.5 * rec.detach().clamp_min(1e-6)
    return {
        "reconstruction": 20 * rec.mean(),
        "idempotency": 20 * idempotent,
        "tightness": 2.5 * (torch.tanh(tight / limit) * limit).mean(),
    }


def train_for(
    seconds: float, model: nn.Module, loss: Loss, data: Any, training: Training
) -> dict[str, Any]:
    """Train for about this much time of the processor, judged by a few steps."""
    trial = copy.deepcopy(model)
    short = training.model_copy(update={"steps": 10, "validate_every": 0, "tensorboard": False})
    fit(trial, loss, data, short, progress=False)
    begun = time.process_time()
    fit(trial, loss, data, short, progress=False)
    steps = max(10, round(seconds / (time.process_time() - begun) * 10))
    begun = time.process_time()
    fit(model, loss, data, short.model_copy(update={"steps": steps}))
    return {"steps": steps, "cpu_seconds": time.process_time() - begun}
