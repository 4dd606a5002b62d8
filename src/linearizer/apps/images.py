r"""What applications on images share: reading a user's files, where pictures go, and yardsticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import data
from ..data.catalogue import DATA_SETS
from ..data.images import Picture
from ..data.kinds import Data, Part
from ..metrics.images import psnr
from ..runs.store import is_shipped
from ..training.checkpoint import make_parent
from .base import Run, Yardstick

__all__ = [
    "Map",
    "axes_yardstick",
    "border_of",
    "image_shape",
    "make_parent",
    "measure_psnr",
    "picture_path",
    "principal_axes",
    "project_onto",
    "read_images_for",
    "stack_images",
    "stack_test_images",
    "suit_few_images",
]

#: Images to images.
Map = Callable[[Tensor], Tensor]

#: Numbers of an image up to which principal axes are computed exactly.
EXACT = 2048
#: Images below which settings are changed to suit.
FEW = 2000


def read_images_for(run: Run, images: Sequence[str | Path | Picture]) -> tuple[Tensor, list[str]]:
    """Return images as a model takes them, and a note for each that was converted."""
    x, notes = data.read_images(images, tuple(run.model.target.shape), border_of(run))
    return x.to(next(run.model.parameters())), notes


def border_of(run: Run) -> int | None:
    """Return the side of images that get a border rather than being resized, as the data did."""
    known = DATA_SETS.get(run.data_name)
    return None if known is None else known.border


def picture_path(run: Run, name: str) -> Path:
    """Return where a picture goes: into the run, or beside the user for a shipped model."""
    if is_shipped(run.folder):
        return Path(f"{run.folder.name}-{name}")
    return run.folder / "samples" / name


def image_shape(source: Data) -> dict[str, Any]:
    """Return the shape of the images, which the data decide."""
    shape = getattr(source.train, "shape", None)
    if shape is None or len(shape) != 3:
        raise ValueError(f"{source.name} holds no images. Name a data set of images.")
    return {"shape": shape}


def suit_few_images(data: Data) -> dict[str, dict[str, Any]]:
    """Return settings for fewer than 2,000 images: small batches, which pass them less often."""
    return {"training": {"batch": 32}} if len(data.train) < FEW else {}


# -- evaluation --------------------------------------------------------------------------------


def stack_images(part: Part, limit: int | None = None) -> Tensor:
    """Return all images of a part of the data, or the first ``limit``, as one tensor."""
    index = torch.arange(min(len(part), limit or len(part)))
    return torch.cat([part.batch(i).x for i in index.split(1000)])


def stack_test_images(source: Data, n: int | None) -> Tensor:
    """Return at most n test images, and refuse data that have too few to measure anything."""
    x = stack_images(source.test, n)
    if len(x) < 16:
        raise ValueError(
            f"evaluate: expected 16 test images or more, got {len(x)} of {source.name}. Take more."
        )
    return x


def measure_psnr(f: Map, x: Tensor) -> dict[str, float]:
    """Return the PSNR of f(x) against images x: of each on average, of all, and of the worst."""
    back = torch.cat([f(part) for part in x.split(500)]).clamp(0, 1)
    each = psnr(back, x)
    return {
        "psnr_mean_over_images": float(each.mean()),
        "psnr_of_mean_error": float(-10 * (back - x).square().mean().clamp_min(1e-12).log10()),
        "psnr_worst_image": float(each.min()),
    }


def principal_axes(part: Part, rank: int) -> tuple[Tensor, Tensor]:
    """Return the mean (dim,) of some thousand images and their leading axes (dim, rank)."""
    dim = part.batch(torch.arange(1)).x.numel()
    x = stack_images(part, 10_000 if dim <= EXACT else 4000).flatten(1)
    mean = x.mean(0)
    if dim <= EXACT:
        centred = (x - mean).double()
        axes = torch.linalg.eigh(centred.mT @ centred)[1].flip(1)
        return mean, axes[:, :rank].to(x)
    few = min(rank + 32, *x.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mean, torch.pca_lowrank(x, few, niter=6)[2][:, :rank]


def project_onto(x: Tensor, mean: Tensor, axes: Tensor) -> Tensor:
    """Return images projected onto principal axes, the linear yardstick of the same rank."""
    return ((x.flatten(1) - mean) @ axes @ axes.mT + mean).reshape_as(x)


@torch.no_grad()
def axes_yardstick(data: Data, rank: int) -> Yardstick:
    """Return the PSNR of validation images on as many principal axes of the training images."""
    mean, axes = principal_axes(data.train, rank)
    x = stack_images(data.val, 10_000)
    value = float(psnr(project_onto(x, mean, axes), x).mean())
    return Yardstick(f"PCA of rank {axes.shape[1]}", {"psnr": value})
