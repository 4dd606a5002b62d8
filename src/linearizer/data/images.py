r"""Images held as bytes, decoded once from a folder or an archive."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from .files import DamagedError, Progress, digest, load_or_make, option, shorten

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Batch", "Images", "read_images"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif"}
CHUNK = 256
SKIP = f"leave broken ones out with {option('--skip-broken', 'skip_broken=True')}"


class Batch(NamedTuple):
    r"""Samples that a model sees at once."""

    x: Tensor  #: (n, *shape) float32
    y: Tensor | None  #: classes (n,) int64, attributes (n, k) float32, or futures (n, horizon, c)


def check_index(index: Tensor, length: int, where: str) -> Tensor:
    """Return the index if it is an (n,) int64 tensor of rows below ``length``, or raise."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
        got = (
            f"{index.dtype} of shape {tuple(index.shape)}"
            if isinstance(index, Tensor)
            else type(index).__name__
        )
        raise TypeError(f"{where}: expected an int64 tensor of shape (n,), got {got}.")
    if len(index):
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= length:
            raise ValueError(f"{where}: expected rows 0 to {length - 1}, got {low} to {high}.")
    return index


@final
class Images:
    r"""Images as bytes, (n, C, H, W) uint8, handed out as floats in [0, 1].

    Arguments:
        images: (n, C, H, W) uint8, in memory or memory-mapped.
        labels: Classes (n,) int64, or attributes (n, k) bool or uint8.
        names: Names of the classes or attributes.

    Example:
        >>> data = Images(torch.full((2, 1, 4, 4), 255, dtype=torch.uint8), torch.tensor([0, 1]))
        >>> x, y = data.batch(torch.tensor([1, 0, 1]))
        >>> x.shape, x.max().item(), y.tolist()
        (torch.Size([3, 1, 4, 4]), 1.0, [1, 0, 1])
    """

    def __init__(
        self, images: Tensor, labels: Tensor | None = None, names: Sequence[str] = ()
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                f"Images: expected uint8 of shape (n, C, H, W), got {images.dtype} of shape "
                f"{tuple(images.shape)}."
            )
        if labels is not None:
            kinds = {1: (torch.int64,), 2: (torch.bool, torch.uint8)}
            if labels.dtype not in kinds.get(labels.ndim, ()) or len(labels) != len(images):
                raise ValueError(
                    f"Images: expected labels (n,) int64 or (n, k) bool or uint8 for "
                    f"{len(images)} images, got {labels.dtype} of shape {tuple(labels.shape)}."
                )
            if names and labels.ndim == 2 and labels.shape[1] != len(names):
                raise ValueError(
                    f"Images: expected a name for each of {labels.shape[1]} attributes, got "
                    f"{len(names)}."
                )
        self.images = images
        self.labels = labels
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        kind = f", {len(self.names)} {'classes' if self.classes else 'attributes'}"
        return f"Images({len(self):,} of {self.shape}{kind if self.names else ''})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        c, h, w = self.images.shape[1:]
        return c, h, w

    @property
    def classes(self) -> bool:
        """Return whether each image has a single label."""
        return self.labels is not None and self.labels.ndim == 1

    def batch(self, index: Tensor) -> Batch:
        """Return images x (n, C, H, W) in [0, 1] and labels y of the rows ``index`` (n,) int64."""
        check_index(index, len(self), "Images.batch")
        x = self.images.index_select(0, index).to(torch.float32).div_(255)
        if self.labels is None:
            return Batch(x, None)
        y = self.labels.index_select(0, index)
        return Batch(x, y if self.classes else y.to(torch.float32))


def split(
    images: Tensor, labels: Tensor | None, names: Sequence[str], sizes: Sequence[int]
) -> tuple[Images, Images, Images]:
    """Split off the first, next and last rows as train, val and test, without copying."""
    parts = images.split(list(sizes))
    marks = [None] * 3 if labels is None else labels.split(list(sizes))
    train, val, test = (Images(x, y, names) for x, y in zip(parts, marks, strict=True))
    return train, val, test


