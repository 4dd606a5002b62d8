"""The application ``style``, put together."""

from __future__ import annotations

from ...data.stylised import STYLISED
from ..base import App
from .cli import commands
from .evaluate import evaluate, yardstick
from .model import Config, Style, facts, loss, measure, preview
from .studio import PAGE

__all__ = ["APP"]


APP = App(
    name="style",
    summary="photos to pictures; a style is an operator to blend, weaken, undo or add",
    formula="f(x) = g_y⁻¹(A g_x(x)): A is a style, or a sum of styles",
    kind=STYLISED,
    Config=Config,
    build=Style,
    loss=loss,
    measure=measure,
    metric="psnr",
    maximize=True,
    linearizer=Style.forward,
    facts=facts,
    decided=("shape", "names"),
    preview=preview,
    yardstick=yardstick,
    evaluate=evaluate,
    data="bsds500",
    training={"steps": 2000, "batch": 8, "rate": 2e-3, "ema": 0.995, "validate_every": 600},
    presets={
        "paper": {
            "model": {
                "g": "glow",
                "blocks": 6,
                "output_blocks": 6,
                "hidden": 16,
                "mixing": False,
                "kernel": 4,
                "perceptual": 0.0,
                "texture": 0.0,
            },
            "training": {"steps": 400},
        },
        "single": {
            "model": {
                "hidden": 64,
                "pixel": 0.0,
                "squares": 10.0,
                "perceptual": 0.0,
                "texture": 0.0,
                "condition": 3e-4,
            },
            "training": {"steps": 800, "batch": 5, "rate": 3e-3, "validate_every": 200},
        },
    },
    commands=commands,
    page=PAGE,
)
