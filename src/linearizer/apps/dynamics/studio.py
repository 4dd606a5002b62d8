r"""The page of dynamics: states at any times, and modes to switch off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import FailFast, Field

from ..base import Run
from ..page import Asked, Desk, Given, Name, Number, Page, Refusal, Request, Tab, number, numbers
from .model import Dynamics
from .use import MOST, ranges, reference

__all__ = ["PAGE"]

Time = Annotated[float, Field(ge=-1e6, le=1e6)]


class Move(Asked):
    model: Name
    start: Annotated[list[Annotated[float, Field(ge=-1e9, le=1e9)]], FailFast()] = Field(
        max_length=100_000
    )
    t0: Time = 0.0
    t1: Time
    points: int = Field(200, ge=2, le=2000)
    off: Annotated[list[int], FailFast()] = Field([], max_length=1000)


class Mode(Given):
    number: int
    rate: Number
    frequency: Number
    half_life: Number
    period: Number
    share: Number
    eigenvalue: tuple[Number, Number]


class Motion(Given):
    times: list[float]
    states: list[list[Number]]
    reference: list[list[Number]] | None
    modes: list[Mode]


def describe(desk: Desk, id: str, run: Run) -> dict[str, Any]:
    """Return names and ranges of the state, and the modes."""
    c = run.model.config
    return {
        "names": list(c.names),
        "ranges": ranges(run),
        "horizon": c.horizon,
        "unit": c.unit,
        "modes": list_modes(run.model),
    }


def list_modes(model: Dynamics) -> list[dict[str, Any]]:
    rows = []
    for mode in model.spectrum():
        turn = 2 * math.pi * mode.frequency
        fields = {k: v if k == "number" else number(v) for k, v in mode._asdict().items()}
        rows.append({**fields, "eigenvalue": [number(mode.rate), number(turn)]})
    return rows


def move(desk: Desk, a: Move) -> dict[str, Any]:
    run = desk.open(a.model, "dynamics")
    model: Dynamics = run.model
    if len(a.start) != model.config.size:
        raise Refusal(
            422,
            f"start: expected {model.config.size} numbers, as a state has, got {len(a.start)}.",
        )
    if a.points * model.config.size > MOST:
        raise Refusal(
            422,
            f"points: expected at most {MOST // model.config.size:,} states of "
            f"{model.config.size} numbers, got {a.points:,}.",
        )
    x0 = torch.tensor(a.start, dtype=torch.float64)
    times = torch.linspace(a.t0, a.t1, a.points, dtype=torch.float64)
    moving = model.without(a.off)
    states = moving.simulate(x0.to(model.scale).reshape(1, *model.config.shape), times)[0]
    true = reference(run, x0[None], times)
    return {
        "times": times.tolist(),
        "states": numbers(states.flatten(1)),
        "reference": None if true is None else numbers(true),
        "modes": list_modes(model),
    }


PAGE = Page(
    tabs=(Tab("dynamics", "Dynamics", "A<sub>t</sub> = e<sup>tK</sup>"),),
    folder=Path(__file__).parent,
    requests=(Request("dynamics", "States at any times", Move, Motion, move, "state"),),
    describe=describe,
)
