"""The application ``projector``, put together."""

from __future__ import annotations

from ...data.catalogue import IMAGES
from ..base import App
from ..images import axes_yardstick, image_shape, suit_few_images
from .cli import commands
from .evaluate import evaluate, evaluate_alone
from .model import Config, Projection, finish, loss, measure, plain, preview, train_density
from .studio import PAGE

__all__ = ["APP"]

_BEST = {
    "g": "subspace",
    "nets": "conv",
    "hidden": 16,
    "rank": 32,
    "detail": 96,
    "blocks": 5,
    "flow_hidden": 256,
    "refine": 6000,
}
#: Nothing but reconstruction, as an autoencoder has it.
_SHARP = {
    **_BEST,
    "detail": 0,
    "blocks": 2,
    "flow_hidden": 64,
    "likelihood": 0.001,
    "restore": 0.0,
    "strangers": 0.0,
    "refine": 0,
}
_PAPER = {"steps": 1500, "batch": 64, "validate_every": 500, "checkpoint_every": 500}
_LONG = {"steps": 5000, "rate": 2e-3, "validate_every": 1000, "checkpoint_every": 500}

APP = App(
    name="projector",
    summary="any image to the nearest one of the data; f(f(x)) = f(x) by architecture",
    formula="f(x) = g⁻¹(Λ g(x)): Λ is a diagonal of zeros and ones",
    kind=IMAGES,
    Config=Config,
    build=Projection,
    loss=loss,
    measure=measure,
    metric="psnr",
    maximize=True,
    linearizer=Projection.forward,
    facts=image_shape,
    decided=("shape",),
    preview=preview,
    tells_best=lambda config: config.g == "subspace",
    adapt=suit_few_images,
    plain=plain,
    yardstick=lambda model, data: axes_yardstick(data, model().rank()),
    stages=(train_density,),
    stage_steps=("refine",),
    finish=finish,
    evaluate=evaluate,
    evaluate_alone=evaluate_alone,
    data="digits",
    training={"steps": 3000, "batch": 128, "rate": 1e-3, "ema": 0.999},
    presets={
        "paper": {"model": {"g": "revnet"}, "training": _PAPER},
        "warm": {
            "model": {"g": "revnet", "mean": False, "warm": True, "sparsity": 20.0, "freeze": 0.7},
            "training": _PAPER,
        },
        "best": {"model": _BEST, "training": _LONG},
        "digits": {
            "model": {"rank": 16, "hidden": 256, "refine": 1000},
            "training": {"rate": 2e-3, "steps": 2000},
        },
        "sharp": {"model": _SHARP, "training": {**_LONG, "steps": 8500, "ema": 0.999}},
        "mnist": {"data": {"name": "mnist", "size": 32}, "model": _BEST, "training": _LONG},
    },
    commands=commands,
    page=PAGE,
)