def pad_to(images: Tensor, size: int | None, name: str) -> Tensor:
    """Add a zero border up to ``size``, which must not be smaller than the images are."""
    now = images.shape[-1]
    if size is None or size == now:
        return images
    if size < now:
        raise ValueError(
            f"{name}: its images are {now}×{now} and are padded with zeros to a larger size, but "
            f"size={size} is smaller. Leave size out or take {now} or more."
        )
    before = (size - now) // 2
    after = size - now - before
    return torch.nn.functional.pad(images, (before, after, before, after))


# -- decoding ----------------------------------------------------------------------------------


class Picture(NamedTuple):
    """One encoded image: what to call it in an error, how to get its bytes, what they may be."""

    label: str
    read: Callable[[], bytes]
    formats: tuple[str, ...] | None = None  #: names that Pillow has, or None for all it knows


def decode(
    name: str,
    pictures: Sequence[Picture],
    key: Sequence[object],
    size: int,
    channels: int | None,
    progress: Progress | None,
) -> Tensor:
    """Decode the centre square of every picture, (n, C, size, size) uint8, or take the cache's.

    Arguments:
        key: What the pictures are (paths, lengths, times of change), for the cache.
        channels: 1 or 3, or None for 1 if every picture is grey.
    """
    if size < 1:
        raise ValueError(f"{name}: expected size of 1 or more, got {size}.")
    if channels not in (None, 1, 3):
        raise ValueError(f"{name}: expected channels 1, 3 or None, got {channels}.")
    count = len(pictures)

    def make() -> tuple[tuple[int, ...], Iterator[np.ndarray]]:
        c = channels
        if c is None:
            with threads() as pool, name_broken(pictures):
                c = 1 if all(pool.map(_is_grey, pictures)) else 3
        return (count, c, size, size), chunks(c)

    def chunks(c: int) -> Iterator[np.ndarray]:
        with threads() as pool, name_broken(pictures):
            for start in range(0, count, CHUNK):
                some = pictures[start : start + CHUNK]
                yield np.stack(list(pool.map(lambda p: _square(p, size, c), some)))
                if progress:
                    progress(name, start + len(some), count)

    label = digest("centre square, bicubic, 1", *key, size, channels)
    return torch.from_numpy(load_or_make(f"{Path(name).name[:40]}-{size}-{label}", make))


def threads() -> ThreadPoolExecutor:
    """Make a pool of a few threads that decode."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def find_broken(pictures: Sequence[Picture]) -> dict[int, str]:
    """Return the numbers of the pictures that cannot be decoded, and why."""

    def check(picture: Picture) -> str:
        try:
            read_upright(picture, 3)
        except ValueError as error:
            return str(error)
        return ""

    with threads() as pool:
        return {i: why for i, why in enumerate(pool.map(check, pictures)) if why}


@contextlib.contextmanager
def name_broken(pictures: Sequence[Picture]) -> Iterator[None]:
    """Add to an error about one picture which others cannot be decoded either."""
    try:
        yield
    except ValueError as error:
        broken = sorted(pictures[i].label for i in find_broken(pictures))
        if len(broken) < 2:
            raise
        raise ValueError(
            f"{error} In all {len(broken):,} of {len(pictures):,} are broken: {shorten(broken)}."
        ) from error


def leave_out(
    name: str, pictures: Sequence[Picture], key: Sequence[object]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the numbers of the pictures that can be decoded, and a note about the others.

    ``key`` is what they are, for the cache.
    """

    def make() -> tuple[tuple[int, ...], Iterator[np.ndarray]]:
        marks = np.zeros(len(pictures), dtype=np.uint8)
        marks[list(find_broken(pictures))] = 1
        return marks.shape, iter([marks])

    marks = load_or_make(f"broken-{digest(*key)}", make) if pictures else np.empty(0)
    kept, broken = (np.flatnonzero(marks == wanted).tolist() for wanted in (0, 1))
    labels = shorten(pictures[i].label for i in broken)
    note = f"{name}: {len(broken):,} broken images were left out: {labels}"
    return kept, ((note,) if broken else ())


