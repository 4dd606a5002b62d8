r"""How far ahead dynamics are right: errors on held-out trajectories beside a linear model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.dynamics import Trajectories
from ...data.files import shorten
from ...data.kinds import Data
from ...runs.pictures import save_figure
from ..base import Run, Say, Yardstick
from .model import Dynamics, finish, split_modes

__all__ = ["evaluate", "fit_dmd", "plain", "yardstick"]

#: How many training horizons known systems are followed for, and in how many steps each.
FAR, STEPS = 10, 20
#: Numbers of a state up to which the linear model is fitted after training.
LINEAR = 1024

#: (states (n, d), times (n, m)) ↦ states (n, m, d)
Predict = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def yardstick(model: Dynamics, data: Data) -> Yardstick | None:
    """Return the error of a linear model (DMD) on validation pairs."""
    if data.train.trajectories.x.flatten(2).shape[2] > LINEAR:
        return None
    predict = _predict_by(*fit_dmd(data.train.trajectories))
    scale = model.scale.double().flatten()
    total = 0.0
    for index in torch.arange(len(data.val)).split(1024):
        pair = data.val.batch(index)
        made = predict(pair.x.flatten(1).double(), pair.dt.double()[:, None])[:, 0]
        error = ((made - pair.y.flatten(1).double()) / scale).square().mean(1)
        total += float(error.nan_to_num(math.inf).sum())
    return Yardstick("DMD", {"error": total / len(data.val)})


@torch.no_grad()
def plain(model: Dynamics, data: Data) -> Dynamics | None:
    r"""Return the linear model (DMD) as one of ours: g is (x, 1) in the eigenbasis of M."""
    c = model.config
    if c.kind != "lift":
        return None
    values, vectors = fit_dmd(data.train.trajectories)
    pairs, singles = (int(which.sum()) for which in split_modes(values))
    # What changes its sign each step has no real logarithm, and free fall no eigenbasis.
    if 2 * pairs + singles != len(values) or float(torch.linalg.cond(vectors)) > 1e8:
        return None
    modes = {"spirals": pairs, "cycles": 0, "decays": singles, "constants": 0, "stable": False}
    found = Dynamics(c.model_copy(update={**modes, "blocks": 1, "hidden": 1}))
    found.initialize(data.train.batch(torch.arange(min(4096, len(data.train)))))
    found.scale.copy_(model.scale)
    found.become(values, vectors)
    finish(found, data)
    return found


@torch.no_grad()
def evaluate(run: Run, data: Data, folder: Path, n: int | None, say: Say) -> dict[str, Any]:
    """Measure errors in standard deviations, beside the first state and a linear model (DMD).

    Trajectories of a known system are followed for ten training horizons, those of a file for as
    long as they last.
    """
    model: Dynamics = run.model
    horizon = model.config.horizon
    train = _follow(_match(model, data.train.trajectories, data.name), horizon, 1)
    test = _follow(_match(model, data.test.trajectories, data.name), horizon, FAR)
    t, x = test.t[:n], test.x[:n].flatten(2)
    t = t - t[:, :1]
    say(f"{len(t)} trajectories of {float(t.max()) / horizon:.3g} training horizons")
    methods: dict[str, Predict] = {
        "ours": lambda x0, t: _simulate(model, x0, t),
        "last value": lambda x0, t: x0[:, None].expand(-1, t.shape[1], -1),
        "linear DMD": _predict_by(*fit_dmd(train)),
    }
    scale = model.scale.double().flatten().expand(x.shape[2])
    states = {name: predict(x[:, 0], t) for name, predict in methods.items()}
    squares = {name: ((s - x) / scale).square().mean(2) for name, s in states.items()}
    squares = {name: torch.where(v.isfinite(), v, math.inf) for name, v in squares.items()}
    pictures = [folder / "error.png"]
    _plot(pictures[0], t / horizon, x, states, squares, data.name, model.config.names[0])
    return {
        "horizon": horizon,
        "unit": model.config.unit or "that of the data",
        "trajectories": len(t),
        "parameters": sum(p.numel() for p in model.parameters()),
        "error": {name: _summarise(v, t / horizon) for name, v in squares.items()},
        "pictures": pictures,
    }


def _match(model: Dynamics, moves: Trajectories, name: str) -> Trajectories:
    """Return trajectories with the numbers of the model's states, found by name, in its order."""
    names, shape = model.config.names, tuple(moves.x.shape[2:])
    if moves.unit and model.config.unit and moves.unit != model.config.unit:
        raise ValueError(
            f"{name}: expected times in {model.config.unit}, as in training, got {moves.unit}. "
            f"Tell them in it with --unit {model.config.unit}."
        )
    if moves.names == names and shape == model.config.shape:
        return moves
    if len(shape) == 1 and set(names) <= set(moves.names) and len(names) == model.config.size:
        places = [moves.names.index(one) for one in names]
        return dataclasses.replace(moves, x=moves.x[..., places], names=names)
    if shape != model.config.shape:
        raise ValueError(
            f"{name}: expected states of {shorten(names)} and shape {model.config.shape}, as in "
            f"training, got {shorten(moves.names)} of shape {shape}. Bring such states."
        )
    return moves


