r"""What trained dynamics are for: states at any times, with modes left out if one likes."""

from __future__ import annotations

import csv
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.dynamics import System, Trajectories, system_of
from ...data.files import shorten
from ...data.trajectories import DynamicsSettings, parse_parameters
from ...runs.pictures import save_figure
from ...runs.store import load_data, open_run
from ...training.checkpoint import atomic
from ...training.settings import resolve
from ..base import Run
from ..images import make_parent, picture_path
from .model import Dynamics

__all__ = ["find_system", "open_dynamics", "parse_times", "ranges", "reference", "simulate"]

#: States that one simulation may have.
MOST = 1_000_000
#: Known systems whose own states are quick to compute, and the steps that may take.
ORDINARY = ("pendulum", "duffing", "van-der-pol", "lorenz")
MOST_PARTS = 1000


def open_dynamics(run: str | Path | Run) -> Run:
    """Open a run that holds dynamics."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, Dynamics):
        raise ValueError(f"{run}: expected dynamics, but the run holds {opened.app.name}.")
    return opened


def parse_times(text: str) -> list[float]:
    """Return the times of '0:10:0.1' (first : last : step, both ends) or of a list with commas."""
    ranged = text.count(":") == 2
    try:
        numbers = [float(word) for word in text.split(":" if ranged else ",")]
        good = all(map(math.isfinite, numbers))
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            f"times: expected FIRST:LAST:STEP or numbers with commas between, got {text!r}."
        )
    if not ranged:
        return numbers
    first, last, step = numbers
    steps = (last - first) / step if step else -1.0
    if steps < 0:
        raise ValueError(f"times: {step:g} does not lead from {first:g} to {last:g}.")
    if steps >= MOST:
        raise ValueError(f"times: expected at most {MOST:,}, got {steps:.3g}. Take a longer step.")
    count = math.floor(steps + 1e-9) + 1
    return [first + i * step for i in range(count)]


def _parse_start(text: str, run: Run, root: Path | None) -> Tensor:
    """Return a state (1, \\*shape) of these numbers, or of a test trajectory as in test:3."""
    config = run.model.config
    if text.startswith("test:"):
        moves: Trajectories = load_data(run, root).test.trajectories
        number = text.removeprefix("test:").strip()
        if not number.isdigit() or int(number) >= len(moves):
            raise ValueError(f"start: expected test:0 to test:{len(moves) - 1}, got {text!r}.")
        return moves.x[int(number), :1].to(run.model.scale)
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    x0 = torch.tensor(numbers).to(run.model.scale)
    if len(numbers) != config.size or not bool(x0.isfinite().all()):
        what = shorten(config.names) if len(config.names) == config.size else "a frame"
        raise ValueError(
            f"start: expected {config.size} finite numbers with commas between ({what}), or test:0 "
            f"for the first state of a test trajectory, got {text[:200]!r}."
        )
    return x0.reshape(1, *config.shape)


def find_system(run: Run) -> System | None:
    """Return the known system of ordinary differential equations that a run was trained on."""
    saved = run.config.get("data") or {}
    if saved.get("name") not in ORDINARY:
        return None
    settings = resolve(DynamicsSettings, str(run.folder), saved)
    return system_of(settings.name, parse_parameters(settings))


def ranges(run: Run) -> list[tuple[float, float]]:
    """Return where a state may start, from least to largest, for each of its numbers."""
    model: Dynamics = run.model
    if (system := find_system(run)) is not None:
        x = system.start(4096, torch.Generator().manual_seed(0))
        low, high = x.amin(0), x.amax(0)
    else:
        with torch.no_grad():
            middle = model.state(model.space.points(model.centre[None]))[0].double()
        low, high = middle - 2.5 * model.scale.double(), middle + 2.5 * model.scale.double()
    ends = zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
    return [(float(f"{a:.3g}"), float(f"{b:.3g}")) for a, b in ends]


def reference(run: Run, x0: Tensor, times: Tensor) -> Tensor | None:
    """Return states (m, d) of the known system itself; None where that would take long."""
    system = find_system(run)
    if system is None:
        return None
    parts = max(1, math.ceil(float(times.abs().max()) / system.max_step))
    if parts > MOST_PARTS:
        return None
    return system.advance(x0.double().expand(len(times), -1), times.double(), parts)


def _parse_rates(damp: Sequence[str]) -> dict[int, float]:
    """Return modes and how much faster they decay, from words such as 0=0.2."""
    rates = {}
    for word in damp:
        mode, _, rate = word.partition("=")
        try:
            rates[int(mode)] = float(rate)
            good = math.isfinite(float(rate))
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"damp: expected MODE=RATE, such as 0=0.2, got {word!r}.")
    return rates


@torch.no_grad()
def simulate(
    run: str | Path | Run,
    start: str,
    times: str,
    drop: Sequence[int] = (),
    out: Path | None = None,
    plot: bool = False,
    root: Path | None = None,
    damp: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the states from a start at all times, as CSV (or NPZ), and as a PNG if asked for.

    Modes in ``drop`` are left out; those in ``damp``, as in 0=0.2, decay by e^(−0.2 t) more.
    """
    run = open_dynamics(run)
    model: Dynamics = run.model
    t = parse_times(times)
    x0 = _parse_start(start, run, root)
    moving = model.without(drop)
    for mode, rate in (rates := _parse_rates(damp)).items():
        moving = moving.damp([mode], rate=rate)
    states = moving.simulate(x0, t)[0]
    frames = len(model.config.shape) > 1
    out = out or picture_path(run, "simulated.npz" if frames else "simulated.csv")
    if out.suffix.lower() not in (".csv", ".npz"):
        raise ValueError(f"simulate: expected a name that ends in .csv or .npz, got {out}.")
    if frames and out.suffix.lower() == ".csv":
        raise ValueError(f"simulate: frames do not fit into a CSV. Write an .npz instead of {out}.")
    files = [out, out.with_suffix(".png")] if plot else [out]
    for file in files:
        make_parent(file)
    _write(out, t, states, model.config.names)
    if plot:
        changes = [f"without {mode}" for mode in drop]
        changes += [f"{mode} damped by {rate:g}" for mode, rate in rates.items()]
        title = ", ".join([run.folder.name, *changes])
        draw = _plot_frames if frames else _plot_numbers
        draw(files[1], t, states, model.config.names, title)
    finite = bool(states.isfinite().all())
    notes = [] if finite else ["some states are infinite: so far back or forth the model explodes"]
    return {
        "rows": len(t),
        "first": [t[0], states[0].flatten()[:8].tolist()],
        "last": [t[-1], states[-1].flatten()[:8].tolist()],
        "dropped": list(drop),
        "damped": {str(mode): rate for mode, rate in rates.items()},
        "notes": notes,
        "files": files,
    }


