r"""Images to class scores or attributes: f(x) = g_y⁻¹(A g_x(x)) with a rectangular core.

Paper: appendix E (further experiments), the attribute classifier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..draws import Draw
from ..linearizer import Linearizer
from ..pictures import image_grid
from . import readout
from .base import App, Refinement
from .readout import Readout, ReadoutConfig

__all__ = ["APP", "Attributes", "Config", "augmented", "loss", "measure", "score_loss"]


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


class Attributes(nn.Module):
    """``model()`` is the Linearizer from images to scores.

    With ``encoder`` as g the scores are logits, else near 1 for the class or attribute.
    """

    typical: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        count = len(config.names)
        self.read = Readout(config, count)
        eye = torch.eye(count)
        start = eye if config.kind == "classes" else torch.stack([-torch.ones(count), eye.sum(0)])
        #: Mean scores of the images of each class, or without and with each attribute.
        self.register_buffer("typical", start)

    @property
    def initialize_samples(self) -> int:
        """How many images the axes are found from."""
        return 4096 if self.read.encodes and self.config.extra else 1024

    def forward(self) -> Linearizer:
        return self.read()

    @property
    def logits(self) -> bool:
        """Whether the scores are log-odds."""
        return self.read.encodes

    def initialize(self, batch: Any) -> None:
        """What depends on data in both g."""
        self.read.initialize(batch.x, self.wanted(batch.y))

    def wanted(self, y: Tensor) -> Tensor:
        """Scores that images with these labels have, or should have, (n, outputs)."""
        if self.config.kind == "classes":
            return self.typical[y]
        without, with_ = self.typical
        return torch.where(y > 0.5, with_, without)


def augmented(x: Tensor, config: Config, draw: Draw) -> Tensor:
    """The images mirrored, moved and lit at random, as the settings allow."""
    one = x[:, :1, 0, 0]
    if config.flip:
        x = torch.where(draw.uniform(one)[:, :, None, None] < 0.5, x.flip(3), x)
    if config.move:
        u = config.move * (2 * draw.uniform(one.expand(-1, 4)) - 1)
        zoom, angle = 1 + u[:, 0], u[:, 1]
        cos, sin = zoom * angle.cos(), zoom * angle.sin()
        map_ = torch.stack([cos, -sin, u[:, 2], sin, cos, u[:, 3]], 1).reshape(-1, 2, 3)
        grid = F.affine_grid(map_, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    if config.light:
        u = config.light * (2 * draw.uniform(one.expand(-1, 2)) - 1)
        x = x * (1 + u[:, :1, None, None]) + 0.5 * u[:, 1:, None, None]
    return x


def score_loss(scores: Tensor, y: Tensor, kind: str) -> Tensor:
    """−log p of the labels, with the scores as logits; for attributes the mean over them."""
    if kind == "classes":
        return F.cross_entropy(scores, y)
    return F.binary_cross_entropy_with_logits(scores, y.to(scores))


def loss(model: Attributes, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""score·error, and what g_x is trained for besides (see ``Readout.terms``).

    The error is −log p(y) of logits, and ‖f(x) − y‖²/k of other scores.
    """
    config = model.config
    scores, terms = model.read.terms(augmented(batch.x, config, draw), draw)
    if model.logits:
        error = score_loss(scores, batch.y, config.kind)
    else:
        error = (scores - model.wanted(batch.y)).square().mean()
    return {"scores": config.score * error, **terms}


