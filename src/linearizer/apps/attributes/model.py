r"""Images to class scores or attributes: f(x) = g_y⁻¹(A g_x(x)) with a rectangular core.

Paper: appendix E (further experiments), the attribute classifier.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ...data.kinds import Data
from ...runs.pictures import image_grid
from ...training.draws import Draw
from ..base import Stage
from ..images import suit_few_images
from ..readout.model import Readout, ReadoutConfig, ReadoutModel, Samples, draw_spectrum

__all__ = ["Attributes", "Config", "augment", "loss", "measure", "score_loss"]


class Config(ReadoutConfig):
    """Settings of the model."""

    shape: tuple[int, int, int] = Field((1, 8, 8), description="images, (C, H, W)")
    names: tuple[str, ...] = Field(tuple("0123456789"), description="one for each output")
    kind: Literal["classes", "attributes"] = Field(
        "classes", description="exactly one of the names, or any of them"
    )
    score: float = Field(10.0, ge=0, description="weight of the error of the scores")
    flip: bool = Field(False, description="train on mirrored images, too")
    move: float = Field(0.0, ge=0, le=0.5, description="largest shift, turn and zoom in training")
    light: float = Field(0.0, ge=0, le=1, description="largest change of light in training")


class Attributes(ReadoutModel):
    """``model()`` is the Linearizer from images to scores.

    With ``encoder`` as g the scores are logits, else near 1 for the class or attribute.
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        count = len(config.names)
        self.read = Readout(config, count)
        eye = torch.eye(count)
        start = eye if config.kind == "classes" else torch.stack([-torch.ones(count), eye.sum(0)])
        self.register_buffer("typical", start)
        self.logits = self.read.encodes

    @property
    def initialize_samples(self) -> int:
        """How many images the axes are found from."""
        return 4096 if self.read.encodes and self.config.extra else 1024

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return list(self.config.names)

    @property
    def output_kind(self) -> str:
        """What the outputs are: "classes" or "attributes"."""
        return self.config.kind

    def initialize(self, batch: Samples) -> None:
        """Set what depends on data in both g."""
        self.read.initialize(batch.x, self.typical_scores(batch.y))

    def typical_scores(self, y: Tensor) -> Tensor:
        """Return scores that images with these labels have, or should have, (n, outputs)."""
        if self.config.kind == "classes":
            return self.typical[y]
        without, with_ = self.typical
        return torch.where(y > 0.5, with_, without)


