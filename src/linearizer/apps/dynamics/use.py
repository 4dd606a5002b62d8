r"""What trained dynamics are for: states at any times, with modes left out if one likes."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .apps.dynamics import Dynamics
from .checkpoint import atomic
from .data.dynamics import System, system_of
from .runs import Opened, opened, run_data
from .sampling import place, written
from .settings import resolve
from .sources import DynamicsSettings, parameters_of

__all__ = ["dynamics_of", "known_system", "parse_times", "ranges", "reference", "simulate"]

#: States that one simulation may have.
MOST = 1_000_000
#: Known systems whose own states are quick to compute, and the steps that may take.
ORDINARY = ("pendulum", "duffing", "van-der-pol", "lorenz")
MOST_PARTS = 1000


def dynamics_of(run: str | Path) -> Opened:
    """A run that holds dynamics."""
    one = opened(run)
    if not isinstance(one.model, Dynamics):
        raise ValueError(f"{run}: expected dynamics, but the run holds {one.app.name}.")
    return one


def parse_times(text: str) -> list[float]:
    """'0:10:0.1' (first : last : step, the last included), or times with commas between."""
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
    if step == 0 or (last - first) / step < 0:
        raise ValueError(f"times: {step:g} does not lead from {first:g} to {last:g}.")
    count = math.floor((last - first) / step + 1e-9) + 1
    if count > MOST:
        raise ValueError(f"times: expected at most {MOST:,}, got {count:,}. Take a longer step.")
    return [first + i * step for i in range(count)]


def _start(text: str, one: Opened, root: Path | None) -> Tensor:
    """A state (1, \\*shape) from numbers, or the first one of a test trajectory: test:3."""
    config = one.model.config
    if text.startswith("test:"):
        moves = run_data(one, root).test.trajectories  # type: ignore[union-attr]
        number = text.removeprefix("test:").strip()
        if not number.isdigit() or int(number) >= len(moves):
            raise ValueError(f"start: expected test:0 to test:{len(moves) - 1}, got {text!r}.")
        return moves.x[int(number), :1].to(one.model.scale)
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != config.size or not all(map(math.isfinite, numbers)):
        what = ", ".join(config.names) if len(config.names) == config.size else "a frame"
        raise ValueError(
            f"start: expected {config.size} numbers with commas between ({what}), or test:0 for "
            f"the first state of a test trajectory, got {text!r}."
        )
    return torch.tensor(numbers).to(one.model.scale).reshape(1, *config.shape)


def known_system(one: Opened) -> System | None:
    """The known system of ordinary differential equations that a run was trained on, if it was."""
    saved = one.config.get("data") or {}
    if saved.get("name") not in ORDINARY:
        return None
    settings = resolve(DynamicsSettings, str(one.folder), saved)
    return system_of(settings.name, parameters_of(settings))


def ranges(one: Opened) -> list[tuple[float, float]]:
    """Where a state may start, from least to largest, for each of its numbers."""
    model: Dynamics = one.model
    if (system := known_system(one)) is not None:
        x = system.start(4096, torch.Generator().manual_seed(0))
        low, high = x.amin(0), x.amax(0)
    else:
        with torch.no_grad():
            middle = model.state(model.space.points(model.centre[None]))[0].double()
        low, high = middle - 2.5 * model.scale.double(), middle + 2.5 * model.scale.double()
    ends = zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
    return [(float(f"{a:.3g}"), float(f"{b:.3g}")) for a, b in ends]


def reference(one: Opened, x0: Tensor, times: Tensor) -> Tensor | None:
    """States (m, d) of the known system itself at all times; None where that would take long."""
    system = known_system(one)
    if system is None:
        return None
    parts = max(1, math.ceil(float(times.abs().max()) / system.max_step))
    if parts > MOST_PARTS:
        return None
    return system.advance(x0.double().expand(len(times), -1), times.double(), parts)


def _rates(damp: Sequence[str]) -> dict[int, float]:
    """Modes and how much faster they decay, from words such as 0=0.2."""
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
    run: str | Path,
    start: str,
    times: str,
    drop: Sequence[int] = (),
    out: Path | None = None,
    plot: bool = False,
    root: Path | None = None,
    damp: Sequence[str] = (),
) -> dict[str, Any]:
    """States from a start at all times, as CSV (or NPZ), and as a PNG beside it if asked for.

    Modes in ``drop`` are left out; those in ``damp``, as in 0=0.2, decay by e^(−0.2 t) more.
    """
    one = dynamics_of(run)
    model: Dynamics = one.model
    t = parse_times(times)
    x0 = _start(start, one, root)
    moving = model.without(drop)
    for mode, rate in (rates := _rates(damp)).items():
        moving = moving.damped([mode], rate=rate)
    states = moving.simulate(x0, t)[0]
    finite = bool(states.isfinite().all())
    frames = len(model.config.shape) > 1
    out = out or place(one, "simulated.npz" if frames else "simulated.csv")
    if out.suffix.lower() not in (".csv", ".npz"):
        raise ValueError(f"simulate: expected a name that ends in .csv or .npz, got {out}.")
    if frames and out.suffix.lower() == ".csv":
        raise ValueError(f"simulate: frames do not fit into a CSV. Write an .npz instead of {out}.")
    picture = out.with_suffix(".png")
    written(out)
    if plot:
        written(picture)
    _write(out, t, states, model.config.names)
    files = [out]
    if plot:
        changes = [f"without {mode}" for mode in drop]
        changes += [f"{mode} damped by {rate:g}" for mode, rate in rates.items()]
        _plot(picture, t, states, model, ", ".join([one.folder.name, *changes]))
        files.append(picture)
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


def _plot(path: Path, t: Sequence[float], states: Tensor, model: Dynamics, title: str) -> None:
    from matplotlib.figure import Figure

    values = states.double().cpu().numpy()
    if len(model.config.shape) > 1:
        shown = np.linspace(0, len(t) - 1, min(8, len(t))).round().astype(int)
        figure = Figure(figsize=(1.6 * len(shown), 1.6 * values.shape[1] + 0.6), dpi=130,
                        layout="constrained")  # fmt: skip
        high = float(np.abs(values[shown]).max())
        for field in range(values.shape[1]):
            for j, i in enumerate(shown):
                axes = figure.add_subplot(values.shape[1], len(shown), field * len(shown) + j + 1)
                axes.imshow(values[i, field], cmap="RdBu_r", vmin=-high, vmax=high)
                axes.set_axis_off()
                if not field:
                    axes.set_title(f"t = {t[i]:.3g}", fontsize=8)
        figure.suptitle(title, fontsize=10)
        figure.savefig(path)
        return
    names = _columns(model.config.names, values.shape[1])
    plane = 2 <= values.shape[1] <= 8
    figure = Figure(figsize=(9.5 if plane else 6.5, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot(1, 2 if plane else 1, 1)
    if values.shape[1] > 8:
        shown_t = [min(t), max(t)]
        axes.imshow(values.T, aspect="auto", cmap="RdBu_r", origin="lower",
                    extent=(shown_t[0], shown_t[1], 0, values.shape[1]))  # fmt: skip
        axes.set(xlabel="time", ylabel=model.config.names[0], title=title)
    else:
        for j, name in enumerate(names):
            axes.plot(t, values[:, j], label=name, linewidth=1.2)
        axes.set(xlabel="time", title=title)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper right", fontsize=8)
    if plane:
        phase = figure.add_subplot(1, 2, 2)
        phase.plot(values[:, 0], values[:, 1], linewidth=1)
        phase.plot(values[:1, 0], values[:1, 1], "o", markersize=4, label="first")
        phase.set(xlabel=names[0], ylabel=names[1])
        phase.grid(alpha=0.3)
        phase.legend(fontsize=8)
    figure.savefig(path)
