r"""Where the data of each application come from: its settings, and how they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator

from . import data
from .data import tables
from .data.distilled import SUFFIXES, Distilled, Some, load_arrays
from .data.files import Progress
from .data.photos import one_photo
from .data.stylised import Stylised
from .networks import load_network
from .perceptual import load_lpips
from .settings import Settings, did_you_mean
from .teachers import ENCODERS, load_styles

__all__ = [
    "GIVEN",
    "SOURCES",
    "DataSettings",
    "DistilledSettings",
    "DynamicsSettings",
    "SeriesSettings",
    "Source",
    "StyleSettings",
    "distilled_parts",
]


class DataSettings(Settings):
    """What to train on."""

    name: str = Field(
        "digits",
        min_length=1,
        description="name of a data set (see `linearizer data`), a folder of images, a zip of "
        "photos, or a CSV file",
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
        None,
        description="one photo to train on instead of many, as a whole; where it is longer than "
        "two crops, it is shrunk to that",
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
        return _numbers(self.sentinel)


def _numbers(sentinel: str) -> tuple[float, ...]:
    words = [word.strip() for word in sentinel.split(",") if word.strip()]
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise ValueError(
            f"sentinel expects numbers with commas between, got {sentinel!r}"
        ) from None


class DynamicsSettings(DataSettings):
    """Trajectories, of a known system or of one's own."""

    name: str = Field(
        "pendulum",
        min_length=1,
        description="a system (" + ", ".join(data.SYSTEMS) + "), or a CSV or NPZ of trajectories",
    )
    size: int | None = Field(None, ge=4, description="points on a side, of systems with frames")
    trajectories: int = Field(200, ge=5, description="how many are simulated")
    rows: int | None = Field(
        None,
        ge=3,
        description="states of each one; 21 if not given, and for a file at most 64",
    )
    horizon_time: float | None = Field(
        None, gt=0, description="time that each one lasts, if not as usual for the system"
    )
    even: bool = Field(False, description="equal steps of time; uneven ones otherwise")
    starts: int = Field(0, ge=0, lt=2**63, description="seed of the random starts")
    parameters: str = Field("", description="of the system, as in damping=0.2,frequency=2")
    time: str | None = Field(None, description="column of times in a CSV, numbers or dates")
    unit: str | None = Field(
        None, description="of time: dates are told in s, min, h or d; for numbers a name to print"
    )
    missing: Literal["error", "drop"] = Field(
        "error", description="what becomes of rows of a CSV with empty cells"
    )
    sentinel: str = Field(
        "", description="numbers that mean missing, with commas between, such as -9999"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DynamicsSettings:
        _numbers(self.sentinel)
        return self


class DistilledSettings(DataSettings):
    """Data, and the network that is learned from."""

    name: str = Field(
        "dsprites",
        min_length=1,
        description="images (a data set by name, or a folder), or samples in a .npy, .npz or .csv",
    )
    teacher: str = Field(
        "betah",
        min_length=1,
        description="the network: one of " + ", ".join(ENCODERS) + " (encoders of VAEs), or an "
        ".onnx or .pt2 file, or FILE.py:NAME or MODULE:NAME of a torch module",
    )


#: How long a training trajectory lasts where it is not said.
LASTS = {
    "pendulum": 5.0,
    "duffing": 5.0,
    "van-der-pol": 7.0,
    "lorenz": 1.0,
    "kuramoto-sivashinsky": 5.0,
    "lambda-omega": 6.0,
}


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
        name = Path(settings.image).name
    else:
        loaded = data.load(settings.name, root, size, progress=progress, whole=True)
        parts: tuple[Any, Any, Any] = (loaded.train, loaded.val, loaded.test)
        name = loaded.name
        notes = (*loaded.notes, *notes)
    try:
        judge = load_lpips("alex", folder / "lpips").requires_grad_(False)
    except (ValueError, OSError):
        judge = None
        notes = (*notes, f"no LPIPS weights in {folder / 'lpips'}: trained on pixels alone")
    if settings.image is not None:
        whole = Stylised(photo, styles, None, crops=1, judge=judge, longest=2 * size)
        notes = (*notes, f"{name}: what is measured is the fit to this photo, not to others")
        return data.Data(name, whole, whole, photo, notes)
    train = Stylised(parts[0], styles, size, judge=judge)
    val = Stylised(parts[1].first(VALIDATED), styles, size, crops=1, judge=judge)
    return data.Data(name, train, val, parts[2], notes)


def distilled_parts(
    settings: DistilledSettings, root: Path | None, progress: Progress | None
) -> tuple[str, tuple[Any, Any, Any], tuple[str, ...]]:
    """Name, parts and notes of the samples alone."""
    if settings.name.lower().endswith(SUFFIXES):
        if settings.size is not None:
            raise ValueError("size is for images; samples in a file have the size they have.")
        parts, notes = load_arrays(Path(settings.name).expanduser())
        return Path(settings.name).name, parts, notes
    loaded = data.load(settings.name, root, settings.size, progress=progress)
    sprites, notes = loaded.train, loaded.notes
    if not isinstance(sprites, data.Sprites):
        return loaded.name, (sprites, loaded.val, loaded.test), notes
    # They have no split.
    order = torch.randperm(len(sprites), generator=torch.Generator().manual_seed(0))
    val, test, train = order.split([HELD_OUT, HELD_OUT, len(order) - 2 * HELD_OUT])
    notes = (*notes, f"distilled from all but {2 * HELD_OUT:,} images of a fixed seed")
    return loaded.name, (Some(sprites, train), Some(sprites, val), Some(sprites, test)), notes


def _distilled(
    settings: DistilledSettings, root: Path | None, progress: Progress | None
) -> data.Data:
    """Samples with what the network gives for them."""
    network = load_network(settings.teacher, root)
    name, parts, notes = distilled_parts(settings, root, progress)
    train, val, test = (Distilled(part, network) for part in parts)
    return data.Data(name, train, val, test, notes)


#: How names of data and networks begin that were given in Python.
GIVEN = "given, sha256 "
#: Sprites that are held out to validate, and as many to test.
HELD_OUT = 5000


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


def _moves(settings: DynamicsSettings, root: Path | None, progress: Progress | None) -> data.Data:
    """Pairs of states, all that lie in one trajectory."""
    path = Path(settings.name).expanduser()
    if settings.name in data.SYSTEMS:
        moves = dataclasses.replace(simulated(settings), unit=settings.unit or "")
        name, lag = settings.name, moves.t.shape[1] - 1
        notes: tuple[str, ...] = ()
    elif path.name.lower().endswith((".csv", ".csv.gz", ".npz")):
        moves = data.read_trajectories(
            path,
            settings.rows or 64,
            settings.time,
            settings.unit,
            settings.missing,
            _numbers(settings.sentinel),
        )
        if len(moves) < 5:
            raise ValueError(
                f"{path}: expected 5 or more pieces to train and to test on, got {len(moves)} of "
                f"{moves.t.shape[1]} rows. Give more trajectories, or fewer rows for each piece."
            )
        name, lag = path.name, min(20, moves.t.shape[1] - 1)
        lasts = float((moves.t[:, -1] - moves.t[:, 0]).mean())
        notes = (
            f"{path.name}: {len(moves)} pieces of {moves.t.shape[1]} rows, which last "
            f"{lasts:.4g} {moves.unit or 'units of time'}",
            *moves.notes,
        )
    else:
        raise ValueError(
            f"trajectories: {settings.name!r} is neither a system nor a CSV or NPZ file. "
            f"{did_you_mean(settings.name, data.SYSTEMS)}"
        )
    return data.Data(name, *data.pairs(moves, lag), notes)


def simulated(settings: DynamicsSettings, times: float = 1.0, **changes: Any) -> data.Trajectories:
    """The trajectories of a system that the settings ask for; ``times`` as long as usual."""
    rows = settings.rows or 21
    lasts = settings.horizon_time or LASTS[settings.name]
    parameters = parameters_of(settings)
    asked: dict[str, Any] = {
        "trajectories": settings.trajectories,
        "steps": rows,
        "dt": lasts / (rows - 1),
        "seed": settings.starts,
        "irregular": not settings.even,
    }
    if taken := sorted(parameters.keys() & asked.keys()):
        raise ValueError(f"parameters: {taken[0]} is no parameter of a system; it has a flag.")
    if times != 1.0:
        asked["steps"] = round((rows - 1) * times) + 1
    return data.simulate(settings.name, **{**parameters, **asked, **changes})


def parameters_of(settings: DynamicsSettings) -> dict[str, float]:
    """Those of the system that are not as usual."""
    parameters: dict[str, float] = {}
    for word in filter(None, (w.strip() for w in settings.parameters.split(","))):
        key, found, value = word.partition("=")
        try:
            whole = value.strip().isdigit()
            parameters[key.strip()] = int(value) if whole else float(value)
        except ValueError:
            found = ""
        if not found:
            raise ValueError(
                "parameters: expected NAME=NUMBER with commas between, got "
                f"{settings.parameters!r}."
            )
    if settings.size is not None:
        if settings.name not in ("kuramoto-sivashinsky", "lambda-omega"):
            raise ValueError(f"size: {settings.name} has no points on a side. Leave it out.")
        parameters["points"] = settings.size
    return parameters


#: Photos of the validation part that are used: each is stylised as a whole.
VALIDATED = 8

SOURCES: dict[str, Source] = {
    "images": Source(DataSettings, _images),
    "series": Source(SeriesSettings, _series, "--csv"),
    "stylised": Source(
        StyleSettings, _stylised, "--content", frozenset({"name", "teachers", "image"})
    ),
    "trajectories": Source(DynamicsSettings, _moves),
    "distilled": Source(DistilledSettings, _distilled, paths=frozenset({"name", "teacher"})),
}
