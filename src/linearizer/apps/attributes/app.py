"""The application ``attributes``, put together."""

from __future__ import annotations

from ...data.catalogue import IMAGES
from ..base import App
from ..readout.cli import commands
from ..readout.studio import PAGE
from .evaluate import evaluate, plain, yardstick
from .model import (
    Attributes,
    Config,
    facts,
    finish,
    loss,
    measure,
    preview,
    refine,
    spectrum,
    start,
    suit_few,
)

__all__ = ["APP"]

_FACES = {
    "g": "encoder",
    "net": "residual",
    "hidden": 32,
    "extra": 120,
    "decoder_hidden": 24,
    "output_blocks": 0,
    "score": 1.0,
    "mirror": True,
    "flip": True,
    "move": 0.1,
    "light": 0.2,
    "decode": 0.0,
    "refine": 2000,
}

APP = App(
    name="attributes",
    summary="images to class scores or attributes, with a rectangular core",
    formula="f(x) = g_y⁻¹(A g_x(x)): from images to scores, A has a row for each",
    kind=IMAGES,
    data="digits",
    Config=Config,
    build=Attributes,
    loss=loss,
    measure=measure,
    metric="accuracy",
    maximize=True,
    linearizer=Attributes.forward,
    facts=facts,
    decided=("shape", "names", "kind"),
    preview=preview,
    start=start,
    adapt=suit_few,
    yardstick=yardstick,
    plain=plain,
    stages=(refine,),
    stage_steps=("refine",),
    finish=finish,
    spectrum=spectrum,
    evaluate=evaluate,
    training={"steps": 1000, "batch": 128, "rate": 2e-3},
    presets={
        "mnist": {
            "data": {"name": "mnist", "size": 32},
            "model": {
                "g": "encoder",
                "net": "conv",
                "hidden": 16,
                "extra": 54,
                "decoder_hidden": 16,
                "output_blocks": 0,
                "score": 1.0,
                "move": 0.1,
                "decode": 0.0,
                "refine": 2500,
                "spread": 1.0,
            },
            "training": {
                "steps": 3000,
                "batch": 128,
                "rate": 3e-3,
                "beta2": 0.99,
                "ema": 0.998,
                "weight_decay": 0.02,
                "validate_every": 500,
                "checkpoint_every": 500,
            },
        },
        "celeba": {
            "data": {"name": "celeba"},
            "model": _FACES,
            "training": {
                "optimizer": "muon",
                "steps": 1600,
                "batch": 64,
                "rate": 4e-3,
                "beta2": 0.99,
                "ema": 0.998,
                "weight_decay": 0.05,
                "warmup": 100,
                "validate_every": 500,
                "checkpoint_every": 500,
            },
        },
    },
    commands=commands,
    page=PAGE,
)
