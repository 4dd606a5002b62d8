r"""Where the data of each application come from: its settings, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from . import data
from .data import tables
from .data.files import Progress
from .data.photos import one_photo
from .data.stylised import LONGEST, Stylised
from .perceptual import load_lpips
from .settings import Settings, did_you_mean
from .teachers import load_styles

__all__ = ["SOURCES", "DataSettings", "SeriesSettings", "Source", "StyleSettings"]


class DataSettings(Settings):
    """What to train on."""

    name: str = Field(
        "digits",
        min_length=1,
        description="name of a data set, a folder of images, a zip of photos or a CSV file",
    )
    size: int | None = Field(None, ge=1, description="side of the images, if not their own")


class StyleSettings(DataSettings):
    """Photos, and the networks that stylise them."""

    size: int | None = Field(None, ge=16, description="side of the crops; 128 if not given")
    teachers: str | None = Field(
        None,
        description="folder of style networks (pytorch/examples, fast_neural_style); "
        "style_models in the data folder if not given",
    )
    styles: str = Field(
        "", description="names of those to take, with commas between; all of them if empty"
    )
    image: str | None = Field(
        None, description="one photo to train on instead of many, shrunk to two crops' length"
    )


class SeriesSettings(DataSettings):
    """A table of numbers over time, and how windows are cut from it."""

    name: str = Field("weather", min_length=1, description="weather, or a CSV file")
    size: int | None = Field(None, description="of images; a table has none")
    look_back: int = Field(96, ge=2, description="rows of the past that a forecast sees")
    horizon: int = Field(96, ge=1, description="rows that are forecast")
    time: str | None = Field(None, description="column of times; found by itself if it is clear")
    target: str = Field("all", description="columns to forecast, with commas between, or all")
    missing: Literal["error", "interpolate", "previous", "drop"] = Field(
        "error", description="what becomes of empty cells"
    )
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
        """The numbers that mean missing."""
        words = [word.strip() for word in self.sentinel.split(",") if word.strip()]
        try:
            return tuple(float(word) for word in words)
        except ValueError:
            raise ValueError(
                f"sentinel expects numbers with commas between, got {self.sentinel!r}"
            ) from None


class Source(NamedTuple):
    """The settings of a kind of data, and what loads it: (settings, root, progress) ↦ data."""

    Settings: type[DataSettings]
    load: Callable[[Any, Path | None, Progress | None], data.Data]
    #: Another name of the flag --data.
    also: str = ""
    #: Settings that may be paths.
    paths: frozenset[str] = frozenset({"name"})


def _images(settings: DataSettings, root: Path | None, progress: Progress | None) -> data.Data:
    return data.load(settings.name, root, settings.size, progress=progress)


def _stylised(settings: StyleSettings, root: Path | None, progress: Progress | None) -> data.Data:
    """Crops of photos and of what each style network makes of them."""
    folder = data.root_folder(root)
    nets = load_styles(settings.teachers or folder / "style_models")
    chosen = [name.strip() for name in settings.styles.split(",") if name.strip()] or list(nets)
    for name in chosen:
        if name not in nets:
            raise ValueError(f"styles: there is no network {name!r}. {did_you_mean(name, nets)}")
    notes: tuple[str, ...] = (f"styles: {', '.join(chosen)}",)
    styles = {name: nets[name] for name in chosen}
    size = settings.size or 128
    if settings.image is not None:
        photo = one_photo(Path(settings.image), size)
        parts: tuple[Any, Any, Any] = (photo, photo, photo)
        name = Path(settings.image).name
    else:
        loaded = data.load(settings.name, root, size, progress=progress, whole=True)
        parts, name = (loaded.train, loaded.val, loaded.test), loaded.name
        notes = (*loaded.notes, *notes)
    try:
        judge = load_lpips("alex", folder / "lpips").requires_grad_(False)
    except (ValueError, OSError):
        judge = None
        notes = (*notes, f"no LPIPS weights in {folder / 'lpips'}: trained on pixels alone")
    longest = LONGEST if settings.image is None else 2 * size
    train = Stylised(parts[0], styles, size, judge=judge, longest=longest)
    few = parts[1].first(VALIDATED)
    val = Stylised(few, styles, size, crops=1, judge=judge, longest=longest)
    return data.Data(name, train, val, parts[2], notes)


def _series(settings: SeriesSettings, root: Path | None, progress: Progress | None) -> data.Data:
    """Windows with the time of day; the weather benchmark as published, with all that is in it."""
    if settings.name == "weather":
        asked = settings.model_dump(include={"time", "target", "missing", "sentinel"})
        plain = SeriesSettings().model_dump(include=set(asked))
        if wrong := [key for key in asked if asked[key] != plain[key]]:
            raise ValueError(
                f"weather is taken as published, without {wrong[0]}. Name its CSV file with --csv "
                "to change how it is read."
            )
        parts, notes = tables.weather_series(
            data.root_folder(root), settings.look_back, settings.horizon
        )
        return data.Data("weather", *parts, notes)
    path = Path(settings.name).expanduser()
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        raise ValueError(
            f"forecast: expected weather or a .csv or .csv.gz file, got {settings.name!r}."
        )
    parts, notes = tables.series(
        path,
        settings.look_back,
        settings.horizon,
        settings.time,
        settings.target,
        settings.missing,
        settings.sentinels(),
        equal=settings.spacing == "equal",
    )
    return data.Data(path.name, *parts, notes)


#: Photos of the validation part that are used: each is stylised as a whole.
VALIDATED = 8

SOURCES: dict[str, Source] = {
    "images": Source(DataSettings, _images),
    "series": Source(SeriesSettings, _series, "--csv"),
    "stylised": Source(
        StyleSettings, _stylised, "--content", frozenset({"name", "teachers", "image"})
    ),
}