def _follow(moves: Trajectories, horizon: float, far: int) -> Trajectories:
    """Return trajectories of even steps from the same starts, if their system is known."""
    if moves.parameters is None:
        return moves
    dt = horizon / STEPS
    gaps = torch.full((1, far * STEPS), dt, dtype=torch.float64)
    x = moves.parameters.follow(moves.x[:, 0], gaps)
    t = (dt * torch.arange(x.shape[1], dtype=torch.float64)).repeat(len(x), 1)
    return Trajectories(t, x, dt, moves.names)


def _simulate(model: Dynamics, x0: Tensor, t: Tensor) -> Tensor:
    x0 = x0.reshape(-1, *model.config.shape).to(model.scale)
    if bool((t == t[0]).all()):
        return model.simulate(x0, t[0]).flatten(2).double()
    each = [model.simulate(x0[i : i + 1], times) for i, times in enumerate(t)]
    return torch.cat(each).flatten(2).double()


def fit_dmd(moves: Trajectories) -> tuple[Tensor, Tensor]:
    r"""Fit z(t) = e^{tM} z(0) with z = (x, 1) and M by least squares: eigenvalues and vectors of M.

    Of even steps e^{dt M} is the best matrix from each state to the next. Of uneven ones M is the
    best matrix from the mean state of a step to its rate of change; that mean is the middle of
    both ends at first, and then what M itself says.
    """
    z, dt = F.pad(moves.x.flatten(2), (0, 1), value=1.0), moves.t.diff(dim=1).flatten()[:, None]
    before, after = z[:, :-1].flatten(0, 1), z[:, 1:].flatten(0, 1)
    if float(dt.max()) < 1.001 * float(dt.min()):
        step = torch.linalg.lstsq(before, after).solution.mT
        values, vectors = torch.linalg.eig(step)
        values = torch.where(values.abs() > 1e-12, values, 1e-12).log() / dt.mean()
    else:
        middle = (before + after) / 2
        for _ in range(5):
            rate = torch.linalg.lstsq(middle, (after - before) / dt).solution.mT
            values, vectors = torch.linalg.eig(rate)
            turn = values * dt + 1e-9
            start = before.to(vectors) @ torch.linalg.pinv(vectors).mT
            middle = ((start * (turn.exp() - 1) / turn) @ vectors.mT).real
            if not bool(middle.isfinite().all()):
                break
    return values, vectors


def _predict_by(values: Tensor, vectors: Tensor) -> Predict:
    inverse = torch.linalg.pinv(vectors)

    def predict(x0: Tensor, t: Tensor) -> Tensor:
        start = F.pad(x0, (0, 1), value=1.0).to(vectors) @ inverse.mT
        moved = start[:, None] * (values * t[..., None]).exp()  # (n, m, d + 1)
        return (moved @ vectors.mT).real[..., :-1]

    return predict


def _summarise(squares: Tensor, horizons: Tensor) -> dict[str, float]:
    """Return errors over and at the end of 1 and 10 training horizons, or as far as states go."""
    far, found = float(horizons.max()), {}
    for k in dict.fromkeys((min(1.0, far), min(float(FAR), far))):
        until = horizons <= 1.0001 * k
        ends = squares.gather(1, until.sum(1, keepdim=True) - 1)
        found[f"{k:.3g} horizon{'' if k == 1 else 's'}"] = float(squares[until].mean().sqrt())
        found[f"at {k:.3g}"] = float(ends.mean().sqrt())
    return found


def _plot(
    path: Path,
    horizons: Tensor,
    x: Tensor,
    states: dict[str, Tensor],
    squares: dict[str, Tensor],
    title: str,
    name: str,
) -> None:
    """Plot errors over time, and the first number of one trajectory with what is said of it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    right.plot(horizons[0], x[0, :, 0], color="0.7", linewidth=4, label="truth")
    low, high = float(x[0, :, 0].min()), float(x[0, :, 0].max())
    room = 0.3 * (high - low)
    for method, state in states.items():
        width = 2.0 if method == "ours" else 1.0
        error = squares[method].mean(0).sqrt().clamp(1e-5, 30)
        left.plot(horizons.mean(0)[1:], error[1:], label=method, linewidth=width)
        if method != "last value":
            line = state[0, :, 0].clamp(low - 2 * room, high + 2 * room)
            right.plot(horizons[0], line, label=method, linewidth=width)
    left.set_yscale("log")
    left.set(ylabel="error, in standard deviations", title=f"{title}: error over time")
    right.set(ylabel=name, title="One test trajectory")
    right.set_ylim(low - room, high + room)
    for axes in (left, right):
        axes.set_xlabel("time, in training horizons")
        axes.axvline(1, color="0.6", linestyle=":", linewidth=1)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save_figure(figure, path)
