r"""The weather benchmark: baselines and our forecasters in one harness, beside published rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..apps.forecast import Forecast
from ..baselines import (
    DLinear,
    LastValue,
    PatchTST,
    RidgeLinear,
    forecast_errors,
    forecast_loss,
    forecast_measure,
)
from ..checkpoint import atomic, load
from ..data import Timed
from ..forecasting import forecaster_of
from ..pictures import series_plot
from ..runs import execute, plan, run_data
from ..settings import did_you_mean
from ..sources import SOURCES, SeriesSettings
from ..training import Training, fit
from .tables import Say, result_folder, rounded, write_table

__all__ = ["PUBLISHED", "forecast", "intervals", "weather", "weather_table"]

LOOK_BACK = 96
HORIZONS = (96, 192, 336, 720)
#: MSE at 96, 192, 336 and 720, and the look-back they were measured at.
PUBLISHED: dict[str, tuple[int, tuple[float, ...]]] = {
    "Linearizer (the paper)": (96, (0.167, 0.224, 0.257, 0.368)),
    "PatchTST (in the paper)": (96, (0.159, 0.211, 0.241, 0.334)),
    "Autoformer (in the paper)": (96, (0.247, 0.321, 0.341, 0.411)),
    "iTransformer": (96, (0.174, 0.221, 0.278, 0.358)),
    "TimeXer": (96, (0.157, 0.204, 0.261, 0.340)),
    "PatchTST/42": (336, (0.152, 0.197, 0.249, 0.320)),
    "PatchTST/64": (512, (0.149, 0.194, 0.245, 0.314)),
    "DLinear": (336, (0.176, 0.220, 0.265, 0.323)),
}
#: Adam at 1e-4 as published, ten epochs of batches of 32 and a hundred of 128.
TRAINED: dict[str, tuple[Callable[[int, int], nn.Module], dict[str, Any]]] = {
    "DLinear": (
        lambda look_back, horizon: DLinear(look_back, horizon),
        {"batch": 32, "steps": 11_400, "rate": 1e-4},
    ),
    "PatchTST, small": (
        lambda look_back, horizon: PatchTST(look_back, horizon, width=16, heads=4, hidden=128),
        {"batch": 64, "steps": 20_000, "rate": 1e-3},
    ),
}
OURS = ("strict", "daily")
ROWS = ("last value", "ridge, shared", "ridge, per channel", *TRAINED, *OURS)


def weather(
    horizons: str = "96,192,336,720",
    rows: str = "",
    minutes: float = 2.0,
    out: Path = Path("runs/weather"),
    root: Path | None = None,
    say: Say = lambda text: None,
    look_back: int = LOOK_BACK,
    steps: int | None = None,
) -> dict[str, Any]:
    """Train and measure each row at each horizon; what ``out`` holds already is not done again.

    ``steps`` are those of our own rows, where they are not to be the presets'.
    """
    lengths = _horizons(horizons)
    names = [name.strip() for name in rows.split(";" if ";" in rows else ",") if name.strip()]
    names = _joined(names) or list(ROWS)
    for name in names:
        if name not in ROWS:
            raise ValueError(f"weather: there is no row {name!r}. {did_you_mean(name, ROWS)}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"weather: expected a folder, but {out} is a file.")
    (out / "rows").mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for horizon in lengths:
        source = None
        for name in names:
            word = f"{name.replace(', ', '-').replace(' ', '-')}-{horizon}"
            kept = out / "rows" / f"{word}{_from(look_back)}.json"
            if not kept.exists():
                if source is None:
                    settings = SeriesSettings(look_back=look_back, horizon=horizon)
                    source = SOURCES["series"].load(settings, root, None)
                say(f"{name}, horizon {horizon}")
                row = rounded(
                    _measured(name, look_back, horizon, source, minutes, out, root, steps)
                )
                with atomic(kept) as part:
                    part.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
            found.setdefault(name, {})[str(horizon)] = json.loads(kept.read_text("utf-8"))
    result: dict[str, Any] = {
        "data": "weather: 52,696 rows of 21 channels, split 70/10/20, scaled by the training rows; "
        "MSE and MAE over every test window, step and channel",
        "look_back": look_back,
        "rows": found,
        "published_mse": {k: {"look_back": v[0], "mse": list(v[1])} for k, v in PUBLISHED.items()},
    }
    files = [out / f"error-by-step{_from(look_back)}.png"]
    label = f"Error along the horizon of {max(lengths)}, look-back {look_back}"
    longest = {name: rows[str(max(lengths))]["mse_by_step"] for name, rows in found.items()}
    _error_plot(longest, "steps of ten minutes after the last row", label, files[0])
    files += [
        path
        for name in names
        for horizon in lengths
        if (path := out / f"forecast-{name}-{horizon}{_from(look_back)}.png").exists()
    ]
    return write_table(result, out / f"weather{_from(look_back)}.json", files)


def _from(look_back: int) -> str:
    """What names of files have at the end where the look-back is not the usual one."""
    return "" if look_back == LOOK_BACK else f"-from-{look_back}"


def forecast(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Errors and coverage on the test part of a run's own table, beside last value and ridge."""
    one = forecaster_of(run)
    model, source = one.model, run_data(one, root)
    folder = result_folder(one, out)
    train, val, test = (part.windows for part in (source.train, source.val, source.test))  # type: ignore[union-attr]
    look_back, channels = test.shape
    say(f"{len(test):,} test windows")
    rows = {"ours": _errors(model, source.test)}  # type: ignore[arg-type]
    rows["last value"] = forecast_errors(LastValue(test.horizon), test)
    ridge = RidgeLinear(look_back, test.horizon, channels, relative=True).fit(train, val)
    rows["ridge, per channel"] = forecast_errors(ridge, test)
    curves = {name: errors["mse_by_step"].tolist() for name, errors in rows.items()}
    result: dict[str, Any] = {
        "run": one.folder.name,
        "data": source.name,
        "look_back": look_back,
        "horizon": test.horizon,
        "test_windows": len(test),
        "errors": {k: {"mse": e["mse"], "mae": e["mae"]} for k, e in rows.items()},
        "intervals": intervals(model, source.test),  # type: ignore[arg-type]
        "mse_by_step": curves,
    }
    files = [folder / "error-by-step.png", folder / "example.png"]
    _error_plot(curves, "steps after the last row", f"{source.name}: error by step", files[0])
    _example(model, source.test, files[1])  # type: ignore[arg-type]
    return write_table(result, folder / "forecast.json", files)


