r"""The page of forecasts: a pasted table, or an example, with what follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from ...data.tables import Table
from ...runs.algebra import draw_points
from ..base import Run
from ..page import Asked, Desk, Given, Name, Number, Page, Refusal, Request, Seed, Tab, numbers
from .model import Forecast
from .use import forecast_rows, read_recent

__all__ = ["PAGE"]


class Ask(Asked):
    """A table as CSV, or nothing for an example that the model draws by a seed."""

    model: Name
    table: str = Field("", max_length=1_000_000)
    seed: Seed = 0
    column: str = Field("", max_length=400, description="what to show; the first one if empty")
    coverage: float = Field(0.9, gt=0, lt=1)


class Foretold(Given):
    """One column, in its own units."""

    column: str
    past: list[Number]
    lower: list[Number]
    middle: list[Number]
    upper: list[Number]
    before: list[str]  #: times of the past, where they are known
    times: list[str]
    notes: list[str]


def foretell(desk: Desk, a: Ask) -> dict[str, Any]:
    run = desk.open(a.model, "forecast")
    model: Forecast = run.model
    columns = model.config.columns
    column = a.column or columns[0]
    if column not in columns:
        raise Refusal(422, f"column: expected one of {', '.join(columns)[:200]}, got {column!r}.")
    table = read_recent(run, Path("the table"), text=a.table) if a.table else _draw(run, a.seed)
    outlook = forecast_rows(model, table, a.coverage)
    i = columns.index(column)
    bounds = (outlook.past, outlook.lower, outlook.middle, outlook.upper)
    past, lower, middle, upper = (numbers(v[:, i]) for v in bounds)
    return {
        "column": column,
        "past": past,
        "lower": lower,
        "middle": middle,
        "upper": upper,
        "before": list(table.times[-len(past) :]),
        "times": outlook.times,
        "notes": list(table.notes),
    }


def _draw(run: Run, seed: int) -> Table:
    """Draw rows by the model itself: g_x⁻¹(z) of normal z, in the units of the table."""
    model: Forecast = run.model
    x = draw_points(model(), 1, seed)[0]
    return Table(model.unscale(x).double(), model.config.columns)


PAGE = Page(
    tabs=(Tab("forecast", "Forecast", "g<sub>y</sub><sup>−1</sup> A g<sub>x</sub>"),),
    folder=Path(__file__).parent,
    requests=(
        Request(
            "forecast", "The rows after a table, with bounds", Ask, Foretold, foretell, "state"
        ),
    ),
)
