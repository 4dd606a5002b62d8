"""The application ``flow``, put together."""

from __future__ import annotations

from ...data.catalogue import IMAGES
from ..base import App
from ..images import axes_yardstick, image_shape
from .cli import commands
from .evaluate import evaluate, evaluate_alone
from .model import (
    Config,
    Flow,
    build,
    finish,
    loss,
    measure,
    preview,
    start,
    suit_few,
    train_density,
)
from .studio import PAGE

__all__ = ["APP"]

#: Section 4.1 and appendix G. Where the paper is silent (the clamp, the noise without which its
#: reconstruction would be 0) as the authors' code has it.
_PAPER = {
    "g": "glow",
    "nets": "unet",
    "depth": 2,
    "clamp": "hard",
    "max_log_scale": 5.0,
    "spaces": "one",
    "core": "velocity",
    "rank": 16,
    "blocks": 6,
    "hidden": 16,
    "induced": 0.0,
    "image": 1.0,
    "reconstruction": 1.0,
    "noise_reconstruction": "distance",
    "latent_noise": 0.3,
    "alignment": 1.0,
    "likelihood": 0.0,
    "distance": "alex",
    "dequantize": 0.0,
}
#: What their code does otherwise.
_AUTHORS = {
    **_PAPER,
    "spaces": "two",
    "core": "prediction",
    "rank": 8,
    "induced": 1.0,
    "noise_reconstruction": "mse",
    "alignment": 0.0,
}
_BEST = {
    "g": "subspace",
    "nets": "conv",
    "hidden": 16,
    "rank": 32,
    "likelihood": 0.1,
    "refine": 6000,
}
_CELEBA = {
    **_BEST,
    "rank": 64,
    "detail": 64,
    "detail_spread": 1.0,
    "likelihood": 0.15,
    "mirror": True,
}
#: One g for noise and data, and a learned A_t: the paper's, with the changes that it needs.
_MATCHING = {
    **_BEST,
    "spaces": "one",
    "core": "prediction",
    "precondition": True,
    "reach": 0.05,
    "induced": 0.1,
    "noise_likelihood": 0.03,
    "refine": 12000,
}
_LONG = {"steps": 5000, "rate": 2e-3, "validate_every": 1000, "checkpoint_every": 500}

APP = App(
    name="flow",
    summary="noise to images in one step, and back by the pseudo-inverse",
    formula="f(x) = g_y⁻¹(B g_x(x)): B is all steps of a solver in one, from noise to images",
    kind=IMAGES,
    Config=Config,
    build=build,
    loss=loss,
    measure=measure,
    metric="psnr",
    maximize=True,
    linearizer=Flow.forward,
    facts=image_shape,
    decided=("shape",),
    preview=preview,
    start=start,
    tells_best=lambda config: config.g == "subspace",
    adapt=suit_few,
    yardstick=lambda model, data: (
        axes_yardstick(data, model.config.rank) if model.leading else None
    ),
    stages=(train_density,),
    stage_steps=("refine",),
    finish=finish,
    points=Flow.noise,
    evaluate=evaluate,
    evaluate_alone=evaluate_alone,
    data="digits",
    training={"steps": 3000, "batch": 128, "rate": 1e-3, "ema": 0.999},
    presets={
        "paper": {"model": _PAPER, "training": {"steps": 3000, "batch": 32}},
        "authors": {"model": _AUTHORS, "training": {"steps": 3000, "batch": 32}},
        "matching": {"model": _MATCHING, "training": _LONG},
        "best": {"model": _BEST, "training": _LONG},
        "digits": {
            "model": {"rank": 24, "hidden": 256, "flow_hidden": 128},
            "training": {"rate": 2e-3, "batch": 256},
        },
        "mnist": {
            "data": {"name": "mnist", "size": 32},
            "model": {**_BEST, "detail": 256, "refine": 8000},
            "training": _LONG,
        },
        "celeba": {
            "data": {"name": "celeba", "size": 64},
            "model": _CELEBA,
            "training": {**_LONG, "steps": 4000, "batch": 64},
        },
    },
    commands=commands,
    page=PAGE,
    sample=lambda model, n, seed: model()(model.noise(n, seed)),
)
