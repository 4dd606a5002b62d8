r"""Error against horizon, times and step sizes never seen of dynamics, beside what peers offer."""

from __future__ import annotations

import copy
import importlib.util
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..apps.dynamics import Dynamics
from ..baselines import train_for
from ..baselines.motions import (
    EDMD,
    ExactDMD,
    HankelDMD,
    NeuralODE,
    neural_ode_loss,
)
from ..data import SYSTEMS, Trajectories
from ..runs import run_data
from ..settings import resolve
from ..simulating import dynamics_of
from ..sources import DynamicsSettings, simulated
from ..training import Training
from .tables import Say, result_folder, write_table

__all__ = ["dynamics"]

#: How many times the training horizon the test trajectories last.
FAR = 10
#: Rows before the start that a method with delays may see.
PAST = HankelDMD.delays

#: (past states (n, PAST, d), times (m,)) ↦ states (n, m, d)
Says = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def dynamics(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    minutes: float = 2.0,
) -> dict[str, Any]:
    """Measure dynamics of a known system, beside DMD, EDMD and a neural ODE on the same data."""
    one = dynamics_of(run)
    model: Dynamics = one.model
    folder = result_folder(one, out)
    settings = resolve(DynamicsSettings, str(one.folder), one.config.get("data") or {})
    if settings.name not in SYSTEMS:
        raise ValueError(
            f"evaluate: expected dynamics of a known system, to simulate it for longer, but "
            f"{one.folder.name} was trained on {settings.name}. Known: {', '.join(SYSTEMS)}."
        )
    source = run_data(one, root)
    dim = model.config.size
    even = settings.model_copy(update={"even": True})
    train = simulated(even)  # from the same starts, in even steps, as many as the model saw
    kept = len(source.train.trajectories)  # type: ignore[union-attr]
    train = Trajectories(train.t[:kept], train.x[:kept], train.dt, train.names)
    rows = train.t.shape[1] - 1
    say(f"{settings.name}: test trajectories of {FAR} horizons")
    test = simulated(
        even, trajectories=64, seed=settings.starts + 1_000_003, steps=FAR * rows + PAST
    )
    scale = model.scale.double().flatten().expand(dim)
    methods, skipped = _methods(model, train, source, minutes, say)
    result: dict[str, Any] = {
        "run": one.folder.name,
        "system": settings.name,
        "horizon": float(train.t[0, -1]),
        "train": {"trajectories": kept, "rows": rows + 1, "uneven_for_us": not settings.even},
        "test": {"trajectories": len(test), "horizons": FAR},
        "parameters": {name: count for name, (_, count) in methods.items()},
        "modes": [mode._asdict() for mode in model.spectrum()],
    }
    past, truth = test.x.flatten(2)[:, :PAST], test.x.flatten(2)[:, PAST - 1 :]
    times = test.t[0, PAST - 1 :] - test.t[0, PAST - 1]
    curves: dict[str, Tensor] = {}
    result["error"] = {}
    for name, (says, _) in methods.items():
        off = ((says(past, times) - truth) / scale).square().mean(2)
        off = torch.where(off.isfinite(), off, math.inf)
        curves[name] = off.mean(0).sqrt()
        result["error"][name] = {
            "1 horizon": float(off[:, : rows + 1].mean().sqrt()),
            "10 horizons": float(off.mean().sqrt()),
            "at 1": float(curves[name][rows]),
            "at 2": float(curves[name][2 * rows]),
            "at 5": float(curves[name][5 * rows]),
            "at 10": float(curves[name][-1]),
            "at 10, median": float(off[:, -1].sqrt().median()),
        }
    say("step sizes never seen")
    result["steps_never_seen"] = _steps(methods, even, float(train.t[0, 1]), scale, rows)
    say("times")
    result["rollout_seconds"] = _times(methods, past, float(train.t[0, 1]))
    ours = result["rollout_seconds"]["ours"]
    result["rollout_over_ours"] = {k: v / ours for k, v in result["rollout_seconds"].items()}
    result["group_law"] = _group_law(model, truth[:, 0])
    result["skipped"] = skipped
    files = [folder / "error.png", folder / "paths.png"]
    _plot_errors(curves, times / float(train.t[0, -1]), settings.name, files[0])
    _plot_paths(methods, past, times, truth, model, files[1])
    return write_table(result, folder / "dynamics.json", files)


def _methods(
    model: Dynamics, train: Trajectories, source: Any, minutes: float, say: Say
) -> tuple[dict[str, tuple[Says, int]], dict[str, str]]:
    """What there is to compare, each with its count of numbers, and why others are left out."""
    shape, dim = model.config.shape, model.config.size
    like = model.scale

    def ours(past: Tensor, times: Tensor) -> Tensor:
        x0 = past[:, -1].reshape(-1, *shape).to(like)
        return model.simulate(x0, times).flatten(2).double()

    count = sum(p.numel() for p in model.parameters())
    methods: dict[str, tuple[Says, int]] = {
        "ours": (ours, count),
        "last value": (lambda past, times: past[:, -1:].expand(-1, len(times), -1), 0),
    }
    skipped: dict[str, str] = {}

    def there(package: str, *names: str) -> bool:
        if importlib.util.find_spec(package) is not None:
            return True
        why = f"{package} is not installed (pip install 'linearizer[dynamics]')"
        skipped.update(dict.fromkeys(names, why))
        return False

    if there("pydmd", "exact DMD", "Hankel DMD"):
        say("DMD")
        for name, kind in (("exact DMD", ExactDMD), ("Hankel DMD", HankelDMD)):
            one = kind(train)
            methods[name] = (one.simulate, one.modes.size + one.values.size)
    if there("deeptime", "EDMD"):
        say("EDMD")
        if dim > 8:
            skipped["EDMD"] = f"monomials of {dim} numbers are too many"
        else:
            for degree in (3, 5, 7, 9) if dim < 3 else (2, 3, 5):
                made = EDMD(train, degree)
                methods[f"EDMD, degree {degree}"] = (made.simulate, made.K.size)
    if minutes > 0 and there("torchdiffeq", "neural ODE"):
        methods["neural ODE"] = _neural_ode(model, source, count, minutes, say)
    elif minutes <= 0:
        skipped["neural ODE"] = "no minutes were given for its training"
    return methods, skipped


