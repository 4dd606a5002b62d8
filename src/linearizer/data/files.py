r"""Where files lie, how they are fetched, and the errors when they are missing or broken."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..training.checkpoint import check_target

__all__ = ["Progress", "cache_folder", "download", "root_folder"]

#: progress(what, done so far, total or None)
Progress = Callable[[str, int, "int | None"], None]

TIMEOUT = 30.0
CHUNK = 1 << 18


def root_folder(root: str | Path | None = None) -> Path:
    """Return the data folder: the argument, $LINEARIZER_DATA or ~/.cache/linearizer/data."""
    folder = root or os.environ.get("LINEARIZER_DATA") or "~/.cache/linearizer/data"
    return Path(folder).expanduser().absolute()


def cache_folder() -> Path:
    """Return the folder of decoded images: $LINEARIZER_CACHE, else ~/.cache/linearizer/decoded."""
    folder = os.environ.get("LINEARIZER_CACHE") or "~/.cache/linearizer/decoded"
    return Path(folder).expanduser().absolute()


def missing(name: str, folder: Path, files: str, downloadable: bool) -> FileNotFoundError:
    """Make the error for files that are not there, with every way to put them there."""
    fetch = f"Run `linearizer data fetch {name}`, put" if downloadable else "Put"
    return FileNotFoundError(
        f"{name}: expected {files} in {folder}, found none. {fetch} the files there, or name "
        f"another root with --data-root or the variable LINEARIZER_DATA."
    )


class DamagedError(ValueError):
    """A file that is not what it should be; ``name`` if it can be fetched anew."""

    def __init__(self, path: Path, what: str, name: str | None = None) -> None:
        again = f"run `linearizer data fetch {name}`" if name else "copy it here again"
        super().__init__(f"{path}: {what}. Delete it and {again}.")
        self.what = what


def option(flag: str, python: str) -> str:
    """Write what to add to a command, and what it is called in Python."""
    return f"{flag} (in Python {python})"


def shorten(words: Iterable[object], between: str = ", ") -> str:
    """Write the first ten of these, and how many there are in all if there are more.

    Example:
        >>> shorten(range(4)), shorten(range(2000))
        ('0, 1, 2, 3', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … (2,000 in all)')
    """
    every = list(words)
    more = f" … ({len(every):,} in all)" if len(every) > 10 else ""
    return between.join(map(str, every[:10])) + more


def read(
    path: Path, name: str | None = None, packed: bool | None = None, limit: int | None = None
) -> bytes:
    """Return all bytes of a file, unpacked if it ends in .gz or is said to be ``packed``.

    More than ``limit`` are refused before they are read.
    """
    packed = path.suffix == ".gz" if packed is None else packed
    most = -1 if limit is None else limit + 1
    if limit is not None and not packed and path.stat().st_size > limit:
        raise _too_large(path, limit)
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            found = file.read(most)
    except EOFError:
        size = path.stat().st_size
        what = f"expected a whole gzip, but it ends early at {size:,} bytes"
        raise DamagedError(path, what, name) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(path, f"expected an intact gzip, but found {error}", name) from error
    if limit is not None and len(found) > limit:
        raise _too_large(path, limit)
    return found


def _too_large(path: Path, limit: int) -> ValueError:
    return ValueError(
        f"{path}: expected at most {limit >> 20:,} MB of text, got more. Cut it into parts, or "
        "keep fewer rows and columns."
    )


# -- downloads ---------------------------------------------------------------------------------


def download(
    urls: Sequence[str],
    path: Path,
    check: Callable[[Path], None] = lambda path: None,
    progress: Progress | None = None,
) -> Path:
    """Fetch ``path`` from the first of ``urls`` that answers with what ``check`` accepts.

    The bytes go to ``<file>.part`` and take the final name only when they are whole and checked, so
    that ``path`` never names half a file.

    Arguments:
        check: Called with the partial file; raises DamagedError if it is not what it should be.
    """
    part = check_target(path).with_name(path.name + ".part")
    wrong, unreachable = [], []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                _transfer(url, part, path.name, progress)
                check(part)
            except _UnreachableError as error:
                unreachable.append(f"{url} ({error})")
            except DamagedError as error:
                wrong.append(f"from {url} {error.what}")
            else:
                os.replace(part, path)
                return path
    except OSError as error:
        raise OSError(
            f"fetch: cannot write {path} ({error.strerror or error}). Free the disk or name "
            "another root with --data-root or the variable LINEARIZER_DATA."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    instead = f"Get {path.name} by other means and put it in {path.parent}."
    if wrong:
        raise ValueError(f"fetch: {'; '.join(wrong)}. {instead}")
    raise ConnectionError(f"fetch: could not reach {' or '.join(unreachable)}. {instead}")


class _UnreachableError(Exception):
    """A server that does not answer, or stops half way."""


def _transfer(url: str, part: Path, label: str, progress: Progress | None) -> None:
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    with contextlib.ExitStack() as stack:
        try:
            request = Request(url, headers={"User-Agent": "linearizer"})
            response = stack.enter_context(urlopen(request, timeout=TIMEOUT))
        except (OSError, HTTPException) as error:
            raise _UnreachableError(getattr(error, "reason", None) or error) from error
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        file = stack.enter_context(part.open("wb"))
        done = 0
        while True:
            try:
                chunk = response.read(CHUNK)
            except (OSError, HTTPException) as error:
                raise _UnreachableError(f"broke off after {done:,} bytes: {error}") from error
            if not chunk:
                break
            file.write(chunk)
            done += len(chunk)
            if progress:
                progress(label, done, total)
        if total is not None and done != total:
            raise _UnreachableError(f"broke off after {done:,} of {total:,} bytes")


# -- cached arrays -----------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """Return a short name for whatever these parts say."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def load_or_make(
    key: str, make: Callable[[], tuple[tuple[int, ...], Iterator[np.ndarray]]]
) -> np.ndarray:
    """Map a uint8 array of the cache folder into memory; make it if it is absent.

    ``make`` gives its shape and then its rows, some at a time. They are written beside the final
    name and renamed when whole, so that a stopped run leaves nothing and two at once do no harm.
    """
    path = cache_folder() / f"{key}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        return _open_mapped(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    part = Path(name)
    try:
        # Plain writes: a full disk is an OSError here, and a killed process in a memory map.
        with os.fdopen(handle, "wb") as file:
            shape, chunks = make()
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for rows in chunks:
                _write(file, rows, path)
        os.replace(part, check_target(path))
        return _open_mapped(path)
    finally:
        part.unlink(missing_ok=True)


def _open_mapped(path: Path) -> np.ndarray:
    # Copy-on-write: torch wants memory that may be written, the file must stay as it is.
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _write(file: BinaryIO, rows: np.ndarray, path: Path) -> None:
    try:
        file.write(np.ascontiguousarray(rows).data)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(
        f"data: cannot write {path} ({error.strerror or error}). Free the disk or name another "
        "folder in the variable LINEARIZER_CACHE."
    )
