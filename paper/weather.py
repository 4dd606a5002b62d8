r"""The weather benchmark (appendix E): our forecasters and others, beside published rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linearizer.apps.base import Say
from linearizer.apps.forecast.evaluate import measure_errors, measure_intervals
from linearizer.apps.forecast.model import Forecast
from linearizer.apps.registry import find_app
from linearizer.data import Timed
from linearizer.data.series import SERIES, SeriesSettings
from linearizer.runs.evaluate import write_table
from linearizer.runs.execute import execute
from linearizer.runs.pictures import series_plot
from linearizer.runs.plan import make_plan
from linearizer.runs.store import load
from linearizer.training.loop import Training, fit
from linearizer.training.settings import did_you_mean

from .claims import (
    APART,
    MISSING,
    SILENT,
    Claim,
    Found,
    Section,
    command_of,
    describe_time,
    judge,
    signed,
)
from .experiment import RUNS, Experiment, read_numbers, write_json
from .markdown import table_head, table_line
from .weather_baselines import (
    DLinear,
    LastValue,
    PatchTST,
    RidgeLinear,
    forecast_errors,
    forecast_loss,
    forecast_measure,
)

__all__ = ["EXPERIMENT", "PUBLISHED", "measure_table", "weather_claims", "weather_table"]

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


def measure_table(
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

    Arguments:
        horizons: Whole numbers with commas between.
        rows: Names of :data:`ROWS` with commas between; all where it is empty.
        minutes: Time of one core for each row that is trained by gradients and is not ours.
        steps: Of our own rows, where they are not to be the presets'.
    """
    lengths, names = _parse_horizons(horizons), _parse_rows(rows)
    if out.exists() and not out.is_dir():
        raise ValueError(f"weather: expected a folder, but {out} is a file.")
    (out / "rows").mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for horizon in lengths:
        source = None
        for name in names:
            word = f"{name.replace(', ', '-').replace(' ', '-')}-{horizon}"
            kept = out / "rows" / f"{word}{_suffix(look_back)}.json"
            if not kept.exists():
                if source is None:
                    settings = SeriesSettings(look_back=look_back, horizon=horizon)
                    source = SERIES.load(settings, root, None)
                say(f"{name}, horizon {horizon}")
                run = out / f"{name}-{horizon}{_suffix(look_back)}"
                write_json(kept, _measure_row(name, source, minutes, run, root, steps))
            found.setdefault(name, {})[str(horizon)] = json.loads(kept.read_text("utf-8"))
    result: dict[str, Any] = {
        "data": "weather: 52,696 rows of 21 channels, split 70/10/20, scaled by the training rows; "
        "MSE and MAE over every test window, step and channel",
        "look_back": look_back,
        "rows": found,
        "published_mse": {k: {"look_back": v[0], "mse": list(v[1])} for k, v in PUBLISHED.items()},
    }
    picture = out / f"error-by-step{_suffix(look_back)}.png"
    label = f"Error along the horizon of {max(lengths)}, look-back {look_back}"
    longest = {name: rows[str(max(lengths))]["mse_by_step"] for name, rows in found.items()}
    _draw_errors(longest, label, picture)
    examples = [
        out / f"forecast-{name}-{horizon}{_suffix(look_back)}.png"
        for name in names
        for horizon in lengths
    ]
    pictures = [picture, *(path for path in examples if path.exists())]
    return write_table(result, out / f"weather{_suffix(look_back)}.json", pictures)


