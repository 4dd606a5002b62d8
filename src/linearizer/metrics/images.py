r"""Measures of images and of samples: PSNR, and the Fréchet distance in a stated feature space."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ..training.checkpoint import fill, read_tensors

__all__ = [
    "DigitClassifier",
    "digit_classifier",
    "digit_features",
    "frechet",
    "psnr",
    "roc_auc",
]

#: Weights of the digit classifier; ``python -m paper.mnist_classifier`` trains it.
WEIGHTS = Path(__file__).parent / "features" / "mnist-classifier.safetensors"


def psnr(x: Tensor, y: Tensor) -> Tensor:
    r"""−10 log₁₀ of the mean squared error of each image on [0, 1], (n,) decibels.

    Example:
        >>> psnr(torch.zeros(1, 3, 4, 4), torch.full((1, 3, 4, 4), 0.1))
        tensor([20.])
    """
    if x.shape != y.shape:
        raise ValueError(f"psnr: expected equal shapes, got {tuple(x.shape)}, {tuple(y.shape)}.")
    error = (x - y).flatten(1).square().mean(1)
    return -10 * error.clamp_min(torch.finfo(error.dtype).tiny).log10()


def frechet(a: Tensor, b: Tensor) -> float:
    r"""‖μ_a − μ_b‖² + tr(C_a + C_b − 2 (C_a C_b)^½) of two sets of features (n, k).

    Example:
        >>> a = torch.randn(500, 3)
        >>> abs(frechet(a, a)) < 1e-6, round(frechet(a, a + 2.0), 6)
        (True, 12.0)
    """
    for x in (a, b):
        if x.ndim != 2 or len(x) < 2 or x.shape[1] != a.shape[1]:
            raise ValueError(
                "frechet: expected features (n, k) of two sets with n ≥ 2 and equal k, got "
                f"{tuple(a.shape)} and {tuple(b.shape)}."
            )
    a, b = a.double(), b.double()
    gap = (a.mean(0) - b.mean(0)).square().sum()
    Ca, Cb = a.mT.cov(), b.mT.cov()
    values, Q = torch.linalg.eigh(Ca)
    half = Q * values.clamp_min(0).sqrt()
    # (C_a C_b)^½ has the trace of (C_a^½ C_b C_a^½)^½, which is symmetric.
    cross = torch.linalg.eigvalsh(half.mT @ Cb @ half).clamp_min(0).sqrt().sum()
    return float(gap + Ca.trace() + Cb.trace() - 2 * cross)


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    r"""The chance that a score of the first set is above one of the second; ties count half.

    Example:
        >>> roc_auc(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 3.0]))
        0.875
    """
    a, b = positive.double().flatten(), negative.double().flatten().sort().values
    if not len(a) or not len(b) or not (a.isfinite().all() and b.isfinite().all()):
        raise ValueError("roc_auc: expected two sets of finite scores, neither of them empty.")
    below = torch.searchsorted(b, a, right=False) + torch.searchsorted(b, a, right=True)
    return float(below.double().mean() / (2 * len(b)))


class DigitClassifier(nn.Module):
    r"""Images (n, 1, 32, 32) to ten scores; its 64 features are the space of our FID on digits."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 64), nn.ReLU())
        self.scores = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.features(x))


@cache
def digit_classifier() -> DigitClassifier:
    """Load the shipped classifier, in evaluation mode."""
    net = DigitClassifier().float()
    fill(net, read_tensors(WEIGHTS)[0], str(WEIGHTS))
    return net.eval().requires_grad_(False)


@torch.no_grad()
def digit_features(x: Tensor) -> Tensor:
    """Return features (n, 64) of digits (n, 1, 32, 32) in [0, 1], as float32 on the CPU."""
    if x.ndim != 4 or x.shape[1:] != (1, 32, 32):
        raise ValueError(
            f"digit_features: expected images (n, 1, 32, 32), got {tuple(x.shape)}. "
            "Pad 28×28 digits by two pixels on each side."
        )
    net = digit_classifier()
    return torch.cat([net.features(part.float().cpu()) for part in x.split(500)])