def open_picture(picture: Picture) -> Image:
    """Open a picture without decoding it; refuse one of more pixels than Pillow's limit."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(picture.read()), formats=picture.formats)
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"{picture.label}: expected at most {Image.MAX_IMAGE_PIXELS:,} pixels, but it claims "
            "more, as decompression bombs do. Remove it, or raise PIL.Image.MAX_IMAGE_PIXELS if "
            "you trust it."
        ) from None
    except Exception as error:
        raise _unreadable(picture, error) from error
    return image


def _unreadable(picture: Picture, error: Exception) -> ValueError:
    from PIL import UnidentifiedImageError

    why = "not an image Pillow knows" if isinstance(error, UnidentifiedImageError) else error
    return ValueError(
        f"{picture.label}: expected a readable image, but it is broken ({why}). Mend or remove it; "
        f"in a folder or zip, {SKIP}."
    )


def _is_grey(picture: Picture) -> bool:
    mode = open_picture(picture).mode
    return mode in ("1", "L", "LA", "La") or mode.startswith("I")


def read_upright(picture: Picture, channels: int) -> Image:
    """Decode a picture, turned as its EXIF says, on white, in grey (1) or RGB (3)."""
    from PIL import Image, ImageOps

    image: Image.Image = open_picture(picture)
    try:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16 bits of grey
            grey = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
            image = Image.fromarray(grey.round().astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            paper = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(paper, image.convert("RGBA"))
        return image.convert("L" if channels == 1 else "RGB")
    except Exception as error:
        raise _unreadable(picture, error) from error


def _square(picture: Picture, size: int, channels: int) -> np.ndarray:
    """Decode the centre square at ``size``, (channels, size, size) uint8."""
    from PIL import Image

    image = read_upright(picture, channels)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    if side != size:
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def folder_pictures(folder: Path) -> list[Path]:
    """List the images below a folder, sorted; hidden ones are left out."""
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        found += [
            Path(here, f)
            for f in files
            if Path(f).suffix.lower() in SUFFIXES and not f.startswith(".")
        ]
    return sorted(found, key=lambda p: p.relative_to(folder).as_posix())


def stamp(path: Path) -> tuple[str, int, int]:
    """Return what changes when a file does: (absolute path, bytes, time of change)."""
    info = path.stat()
    return str(path.absolute()), info.st_size, info.st_mtime_ns


def shuffle_rows(count: int, source: Path) -> tuple[list[int], tuple[int, int, int]]:
    """Shuffle the rows of a source by a fixed seed, and tell how many train, validate and test."""
    if count < 3:
        raise ValueError(
            f"{source}: expected 3 or more images ({', '.join(sorted(SUFFIXES))}) to split in "
            f"three, found {count}."
        )
    tenth = max(1, count // 10)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    return order, (count - 2 * tenth, tenth, tenth)


def load_folder(
    folder: Path,
    size: int | None = None,
    channels: int | None = None,
    progress: Progress | None = None,
    skip_broken: bool = False,
) -> tuple[tuple[Images, Images, Images], tuple[str, ...]]:
    """Load the images of a folder, split 80/10/10 by a fixed seed, and notes about them."""
    paths = folder_pictures(folder)
    skipped: tuple[str, ...] = ()
    if skip_broken:
        every = [Picture(str(p.relative_to(folder)), p.read_bytes) for p in paths]
        kept, skipped = leave_out(folder.name, every, [stamp(p) for p in paths])
        paths = [paths[i] for i in kept]
    count = len(paths)
    order, sizes = shuffle_rows(count, folder)
    inner = [p.relative_to(folder).parts for p in paths]
    names = sorted({p[0] for p in inner}) if all(len(p) > 1 for p in inner) else []
    pictures = [Picture(str(paths[i]), paths[i].read_bytes) for i in order]
    labels = torch.tensor([names.index(inner[i][0]) for i in order]) if names else None
    key = [stamp(paths[i]) for i in order]
    size = 64 if size is None else size
    images = decode(str(folder), pictures, key, size, channels, progress)
    notes = (
        f"{folder.name}: {count:,} images, split {'/'.join(f'{s:,}' for s in sizes)} by a fixed "
        f"seed, centre squares resized to {size}×{size}",
    )
    return split(images, labels, names, sizes), (*notes, *skipped)


# -- archives ----------------------------------------------------------------------------------


def open_zip(path: Path, name: str | None = None) -> zipfile.ZipFile:
    """Open a zip archive, or raise an error that names it (and says to fetch ``name`` anew)."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError) as error:
        size = path.stat().st_size
        what = f"expected a whole zip, but its {size:,} bytes are cut or changed ({error})"
        raise DamagedError(path, what, name) from error