def _horizons(words: str) -> list[int]:
    try:
        steps = [int(word) for word in words.split(",")]
    except ValueError:
        steps = []
    if not steps or min(steps) < 1:
        raise ValueError(
            f"weather: expected horizons as whole numbers with commas between, got {words!r}."
        )
    return steps


def _joined(names: list[str]) -> list[str]:
    """Names with a comma of their own, put together again."""
    whole: list[str] = []
    for name in names:
        if whole and f"{whole[-1]}, {name}" in ROWS:
            whole[-1] = f"{whole[-1]}, {name}"
        else:
            whole.append(name)
    return whole


def _measured(
    name: str,
    look_back: int,
    horizon: int,
    source: Any,
    minutes: float,
    out: Path,
    root: Path | None,
    steps: int | None,
) -> dict[str, Any]:
    """Train one row on train, choose on val, and look at test once."""
    train, val, test = (part.windows for part in (source.train, source.val, source.test))
    about: dict[str, Any] = {"look_back": look_back, "test_windows": len(test)}
    begun = time.process_time()
    if name in OURS:
        model, more = _ours(name, look_back, horizon, out, root, steps)
        about |= {"cpu_seconds": time.process_time() - begun, **more}
        errors = _errors(model, source.test)
        about["intervals"] = intervals(model, source.test)
        _example(model, source.test, out / f"forecast-{name}-{horizon}{_from(look_back)}.png")
        parameters = sum(p.numel() for p in model.parameters())
    else:
        net: nn.Module
        if name == "last value":
            net = LastValue(horizon)
        elif name in TRAINED:
            net = TRAINED[name][0](look_back, horizon)
            about |= _train(net, TRAINED[name][1], train, val, minutes)
        else:
            channels = train.shape[1] if name == "ridge, per channel" else None
            net = RidgeLinear(look_back, horizon, channels, relative=True).fit(train, val)
        about["cpu_seconds"] = time.process_time() - begun
        errors = forecast_errors(net, test)
        about["validation_mse"] = forecast_errors(net, val)["mse"]
        parameters = sum(p.numel() for p in net.parameters())
    return {
        "mse": errors["mse"], "mae": errors["mae"], "parameters": parameters, **about,
        "mse_by_step": errors["mse_by_step"].tolist(),
    }  # fmt: skip


def _ours(
    name: str, look_back: int, horizon: int, out: Path, root: Path | None, steps: int | None
) -> tuple[Forecast, dict[str, Any]]:
    run = out / f"{name}-{horizon}{_from(look_back)}"
    flags: dict[str, dict[str, Any]] = {
        "data": {"name": "weather", "look_back": look_back, "horizon": horizon},
        "training": {} if steps is None else {"steps": steps},
    }
    chosen = plan("forecast", preset=name, flags=flags)
    result = execute(chosen, run, root=root, resume=True, progress=False)
    return load(run), {"steps": result.step, "validation_mse": result.metrics["mse"],
                       "validation_clamped_mse": result.metrics["clamped mse"]}  # fmt: skip