def _neural_ode(
    model: Dynamics, source: Any, count: int, minutes: float, say: Say
) -> tuple[Says, int]:
    dim = model.config.size
    x = source.train.trajectories.x.flatten(2).flatten(0, 1).float()
    hidden = 8
    while (hidden + 1) * (2 * dim + hidden + 3) + dim <= count:  # two hidden layers
        hidden += 1
    torch.manual_seed(0)
    net = NeuralODE(dim, hidden, x.mean(0), x.std(0), model.config.horizon / 5)
    say(f"neural ODE of width {hidden}, {minutes:g} minutes")
    with torch.enable_grad():
        flat = _Flat(source.train)
        train_for(60 * minutes, net, neural_ode_loss, flat,
                  Training(batch=256, rate=3e-3, ema=0.99, clip=1.0))  # fmt: skip
    net.eval()

    def says(past: Tensor, times: Tensor) -> Tensor:
        with torch.no_grad():
            return net.simulate(past[:, -1].float(), times).double()

    return says, sum(p.numel() for p in net.parameters())


class _Flat:
    """Pairs whose states are vectors."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, index: Tensor) -> Any:
        one = self.pairs.batch(index)
        return one._replace(x=one.x.flatten(1), y=one.y.flatten(1))


def _steps(
    methods: dict[str, tuple[Says, int]],
    settings: DynamicsSettings,
    usual: float,
    scale: Tensor,
    rows: int,
) -> dict[str, Any]:
    """Error over one horizon in steps of other lengths than those of the training data."""
    rows_of: dict[str, Any] = {}
    for share in (0.1, math.sqrt(0.5), math.e):
        dt = share * usual
        steps = max(2, round(rows / share))
        # The past is in usual steps; then the state goes on in other ones.
        before = simulated(settings, trajectories=32, seed=77, steps=PAST, dt=usual)
        after = _on(before, dt, steps)
        times = dt * torch.arange(steps, dtype=torch.float64)
        past = before.x.flatten(2)
        rows_of[f"{share:.3g} of the usual step"] = {
            name: float(
                ((says(past, times) - after) / scale).square().mean().sqrt().nan_to_num(math.inf)
            )
            for name, (says, _) in methods.items()
        }
    return rows_of


def _on(before: Trajectories, dt: float, steps: int) -> Tensor:
    """States that follow the last ones, by the system's own solver."""
    system: Any = before.parameters
    x = [before.x[:, -1]]
    parts = math.ceil(dt / system.max_step)
    for _ in range(steps - 1):
        x.append(system.advance(x[-1], torch.tensor([dt], dtype=torch.float64), parts))
    return torch.stack(x, 1).flatten(2)


def _times(methods: dict[str, tuple[Says, int]], past: Tensor, dt: float) -> dict[str, float]:
    """Seconds of this process for 1,000 states of one trajectory, the best in three seconds."""
    times = dt * torch.arange(1, 1001, dtype=torch.float64)
    rows = {}
    for name, (says, _) in methods.items():
        if name == "last value":
            continue
        says(past[:1], times[:50])
        taken: list[float] = []
        while sum(taken) < 3 and len(taken) < 100:
            begun = time.process_time()
            says(past[:1], times)
            taken.append(time.process_time() - begun)
        rows[name] = min(taken)
    return rows


def _group_law(model: Dynamics, x: Tensor) -> dict[str, float]:
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


def _plot_errors(curves: dict[str, Tensor], horizons: Tensor, system: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, error in curves.items():
        bold = {"linewidth": 2.2, "color": "black"} if name == "ours" else {"linewidth": 1.2}
        axes.plot(horizons[1:], error[1:].clamp(1e-5, 30), label=name, **bold)
    axes.axvline(1, color="0.6", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set(xlabel="time, in training horizons", ylabel="error, in standard deviations",
             title=f"{system}: error against horizon")  # fmt: skip
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.savefig(path)


def _plot_paths(
    methods: dict[str, tuple[Says, int]],
    past: Tensor,
    times: Tensor,
    truth: Tensor,
    model: Dynamics,
    path: Path,
) -> None:
    from matplotlib.figure import Figure

    shown = [name for name in methods if name != "last value"]
    figure = Figure(figsize=(9, 1.7 * len(shown)), dpi=110, layout="constrained")
    which = 0
    low, high = float(truth[which, :, 0].min()), float(truth[which, :, 0].max())
    room = 0.3 * (high - low)
    for i, name in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, i + 1)
        made = methods[name][0](past[which : which + 1], times)[0, :, 0]
        axes.plot(times, truth[which, :, 0], color="0.7", linewidth=3)
        axes.plot(times, made.clamp(low - 2 * room, high + 2 * room), linewidth=1.1)
        axes.set_ylim(low - room, high + room)
        axes.axvline(model.config.horizon, color="0.6", linestyle=":", linewidth=1)
        axes.set_title(f"{name} (grey: the truth)", fontsize=8, loc="left")
        axes.grid(alpha=0.3)
    axes.set_xlabel("time")
    figure.savefig(path)
