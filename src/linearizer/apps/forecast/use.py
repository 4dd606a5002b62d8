r"""What a trained forecaster is for: forecasts of a recent table, in its own units."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import torch

from .apps.forecast import Config, Forecast
from .checkpoint import atomic
from .data.dates import following
from .data.tables import day_of, read_csv, step_of
from .pictures import series_plot
from .runs import Opened, opened
from .sampling import written
from .settings import resolve
from .sources import SeriesSettings

__all__ = ["forecast", "forecaster_of"]


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
    plot: bool = False,
    coverage: float = 0.9,
    missing: str | None = None,
    sentinel: str | None = None,
) -> dict[str, Any]:
    r"""The rows after those of a table, with bounds, as a CSV file in the table's own units.

    The last ``look_back`` rows are what the forecast sees. Columns are found by name.

    Arguments:
        plot: Draw it as well, in a PNG beside the CSV.
        missing, sentinel: What becomes of empty cells, and which numbers mean missing, if not as
            in training; see :func:`data.read_csv`.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"forecast: expected a coverage between 0 and 1, got {coverage}.")
    one = forecaster_of(run)
    model: Forecast = one.model
    config = model.config
    asked = {"missing": missing, "sentinel": sentinel}
    saved = resolve(
        SeriesSettings,
        str(one.folder),
        {**(one.config.get("data") or {}), **{k: v for k, v in asked.items() if v is not None}},
    )
    path = Path(table).expanduser()
    equal = saved.spacing == "equal" and saved.name != "weather"
    found = read_csv(path, saved.time, saved.missing, saved.sentinels(), equal, config.columns)
    _same_step(path, step_of(found.times), config)
    values = found.values
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
    times = following(found.times, config.horizon)
    out = out or Path(f"{path.name.removesuffix('.gz').removesuffix('.csv')}-forecast.csv")
    picture = out.with_suffix(".png")
    if out == picture or out.resolve() == path.resolve():
        raise ValueError(
            f"forecast: expected a CSV file of its own to write, such as forecast.csv, got {out}."
        )
    written(out)
    if plot:
        written(picture)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    head = (found.time or "date") if found.times else "step"
    rows.writerow([head, *(f"{n}{end}" for n in config.columns for end in ("", " low", " high"))])
    for i, time in enumerate(times):
        cells = torch.stack([middle[i], lower[i], upper[i]], 1).flatten().tolist()
        rows.writerow([time, *(f"{v:.7g}" for v in cells)])
    with atomic(out) as part:
        part.write_text(text.getvalue(), encoding="utf-8")
    files = [out]
    if plot:
        title = f"{path.name}: forecast and {coverage:.0%} interval"
        shown = range(min(8, len(config.columns)))
        series_plot(picture, recent, middle, lower, upper, None, list(config.columns), shown, title)
        files.append(picture)
    return {
        "look_back": config.look_back, "horizon": config.horizon, "coverage": coverage,
        "columns": list(config.columns), "first": times[0], "last": times[-1],
        "notes": list(found.notes), "files": files,
    }  # fmt: skip


def _same_step(path: Path, step: tuple[float, str] | None, config: Config) -> None:
    """Rows must be as far apart as those that the model was trained on."""
    if step is None or config.step is None:
        return
    near = abs(step[0] - config.step) <= 0.01 * config.step
    if step[1] != config.step_unit or not near:
        raise ValueError(
            f"{path}: expected rows that are {config.step:g} {config.step_unit} apart, as in "
            f"training, got {step[0]:g} {step[1]}. Bring rows in the step of training, or train "
            "on these."
        )
