r"""Photographs of different sizes: whole ones, and square crops of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor

from .files import DamagedError, Progress, missing
from .images import (
    Batch,
    Picture,
    check_index,
    folder_pictures,
    leave_out,
    name_broken,
    open_picture,
    pixels_of_photo,
    shuffle_rows,
    stamp,
    threads,
    zip_pictures,
)

if TYPE_CHECKING:
    from ..training.draws import Draw

__all__ = ["Photos"]

PAGE = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/resources.html"
FILES = "the folder images (with train, val and test) or bsds500_images.zip"
#: Photos of BSDS500 in each part.
SIZES = {"train": 200, "val": 100, "test": 200}
#: Bytes of decoded pixels that a part keeps; photos beyond are decoded each time.
KEPT = 1 << 30

Parts = tuple["Photos", "Photos", "Photos"]


@final
class Photos:
    r"""Photographs of different sizes, each (3, H, W), handed out as floats in [0, 1].

    A photo is decoded when it is first asked for, and then kept as bytes, up to 1 GB in all. A crop
    of a photo that is too small is its largest square, enlarged.

    Arguments:
        pictures: The encoded photos by name.
        size: Side of the crops that ``batch`` gives.

    Example:
        >>> import io
        >>> from linearizer.training.draws import Draw
        >>> from PIL import Image
        >>> Image.new("RGB", (80, 60), "white").save(file := io.BytesIO(), "png")
        >>> data = Photos({"white": Picture("white.png", file.getvalue)}, size=32)
        >>> data.photo(0).shape, data.batch(torch.tensor([0, 0])).x.shape
        (torch.Size([3, 60, 80]), torch.Size([2, 3, 32, 32]))
        >>> data.crops(torch.tensor([0]), 48, Draw(7)).mean().item()
        1.0
    """

    def __init__(self, pictures: Mapping[str, Picture], size: int = 64) -> None:
        self.names = tuple(pictures)
        self.size = _check_size(size)
        self._pictures = tuple(pictures.values())
        self._pixels: dict[int, Tensor] = {}
        self._kept = 0

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Photos({len(self):,}, crops of {self.shape})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (3, size, size) of one crop of a batch."""
        return 3, self.size, self.size

    def first(self, n: int) -> Photos:
        """Return the first n photos."""
        return Photos(dict(zip(self.names[:n], self._pictures[:n], strict=True)), self.size)

    def photo(self, i: int) -> Tensor:
        """Return photo number i at its full size, (3, H, W) in [0, 1]."""
        check_index(torch.tensor([i]), len(self), "Photos.photo")
        return self._decode(i).to(torch.float32).div_(255)

    def crops(self, index: Tensor, size: int, draw: Draw) -> Tensor:
        """Cut random squares (n, 3, size, size) of photos ``index`` (n,), half of them mirrored.

        Where the square of a sample lies depends on the draw and the sample's place in it only.
        """
        return self._cut(index, size, draw)

    def centres(self, index: Tensor, size: int) -> Tensor:
        """Cut centre squares (n, 3, size, size) of the photos ``index`` (n,)."""
        return self._cut(index, size, None)

    def batch(self, index: Tensor) -> Batch:
        """Return centre squares x (n, 3, size, size) in [0, 1] of the photos ``index`` (n,)."""
        return Batch(self.centres(index, self.size), None)

    def _cut(self, index: Tensor, size: int, draw: Draw | None) -> Tensor:
        check_index(index, len(self), "Photos")
        x = torch.empty(len(index), 3, _check_size(size), size, dtype=torch.float32)
        # Of each its row, its column and whether it is mirrored, all from numbers of [0, 1).
        chances = torch.empty(len(index), 3, dtype=torch.float64)
        places = [None] * len(index) if draw is None else draw.uniform(chances).tolist()
        for out, i, place in zip(x, index.tolist(), places, strict=True):
            pixels = self._decode(i)
            height, width = pixels.shape[1:]
            side = min(size, height, width)
            top, left = (height - side) // 2, (width - side) // 2
            if place is not None:
                top, left = int(place[0] * (height - side + 1)), int(place[1] * (width - side + 1))
            crop = pixels[:, top : top + side, left : left + side].to(torch.float32)
            if place is not None and place[2] < 0.5:
                crop = crop.flip(2)
            if side < size:
                crop = F.interpolate(crop[None], (size, size), mode="bicubic")[0].clamp_(0, 255)
            out.copy_(crop)
        return x.div_(255)

    def _decode(self, i: int) -> Tensor:
        """Return the pixels of photo i, (3, H, W) uint8."""
        if i in self._pixels:
            return self._pixels[i]
        with name_broken(self._pictures):
            pixels = pixels_of_photo(self._pictures[i])
        if self._kept + pixels.numel() <= KEPT:
            self._pixels[i] = pixels
            self._kept += pixels.numel()
        return pixels


