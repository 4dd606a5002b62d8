r"""Series: tables of numbers over time, cut into windows of past and future."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from . import tables
from .files import Progress, root_folder
from .kinds import COLUMNS, FILL, Data, DataSettings, Kind

__all__ = ["SERIES", "SeriesSettings", "parse_numbers"]


class SeriesSettings(DataSettings):
    """A table of numbers over time, and how windows are cut from it."""

    name: str = Field("weather", min_length=1, description="weather, or a CSV file")
    size: int | None = Field(None, description="of images; a table has none")
    look_back: int = Field(96, ge=2, description="rows of the past that a forecast sees")
    horizon: int = Field(96, ge=1, description="rows that are forecast")
    time: str | None = Field(None, description="column of times; found by itself if it is clear")
    target: str = Field("all", description="columns to forecast, with commas between, or all")
    missing: Literal["error", "interpolate", "previous", "drop"] = Field(
        "error", validation_alias=FILL, description="what becomes of empty cells"
    )
    columns: Literal["all", "numeric"] = COLUMNS
    sentinel: str = Field(
        "", description="numbers that mean missing, with commas between, such as -9999"
    )
    spacing: Literal["equal", "any"] = Field(
        "equal", description="whether times must follow each other in equal steps"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SeriesSettings:
        if self.size is not None:
            raise ValueError("size is for images; a table has look_back and horizon")
        self.sentinels()
        return self

    def sentinels(self) -> tuple[float, ...]:
        """Return the numbers that mean missing."""
        return parse_numbers(self.sentinel)


def parse_numbers(sentinel: str) -> tuple[float, ...]:
    """Return the numbers of a text such as ``-9999, 999``."""
    words = [word.strip() for word in sentinel.split(",") if word.strip()]
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise ValueError(
            f"sentinel expects numbers with commas between, got {sentinel!r}"
        ) from None


def _load_series(settings: SeriesSettings, root: Path | None, progress: Progress | None) -> Data:
    """Load windows with the time of day; the weather benchmark as published."""
    if settings.name == "weather":
        asked = settings.model_dump(include={"time", "target", "missing", "sentinel", "columns"})
        plain = SeriesSettings().model_dump(include=set(asked))
        if wrong := [key for key in asked if asked[key] != plain[key]]:
            raise ValueError(
                f"weather is taken as published, without {wrong[0]}. Name its CSV file with --csv "
                "to change how it is read."
            )
        parts, notes = tables.load_weather_series(
            root_folder(root), settings.look_back, settings.horizon
        )
        return Data("weather", *parts, notes)
    path = Path(settings.name).expanduser()
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        raise ValueError(
            f"forecast: expected weather or a .csv or .csv.gz file, got {settings.name!r}."
        )
    parts, notes = tables.load_series(
        path,
        settings.look_back,
        settings.horizon,
        settings.time,
        settings.target,
        settings.missing,
        settings.sentinels(),
        equal=settings.spacing == "equal",
        columns=settings.columns,
    )
    return Data(path.name, *parts, notes)


SERIES = Kind(SeriesSettings, _load_series, "--csv")
