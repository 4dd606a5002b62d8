r"""Samples beside what a network gives for them, and samples that come as arrays of numbers."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from .catalogue import load_images
from .dsprites import Sprites
from .files import Progress, option
from .images import Batch, check_index, shuffle_rows
from .kinds import COLUMNS, FILL, GIVEN, Data, ImageSettings, Kind, Part
from .networks import Network, load_network, runs_code
from .tables import (
    NUMERIC,
    count_cells,
    counts_rows,
    find_cells,
    parse_columns,
    read_text,
    split_rows,
)
from .teachers import ENCODERS

__all__ = [
    "DISTILL",
    "Arrays",
    "DistillPart",
    "DistillSettings",
    "Some",
    "load_arrays",
    "load_samples",
]

#: Samples among which a network is probed.
PROBED = 8
#: Files that may hold samples.
SUFFIXES = (".npy", ".npz", ".csv", ".csv.gz")


@final
class Some:
    """Those samples of a part whose numbers are in ``index``, (n,) int64."""

    def __init__(self, part: Part, index: Tensor) -> None:
        self.part, self.index = part, check_index(index, len(part), "Some")

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor) -> Any:
        return self.part.batch(self.index[check_index(index, len(self), "Some.batch")])


@final
class DistillPart:
    r"""The samples of a part, with the outputs of a network for labels: y = network(x).

    Arguments:
        part: Images, Sprites, Arrays or the like.
        network: What is learned from. It is probed with some of the samples.

    Example:
        >>> from linearizer.data.networks import Network
        >>> data = DistillPart(Arrays(torch.rand(9, 4)), Network(torch.nn.Linear(4, 2)))
        >>> x, y = data.batch(torch.tensor([8, 0, 8]))
        >>> data.shape, data.outputs, y.shape, torch.equal(y, data.network(x))
        ((4,), 2, torch.Size([3, 2]), True)
    """

    def __init__(self, part: Part, network: Network) -> None:
        if not len(part):
            raise ValueError("DistillPart: expected 1 or more samples, got none.")
        some = torch.linspace(0, len(part) - 1, min(len(part), PROBED), dtype=torch.float64)
        x = part.batch(some.long()).x
        self.part, self.network = part, network
        self.shape: tuple[int, ...] = tuple(x.shape[1:])  #: of one sample
        self.outputs: int = network.probe(x)  #: how many numbers the network gives for each

    def __len__(self) -> int:
        return len(self.part)

    def __repr__(self) -> str:
        return f"DistillPart({self.part!r}, {self.network.name!r} with {self.outputs} outputs)"

    def batch(self, index: Tensor) -> Batch:
        """Samples x (n, \\*shape) and outputs y (n, outputs) of the rows ``index`` (n,) int64."""
        x = self.part.batch(index).x
        return Batch(x, self.network(x))


@final
class Arrays:
    r"""Samples of numbers in memory, without labels.

    Arguments:
        x: (n, \*shape) float32.
        names: Names of the numbers of a sample, if it is a vector.

    Example:
        >>> data = Arrays(torch.eye(3, dtype=torch.float32), names=("a", "b", "c"))
        >>> data, data.batch(torch.tensor([1])).x.tolist()
        (Arrays(3 of (3,)), [[0.0, 1.0, 0.0]])
    """

    def __init__(self, x: Tensor, names: Sequence[str] = ()) -> None:
        if x.dtype != torch.float32 or x.ndim < 2:
            raise ValueError(
                f"Arrays: expected float32 of shape (n, …), got {x.dtype} of shape "
                f"{tuple(x.shape)}."
            )
        if names and (x.ndim != 2 or len(names) != x.shape[1]):
            raise ValueError(
                f"Arrays: expected a name for each number of a vector, got {len(names)} for "
                f"samples of shape {tuple(x.shape[1:])}."
            )
        finite = x.flatten(1).isfinite().all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0, 0])
            raise ValueError(
                f"Arrays: expected finite numbers, but row {row} holds NaN or an infinite one."
            )
        self.x, self.names = x, tuple(names)

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Arrays({len(self):,} of {self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    def batch(self, index: Tensor) -> Batch:
        """Samples x (n, \\*shape) of the rows ``index`` (n,) int64; y is None."""
        check_index(index, len(self), "Arrays.batch")
        return Batch(self.x.index_select(0, index), None)


def load_arrays(
    path: Path,
    missing: str = "error",
    columns: Literal["all", "numeric"] = "all",
) -> tuple[tuple[Arrays, Arrays, Arrays], tuple[str, ...]]:
    """Read samples from a file, split 80/10/10 by a fixed seed, and the notes about them.

    Arguments:
        path: A .npy of samples along the first axis, a .npz of one such array or one named x, or a
            .csv (or .csv.gz) with a header and a number in every cell, a row for each sample.
        missing: What becomes of rows of a CSV with empty cells: "error" or "drop".
        columns: "numeric" leaves out columns of a CSV with text.
    """
    path = Path(path).expanduser()
    if not path.name.lower().endswith(SUFFIXES):
        raise ValueError(f"{path}: expected samples in a file {', '.join(SUFFIXES)}.")
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise FileNotFoundError(f"{path}: expected samples, but {what}. Check the path.")
    names: tuple[str, ...] = ()
    if path.name.lower().endswith((".csv", ".csv.gz")):
        found, names, notes, lines = _read_csv(path, missing, columns == "numeric")
    else:
        found, notes = _read_numpy(path)
        lines = None
    x = _check(path, found, lines)
    order, sizes = shuffle_rows(len(x), path)
    first = (
        f"{path.name}: {len(x):,} samples of shape {tuple(x.shape[1:])}, split "
        f"{'/'.join(f'{s:,}' for s in sizes)} by a fixed seed"
    )
    train, val, test = (Arrays(part, names) for part in x[torch.tensor(order)].split(list(sizes)))
    return (train, val, test), (first, *notes)


def _check(path: Path, found: np.ndarray, lines: Sequence[int] | None) -> Tensor:
    """Return the samples as float32, or raise an error that says what is wrong with them."""
    if found.dtype.kind not in "fiub":
        raise ValueError(
            f"{path}: expected real numbers, found {found.dtype}. Save samples of one shape as "
            "floats."
        )
    if found.ndim < 2:
        raise ValueError(
            f"{path}: expected samples along the first of 2 or more axes, got shape {found.shape}. "
            "Save single numbers as (n, 1)."
        )
    if not found.size:
        raise ValueError(f"{path}: expected samples of numbers, but shape {found.shape} is empty.")
    if len(found) < 3:
        raise ValueError(
            f"{path}: expected 3 or more samples to split in three, found {len(found)}."
        )
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.ascontiguousarray(found, dtype=np.float32))
    finite = x.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0, 0])
        where = f"row {row}" if lines is None else f"line {lines[row]}"
        raise ValueError(
            f"{path}: expected finite numbers of float32, but {where} holds NaN, an infinite or "
            "too large one. Mend it, or leave it out."
        )
    return x


def _read_numpy(path: Path) -> tuple[np.ndarray, list[str]]:
    """Read the array, and what to say about it."""
    found: np.ndarray | None = None
    names: list[str] = []
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                found = loaded
            else:
                names = loaded.files
                if "x" in names or len(names) == 1:
                    found = loaded["x" if "x" in names else names[0]]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path}: expected numbers, but it holds Python objects: such a file may hold "
                "code, which is not run. Save samples of one shape as floats."
            ) from error
        reason = "it is no file of numpy" if "pickle" in str(error) else str(error).rstrip(".")
        raise ValueError(
            f"{path}: expected an array of numbers, but it cannot be read ({reason}). Write it "
            "again with numpy.save or numpy.savez."
        ) from error
    if found is None:
        raise ValueError(
            f"{path}: expected one array, or one named x, found {', '.join(names) or 'none'}. Name "
            "that of the samples x."
        )
    notes = []
    if len(names) > 1:
        others = ", ".join(name for name in names if name != "x")
        notes.append(f"{path.name}: the array x is taken, and not {others}")
    if found.dtype == np.uint8:
        notes.append(f"{path.name}: bytes 0 to 255 are taken as they are, not scaled to [0, 1]")
    return found, notes


def _read_csv(
    path: Path, missing: str, numeric: bool
) -> tuple[np.ndarray, tuple[str, ...], list[str], list[int]]:
    """Read numbers (n, columns), names of the columns, notes, and the line of each row."""
    header, rows, lines = split_rows(path, read_text(path))
    cells = list(zip(*rows, strict=True))
    places, notes = list(range(len(header))), []
    if not header[0] and len(header) > 1 and counts_rows(cells[0]):
        places.remove(0)
        notes.append(f"{path.name}: the first column has no name and counts the rows: left out")
    hint = f"Mend it, or take the column out: {NUMERIC} leaves out text."
    found, names, left = parse_columns(
        path, [header[i] for i in places], [cells[i] for i in places], lines, hint, numeric
    )
    notes += left
    gaps = np.isnan(found)
    if gaps.any() and missing == "error":
        raise ValueError(
            f"{path}: expected a number in {find_cells(gaps, names, lines)}, found none "
            f"({count_cells(gaps, names)}). Choose {option('--fill drop', 'missing=')} to leave "
            "such rows out."
        )
    if gaps.any():
        kept = ~gaps.any(1)
        notes.append(f"{path.name}: {(~kept).sum():,} rows with missing values were dropped")
        found, lines = found[kept], [line for line, keep in zip(lines, kept, strict=True) if keep]
    return found, names, notes, lines


# -- the kind of data --------------------------------------------------------------------------

#: Sprites that are held out to validate, and as many to test.
HELD_OUT = 5000


class DistillSettings(ImageSettings):
    """Samples, and the network that is learned from."""

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
    missing: Literal["error", "drop"] = Field(
        "error",
        validation_alias=FILL,
        description="what becomes of rows of a CSV with empty cells",
    )
    columns: Literal["all", "numeric"] = COLUMNS


def load_samples(
    settings: DistillSettings, root: Path | None, progress: Progress | None
) -> tuple[str, tuple[Any, Any, Any], tuple[str, ...]]:
    """Load the samples without a network: their name, three parts, and notes."""
    if settings.name.lower().endswith(SUFFIXES):
        if settings.size is not None:
            raise ValueError("size is for images; samples in a file have the size they have.")
        path = Path(settings.name).expanduser()
        parts, notes = load_arrays(path, settings.missing, settings.columns)
        return Path(settings.name).name, parts, notes
    loaded = load_images(settings, root, progress)
    sprites, notes = loaded.train, loaded.notes
    if not isinstance(sprites, Sprites):
        return loaded.name, (sprites, loaded.val, loaded.test), notes
    # They have no split.
    order = torch.randperm(len(sprites), generator=torch.Generator().manual_seed(0))
    val, test, train = order.split([HELD_OUT, HELD_OUT, len(order) - 2 * HELD_OUT])
    notes = (*notes, f"trained on all but {2 * HELD_OUT:,} images, drawn by a fixed seed")
    return loaded.name, (Some(sprites, train), Some(sprites, val), Some(sprites, test)), notes


def _load(settings: DistillSettings, root: Path | None, progress: Progress | None) -> Data:
    """Load samples with what the network gives for them."""
    network = load_network(settings.teacher, root)
    name, parts, notes = load_samples(settings, root, progress)
    train, val, test = (DistillPart(part, network) for part in parts)
    return Data(name, train, val, test, notes)


def _refuse(settings: DistillSettings) -> str:
    """Say why a run folder cannot load its teacher by itself, or nothing."""
    if not runs_code(settings.teacher):
        return ""
    return (
        f"its teacher is {settings.teacher}, which is code, or was given in Python. A run folder "
        "does not start code: name the network again, as in linearizer evaluate RUN --set "
        "teacher=FILE.py:NAME."
    )


def _samples(settings: DistillSettings, root: Path | None, n: int) -> Tensor:
    """Return the first n test samples; the network is not asked about them."""
    if settings.name.startswith(GIVEN):
        raise ValueError("its data were given in Python.")
    test = load_samples(settings, root, None)[1][2]
    return test.batch(torch.arange(min(n, len(test)))).x


DISTILL = Kind(
    DistillSettings,
    _load,
    paths=frozenset({"name", "teacher"}),
    refuse=_refuse,
    samples=_samples,
)