def shorten_curves(result: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the first and the last error of each curve, as the committed numbers do."""
    rows: dict[str, dict[str, Any]] = {}
    for name, at in result["rows"].items():
        for horizon, row in at.items():
            kept = {key: value for key, value in row.items() if key != "mse_by_step"}
            curve = row["mse_by_step"]
            kept |= {"mse_first_step": curve[0], "mse_last_step": curve[-1]}
            rows.setdefault(name, {})[horizon] = kept
    return {**result, "rows": rows}


def _suffix(look_back: int) -> str:
    """What names of files have at the end where the look-back is not the usual one."""
    return "" if look_back == LOOK_BACK else f"-from-{look_back}"


def _parse_horizons(words: str) -> list[int]:
    try:
        steps = [int(word) for word in words.split(",")]
    except ValueError:
        steps = []
    if not steps or min(steps) < 1:
        raise ValueError(
            f"weather: expected horizons as whole numbers with commas between, got {words!r}."
        )
    return steps


def _parse_rows(words: str) -> list[str]:
    """The names of rows; some have a comma of their own."""
    names: list[str] = []
    for word in (w.strip() for w in words.split(";" if ";" in words else ",")):
        if names and f"{names[-1]}, {word}" in ROWS:
            names[-1] = f"{names[-1]}, {word}"
        elif word:
            names.append(word)
    for name in names:
        if name not in ROWS:
            raise ValueError(f"weather: there is no row {name!r}. {did_you_mean(name, ROWS)}")
    return names or list(ROWS)


def _measure_row(
    name: str, source: Any, minutes: float, run: Path, root: Path | None, steps: int | None
) -> dict[str, Any]:
    """Train one row on train, choose on val, and look at test once."""
    train, val, test = (part.windows for part in (source.train, source.val, source.test))
    look_back, channels = test.shape
    about: dict[str, Any] = {"look_back": look_back, "test_windows": len(test)}
    begun = time.process_time()
    net: nn.Module
    if name in OURS:
        net = model = _train_ours(name, look_back, test.horizon, run, root, steps, about)
        about["cpu_seconds"] = time.process_time() - begun
        errors = measure_errors(lambda batch: model.predict(batch.x, batch.t), source.test)
        about["intervals"] = measure_intervals(model, source.test)
        _draw_example(model, source.test, run.with_name(f"forecast-{run.name}.png"))
    else:
        if name == "last value":
            net = LastValue(test.horizon)
        elif name in TRAINED:
            net = TRAINED[name][0](look_back, test.horizon)
            about |= _train_other(net, TRAINED[name][1], train, val, minutes)
        else:
            each = channels if name == "ridge, per channel" else None
            net = RidgeLinear(look_back, test.horizon, each, relative=True).fit(train, val)
        about["cpu_seconds"] = time.process_time() - begun
        errors = forecast_errors(net, test)
        about["validation_mse"] = forecast_errors(net, val)["mse"]
    return {
        "mse": errors["mse"],
        "mae": errors["mae"],
        "parameters": sum(p.numel() for p in net.parameters()),
        **about,
        "mse_by_step": errors["mse_by_step"].tolist(),
    }


def _train_ours(
    name: str,
    look_back: int,
    horizon: int,
    run: Path,
    root: Path | None,
    steps: int | None,
    about: dict[str, Any],
) -> Forecast:
    """Train a preset; what is known of the training goes into ``about``."""
    flags: dict[str, dict[str, Any]] = {
        "data": {"name": "weather", "look_back": look_back, "horizon": horizon},
        "training": {} if steps is None else {"steps": steps},
    }
    plan = make_plan("forecast", preset=name, flags=flags)
    result = execute(plan, run, root=root, resume=True, progress=False)
    about["steps"] = result.step
    about["validation_mse"] = result.metrics["mse"]
    about["validation_clamped_mse"] = result.metrics["clamped mse"]
    return load(run)


def _train_other(
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
    judging = time.process_time() - begun
    net.load_state_dict(state)
    # Ten validations fit into the time as well.
    allowed = max(20, int(max(60 * minutes - 10 * judging, 6 * minutes) / one))
    steps = min(int(settings["steps"]), allowed)
    every = {"validate_every": max(1, steps // 10), "patience": 10, "tensorboard": False}
    training = Training(**{**settings, "steps": steps, **every})
    fit(
        net,
        forecast_loss,
        train,
        training,
        validation=val,
        measure=forecast_measure,
        metric="mse",
        progress=False,
    )
    return {"steps": steps, "published_steps": settings["steps"], "batch": settings["batch"]}


@torch.no_grad()
def _draw_example(model: Forecast, part: Timed, path: Path) -> None:
    """Draw a test window of pressure, temperature and others with its forecast."""
    x, y, t = part.batch(torch.tensor([len(part) // 3]))
    lower, center, upper = (model.unscale(v[0]) for v in model.interval(x, t))
    past, truth = model.unscale(x[0]), model.unscale(y[0])
    names, title = list(model.config.columns), "A test window: forecast and 90% interval"
    series_plot(path, past, center, lower, upper, truth, names, (1, 4, 0, 16, 13), title)


def _draw_errors(curves: Mapping[str, Any], title: str, path: Path) -> None:
    """Draw the mean squared error along the horizon, a line for each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, errors in curves.items():
        width, line = (2.0, "-") if name in OURS else (1.0, "--")
        axes.plot(range(1, len(errors) + 1), errors, label=name, linewidth=width, linestyle=line)
    steps = "steps of ten minutes after the last row"
    axes.set(xlabel=steps, ylabel="MSE, scaled data", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)


# -- claims ------------------------------------------------------------------------------------


def weather_claims(
    row: Mapping[str, Any], time: Callable[[float], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows."""
    horizons = [h for h in map(str, HORIZONS) if h in row["rows"].get("strict", {})]
    if not horizons:
        return []
    claims = [
        *_own_claims(row, horizons, time),
        *_ridge_claims(row, horizons, time),
        *_peer_claims(row, horizons, time),
    ]
    return [claim._replace(command=command) for claim in claims]


def _published(name: str) -> dict[str, float]:
    return dict(zip(map(str, HORIZONS), PUBLISHED[name][1], strict=True))


def _own_claims(
    row: Mapping[str, Any], horizons: Sequence[str], time: Callable[[float], str]
) -> list[Claim]:
    """Our errors at each horizon, and what separates them from the paper's other rows."""
    ours, daily = row["rows"]["strict"], row["rows"].get("daily", {})
    paper = _published("Linearizer (the paper)")
    claims = []
    for h in horizons:
        mse = ours[h]["mse"]
        beside = f" (a core that follows the day: {daily[h]['mse']:.3f})" if h in daily else ""
        claim = Claim(
            f"weather: {h} steps, MSE",
            f"{paper[h]:.3f}",
            f"{mse:.3f}{beside}",
            judge(mse, paper[h], 0.0005, less=True),
            _protocol(row, ours[h].get("steps", 0)),
            time(ours[h]["cpu_seconds"]),
        )
        claims.append(claim)
    for name in ("PatchTST", "Autoformer"):
        other = _published(f"{name} (in the paper)")
        gaps = [ours[h]["mse"] - other[h] for h in horizons]
        below = sum(gap < 0 for gap in gaps)
        claim = Claim(
            f"weather: {' / '.join(horizons)} steps: MSE less that of {name}, as the paper prints "
            "it",
            signed(paper[h] - other[h] for h in horizons),
            f"{signed(gaps)}: below it at {below} of {len(gaps)} horizons",
            APART,
            f"no: {name} is the paper's in both, so this is the rows above once more",
            time(sum(ours[h]["cpu_seconds"] for h in horizons)),
        )
        claims.append(claim)
    return claims


def _protocol(row: Mapping[str, Any], steps: int) -> str:
    back = PUBLISHED["Linearizer (the paper)"][0]
    usual = find_app("forecast").training["steps"]
    if row["look_back"] != back:
        return f"no: look-back {row['look_back']}, the paper's is {back}"
    if steps < usual:
        return f"no: {steps:,} training steps, the preset's are {usual:,}"
    return (
        f"yes: look-back {back}, every test window; some choices were made with looks at test "
        "rows (docs/forecast.md, “What was chosen”)"
    )


def _ridge_claims(
    row: Mapping[str, Any], horizons: Sequence[str], time: Callable[[float], str]
) -> list[Claim]:
    """Baselines in closed form, of which the paper has none."""
    claims = []
    for name, ridge in row["rows"].items():
        at = [h for h in horizons if h in ridge]
        if not name.startswith("ridge") or not at:
            continue
        claim = Claim(
            f"weather: {' / '.join(at)} steps, MSE of the baseline “{name}”",
            "–",
            " / ".join(f"{ridge[h]['mse']:.3f}" for h in at),
            SILENT,
            f"look-back {row['look_back']}, every test window; closed form, no network",
            time(sum(ridge[h]["cpu_seconds"] for h in at)),
        )
        claims.append(claim)
    return claims


def _peer_claims(
    row: Mapping[str, Any], horizons: Sequence[str], time: Callable[[float], str]
) -> list[Claim]:
    """The paper's other methods, where they were trained here."""
    small = row["rows"].get("PatchTST, small", {})
    patch, auto = (_published(f"{name} (in the paper)") for name in ("PatchTST", "Autoformer"))
    claims = [
        Claim(
            f"weather: {h} steps, MSE of a PatchTST",
            f"{patch[h]:.3f}",
            f"{small[h]['mse']:.3f}",
            APART,
            f"no: a small one of {small[h]['parameters']:,} numbers, {small[h]['steps']:,} steps",
            time(small[h]["cpu_seconds"]),
        )
        for h in horizons
        if h in small
    ]
    what = f"weather: {' / '.join(horizons)} steps, MSE of an Autoformer"
    said = " / ".join(f"{auto[h]:.3f}" for h in horizons)
    why = "not measured here: Autoformer was not trained"
    return [*claims, Claim(what, said, why, MISSING, "–")]


def weather_section(found: Found) -> Section:
    """The table of appendix E."""
    row = found["weather"]
    command = command_of(found, "weather", "python -m paper measure weather")
    claims = weather_claims(row, lambda seconds: describe_time(seconds / 60, row), command)
    text = (
        "One fixed core (preset `strict`) is compared; the preset `daily` has a core for each time "
        "of day."
    )
    return Section("weather", "Weather (appendix E)", text, claims, [row["data"]])


# -- the table of docs/forecast.md -------------------------------------------------------------


def weather_table(result: Mapping[str, Any]) -> str:
    """The table as Markdown: MSE / MAE at each horizon, what was measured and what is published."""
    horizons = sorted({h for rows in result["rows"].values() for h in rows}, key=int)
    columns = ("look-back", *horizons, "mean MSE", "parameters", "training, CPU s")
    lines = table_head("", columns)
    for name, rows in result["rows"].items():
        cells = [
            f"{rows[h]['mse']:.3f} / {rows[h]['mae']:.3f}" if h in rows else "–" for h in horizons
        ]
        mean = f"{sum(r['mse'] for r in rows.values()) / len(rows):.3f}"
        cells.append(mean if len(rows) == len(horizons) else "–")
        cells += [_span(rows, "parameters"), _span(rows, "cpu_seconds")]
        lines.append(table_line(name, [str(result["look_back"]), *cells]))
    if horizons == [str(h) for h in HORIZONS]:
        for name, row in result["published_mse"].items():
            mse = [*row["mse"], sum(row["mse"]) / len(row["mse"])]
            cells = [str(row["look_back"]), *(f"{v:.3f}" for v in mse)]
            lines.append(table_line(f"{name}, published", cells) + " | |")
    return "\n".join(lines)


def _span(rows: Mapping[str, Any], key: str) -> str:
    """The least and the largest of a number over the horizons."""
    numbers = sorted(row[key] for row in rows.values())
    low, high = (f"{n:,.0f}" for n in (numbers[0], numbers[-1]))
    return low if low == high else f"{low} – {high}"


def interval_table() -> str:
    """All forecasters beside published rows, and how often intervals held the truth."""
    found = read_numbers("weather")
    ours = {name: found["rows"][name] for name in OURS if name in found["rows"]}
    horizons = sorted({h for rows in ours.values() for h in rows}, key=int)
    lines = [weather_table(found), ""]
    lines += table_head("90% intervals: share of true values inside", horizons)
    for name, rows in ours.items():
        cells = (f"{rows[h]['intervals']['coverage']:.1%}" if h in rows else "–" for h in horizons)
        lines.append(table_line(name, cells))
    return "\n".join(lines) + "\n"


def _record(say: Say) -> dict[str, Any]:
    return shorten_curves(measure_table(out=RUNS / "weather", say=say))


EXPERIMENT = Experiment(
    name="weather",
    title="Weather",
    file="weather",
    claims=weather_claims,
    section=weather_section,
    table=measure_table,
    keep=shorten_curves,
    settings={
        "here": {"minutes": 2.0},
        "paper": {"minutes": 60.0},
        "tiny": {"horizons": "96", "rows": "last value,strict", "minutes": 0.01},
    },
    records={"table": _record},
    tables={("forecast.md", "weather"): interval_table},
)
