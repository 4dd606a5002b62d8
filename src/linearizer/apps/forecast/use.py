r"""What a trained forecaster is for: forecasts of a recent table, in its own units."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...data.dates import continue_times
from ...data.series import SeriesSettings
from ...data.tables import Table, day_of, read_csv, step_of
from ...runs.pictures import series_plot
from ...runs.store import open_run
from ...training.checkpoint import atomic
from ...training.settings import resolve
from ..base import Run
from ..images import make_parent
from .model import Config, Forecast

__all__ = ["Outlook", "forecast", "forecast_rows", "open_forecaster", "read_recent"]


class Outlook(NamedTuple):
    """The rows that a forecast saw and those that it foretells, in the units of the table."""

    past: Tensor  #: (look_back, channels)
    lower: Tensor  #: (horizon, channels)
    middle: Tensor
    upper: Tensor
    times: list[str]  #: of the rows that are foretold


def open_forecaster(run: str | Path | Run) -> Run:
    """Open a run that holds a forecaster."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, Forecast):
        raise ValueError(f"{run}: expected a forecaster, but the run holds {opened.app.name}.")
    return opened


def read_recent(
    run: Run,
    path: Path,
    missing: str | None = None,
    sentinel: str | None = None,
    text: str | None = None,
) -> Table:
    """Read a table whose last rows a forecast can see, as the table of the training was read.

    Arguments:
        missing, sentinel: What becomes of empty cells, and which numbers mean missing, if not as
            in training; see :func:`data.read_csv`.
        text: The table itself, where it is in no file; errors call it by ``path``.
    """
    config: Config = run.model.config
    changes = {"missing": missing, "sentinel": sentinel}
    saved = resolve(
        SeriesSettings,
        str(run.folder),
        run.config.get("data") or {},
        {k: v for k, v in changes.items() if v is not None},
    )
    equal = saved.spacing == "equal" and saved.name != "weather"
    table = read_csv(
        path, saved.time, saved.missing, saved.sentinels(), equal, config.columns, text
    )
    require_step(str(path), step_of(table.times), config)
    if len(table.values) < config.look_back:
        raise ValueError(
            f"{path}: expected {config.look_back} or more rows, as many as the look-back, got "
            f"{len(table.values)}."
        )
    if config.harmonics and day_of(table.times) is None:
        raise ValueError(
            f"{path}: {run.folder.name} follows the time of day, but the table has no column of "
            "dates and times that can be read."
        )
    return table


def require_step(where: str, step: tuple[float, str] | None, config: Config) -> None:
    """Raise an error if rows are not as far apart as those that the model was trained on."""
    if step is None or config.step is None:
        return
    near = abs(step[0] - config.step) <= 0.01 * config.step
    if step[1] != config.step_unit or not near:
        raise ValueError(
            f"{where}: expected rows that are {config.step:g} {config.step_unit} apart, as in "
            f"training, got {step[0]:g} {step[1]}. Bring rows in the step of training, or train "
            "on these."
        )


@torch.no_grad()
def forecast_rows(model: Forecast, table: Table, coverage: float = 0.9) -> Outlook:
    """Forecast the rows after those of a table, of which the last ``look_back`` are seen."""
    recent = table.values[-model.config.look_back :]
    x = model.scale(recent.to(model.mean))[None]
    day = day_of(table.times)
    t = torch.zeros(1) if day is None else day[-1:]
    bounds = model.interval(x, t.to(x), coverage)
    lower, middle, upper = (model.unscale(v[0]) for v in bounds)
    times = continue_times(table.times, model.config.horizon)
    return Outlook(recent, lower, middle, upper, times)


def forecast(
    run: str | Path | Run,
    table: str | Path,
    out: Path | None = None,
    plot: bool = False,
    coverage: float = 0.9,
    missing: str | None = None,
    sentinel: str | None = None,
) -> dict[str, Any]:
    r"""Write the rows after those of a table, with bounds, as a CSV file in the table's own units.

    The last ``look_back`` rows are what the forecast sees. Columns are found by name.

    Arguments:
        plot: Draw it as well, in a PNG beside the CSV.
        missing, sentinel: See :func:`read_recent`.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"forecast: expected a coverage between 0 and 1, got {coverage}.")
    run, path = open_forecaster(run), Path(table).expanduser()
    config: Config = run.model.config
    recent = read_recent(run, path, missing, sentinel)
    outlook = forecast_rows(run.model, recent, coverage)
    out = out or Path(f"{path.name.removesuffix('.gz').removesuffix('.csv')}-forecast.csv")
    picture = out.with_suffix(".png")
    if out == picture or out.resolve() == path.resolve():
        raise ValueError(
            f"forecast: expected a CSV file of its own to write, such as forecast.csv, got {out}."
        )
    files = [out, picture] if plot else [out]
    for file in files:
        make_parent(file)
    _write(out, (recent.time or "date") if recent.times else "step", config.columns, outlook)
    if plot:
        title = f"{path.name}: forecast and {coverage:.0%} interval"
        shown = range(min(8, len(config.columns)))
        past, lower, middle, upper, _ = outlook
        times = [*recent.times[-len(past) :], *outlook.times] if recent.times else ()
        series_plot(picture, past, middle, lower, upper, None, config.columns, shown, title, times)
    return {
        "look_back": config.look_back,
        "horizon": config.horizon,
        "coverage": coverage,
        "columns": list(config.columns),
        "first": outlook.times[0],
        "last": outlook.times[-1],
        "notes": list(recent.notes),
        "files": files,
    }


def _write(path: Path, time: str, columns: tuple[str, ...], outlook: Outlook) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([time, *(f"{n}{end}" for n in columns for end in ("", " low", " high"))])
    cells = torch.stack([outlook.middle, outlook.lower, outlook.upper], 2).flatten(1).tolist()
    for when, row in zip(outlook.times, cells, strict=True):
        rows.writerow([when, *(f"{v:.7g}" for v in row)])
    with atomic(path) as part:
        part.write_text(text.getvalue(), encoding="utf-8")
