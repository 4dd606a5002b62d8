r"""Data sets by name or path: listed, fetched and loaded."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import celeba, dsprites, mnist, photos, tables
from .files import Progress, root_folder
from .images import load_folder
from .kinds import Data, ImageSettings, Kind

__all__ = ["DATA_SETS", "IMAGES", "NAMES", "DataSet", "Status", "fetch", "load", "status"]


class DataSet(NamedTuple):
    """A data set, or a kind of files, as :func:`load` knows it."""

    description: str
    #: (data folder or path, options) ↦ three parts and notes
    load: Callable[..., Any]
    options: tuple[str, ...] = ("size",)
    #: data folder ↦ whether its files are there
    present: Callable[[Path], bool] = lambda root: True
    #: (data folder, progress) ↦ the folder of the downloaded files
    fetch: Callable[[Path, Progress | None], Path] | None = None
    #: Why it is not fetched, and what to do.
    by_hand: str = ""
    #: Whether it takes a while the first time and reports on it.
    slow: bool = False
    #: The side of images that get a border, rather than being resized, to a larger size.
    border: int | None = None


#: To add a data set, write a loader in this folder and one entry here.
DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(
        "1,797 handwritten digits, 8×8 grey, bundled with scikit-learn",
        mnist.load_digits,
        by_hand="digits needs no files; scikit-learn bundles them.",
        border=8,
    ),
    "mnist": DataSet(
        "70,000 handwritten digits, 28×28 grey",
        mnist.load_mnist,
        present=mnist.present,
        fetch=mnist.fetch_mnist,
        border=28,
    ),
    "celeba": DataSet(
        "faces with 40 attributes, colour, centre squares",
        celeba.load_celeba,
        present=celeba.present,
        by_hand=f"CelebA has no direct download. Visit {celeba.PAGE}, and put {celeba.FILES}",
        slow=True,
    ),
    "bsds500": DataSet(
        "500 natural photos of two shapes, colour; square crops",
        photos.load_bsds500,
        present=photos.present,
        by_hand=f"BSDS500 is not fetched from here. Visit {photos.PAGE}, and put {photos.FILES}",
        slow=True,
    ),
    "dsprites": DataSet(
        "737,280 sprites with 5 factors, 64×64; re-rendered if the file is absent",
        dsprites.load_dsprites,
        options=(),
        present=dsprites.present,
        fetch=dsprites.fetch_dsprites,
        slow=True,
    ),
    "weather": DataSet(
        "52,696 rows of 21 weather channels, every ten minutes of 2020",
        tables.load_weather,
        options=("look_back", "horizon"),
        present=lambda root: tables.find_weather(root) is not None,
        fetch=tables.fetch_weather,
    ),
}
#: Files of one's own.
FILES = {
    "folder": DataSet(
        "a folder of images", load_folder, ("size", "channels", "skip_broken"), slow=True
    ),
    "photos": DataSet(
        "a .zip or folder of photos", photos.load_photos, ("size", "skip_broken"), slow=True
    ),
    "csv": DataSet(
        "a table",
        tables.load_csv,
        ("look_back", "horizon", "time", "missing", "sentinel", "columns"),
    ),
}
#: name → one line of description
NAMES: dict[str, str] = {name: known.description for name, known in DATA_SETS.items()}


class Status(NamedTuple):
    r"""Whether a source's files are there."""

    name: str
    description: str
    present: bool
    folder: Path | None  #: None if it needs no files
    downloadable: bool


def load(
    name: str,
    root: str | Path | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    whole: bool = False,
    **options: Any,
) -> Data:
    r"""Load data by name, or by path: a folder of images, a .zip of photos, a .csv or .csv.gz file.

    Arguments:
        root: The data folder, see :func:`root_folder`.
        size: Side of the images; digits and mnist are padded, celeba and folders resized, bsds500
            and other photos cropped.
        progress: Called as progress(what, done, total) while images are decoded.
        whole: Take a folder as :class:`Photos` of their full sizes, as bsds500 and a .zip are.
        options: ``look_back`` and ``horizon`` (weather, CSV); ``time``, ``missing``, ``sentinel``
            and ``columns="numeric"`` (CSV, see :func:`read_csv`); ``channels`` (folders);
            ``skip_broken`` (folders and photos).

    Example:
        >>> data = load("digits")
        >>> len(data.train), len(data.val), len(data.test), data.train.shape
        (1200, 300, 297, (1, 8, 8))
    """
    name = os.fspath(name)
    path = Path(name).expanduser()
    if name in NAMES:
        kind, where = name, root_folder(root)
    elif path.is_dir():
        kind, where = "photos" if whole else "folder", path.resolve()
    elif path.suffix.lower() == ".zip" and path.is_file():
        kind, where = "photos", path
    elif path.name.lower().endswith((".csv", ".csv.gz")):
        kind, where = "csv", path
    else:
        raise _unknown(name, path)
    if whole and kind not in ("bsds500", "photos"):
        raise ValueError(f"load: {name} holds no photos of their full sizes. Leave whole out.")
    found = DATA_SETS.get(kind) or FILES[kind]
    given = options if size is None else {"size": size, **options}
    if wrong := [option for option in given if option not in found.options]:
        raise ValueError(f"load: {name} takes {_words(found.options)}, but got {_words(wrong)}.")
    if found.slow:
        given["progress"] = progress
    (train, val, test), notes = found.load(where, **given)
    return Data(name if name in NAMES else where.name, train, val, test, notes)


def _words(options: Sequence[str]) -> str:
    return f"the options {', '.join(options)}" if options else "no options"


def _unknown(name: str, path: Path) -> ValueError | FileNotFoundError:
    if path.is_file():
        return ValueError(
            f"load: expected a folder of images, a .zip or a .csv file, got the file {path}."
        )
    if len(path.parts) > 1:
        return FileNotFoundError(f"load: there is no folder or file {path.absolute()}.")
    return ValueError(
        f"load: expected one of {', '.join(NAMES)}, a folder of images, a .zip or a .csv file, "
        f"got {name!r}.{_suggest(name)}"
    )


def _suggest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    r"""Download a source's files, checked, into its folder, which is returned.

    Arguments:
        progress: Called as progress(file, bytes so far, total or None).
    """
    if name not in DATA_SETS:
        raise ValueError(
            f"fetch: expected one of {', '.join(NAMES)}, got {name!r}.{_suggest(name)}"
        )
    folder, known = root_folder(root), DATA_SETS[name]
    if known.fetch is None:
        where = "" if known.by_hand.endswith(".") else f" in {folder / name}."
        raise ValueError(f"fetch: {known.by_hand}{where}")
    return known.fetch(folder, progress)


def status(root: str | Path | None = None) -> list[Status]:
    r"""Tell of each source what it is, whether its files are there, and where they belong."""
    folder = root_folder(root)
    return [
        Status(
            name,
            known.description,
            known.present(folder),
            None if name == "digits" else folder / name,
            known.fetch is not None,
        )
        for name, known in DATA_SETS.items()
    ]


def load_images(
    settings: ImageSettings, root: Path | None, progress: Progress | None, whole: bool = False
) -> Data:
    """Load the images that settings name."""
    skip = {"skip_broken": True} if settings.skip_broken else {}
    return load(settings.name, root, settings.size, progress, whole, **skip)


IMAGES = Kind(ImageSettings, load_images)
