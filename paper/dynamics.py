r"""Dynamics in continuous time, beside DMD, EDMD and a neural ODE: an experiment of our own.

Rows of PyDMD, deeptime and torchdiffeq need ``pip install "linearizer[dynamics]"``.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linearizer.apps.base import Run, Say
from linearizer.apps.dynamics.model import Dynamics
from linearizer.apps.registry import find_app
from linearizer.data import SYSTEMS, Trajectories
from linearizer.data.trajectories import DynamicsSettings, simulate_for
from linearizer.runs.evaluate import write_table
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.runs.store import load_data, open_run, place
from linearizer.training.loop import Training
from linearizer.training.settings import resolve

from .dynamics_baselines import EDMD, ExactDMD, HankelDMD, NeuralODE, neural_ode_loss
from .experiment import EVALUATED, RUNS, Experiment, read_numbers, train_for
from .markdown import table_head, table_line

__all__ = ["EXPERIMENT", "measure"]

#: How many times the training horizon the test trajectories last.
FAR = 10
#: Rows before the start that a method with delays may see.
PAST = HankelDMD.delays

#: (past states (n, PAST, d), times (m,)) ↦ states (n, m, d)
Says = Callable[[Tensor, Tensor], Tensor]


class Method(NamedTuple):
    """What tells states at other times, and how many numbers it was fitted by."""

    says: Says
    numbers: int


Methods = Mapping[str, Method]


@torch.no_grad()
def measure(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    baseline_minutes: float = 2.0,
) -> dict[str, Any]:
    """Compare dynamics of a known system with DMD, EDMD and a neural ODE on the same data."""
    opened = open_run(run)
    model: Dynamics = opened.model
    settings = _known_system(opened)
    source = load_data(opened, root)
    folder = out or place(opened, "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    even = settings.model_copy(update={"even": True})
    train = simulate_for(even)  # from the same starts, in even steps, as many as the model saw
    kept = len(source.train.trajectories)
    train = Trajectories(train.t[:kept], train.x[:kept], train.dt, train.names)
    rows = train.t.shape[1] - 1
    say(f"{settings.name}: test trajectories of {FAR} horizons")
    seed, length = settings.starts + 1_000_003, FAR * rows + PAST
    test = simulate_for(even, trajectories=64, seed=seed, steps=length)
    scale = model.scale.double().flatten().expand(model.config.size)
    methods, skipped = _fit_methods(model, train, source, baseline_minutes, say)
    past, truth = test.x.flatten(2)[:, :PAST], test.x.flatten(2)[:, PAST - 1 :]
    times = test.t[0, PAST - 1 :] - test.t[0, PAST - 1]
    errors, curves = _measure_errors(methods, past, times, truth, scale, rows)
    say("step sizes never seen, and times")
    seconds = _time_methods(methods, past, float(train.t[0, 1]))
    result = {
        "run": opened.folder.name,
        "system": settings.name,
        "horizon": float(train.t[0, -1]),
        "train": {"trajectories": kept, "rows": rows + 1, "uneven_for_us": not settings.even},
        "test": {"trajectories": len(test), "horizons": FAR},
        "parameters": {name: method.numbers for name, method in methods.items()},
        "modes": [mode._asdict() for mode in model.spectrum()],
        "error": errors,
        "steps_never_seen": _measure_steps(methods, even, float(train.t[0, 1]), scale, rows),
        "rollout_seconds": seconds,
        "rollout_over_ours": {name: v / seconds["ours"] for name, v in seconds.items()},
        "group_law": _measure_group_law(model, truth[:, 0]),
        "skipped": skipped,
    }
    pictures = [folder / "error.png", folder / "paths.png"]
    _draw_errors(curves, times / float(train.t[0, -1]), settings.name, pictures[0])
    _draw_paths(methods, past[:1], times, truth[0, :, 0], model.config.horizon, pictures[1])
    return write_table(result, folder / "dynamics.json", pictures)


def _known_system(run: Run) -> DynamicsSettings:
    """The settings of a system that can be simulated for longer."""
    settings = resolve(DynamicsSettings, str(run.folder), run.config.get("data") or {})
    if run.app.name != "dynamics" or settings.name not in SYSTEMS:
        raise ValueError(
            f"dynamics: expected dynamics of a known system, to simulate it for longer, but "
            f"{run.folder.name} was trained on {settings.name}. Known: {', '.join(SYSTEMS)}."
        )
    return settings


# -- methods -----------------------------------------------------------------------------------


def _fit_methods(
    model: Dynamics, train: Trajectories, source: Any, minutes: float, say: Say
) -> tuple[dict[str, Method], dict[str, str]]:
    """What there is to compare, and why others are left out."""

    def ours(past: Tensor, times: Tensor) -> Tensor:
        x0 = past[:, -1].reshape(-1, *model.config.shape).to(model.scale)
        return model.simulate(x0, times).flatten(2).double()

    count = sum(p.numel() for p in model.parameters())
    methods = {
        "ours": Method(ours, count),
        "last value": Method(lambda past, times: past[:, -1:].expand(-1, len(times), -1), 0),
    }
    skipped: dict[str, str] = {}

    def installed(package: str, *names: str) -> bool:
        if importlib.util.find_spec(package) is not None:
            return True
        why = f"{package} is not installed (pip install 'linearizer[dynamics]')"
        skipped.update(dict.fromkeys(names, why))
        return False

    dim = model.config.size
    if installed("pydmd", "exact DMD", "Hankel DMD"):
        say("DMD")
        for name, kind in (("exact DMD", ExactDMD), ("Hankel DMD", HankelDMD)):
            dmd = kind(train)
            methods[name] = Method(dmd.simulate, dmd.modes.size + dmd.values.size)
    if installed("deeptime", "EDMD"):
        say("EDMD")
        if dim > 8:
            skipped["EDMD"] = f"monomials of {dim} numbers are too many"
        for degree in () if dim > 8 else (3, 5, 7, 9) if dim < 3 else (2, 3, 5):
            edmd = EDMD(train, degree)
            methods[f"EDMD, degree {degree}"] = Method(edmd.simulate, edmd.K.size)
    if minutes <= 0:
        skipped["neural ODE"] = "no minutes were given for its training"
    elif installed("torchdiffeq", "neural ODE"):
        methods["neural ODE"] = _train_neural_ode(model, source, count, minutes, say)
    return methods, skipped


def _train_neural_ode(model: Dynamics, source: Any, count: int, minutes: float, say: Say) -> Method:
    """A neural ODE of as many numbers as the model has, trained for some minutes."""
    dim = model.config.size
    x = source.train.trajectories.x.flatten(2).flatten(0, 1).float()
    hidden = 8
    while (hidden + 1) * (2 * dim + hidden + 3) + dim <= count:  # two hidden layers
        hidden += 1
    torch.manual_seed(0)
    net = NeuralODE(dim, hidden, x.mean(0), x.std(0), model.config.horizon / 5)
    say(f"neural ODE of width {hidden}, {minutes:g} minutes")
    training = Training(batch=256, rate=3e-3, ema=0.99, clip=1.0)
    with torch.enable_grad():
        train_for(60 * minutes, net, neural_ode_loss, _Flat(source.train), training)
    net.eval()

    def says(past: Tensor, times: Tensor) -> Tensor:
        with torch.no_grad():
            return net.simulate(past[:, -1].float(), times).double()

    return Method(says, sum(p.numel() for p in net.parameters()))


class _Flat:
    """Pairs whose states are vectors."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, index: Tensor) -> Any:
        pair = self.pairs.batch(index)
        return pair._replace(x=pair.x.flatten(1), y=pair.y.flatten(1))


