r"""What a trained forecaster is for: forecasts of a recent table, in its own units."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .apps.forecast import Forecast
from .checkpoint import atomic
from .data.tables import clock, day_of, read_csv
from .pictures import series_plot
from .runs import Opened, opened
from .sampling import written
from .settings import resolve
from .sources import SeriesSettings

__all__ = ["forecast", "forecaster_of", "future_times"]


def forecaster_of(run: str | Path) -> Opened:
    """A run that holds a forecaster."""
    one = opened(run)
    if not isinstance(one.model, Forecast):
        raise ValueError(f"{run}: expected a forecaster, but the run holds {one.app.name}.")
    return one


@torch.no_grad()
def forecast(
    run: str | Path,
    table: str | Path,
    out: Path | None = None,
    plot: Path | None = None,
    coverage: float = 0.9,
) -> dict[str, Any]:
    r"""The rows after those of a table, with bounds, as a CSV file in the table's own units.

    The last ``look_back`` rows are what the forecast sees. Columns are found by name.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"forecast: expected a coverage between 0 and 1, got {coverage}.")
    one = forecaster_of(run)
    model: Forecast = one.model
    config = model.config
    saved = resolve(SeriesSettings, str(one.folder), one.config.get("data") or {})
    path = Path(table).expanduser()
    equal = saved.spacing == "equal" and saved.name != "weather"
    found = read_csv(path, saved.time, saved.missing, saved.sentinels(), equal)
    for name in config.columns:
        if name not in found.columns:
            raise ValueError(
                f"{path}: expected a column {name!r}, as in the training of {one.folder.name}. It "
                f"has {', '.join(found.columns)}."
            )
    values = found.values[:, [found.columns.index(name) for name in config.columns]]
    if len(values) < config.look_back:
        raise ValueError(
            f"{path}: expected {config.look_back} or more rows, as many as the look-back, got "
            f"{len(values)}."
        )
    day = day_of(found.times)
    if config.harmonics and day is None:
        raise ValueError(
            f"{path}: {one.folder.name} follows the time of day, but the table has no column of "
            "dates and times that can be read."
        )
    recent = values[-config.look_back :]
    x = model.scale(recent.to(model.mean))[None]
    t = torch.zeros(1) if day is None else day[-1:]
    lower, middle, upper = (model.unscale(v[0]) for v in model.interval(x, t.to(x), coverage))
    times = future_times(found.times, config.horizon)
    out = out or Path(f"{path.name.removesuffix('.gz').removesuffix('.csv')}-forecast.csv")
    written(out)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    head = saved.time or ("date" if found.times else "step")
    rows.writerow([head, *(f"{n}{end}" for n in config.columns for end in ("", " low", " high"))])
    for i, time in enumerate(times):
        cells = torch.stack([middle[i], lower[i], upper[i]], 1).flatten().tolist()
        rows.writerow([time, *(f"{v:.7g}" for v in cells)])
    with atomic(out) as part:
        part.write_text(text.getvalue(), encoding="utf-8")
    files = [out]
    if plot is not None:
        written(plot)
        title = f"{path.name}: forecast and {coverage:.0%} interval"
        shown = range(min(8, len(config.columns)))
        series_plot(plot, recent, middle, lower, upper, None, list(config.columns), shown, title)
        files.append(plot)
    return {
        "look_back": config.look_back, "horizon": config.horizon, "coverage": coverage,
        "columns": list(config.columns), "first": times[0], "last": times[-1],
        "notes": list(found.notes), "files": files,
    }  # fmt: skip


def future_times(times: Sequence[str], n: int) -> list[str]:
    r"""The n times after those of a table, in its own step; 1, 2, … where it has none to go on.

    Example:
        >>> future_times(["2020-01-31 22:00", "2020-01-31 23:00"], 2)
        ['2020-02-01 00:00', '2020-02-01 01:00']
        >>> future_times(["10", "20"], 2)
        ['30', '40']
    """
    counted = [str(i) for i in range(1, n + 1)]
    if len(times) < 2:
        return counted
    if (at := clock(times)) is not None:
        step = float(sorted(at[1:] - at[:-1])[(len(at) - 1) // 2])
        form = _form(times[-1].strip())
        zone = datetime.timezone.utc
        ends = (datetime.datetime.fromtimestamp(at[-1] + step * i, zone) for i in range(1, n + 1))
        return [end.strftime(form) for end in ends]
    try:
        first, last = float(times[-2]), float(times[-1])
    except ValueError:
        return counted
    return [f"{last + (last - first) * i:.12g}" for i in range(1, n + 1)]


def _form(example: str) -> str:
    """How a date is written, as strftime takes it."""
    day, _, hour = example.replace("T", " ").removesuffix("Z").partition(" ")
    mark = "/" if "/" in day else "." if "." in day else "-"
    parts = ("%Y", "%m", "%d") if day[:4].isdigit() else ("%d", "%m", "%Y")
    clocks = {0: "", 1: "%H:%M", 2: "%H:%M:%S"}
    between = "T" if "T" in example else " "
    shown = clocks[min(2, hour.count(":"))] if hour else ""
    return mark.join(parts) + (between + shown if shown else "")
