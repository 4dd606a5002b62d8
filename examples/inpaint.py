"""An application in one file: half an image in, the whole image out (docs/tutorials/6)."""

import torch
from pydantic import Field

import linearizer as lz
from linearizer.apps.base import App
from linearizer.apps.images import image_shape
from linearizer.bijections import Chain, Flatten, mlp
from linearizer.metrics.images import psnr
from linearizer.runs.pictures import image_grid
from linearizer.training.settings import Settings


class Config(Settings):
    shape: tuple[int, int, int] = Field((1, 8, 8), description="images, (C, H, W)")
    blocks: int = Field(2, ge=1, description="blocks of each g")
    hidden: int = Field(64, ge=1, description="width of the networks inside a block")


class Inpainting(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        flat, seen = Flatten(config.shape), torch.arange(config.shape[-1]) < config.shape[-1] // 2
        g_x, g_y = (Chain(flat, mlp(flat.dim, config.blocks, config.hidden)) for _ in range(2))
        self.source, self.target = lz.Space(g_x), lz.Space(g_y)
        self.core = lz.operators.Dense(torch.nn.Parameter(torch.eye(flat.dim)))
        self.register_buffer("seen", seen, persistent=False)  # the left half

    def forward(self):
        return lz.Linearizer(self.source, self.core, self.target)

    def loss(self, batch, draw):
        return {"error": (self()(batch.x * self.seen) - batch.x).square().mean()}

    def measure(self, batch, draw):
        return {"psnr": psnr(self()(batch.x * self.seen).clamp(0, 1), batch.x)}

    def preview(self, data, path):
        x = data.test.batch(torch.arange(10)).x
        image_grid(path, [x * self.seen, self()(x * self.seen), x], ["x", "f(x)", "whole"])


APP = App(
    name="inpaint",
    summary="half an image to the whole image",
    Config=Config,
    build=Inpainting,
    loss=Inpainting.loss,
    measure=Inpainting.measure,
    metric="psnr",
    maximize=True,
    linearizer=Inpainting.forward,
    kind=lz.data.IMAGES,
    data="digits",
    facts=image_shape,
    decided=("shape",),
    training={"steps": 500, "rate": 1e-2},
    preview=Inpainting.preview,
)
