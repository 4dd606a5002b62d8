"""The application ``forecast``, put together."""

from __future__ import annotations

from ...data.series import SERIES
from ..base import App
from .cli import commands
from .evaluate import evaluate, yardstick
from .model import Config, Forecast, facts, finish, loss, measure, preview, start
from .studio import PAGE

__all__ = ["APP"]

_TRAINING = {
    "steps": 300,
    "batch": 128,
    "rate": 1e-3,
    "ema": 0.98,
    "validate_every": 25,
    "patience": 6,
    "checkpoint_every": 100,
}

APP = App(
    name="forecast",
    summary="rows of a table to the rows that follow, with intervals",
    formula="f(x) = g_y⁻¹(A g_x(x)): from the rows of the past to those that follow",
    kind=SERIES,
    Config=Config,
    build=Forecast,
    loss=loss,
    measure=measure,
    metric="clamped mse",
    maximize=False,
    linearizer=Forecast.forward,
    facts=facts,
    decided=("columns", "look_back", "horizon", "step", "step_unit"),
    preview=preview,
    start=start,
    finish=finish,
    yardstick=yardstick,
    data="weather",
    training=_TRAINING,
    presets={
        "strict": {"model": {"harmonics": 0}},
        "daily": {"model": {"harmonics": 3}},
    },
    evaluate=evaluate,
    commands=commands,
    page=PAGE,
)
