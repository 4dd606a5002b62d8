"""The application ``dynamics``, put together."""

from __future__ import annotations

from ...data.trajectories import TRAJECTORIES
from ..base import App
from .cli import commands
from .evaluate import evaluate, plain, yardstick
from .model import Config, Dynamics, facts, finish, loss, measure, preview, spectrum
from .studio import PAGE

__all__ = ["APP"]

_TRAINING = {"steps": 3000, "rate": 8e-3, "batch": 256, "ema": 0.995, "validate_every": 200}

APP = App(
    name="dynamics",
    summary="states to states at any time, before or after, by one generator",
    formula="x(t) = g⁻¹(e^{tK} g(x(0))): one generator K for all times t",
    kind=TRAJECTORIES,
    Config=Config,
    build=Dynamics,
    loss=loss,
    measure=measure,
    metric="error",
    maximize=False,
    linearizer=lambda model: model(model.config.horizon),
    facts=facts,
    decided=("shape", "names", "horizon", "unit"),
    preview=preview,
    finish=finish,
    yardstick=yardstick,
    plain=plain,
    spectrum=spectrum,
    data="pendulum",
    training=_TRAINING,
    presets={
        "pendulum": {
            "data": {"name": "pendulum"},
            "model": {"spirals": 1, "hidden": 32},
            "training": {"steps": 5000},
        },
        "duffing": {
            "data": {"name": "duffing"},
            "model": {"spirals": 2, "constants": 1, "hidden": 32},
            "training": {"steps": 4000},
        },
        "van-der-pol": {
            "data": {"name": "van-der-pol"},
            "model": {"spirals": 0, "cycles": 2, "decays": 1, "hidden": 32},
        },
        "lorenz": {
            "data": {"name": "lorenz"},
            "model": {"spirals": 3, "decays": 1, "constants": 1, "stable": False},
        },
        "lambda-omega": {
            "data": {"name": "lambda-omega", "trajectories": 400, "size": 16},
            "model": {"spirals": 4, "cycles": 4, "blocks": 2},
            "training": {"steps": 600, "rate": 2e-3, "validate_every": 200},
        },
    },
    evaluate=evaluate,
    commands=commands,
    page=PAGE,
)