def zip_pictures(path: Path) -> dict[str, Picture]:
    """Return the images of an archive by their path in it; hidden ones are left out."""
    archive = open_zip(path)

    def reader(member: str) -> Callable[[], bytes]:
        return lambda: archive.read(member)

    return {
        member: Picture(f"{path} ({member})", reader(member))
        for member in archive.namelist()
        if Path(member).suffix.lower() in SUFFIXES
        and not any(part.startswith((".", "__MACOSX")) for part in Path(member).parts)
    }


def pixels_of(picture: Picture, size: int, channels: int) -> Tensor:
    """Return the centre square of a picture, (channels, size, size) floats in [0, 1]."""
    return torch.from_numpy(_square(picture, size, channels).copy()).to(torch.float32).div_(255)


def pixels_of_photo(picture: Picture) -> Tensor:
    """Return a whole picture in colour, (3, H, W) bytes."""
    return torch.from_numpy(np.array(read_upright(picture, 3))).permute(2, 0, 1)


def read_images(
    images: Sequence[str | Path | Picture], shape: tuple[int, ...], pad: int | None = None
) -> tuple[Tensor, list[str]]:
    """Read images as (n, C, H, H) floats in [0, 1], with a note for each that was converted.

    Arguments:
        images: Paths of files, or pictures whose bytes are at hand.
        shape: (C, H, H) that a model takes.
        pad: Images of this side get a zero border instead of being resized, as mnist does.
    """
    channels, size, width = shape
    if channels not in (1, 3) or size != width:
        raise ValueError(f"images: expected a model of square grey or colour images, got {shape}.")
    pixels, notes = [], []
    pictures = [p if isinstance(p, Picture) else _picture_of(Path(p)) for p in images]
    with name_broken(pictures):
        for picture in pictures:
            image = open_picture(picture)
            side, grey = image.size, _is_grey(picture)
            inner = pad if pad is not None and side == (pad, pad) else size
            found = torch.from_numpy(_square(picture, inner, channels).copy())
            pixels.append(pad_to(found, size, picture.label))
            changes = (
                [] if grey == (channels == 1) else ["to grey" if channels == 1 else "to colour"]
            )
            if inner != size:
                changes.append(f"a zero border to {size}×{size}")
            elif side != (size, size):
                crop = "" if side[0] == side[1] else "its centre square "
                changes.append(f"{crop}from {min(side)} to {size} pixels a side")
            if changes:
                notes.append(f"{picture.label}: converted, {' and '.join(changes)}")
    return torch.stack(pixels).to(torch.float32).div_(255), notes


def _picture_of(path: Path) -> Picture:
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: expected an image, but {what}.")
    return Picture(str(path), path.read_bytes)
