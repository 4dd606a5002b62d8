r"""Handwritten digits: MNIST from its idx files, and the small ones that scikit-learn bundles."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import DamagedError, Progress, download, missing, read
from .images import Images, pad_to, split

__all__ = ["load_digits", "load_mnist"]

NAMES = tuple("0123456789")


class Idx(NamedTuple):
    """One of the four files."""

    shape: tuple[int, ...]
    md5: str  #: of the unpacked bytes


FILES = {
    "train-images-idx3-ubyte": Idx((60000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Idx((60000,), "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Idx((10000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Idx((10000,), "27ae3e4e09519cfbb04c329615203637"),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
VALIDATION = 5000


def parse_idx(path: Path, data: bytes, file: Idx) -> Tensor:
    """Parse an idx file: 0, 0, type, axes, then each length in four bytes, then the data."""
    axes = len(file.shape)
    if data[:4] != bytes((0, 0, 8, axes)):
        raise DamagedError(
            path, f"expected an idx header 00 00 08 0{axes}, found {data[:4].hex(' ')}", "mnist"
        )
    head = 4 + 4 * axes
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes))
    if shape != file.shape or len(data) != head + math.prod(shape):
        raise DamagedError(
            path,
            f"expected {file.shape} in {head + math.prod(file.shape):,} bytes, found {shape} in "
            f"{len(data):,} bytes",
            "mnist",
        )
    if (found := hashlib.md5(data, usedforsecurity=False).hexdigest()) != file.md5:
        raise DamagedError(path, f"expected md5 {file.md5} unpacked, found {found}", "mnist")
    return torch.from_numpy(np.array(np.frombuffer(data, np.uint8, offset=head)).reshape(shape))


def find(folder: Path, name: str) -> Path | None:
    """Return the file, packed or not, if it is there."""
    return next((p for p in (folder / f"{name}.gz", folder / name) if p.is_file()), None)


def present(root: Path) -> bool:
    """Return whether all files are there."""
    return all(find(root / "mnist", name) for name in FILES)


def load_mnist(
    root: Path, size: int | None = None
) -> tuple[tuple[Images, Images, Images], tuple[str, ...]]:
    """Load 55,000 / 5,000 / 10,000 digits of (1, 28, 28), or padded to ``size``."""
    folder = root / "mnist"
    paths = {name: find(folder, name) for name in FILES}
    if absent := [name for name, path in paths.items() if path is None]:
        raise missing("mnist", folder, " and ".join(f"{n}.gz" for n in absent), True)
    arrays = [parse_idx(p, read(p, "mnist"), FILES[n]) for n, p in paths.items() if p is not None]
    x, y, x_test, y_test = arrays
    x, x_test = (pad_to(a[:, None], size, "mnist") for a in (x, x_test))
    count = len(x) - min(VALIDATION, len(x) // 2)
    y, y_test = y.long(), y_test.long()
    parts = (
        Images(x[:count], y[:count], NAMES),
        Images(x[count:], y[count:], NAMES),
        Images(x_test, y_test, NAMES),
    )
    return parts, (f"MNIST: the last {len(x) - count:,} training images are held out as val",)


def fetch_mnist(root: Path, progress: Progress | None) -> Path:
    """Download the files that are not there, check all, and return their folder."""
    folder = root / "mnist"
    for name, file in FILES.items():
        if there := find(folder, name):
            parse_idx(there, read(there, "mnist"), file)
            continue

        def check(part: Path, file: Idx = file) -> None:
            parse_idx(part, read(part, packed=True), file)

        download([f"{m}{name}.gz" for m in MIRRORS], folder / f"{name}.gz", check, progress)
    return folder


def load_digits(
    _: Path, size: int | None = None
) -> tuple[tuple[Images, Images, Images], tuple[str, ...]]:
    """Load 1,200 / 300 / 297 digits of (1, 8, 8), or padded to ``size``; no files needed."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    y = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = pad_to(x[order], size, "digits")
    notes = ("digits: scikit-learn's 8×8 digits, split 1,200/300/297 by a fixed seed",)
    return split(x, y[order], NAMES, (1200, 300, 297)), notes
