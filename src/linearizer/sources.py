r"""Where the data of each application come from: its settings, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from . import data
from .data.files import Progress
from .data.photos import one_photo
from .data.stylised import Stylised
from .perceptual import load_lpips
from .settings import Settings, did_you_mean
from .teachers import load_styles

__all__ = ["SOURCES", "DataSettings", "Source", "StyleSettings"]


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
        None,
        description="one photo to train on instead of many, as a whole; where it is longer than "
        "two crops, it is shrunk to that",
    )


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


#: Photos of the validation part that are used: each is stylised as a whole.
VALIDATED = 8

SOURCES: dict[str, Source] = {
    "images": Source(DataSettings, _images),
    "stylised": Source(
        StyleSettings, _stylised, "--content", frozenset({"name", "teachers", "image"})
    ),
}
