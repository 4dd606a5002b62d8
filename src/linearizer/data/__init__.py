r"""Data to train on: six known sources, your images, photos and tables, simulated systems.

:func:`load` gives three parts (train, val, test), each of which hands out a :class:`Batch` for any
rows asked for: ``x, y = load("digits").train.batch(index)``. :func:`simulate` makes trajectories.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import celeba, dsprites, mnist, photos, tables
from .distilled import Arrays, Distilled, load_arrays
from .dsprites import Sprites
from .dynamics import SYSTEMS, Pair, Pairs, Trajectories, pairs, simulate
from .files import Progress, root_folder
from .images import Batch, Images, load_folder, read_images
from .photos import Photos
from .stylised import Stylised
from .tables import Moment, Table, Timed, Windows, read_csv, windows
from .trajectories import read_trajectories

__all__ = [
    "NAMES",
    "SYSTEMS",
    "Arrays",
    "Batch",
    "Data",
    "Distilled",
    "Images",
    "Moment",
    "Pair",
    "Pairs",
    "Photos",
    "Sprites",
    "Status",
    "Stylised",
    "Table",
    "Timed",
    "Trajectories",
    "Windows",
    "fetch",
    "load",
    "load_arrays",
    "pairs",
    "read_csv",
    "read_images",
    "read_trajectories",
    "root_folder",
    "simulate",
    "status",
    "windows",
]

#: name → one line of description
NAMES: dict[str, str] = {
    "digits": "1,797 handwritten digits, 8×8 grey, bundled with scikit-learn",
    "mnist": "70,000 handwritten digits, 28×28 grey",
    "celeba": "faces with 40 attributes, colour, centre squares",
    "bsds500": "500 natural photos of two shapes, colour; square crops",
    "dsprites": "737,280 sprites with 5 factors, 64×64; re-rendered if the file is absent",
    "weather": "52,696 rows of 21 weather channels, every ten minutes of 2020",
}


class Data(NamedTuple):
    r"""Three parts of one source, and sentences to print beside results."""

    name: str
    train: Images | Photos | Stylised | Windows | Timed | Sprites | Pairs | Distilled
    val: Images | Photos | Stylised | Windows | Timed | Sprites | Pairs | Distilled
    test: Images | Photos | Windows | Timed | Sprites | Pairs | Distilled
    notes: tuple[str, ...]


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
    r"""A source by name, or by path: a folder of images, a .zip of photos, a .csv or .csv.gz file.

    Arguments:
        root: The data folder, see :func:`root_folder`.
        size: Side of the images; digits and mnist are padded, celeba and folders resized, bsds500
            and other photos cropped.
        progress: Called as progress(what, done, total) while images are decoded.
        whole: Take a folder as :class:`Photos` of their full sizes, as bsds500 and a .zip are.
        options: ``look_back`` and ``horizon`` (weather, CSV); ``time``, ``missing`` and
            ``sentinel`` (CSV, see :func:`read_csv`); ``channels`` (folders).

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
    loader, takes = LOADERS[kind]
    given = options if size is None else {"size": size, **options}
    if wrong := [option for option in given if option not in takes]:
        raise ValueError(f"load: {name} takes {_words(takes)}, but got {_words(wrong)}.")
    if kind in SLOW:
        given["progress"] = progress
    (train, val, test), notes = loader(where, **given)
    return Data(name if name in NAMES else where.name, train, val, test, notes)


def _words(options: Sequence[str]) -> str:
    return f"the options {', '.join(options)}" if options else "no options"


#: kind → how it is loaded, and the options it takes
LOADERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "digits": (mnist.load_digits, ("size",)),
    "mnist": (mnist.load_mnist, ("size",)),
    "celeba": (celeba.load_celeba, ("size",)),
    "bsds500": (photos.load_bsds500, ("size",)),
    "dsprites": (dsprites.load_dsprites, ()),
    "weather": (tables.load_weather, ("look_back", "horizon")),
    "folder": (load_folder, ("size", "channels")),
    "photos": (photos.load_photos, ("size",)),
    "csv": (tables.load_csv, ("look_back", "horizon", "time", "missing", "sentinel")),
}
#: kinds that take a while the first time and report on it
SLOW = ("celeba", "bsds500", "dsprites", "folder", "photos")


def _unknown(name: str, path: Path) -> ValueError | FileNotFoundError:
    if path.is_file():
        return ValueError(
            f"load: expected a folder of images, a .zip or a .csv file, got the file {path}."
        )
    if len(path.parts) > 1:
        return FileNotFoundError(f"load: there is no folder or file {path.absolute()}.")
    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(
        f"load: expected one of {', '.join(NAMES)}, a folder of images, a .zip or a .csv file, "
        f"got {name!r}.{hint}"
    )


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    r"""Download a source's files, checked, into its folder, which is returned.

    Arguments:
        progress: Called as progress(file, bytes so far, total or None).
    """
    folder = root_folder(root)
    if name == "mnist":
        return mnist.fetch_mnist(folder, progress)
    if name == "dsprites":
        return dsprites.fetch_dsprites(folder, progress)
    if name == "weather":
        return tables.fetch_weather(folder, progress)
    if name == "celeba":
        raise ValueError(
            f"fetch: CelebA has no direct download. Visit {celeba.PAGE}, and put {celeba.FILES} "
            f"in {folder / 'celeba'}."
        )
    if name == "bsds500":
        raise ValueError(
            f"fetch: BSDS500 is not fetched from here. Visit {photos.PAGE}, and put {photos.FILES} "
            f"in {folder / 'bsds500'}."
        )
    if name == "digits":
        raise ValueError("fetch: digits needs no files; scikit-learn bundles them.")
    near = difflib.get_close_matches(name.lower(), NAMES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"fetch: expected one of {', '.join(NAMES)}, got {name!r}.{hint}")


def status(root: str | Path | None = None) -> list[Status]:
    r"""Each source: what it is, whether its files are there, and where they belong."""
    folder = root_folder(root)
    present = {
        "digits": True,
        "mnist": mnist.present(folder),
        "celeba": celeba.present(folder),
        "bsds500": photos.present(folder),
        "dsprites": dsprites.present(folder),
        "weather": tables.find_weather(folder) is not None,
    }
    return [
        Status(
            name,
            text,
            present[name],
            None if name == "digits" else folder / name,
            name in ("mnist", "dsprites", "weather"),
        )
        for name, text in NAMES.items()
    ]
