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

from ..bijections import Bijection, Chain, Flatten, glow, mlp
from ..draws import Draw
from ..linearizer import Linearizer
from ..operators import Dense
from ..pictures import image_grid
from ..settings import Settings
from ..spaces import Space
from .base import App

__all__ = ["APP", "Attributes", "Config", "loss", "measure"]


class Config(Settings):
    """Settings of the model."""

    shape: tuple[int, int, int] = Field((1, 8, 8), description="images, (C, H, W)")
    names: tuple[str, ...] = Field(tuple("0123456789"), description="one for each output")
    kind: Literal["classes", "attributes"] = Field(
        "classes", description="exactly one of the names, or any of them"
    )
    g: Literal["auto", "mlp", "glow"] = Field(
        "auto", description="stack on the images; auto is mlp up to 256 pixels, else glow"
    )
    blocks: int = Field(6, ge=1, description="blocks on the images")
    hidden: int | None = Field(
        None, ge=1, description="width of the conditioners on the images; 256 for mlp, 16 for glow"
    )
    output_blocks: int = Field(2, ge=1, description="blocks on the scores")
    output_hidden: int = Field(64, ge=1, description="width of the conditioners on the scores")
    noise: float = Field(0.05, ge=0, description="added to the images; a density needs a little")
    likelihood: float = Field(1.0, ge=0, description="weight of −log p(x)/dim")
    score: float = Field(10.0, ge=0, description="weight of the error of the scores")
    save_memory: bool = Field(False, description="activation memory constant in depth")


class Attributes(nn.Module):
    """``model()`` is the Linearizer from images to scores."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        images = Space(_on_images(config))
        outputs = len(config.names)
        scores = Space(
            mlp(outputs, blocks=config.output_blocks, hidden=config.output_hidden)
            if outputs > 1
            else Flatten((1,))
        )
        core = torch.randn(outputs, images.dim) / images.dim**0.5
        self.f = Linearizer(images, Dense(nn.Parameter(core)), scores)

    def forward(self) -> Linearizer:
        return self.f

    def initialize(self, batch: Any) -> None:
        """ActNorm of both g, from images and wanted scores with a little noise."""
        draw = Draw(0)
        x, wanted = batch.x, self.wanted(batch.y)
        self.f.source.g.initialize(x + self.config.noise * draw.normal(x))
        self.f.target.g.initialize(wanted + 0.1 * draw.normal(wanted))

    def wanted(self, y: Tensor) -> Tensor:
        """Scores that the labels ask for, (n, outputs): one-hot, or ±1 for each attribute."""
        like = self.f.operator._tensor
        if self.config.kind == "classes":
            return F.one_hot(y, len(self.config.names)).to(like)
        return y.to(like) * 2 - 1


def _on_images(config: Config) -> Bijection:
    C, H, W = config.shape
    squeezable = C % 2 == 0 or (H % 2 == 0 and W % 2 == 0)
    auto = "glow" if C * H * W > 256 and squeezable else "mlp"
    if (auto if config.g == "auto" else config.g) == "glow":
        return glow(
            config.shape,
            blocks=config.blocks,
            hidden=config.hidden or 16,
            save_memory=config.save_memory,
        )
    body = mlp(C * H * W, blocks=config.blocks, hidden=config.hidden or 256)
    return Chain(Flatten(config.shape), *body, save_memory=config.save_memory)


def loss(model: Attributes, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""score·‖f(x) − y‖²/k + likelihood·(−log p(x)/dim), p the Gaussian pulled back through g_x.

    The second term makes g_x⁻¹ of coordinates near the data's an image.
    """
    config, f = model.config, model.f
    x = batch.x + config.noise * draw.normal(batch.x)
    z, log_det = f.source.g.with_log_det(x)
    error = f.target.points(f.operator(z)) - model.wanted(batch.y)
    unlikely = (0.5 * z.square().sum(1) - log_det).mean() / f.source.dim
    return {"scores": config.score * error.square().mean(), "-log p": config.likelihood * unlikely}


def measure(model: Attributes, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """Accuracy and squared error of the scores, for each sample."""
    scores, wanted = model.f(batch.x), model.wanted(batch.y)
    if model.config.kind == "classes":
        right = (scores.argmax(1) == batch.y).to(scores)
    else:
        right = ((scores > 0) == (wanted > 0)).to(scores).mean(1)
    return {"accuracy": right, "score error": (scores - wanted).square().mean(1)}


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
    f, names = model.f, model.config.names
    eye = torch.eye(len(names)).to(f.operator._tensor)
    wanted = eye if model.config.kind == "classes" else 2 * eye
    shown = names[:10]
    part = "" if len(shown) == len(names) else f", the first {len(shown)} of {len(names)}"
    images = f.pinv()(wanted[: len(shown)])
    labels = [n if len(n) < 9 else n[:7] + "…" for n in shown]
    image_grid(path, [images], ["f†(y)"], labels, f"Least-norm images{part}")


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
    training={"steps": 1000, "batch": 128, "rate": 2e-3},
)