def _train(
    net: nn.Module, settings: Mapping[str, Any], train: Any, val: Any, minutes: float
) -> dict[str, Any]:
    """As published, or as many steps as the minutes allow; the best weights on validation count."""
    trial = Training(**{**settings, "steps": 10, "validate_every": 0, "tensorboard": False})
    state = {k: v.clone() for k, v in net.state_dict().items()}
    fit(net, forecast_loss, train, trial, progress=False)
    begun = time.process_time()
    fit(net, forecast_loss, train, trial, progress=False)
    one = (time.process_time() - begun) / 10
    begun = time.process_time()
    forecast_errors(net, val)
    judge = time.process_time() - begun
    net.load_state_dict(state)
    # Ten validations fit into the time as well.
    allowed = max(20, int(max(60 * minutes - 10 * judge, 6 * minutes) / one))
    steps = min(int(settings["steps"]), allowed)
    training = Training(
        **{**settings, "steps": steps, "validate_every": max(1, steps // 10), "patience": 10,
           "tensorboard": False}
    )  # fmt: skip
    fit(net, forecast_loss, train, training, validation=val, measure=forecast_measure,
        metric="mse", progress=False)  # fmt: skip
    return {"steps": steps, "published_steps": settings["steps"], "batch": settings["batch"]}


def _errors(model: Forecast, part: Timed) -> dict[str, Any]:
    """As ``forecast_errors``, with the time of day of each window."""
    place = 0

    def predict(x: torch.Tensor) -> torch.Tensor:
        nonlocal place
        index = torch.arange(place, place + len(x))
        place += len(x)
        return model.predict(x, part.batch(index).t)

    model.eval()
    return forecast_errors(predict, part.windows)


@torch.no_grad()
def intervals(model: Forecast, part: Timed, coverage: float = 0.9) -> dict[str, Any]:
    """The share of true values inside the interval, in all, by channel and by step; its width."""
    inside = torch.zeros(model.config.horizon, len(model.config.columns), dtype=torch.float64)
    width = torch.zeros_like(inside)
    for index in torch.arange(len(part)).split(256):
        x, y, t = part.batch(index)
        lower, _, upper = model.interval(x, t, coverage)
        inside += ((lower <= y) & (y <= upper)).double().sum(0)
        width += (upper - lower).double().sum(0)
    inside, width = inside / len(part), width / len(part)
    return {
        "nominal": coverage,
        "coverage": float(inside.mean()),
        "mean_width": float(width.mean()),
        "coverage_by_channel": dict(
            zip(model.config.columns, inside.mean(0).tolist(), strict=True)
        ),
        "coverage_first_step": float(inside[0].mean()),
        "coverage_last_step": float(inside[-1].mean()),
    }


@torch.no_grad()
def _example(model: Forecast, part: Timed, path: Path) -> None:
    x, y, t = part.batch(torch.tensor([len(part) // 3]))
    lower, middle, upper = (model.unscale(v[0]) for v in model.interval(x, t))
    names = list(model.config.columns)
    shown = (1, 4, 0, 16, 13) if len(names) > 16 else range(min(5, len(names)))
    series_plot(path, model.unscale(x[0]), middle, lower, upper, model.unscale(y[0]), names, shown,
                "A test window: forecast and 90% interval")  # fmt: skip


def _error_plot(curves: Mapping[str, Any], steps: str, title: str, path: Path) -> None:
    """Mean squared error along the horizon, a line for each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, errors in curves.items():
        ours = name in (*OURS, "ours")
        style = {"linewidth": 2.0} if ours else {"linewidth": 1.0, "linestyle": "--"}
        axes.plot(range(1, len(errors) + 1), errors, label=name, **style)
    axes.set(xlabel=steps, ylabel="MSE, scaled data", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)


def weather_table(result: Mapping[str, Any]) -> str:
    """The table as Markdown: MSE / MAE at each horizon, what was measured and what is published."""
    found = result["rows"].values()
    horizons = sorted({h for rows in found for h in rows}, key=int)
    lines = [
        "| | look-back | " + " | ".join(horizons) + " | mean MSE | parameters | training, CPU s |",
        "|---" * (5 + len(horizons)) + "|",
    ]
    for name, rows in result["rows"].items():
        cells = [
            f"{rows[h]['mse']:.3f} / {rows[h]['mae']:.3f}" if h in rows else "–" for h in horizons
        ]
        mean = f"{sum(r['mse'] for r in rows.values()) / len(rows):.3f}"
        lines.append(
            f"| {name} | {result['look_back']} | {' | '.join(cells)} | "
            f"{mean if len(rows) == len(horizons) else '–'} | {_span(rows, 'parameters')} | "
            f"{_span(rows, 'cpu_seconds')} |"
        )
    full = horizons == [str(h) for h in HORIZONS]
    for name, row in result["published_mse"].items() if full else ():
        mse = row["mse"]
        lines.append(
            f"| {name}, published | {row['look_back']} | "
            + " | ".join(f"{v:.3f}" for v in mse)
            + f" | {sum(mse) / len(mse):.3f} | | |"
        )
    return "\n".join(lines)


def _span(rows: Mapping[str, Any], key: str) -> str:
    """The least and the largest of a number over the horizons."""
    numbers = sorted(row[key] for row in rows.values())
    low, high = (f"{n:,.0f}" for n in (numbers[0], numbers[-1]))
    return low if low == high else f"{low} – {high}"
