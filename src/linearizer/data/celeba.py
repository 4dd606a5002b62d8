r"""CelebA: faces with forty attributes, from the official files or from the reduced 10,000."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import DamagedError, Progress, missing
from .images import Images, Picture, decode, folder_pictures, open_zip, split, stamp, zip_pictures

__all__ = ["load_celeba"]

PAGE = "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
FILES = (
    "img_align_celeba.zip (or the folder img_align_celeba), list_attr_celeba.txt and "
    "list_eval_partition.txt"
)
REDUCED = "celeba_10k_89x109.zip"
REDUCED_SPLIT = (8000, 1000, 1000)


def present(root: Path) -> bool:
    """Return whether the official or the reduced files are there."""
    folder = root / "celeba"
    return (folder / REDUCED).is_file() or _official(folder) is not None


def _official(folder: Path) -> Path | None:
    """Return the folder or archive of the official images, if its partition is there too."""
    if not (folder / "list_eval_partition.txt").is_file():
        return None
    choices = (folder / "img_align_celeba", folder / "img_align_celeba.zip")
    return next((p for p in choices if p.exists()), None)


def load_celeba(
    root: Path, size: int | None = None, progress: Progress | None = None
) -> tuple[tuple[Images, Images, Images], tuple[str, ...]]:
    """Load centre squares of the aligned faces at ``size`` (64), with attributes (n, 40)."""
    folder = root / "celeba"
    size = 64 if size is None else size
    if source := _official(folder):
        files, sizes = _partition(folder / "list_eval_partition.txt")
        split_note = f"CelebA: the official split of {sum(sizes):,} images"
    elif (folder / REDUCED).is_file():
        source, sizes = folder / REDUCED, REDUCED_SPLIT
        files = [f"{i + 1:06d}.jpg" for i in range(sum(sizes))]
        split_note = f"CelebA: our own split of the first {len(files):,} images"
    else:
        raise missing("celeba", folder, FILES, False)
    pictures, key = _pictures(source)
    if lost := [f for f in files if f not in pictures]:
        what = f"expected {len(files):,} images, {len(lost):,} are not there, first {lost[0]}"
        raise DamagedError(source, what)
    labels, names = _attributes(folder, files)
    chosen = [pictures[f] for f in files]
    images = decode("celeba", chosen, [key, files], size, 3, progress)
    notes = (
        f"{split_note} ({'/'.join(f'{s:,}' for s in sizes)})",
        f"CelebA: centre square ({_crop(chosen[0])}) resized to {size}×{size}",
    )
    return split(images, labels, names, sizes), notes


def _crop(picture: Picture) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(picture.read())) as image:
        w, h = image.size
    side = min(w, h)
    return f"{side}×{side} of {w}×{h}"


def _pictures(source: Path) -> tuple[dict[str, Picture], tuple[object, ...]]:
    """Return the images by name, and what the cache knows them by."""
    if source.is_dir():
        paths = folder_pictures(source)
        named = {p.name: Picture(str(p), p.read_bytes) for p in paths}
        return named, tuple(stamp(p) for p in paths)
    return {Path(m).name: p for m, p in zip_pictures(source).items()}, stamp(source)


def _partition(path: Path) -> tuple[list[str], tuple[int, int, int]]:
    """Return file names in the order train, val, test, and how many there are of each."""
    parts: tuple[list[str], ...] = ([], [], [])
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        cells = line.split()
        if len(cells) == 2 and cells[1] in ("0", "1", "2"):
            parts[int(cells[1])].append(cells[0])
        elif cells:
            what = f"expected `file 0|1|2`, line {number} says {line[:40]!r}"
            raise DamagedError(path, what)
    train, val, test = parts
    if not (train and val and test):
        raise DamagedError(
            path, "expected images in all of train, val and test, found an empty part"
        )
    return train + val + test, (len(train), len(val), len(test))


def _attributes(folder: Path, files: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the attributes (n, 40) bool of the files, and their names."""
    text, archive = folder / "list_attr_celeba.txt", folder / "list_attr_celeba.zip"
    packed = folder / "celeba_attr_all.npz"
    if text.is_file():
        with text.open(encoding="utf-8", errors="replace") as lines:
            return _parse(text, lines, files)
    if archive.is_file():
        with open_zip(archive) as zipped:
            member = next((n for n in zipped.namelist() if n.endswith(text.name)), None)
            if member is None:
                raise DamagedError(
                    archive, f"expected {text.name} inside, found {zipped.namelist()}"
                )
            with zipped.open(member) as raw:
                return _parse(archive, io.TextIOWrapper(raw, "utf-8", "replace"), files)
    if packed.is_file():
        try:
            with packed.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                names = tuple(str(n) for n in arrays["names"])
                bits = np.unpackbits(arrays["bits"], axis=1)[:, : len(names)]
            rows = bits[[int(Path(f).stem) - 1 for f in files]]
        except Exception as error:
            raise DamagedError(packed, f"expected arrays bits and names ({error})") from error
        return torch.from_numpy(rows.astype(bool)), names
    raise missing("celeba", folder, f"{text.name} (or {archive.name})", False)


def _parse(path: Path, lines: Iterable[str], files: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Parse a count, the names, then `file ±1 ±1 …`, as far as the wanted files reach."""
    rows = iter(lines)
    try:
        next(rows)
        names = tuple(next(rows).split())
        wanted = {f: i for i, f in enumerate(files)}
        values = np.zeros((len(files), len(names)), dtype=bool)
        for number, line in enumerate(rows, 3):
            file, *cells = line.split() or [""]
            i = wanted.pop(file, None)
            if i is None:
                continue
            if len(cells) != len(names) or not set(cells) <= {"1", "-1"}:
                what = f"expected {len(names)} values 1 or -1, line {number} has {line[:40]!r}"
                raise DamagedError(path, what)
            values[i] = [cell == "1" for cell in cells]
            if not wanted:
                break
    except StopIteration:
        raise DamagedError(path, "expected a count, the names and a line for each image") from None
    except (OSError, EOFError) as error:
        raise DamagedError(path, f"expected a whole file, but found {error}") from error
    if wanted:
        what = f"expected every image, {len(wanted):,} are not there, first {next(iter(wanted))}"
        raise DamagedError(path, what)
    return torch.from_numpy(values), names