def _write(path: Path, t: Sequence[float], states: Tensor, names: Sequence[str]) -> None:
    with atomic(path) as part:
        if path.suffix.lower() == ".npz":
            with open(part, "wb") as stream:
                np.savez(stream, t=np.array([t]), x=states[None].double().cpu().numpy())
            return
        with open(part, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(["time", *_columns(names, states.shape[1])])
            for time, state in zip(t, states.tolist(), strict=True):
                lines.writerow([f"{time:.10g}", *(f"{v:.9g}" for v in state)])


def _columns(names: Sequence[str], count: int) -> list[str]:
    return list(names) if len(names) == count else [f"{names[0]}{i}" for i in range(count)]


def _plot_frames(
    path: Path, t: Sequence[float], states: Tensor, names: Sequence[str], title: str
) -> None:
    """Draw up to eight frames, a row for each field."""
    from matplotlib.figure import Figure

    values = states.double().cpu().numpy()
    shown = np.linspace(0, len(t) - 1, min(8, len(t))).round().astype(int)
    size = (1.6 * len(shown), 1.6 * len(names) + 0.6)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    panels = figure.subplots(len(names), len(shown), squeeze=False)
    high = float(np.abs(values[shown]).max())
    for field, row in enumerate(panels):
        for i, axes in zip(shown, row, strict=True):
            axes.imshow(values[i, field], cmap="RdBu_r", vmin=-high, vmax=high)
            axes.set_axis_off()
    for i, axes in zip(shown, panels[0], strict=True):
        axes.set_title(f"t = {t[i]:.3g}", fontsize=8)
    figure.suptitle(textwrap.fill(title, max(20, int(14 * size[0]))), fontsize=10)
    save_figure(figure, path)


def _plot_numbers(
    path: Path, t: Sequence[float], states: Tensor, names: Sequence[str], title: str
) -> None:
    """Plot the numbers of states over time, and the first two of them against each other."""
    from matplotlib.figure import Figure

    values = states.double().cpu().numpy()
    count = values.shape[1]
    plane, columns = 2 <= count <= 8, _columns(names, count)
    figure = Figure(figsize=(9.5 if plane else 6.5, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot(1, 2 if plane else 1, 1)
    axes.set(xlabel="time", title=textwrap.fill(title, 50))
    if count > 8:
        box = (min(t), max(t), 0, count)
        axes.imshow(values.T, aspect="auto", cmap="RdBu_r", origin="lower", extent=box)
        axes.set_ylabel(names[0])
    else:
        for j, name in enumerate(columns):
            axes.plot(t, values[:, j], label=name, linewidth=1.2)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right", fontsize=8)
    if plane:
        phase = figure.add_subplot(1, 2, 2)
        phase.plot(values[:, 0], values[:, 1], linewidth=1)
        phase.plot(values[:1, 0], values[:1, 1], "o", markersize=4, label="first")
        phase.set(xlabel=columns[0], ylabel=columns[1])
        phase.grid(alpha=0.3)
        phase.legend(fontsize=8)
    save_figure(figure, path)