# -- measures ----------------------------------------------------------------------------------


def _measure_errors(
    methods: Methods, past: Tensor, times: Tensor, truth: Tensor, scale: Tensor, rows: int
) -> tuple[dict[str, dict[str, float]], dict[str, Tensor]]:
    """Errors in standard deviations of the data: over and at some horizons, and as curves."""
    errors, curves = {}, {}
    for name, method in methods.items():
        off = ((method.says(past, times) - truth) / scale).square().mean(2)
        off = torch.where(off.isfinite(), off, math.inf)
        curve = curves[name] = off.mean(0).sqrt()
        errors[name] = {
            "1 horizon": float(off[:, : rows + 1].mean().sqrt()),
            "10 horizons": float(off.mean().sqrt()),
            **{f"at {n}": float(curve[n * rows]) for n in (1, 2, 5)},
            "at 10": float(curve[-1]),
            "at 10, median": float(off[:, -1].sqrt().median()),
        }
    return errors, curves


def _measure_steps(
    methods: Methods, settings: DynamicsSettings, usual: float, scale: Tensor, rows: int
) -> dict[str, dict[str, float]]:
    """Error over one horizon in steps of other lengths than those of the training data."""
    found: dict[str, dict[str, float]] = {}
    for share in (0.1, math.sqrt(0.5), math.e):
        dt = share * usual
        steps = max(2, round(rows / share))
        # The past is in usual steps; then the state goes on in other ones.
        before = simulate_for(settings, trajectories=32, seed=77, steps=PAST, dt=usual)
        after = _continue(before, dt, steps)
        times, past = dt * torch.arange(steps, dtype=torch.float64), before.x.flatten(2)
        row = found[f"{share:.3g} of the usual step"] = {}
        for name, method in methods.items():
            off = ((method.says(past, times) - after) / scale).square().mean().sqrt()
            row[name] = float(off.nan_to_num(math.inf))
    return found