def measure(model: Attributes, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """Accuracy and error of the scores, for each sample."""
    scores, y = model.read.outputs_of(batch.x), batch.y
    if model.config.kind == "classes":
        right = (scores.argmax(1) == y).to(scores)
        unlikely = F.cross_entropy(scores, y, reduction="none")
    else:
        right = ((scores > 0) == (y > 0.5)).to(scores).mean(1)
        unlikely = F.binary_cross_entropy_with_logits(scores, y.to(scores), reduction="none").mean(
            1
        )
    if model.logits:
        return {"accuracy": right, "-log p(y)": unlikely}
    return {"accuracy": right, "score error": (scores - model.wanted(y)).square().mean(1)}


def start(model: Attributes, data: Any) -> None:
    """Refuse what could not be finished."""
    model.read.check(data)
    model.read.find_pixels(data.train)


def refine(model: Attributes, data: Any) -> Refinement | None:
    """The decoder, of mirrored images, too."""
    mirrored = Config(flip=model.config.flip)
    return model.read.refinement(data, lambda x, draw: augmented(x, mirrored, draw))


@torch.no_grad()
def finish(model: Attributes, data: Any) -> None:
    """Uncorrelated coordinates, and the mean scores of each class or attribute."""
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


def facts(data: Any) -> dict[str, Any]:
    """Shape, names and kind, which the data decide."""
    train = data.train
    if getattr(train, "labels", None) is None:
        raise ValueError(
            f"attributes: {data.name} holds no labelled images. Put images into one sub-folder for "
            "each class, or name a labelled data set."
        )
    names = train.names or tuple(map(str, range(int(train.labels.max()) + 1)))
    kind = "classes" if train.labels.ndim == 1 else "attributes"
    return {"shape": train.shape, "names": names, "kind": kind}


@torch.no_grad()
def preview(model: Attributes, data: Any, path: Path) -> None:
    """The least-norm image of each class (or attribute), f†(y)."""
    f, names = model(), model.config.names
    shown = names[:10]
    y = torch.arange(len(names)) if model.config.kind == "classes" else torch.eye(len(names))
    part = "" if len(shown) == len(names) else f", the first {len(shown)} of {len(names)}"
    wanted = model.wanted(y)
    if model.config.kind == "attributes":  # the others as they are on average
        middle = f(f.source.zero())
        wanted = torch.where(torch.eye(len(names)) > 0, wanted, middle)
    images = f.pinv()(wanted[: len(shown)])
    labels = [n if len(n) < 9 else n[:7] + "…" for n in shown]
    image_grid(path, [images], ["f†(y)"], labels, f"Least-norm images{part}")


def spectrum(model: Attributes, folder: Path, k: int) -> dict[str, Any]:
    """The directions of images that the scores depend on most."""
    return readout.spectrum(model.read, model.config.names, folder, k)


_FACES = {
    "g": "encoder", "net": "residual", "hidden": 32, "extra": 120, "decoder_hidden": 24,
    "output_blocks": 0, "score": 1.0, "mirror": True, "flip": True, "move": 0.1, "light": 0.2,
    "decode": 0.0, "refine": 2000,
}  # fmt: skip

APP = App(
    name="attributes",
    Config=Config,
    model=Attributes,
    loss=loss,
    measure=measure,
    metric="accuracy",
    maximize=True,
    linearizer=Attributes.forward,
    facts=facts,
    decided=("shape", "names", "kind"),
    preview=preview,
    start=start,
    refine=refine,
    finish=finish,
    spectrum=spectrum,
    training={"steps": 1000, "batch": 128, "rate": 2e-3},
    presets={
        "mnist": {
            "data": {"name": "mnist", "size": 32},
            "model": {
                "g": "encoder", "net": "conv", "hidden": 16, "extra": 54, "decoder_hidden": 16,
                "output_blocks": 0, "score": 1.0, "move": 0.1, "decode": 0.0, "refine": 2500,
                "spread": 1.0,
            },
            "training": {
                "steps": 3000, "batch": 128, "rate": 3e-3, "beta2": 0.99, "ema": 0.998,
                "weight_decay": 0.02, "validate_every": 500, "checkpoint_every": 500,
            },
        },
        "celeba": {
            "data": {"name": "celeba"},
            "model": _FACES,
            "training": {
                "optimizer": "muon", "steps": 1600, "batch": 64, "rate": 4e-3, "beta2": 0.99,
                "ema": 0.998, "weight_decay": 0.05, "warmup": 100, "validate_every": 500,
                "checkpoint_every": 500,
            },
        },
    },
)  # fmt: skip
