r"""Data to train on: six known sources, your images, photos and tables, simulated systems.

:func:`load` gives three parts (train, val, test), each of which hands out a :class:`Batch` for any
rows asked for: ``x, y = load("digits").train.batch(index)``. :func:`simulate` makes trajectories.
"""

from __future__ import annotations

from .catalogue import IMAGES, NAMES, Status, fetch, load, status
from .distill import DISTILL, Arrays, DistillPart, load_arrays
from .dsprites import Sprites
from .dynamics import SYSTEMS, Pair, Pairs, Trajectories, pairs, simulate
from .files import root_folder
from .images import Batch, Images, read_images
from .kinds import Data, DataSettings, Kind
from .photos import Photos
from .series import SERIES
from .stylised import STYLISED, Stylised
from .tables import Moment, Table, Timed, Windows, read_csv, windows
from .trajectories import TRAJECTORIES, read_trajectories

__all__ = [
    "DISTILL",
    "IMAGES",
    "NAMES",
    "SERIES",
    "STYLISED",
    "SYSTEMS",
    "TRAJECTORIES",
    "Arrays",
    "Batch",
    "Data",
    "DataSettings",
    "DistillPart",
    "Images",
    "Kind",
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