def augment(x: Tensor, config: Config, draw: Draw) -> Tensor:
    """Mirror, move and light images at random, as the settings allow."""
    like = x[:, :1, 0, 0]
    if config.flip:
        x = torch.where(draw.uniform(like)[:, :, None, None] < 0.5, x.flip(3), x)
    if config.move:
        u = config.move * (2 * draw.uniform(like.expand(-1, 4)) - 1)
        zoom, angle = 1 + u[:, 0], u[:, 1]
        cos, sin = zoom * angle.cos(), zoom * angle.sin()
        map_ = torch.stack([cos, -sin, u[:, 2], sin, cos, u[:, 3]], 1).reshape(-1, 2, 3)
        grid = F.affine_grid(map_, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    if config.light:
        u = config.light * (2 * draw.uniform(like.expand(-1, 2)) - 1)
        x = x * (1 + u[:, :1, None, None]) + 0.5 * u[:, 1:, None, None]
    return x


def score_loss(scores: Tensor, y: Tensor, kind: str) -> Tensor:
    """Return −log p of the labels, with the scores as logits; for attributes the mean."""
    if kind == "classes":
        return F.cross_entropy(scores, y)
    return F.binary_cross_entropy_with_logits(scores, y.to(scores))


def loss(model: Attributes, batch: Samples, draw: Draw) -> dict[str, Tensor]:
    r"""score·error, and what g_x is trained for besides (see ``Readout.terms``).

    The error is −log p(y) of logits, and ‖f(x) − y‖²/k of other scores.
    """
    config = model.config
    scores, terms = model.read.terms(augment(batch.x, config, draw), draw)
    if model.logits:
        error = score_loss(scores, batch.y, config.kind)
    else:
        error = (scores - model.typical_scores(batch.y)).square().mean()
    return {"scores": config.score * error, **terms}


def measure(model: Attributes, batch: Samples, draw: Draw) -> dict[str, Tensor]:
    """Return the accuracy and the error of the scores, for each sample."""
    scores, y = model.read.outputs_of(batch.x), batch.y
    if model.config.kind == "classes":
        right = (scores.argmax(1) == y).to(scores)
        unlikely = F.cross_entropy(scores, y, reduction="none")
    else:
        right = ((scores > 0) == (y > 0.5)).to(scores).mean(1)
        each = F.binary_cross_entropy_with_logits(scores, y.to(scores), reduction="none")
        unlikely = each.mean(1)
    if model.logits:
        return {"accuracy": right, "-log p(y)": unlikely}
    return {"accuracy": right, "score error": (scores - model.typical_scores(y)).square().mean(1)}


def start(model: Attributes, data: Data) -> None:
    """Refuse data that could not be finished, and find pixels that never change."""
    model.read.check(data)
    model.read.find_pixels(data.train)


def refine(model: Attributes, data: Data) -> Stage | None:
    """Train the decoder, on mirrored images, too."""
    mirrored = Config(flip=model.config.flip)
    return model.read.decoder_stage(data, lambda x, draw: augment(x, mirrored, draw))


@torch.no_grad()
def finish(model: Attributes, data: Data) -> None:
    """Make the coordinates uncorrelated, and find the mean scores of each class or attribute."""
    if not model.logits:
        return
    model.read.settle(data.train)
    scores, labels = [], []
    for index in torch.arange(min(20_000, len(data.train))).split(500):
        batch = data.train.batch(index)
        scores.append(model.read.outputs_of(batch.x.to(model.typical)))
        labels.append(batch.y)
    found, y = torch.cat(scores), torch.cat(labels)
    if model.config.kind == "classes":
        marks = F.one_hot(y, len(model.config.names)).to(found)
        groups = [(marks.mT @ found) / marks.sum(0).clamp_min(1)[:, None]]
    else:
        groups = [
            ((found * mark).sum(0) / mark.sum(0).clamp_min(1))[None]
            for mark in (1 - y.to(found), y.to(found))
        ]
    model.typical.copy_(torch.cat(groups))


def facts(data: Data) -> dict[str, Any]:
    """Return the shape, the names and the kind, which the data decide."""
    train = data.train
    if getattr(train, "labels", None) is None:
        raise ValueError(
            f"attributes: {data.name} holds no labelled images. Put images into one sub-folder for "
            "each class, or name a labelled data set."
        )
    names = train.names or tuple(map(str, range(int(train.labels.max()) + 1)))
    kind = "classes" if train.labels.ndim == 1 else "attributes"
    return {"shape": train.shape, "names": names, "kind": kind}


def suit_few(data: Data) -> dict[str, dict[str, Any]]:
    """Return settings for few images: moved ones, and mirrored ones of photos, count as more."""
    found = suit_few_images(data)
    if found and math.prod(data.train.shape) > 256:
        found["model"] = {"move": 0.1, "flip": data.train.shape[0] == 3}
    return found


@torch.no_grad()
def preview(model: Attributes, data: Data, path: Path) -> None:
    """Draw the least-norm image of each class (or attribute), f†(y)."""
    f, names = model(), model.config.names
    shown = names[:10]
    y = torch.arange(len(names)) if model.config.kind == "classes" else torch.eye(len(names))
    part = "" if len(shown) == len(names) else f", the first {len(shown)} of {len(names)}"
    wanted = model.typical_scores(y)
    if model.config.kind == "attributes":  # the others as they are on average
        middle = f(f.source.zero())
        wanted = torch.where(torch.eye(len(names)) > 0, wanted, middle)
    images = f.pinv()(wanted[: len(shown)])
    labels = [n if len(n) < 9 else n[:7] + "…" for n in shown]
    image_grid(path, [images], ["f†(y)"], labels, f"Least-norm images{part}")


def spectrum(model: Attributes, folder: Path, k: int) -> dict[str, Any]:
    """Draw the directions of images that the scores depend on most."""
    return draw_spectrum(model.read, model.config.names, folder, k)
