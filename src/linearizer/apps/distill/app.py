"""The application ``distill``, put together."""

from __future__ import annotations

from ...data.distill import DISTILL
from ..base import App
from ..readout.cli import commands
from ..readout.studio import PAGE
from .evaluate import evaluate, plain, yardstick
from .model import (
    Config,
    Student,
    facts,
    finish,
    loss,
    measure,
    preview,
    refine,
    spectrum,
    start,
)

__all__ = ["APP"]

_SPRITES = {
    "g": "encoder",
    "net": "conv",
    "hidden": 16,
    "decoder_hidden": 16,
    "decode": 0.0,
    "refine": 2000,
    "pixels": True,
}
#: Muon leaves less error than Adam in the same time.
_LONG = {
    "optimizer": "muon",
    "steps": 4000,
    "rate": 8e-3,
    "warmup": 200,
    "ema": 0.995,
    "validate_every": 1000,
    "checkpoint_every": 500,
}
#: A network that starts as its teacher has next to nothing to learn.
_SAME = {
    "steps": 300,
    "rate": 1e-4,
    "warmup": 50,
    "ema": 0.97,
    "validate_every": 100,
    "checkpoint_every": 100,
}

APP = App(
    name="distill",
    summary="what a network of yours (or an encoder of a VAE) gives, as a Linearizer",
    formula="f(x) = g_y⁻¹(A g_x(x)): what another network gives, as a Linearizer",
    kind=DISTILL,
    Config=Config,
    build=Student,
    loss=loss,
    measure=measure,
    metric="R2",
    maximize=True,
    linearizer=Student.forward,
    facts=facts,
    decided=("shape", "outputs", "layers"),
    preview=preview,
    start=start,
    yardstick=yardstick,
    plain=plain,
    stages=(refine,),
    stage_steps=("refine",),
    finish=finish,
    spectrum=spectrum,
    evaluate=evaluate,
    data="dsprites",
    training={
        "steps": 2000,
        "batch": 128,
        "rate": 3e-3,
        "beta2": 0.99,
        "ema": 0.99,
        "validate_every": 200,
        "checkpoint_every": 200,
    },
    presets={
        "dsprites": {"data": {"name": "dsprites"}, "model": _SPRITES, "training": _LONG},
        "same": {
            "data": {"name": "dsprites"},
            "model": {**_SPRITES, "net": "same"},
            "training": _SAME,
        },
    },
    commands=commands,
    page=PAGE,
)
