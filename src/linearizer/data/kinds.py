r"""Kinds of data: the settings that name them, and what loads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import AliasChoices, Field
from torch import Tensor

from ..training.settings import Settings
from .files import Progress

__all__ = [
    "COLUMNS",
    "FILL",
    "GIVEN",
    "Data",
    "DataSettings",
    "ImageSettings",
    "Kind",
    "Part",
]

#: How names of data and networks begin that were given in Python.
GIVEN = "given, sha256 "


class Part(Protocol):
    """Samples: how many there are, and a batch of any of them, whose x are the inputs."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Any: ...


class Data(NamedTuple):
    r"""Three parts of one source, and sentences to print beside results."""

    name: str
    train: Any  #: a :class:`Part`, as the others; each kind has more to tell of its own
    val: Any
    test: Any
    notes: tuple[str, ...]


class DataSettings(Settings):
    """What to train on."""

    name: str = Field(
        "digits",
        min_length=1,
        description="name of a data set (see `linearizer data`), a folder of images, a zip of "
        "photos, or a CSV file",
    )
    size: int | None = Field(None, ge=1, description="side of the images, if not their own")


class ImageSettings(DataSettings):
    """Images, by name or from files."""

    skip_broken: bool = Field(
        False, description="leave out images of a folder or zip that cannot be read"
    )


#: What tables have in common: a setting of columns, and the names of that of empty cells.
COLUMNS: Any = Field("all", description="numeric leaves out columns with text, and says which")
FILL = AliasChoices("missing", "fill")


class Kind(NamedTuple):
    """A kind of data: its settings, and what loads it, (settings, root, progress) ↦ data.

    To add a kind: write its settings as a :class:`DataSettings`, a function that loads it, and put
    both into a ``Kind``; an application names it.
    """

    Settings: type[DataSettings]
    load: Callable[[Any, Path | None, Progress | None], Data]
    #: Another name of the flag --data.
    also: str = ""
    #: Settings that may be paths.
    paths: frozenset[str] = frozenset({"name"})
    #: settings ↦ why they cannot be loaded again from a run folder, or nothing
    refuse: Callable[[Any], str] = lambda settings: ""
    #: (settings, root, n) ↦ the first n test samples, where that is less work than ``load``
    samples: Callable[[Any, Path | None, int], Tensor] | None = None