def _continue(before: Trajectories, dt: float, steps: int) -> Tensor:
    """States that follow the last ones, by the system's own solver."""
    system: Any = before.parameters
    x = [before.x[:, -1]]
    parts = math.ceil(dt / system.max_step)
    for _ in range(steps - 1):
        x.append(system.advance(x[-1], torch.tensor([dt], dtype=torch.float64), parts))
    return torch.stack(x, 1).flatten(2)


def _time_methods(methods: Methods, past: Tensor, dt: float) -> dict[str, float]:
    """Seconds of this process for 1,000 states of one trajectory, the best in three seconds."""
    times = dt * torch.arange(1, 1001, dtype=torch.float64)
    rows = {}
    for name, method in methods.items():
        if name == "last value":
            continue
        method.says(past[:1], times[:50])
        spent: list[float] = []
        while sum(spent) < 3 and len(spent) < 100:
            begun = time.process_time()
            method.says(past[:1], times)
            spent.append(time.process_time() - begun)
        rows[name] = min(spent)
    return rows


def _measure_group_law(model: Dynamics, x: Tensor) -> dict[str, float]:
    """Largest |f(s+t)(x) − f(s)(f(t)(x))| and |f(−t)(f(t)(x)) − x| on padded test states.

    "restarted" is the first where the state is read off and padded anew in between.
    """
    found = {}
    for dtype in (torch.float32, torch.float64):
        m = copy.deepcopy(model).to(dtype)
        T = m.config.horizon
        p = m.pad(x.reshape(-1, *m.config.shape).to(dtype))
        s, t = 0.37 * T, 0.81 * T
        name = str(dtype).removeprefix("torch.")
        found[f"sum, {name}"] = float((m(s)(m(t)(p)) - m(s + t)(p)).abs().max())
        again = m.pad(m.state(m(t)(p)))
        whole = m.state(m(s + t)(p))
        found[f"restarted, {name}"] = float((m.state(m(s)(again)) - whole).abs().max())
        found[f"inverse, {name}"] = float((m(-t)(m(t)(p)) - p).abs().max())
    return found