def _check_size(size: int) -> int:
    if size < 1:
        raise ValueError(f"Photos: expected crops of size 1 or more, got {size}.")
    return size


# -- sources -----------------------------------------------------------------------------------


def _find_pictures(source: Path) -> dict[str, Picture]:
    """Find the photos of a folder or archive by path, sorted."""
    if source.is_dir():
        found = {
            p.relative_to(source).as_posix(): Picture(str(p), p.read_bytes)
            for p in folder_pictures(source)
        }
    else:
        found = zip_pictures(source)
    return dict(sorted(found.items()))


def _open_parts(
    name: str, parts: Sequence[Mapping[str, Picture]], size: int, progress: Progress | None
) -> tuple[Parts, tuple[str, ...]]:
    """Open every photo once, and return the parts and what to say about crops of this size."""
    train, val, test = (Photos(part, size) for part in parts)
    pictures = [picture for part in parts for picture in part.values()]
    small = 0
    with threads() as pool, name_broken(pictures):
        sides = pool.map(lambda p: min(open_picture(p).size), pictures)
        for done, side in enumerate(sides, 1):
            small += side < size
            if progress:
                progress(name, done, len(pictures))
    notes = [f"{name}: batches are centre crops of {size}×{size}"]
    if small:
        notes.append(
            f"{name}: {small:,} photos are smaller than {size}×{size}; crops of them are enlarged"
        )
    return (train, val, test), tuple(notes)


def load_photos(
    source: Path,
    size: int | None = None,
    progress: Progress | None = None,
    skip_broken: bool = False,
) -> tuple[Parts, tuple[str, ...]]:
    """Load photos of a folder or a zip, split 80/10/10 by a fixed seed, with notes."""
    pictures = list(_find_pictures(source).items())
    skipped: tuple[str, ...] = ()
    if skip_broken:
        files = [source / name for name, _ in pictures] if source.is_dir() else [source]
        every = [picture._replace(label=name) for name, picture in pictures]
        kept, skipped = leave_out(source.name, every, [stamp(path) for path in files])
        pictures = [pictures[i] for i in kept]
    order, sizes = shuffle_rows(len(pictures), source)
    rows = iter(order)
    parts = [dict(pictures[next(rows)] for _ in range(n)) for n in sizes]
    loaded, notes = _open_parts(source.name, parts, 64 if size is None else size, progress)
    split = f"{len(order):,} photos, split {'/'.join(f'{n:,}' for n in sizes)} by a fixed seed"
    return loaded, (f"{source.name}: {split}", *notes, *skipped)


def load_photo(path: Path, size: int = 64) -> Photos:
    """Load a single photo."""
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no photo {path.absolute()}.")
    photos = Photos({path.name: Picture(str(path), path.read_bytes)}, size)
    open_picture(photos._pictures[0])
    return photos


def _find_bsds500(root: Path) -> Path | None:
    choices = (root / "bsds500" / "images", root / "bsds500" / "bsds500_images.zip")
    return next((p for p in choices if p.exists()), None)


def present(root: Path) -> bool:
    """Return whether BSDS500 is in the data folder."""
    return _find_bsds500(root) is not None


def load_bsds500(
    root: Path, size: int | None = None, progress: Progress | None = None
) -> tuple[Parts, tuple[str, ...]]:
    """Load the 500 photos of the Berkeley segmentation data, in their published split."""
    source = _find_bsds500(root)
    if source is None:
        raise missing("bsds500", root / "bsds500", FILES, False)
    parts: dict[str, dict[str, Picture]] = {part: {} for part in SIZES}
    for name, picture in _find_pictures(source).items():  # train/12003.jpg or train_12003.jpg
        if (part := PurePosixPath(name).parts[0].partition("_")[0]) in parts:
            parts[part][name] = picture
    found = [len(part) for part in parts.values()]
    if found != list(SIZES.values()):
        expected, counts = ("/".join(map(str, n)) for n in (SIZES.values(), found))
        what = f"expected {expected} photos of train/val/test, found {counts}"
        raise DamagedError(source, what)
    loaded, notes = _open_parts(
        "BSDS500", list(parts.values()), 64 if size is None else size, progress
    )
    split = f"the published split of {sum(found)} photos ({'/'.join(map(str, found))})"
    return loaded, (f"BSDS500: {split}", *notes)