def _draw_errors(curves: Mapping[str, Tensor], horizons: Tensor, system: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, error in curves.items():
        bold = {"linewidth": 2.2, "color": "black"} if name == "ours" else {"linewidth": 1.2}
        axes.plot(horizons[1:], error[1:].clamp(1e-5, 30), label=name, **bold)
    axes.axvline(1, color="0.6", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set(xlabel="time, in training horizons", ylabel="error, in standard deviations")
    axes.set_title(f"{system}: error against horizon")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.savefig(path)


def _draw_paths(
    methods: Methods, past: Tensor, times: Tensor, truth: Tensor, horizon: float, path: Path
) -> None:
    """Draw the first number of one trajectory (m,), by each method."""
    from matplotlib.figure import Figure

    shown = [name for name in methods if name != "last value"]
    figure = Figure(figsize=(9, 1.7 * len(shown)), dpi=110, layout="constrained")
    low, high = float(truth.min()), float(truth.max())
    room = 0.3 * (high - low)
    for i, name in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, i + 1)
        made = methods[name].says(past, times)[0, :, 0]
        axes.plot(times, truth, color="0.7", linewidth=3)
        axes.plot(times, made.clamp(low - 2 * room, high + 2 * room), linewidth=1.1)
        axes.set_ylim(low - room, high + room)
        axes.axvline(horizon, color="0.6", linestyle=":", linewidth=1)
        axes.set_title(f"{name} (grey: the truth)", fontsize=8, loc="left")
        axes.grid(alpha=0.3)
    axes.set_xlabel("time")
    figure.savefig(path)


# -- the committed numbers, and the table of docs/dynamics.md ----------------------------------


def _record(name: str, say: Say) -> dict[str, Any]:
    """Train a system's preset unless it is there, and compare; the neural ODE trains as long."""
    run = RUNS / f"dynamics-{name}"
    seconds = run / "cpu_seconds.json"
    if not seconds.exists():
        begun = time.process_time()
        execute(make_plan("dynamics", preset=name), run, resume=True)
        seconds.write_text(json.dumps(time.process_time() - begun))
    spent = json.loads(seconds.read_text())
    row = measure(run, EVALUATED / name, None, say, spent / 60)
    kept = {key: value for key, value in row.items() if key not in ("files", "run")}
    return {name: {"cpu_seconds": spent, **kept}}


def dynamics_table() -> str:
    """Error against horizon of each system, times, and steps never seen."""
    found = {name: row for name, row in read_numbers("dynamics").items() if name != "machine"}
    lines = [line for name, row in found.items() for line in _system_lines(name, row)]
    return "\n".join(lines).rstrip() + "\n"


def _system_lines(system: str, row: Mapping[str, Any]) -> list[str]:
    train, law = row["train"], row["group_law"]
    lines = [
        f"**{system}**: {train['trajectories']} training trajectories of {train['rows']} "
        f"states over {row['horizon']:g} units of time, {row['cpu_seconds']:.0f} s of training "
        f"on one core; {row['test']['trajectories']} test trajectories. Error in standard "
        "deviations of the data.",
        "",
        "| | numbers | over 1 horizon | over 10 | at 1 | at 2 | at 5 | at 10 | at 10, median | "
        "1,000 states |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = ("1 horizon", "10 horizons", "at 1", "at 2", "at 5", "at 10", "at 10, median")
    for name, error in row["error"].items():
        seconds = row["rollout_seconds"].get(name)
        ratio = row["rollout_over_ours"].get(name)
        spent = "–" if seconds is None else f"{1000 * seconds:.3g} ms, {ratio:.3g} × ours"
        shown = ("> 1000" if error[k] > 1000 else f"{error[k]:.3g}" for k in keys)
        lines.append(table_line(name, (f"{row['parameters'][name]:,}", *shown, spent)))
    seen = row["steps_never_seen"]
    lines += ["", *table_head("step", next(iter(seen.values())))]
    for step, errors in seen.items():
        lines.append(table_line(step, (f"{v:.3g}" for v in errors.values())))
    lines += [
        "",
        f"f(s+t) − f(s)f(t): {law['sum, float32']:.0e} in float32, "
        f"{law['sum, float64']:.0e} in float64; f(−t)f(t)(x) − x: "
        f"{law['inverse, float32']:.0e} and {law['inverse, float64']:.0e}. Restarted from a "
        f"state that was read off: {law['restarted, float64']:.0e}.",
        "",
    ]
    return [*lines, *(f"{name}: not measured, {why}.\n" for name, why in row["skipped"].items())]


EXPERIMENT = Experiment(
    name="dynamics",
    title="Dynamics",
    file="dynamics",
    records={name: partial(_record, name) for name in find_app("dynamics").presets},
    tables={("dynamics.md", "dynamics"): dynamics_table},
)
