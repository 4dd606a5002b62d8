r"""dSprites: 3 shapes × 6 scales × 40 orientations × 32 × 32 positions of a white sprite on black.

Read from the published file, or rendered anew from formulas fitted to published frames.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, final

import numpy as np
import torch
from torch import Tensor

from .files import DamagedError, Progress, digest, download, load_or_make
from .images import Batch, check_index, open_zip, stamp

__all__ = ["Sprites", "render"]

SIZES = (3, 6, 40, 32, 32)
FACTORS = ("shape", "scale", "orientation", "x", "y")
COUNT = math.prod(SIZES)
SIDE = 64

FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
URL = f"https://github.com/google-deepmind/dsprites-dataset/raw/master/{FILE}"

# In pixels at scale 1: half side of the square, half axes of the ellipse, and of the heart
# x = A sin³t, y = C − B (13 cos t − 5 cos 2t − 2 cos 3t − cos 4t), y pointing down.
SQUARE = 9.5993
ELLIPSE = (12.765, 7.2125)
HEART = (9.59528, 0.66219, -1.43716)
WINDOW = 28  # pixels, more than the diagonal of the square at scale 1


def render(factors: Tensor) -> Tensor:
    r"""Images (n, 1, 64, 64) uint8 in {0, 1} of factors (n, 5) int64.

    A pixel is on if its centre p lies in the sprite: R(−θ)(p − c)/s inside the shape, with
    c = 16 + 32 (x, y)/31 in pixels from the corner, s = 0.5 + 0.1 scale, θ = −2π orientation/39.
    """
    check_factors(factors)
    count = len(factors)
    shape = factors[:, 0]
    scale, orientation, x, y = factors[:, 1:].to(torch.float64).unbind(1)
    # Only a window around the sprite can be on; its corner is a whole pixel.
    offset = torch.arange(WINDOW)
    centre = 16 + 32 / 31 * torch.stack([x, y])  # (2, n)
    corner = (centre - WINDOW / 2).round()
    dx, dy = (corner - centre + 0.5)[..., None] + offset  # (n, WINDOW) each
    scale, angle = 0.5 + 0.1 * scale, 2 * math.pi / 39 * orientation
    cos, sin = (angle.cos() / scale)[:, None], (angle.sin() / scale)[:, None]
    cos_x, sin_x, cos_y, sin_y = cos * dx, sin * dx, cos * dy, sin * dy
    window = torch.empty(count, WINDOW * WINDOW, dtype=torch.uint8)
    for kind, inside in enumerate((_in_square, _in_ellipse, _in_heart)):
        of_kind = (shape == kind).nonzero().squeeze(1)
        u = cos_x[of_kind, None, :] - sin_y[of_kind, :, None]
        v = sin_x[of_kind, None, :] + cos_y[of_kind, :, None]
        window.index_copy_(0, of_kind, inside(u, v).view(torch.uint8).flatten(1))
    left, top = corner.long()
    pixel = (SIDE * offset[:, None] + offset).flatten()
    image = torch.zeros(count, SIDE * SIDE, dtype=torch.uint8)
    image.scatter_(1, (SIDE * top + left)[:, None] + pixel, window)
    return image.view(count, 1, SIDE, SIDE)


# Each overwrites its arguments: rendering is bound by memory.


def _in_square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs_(), v.abs_()) < SQUARE


def _in_ellipse(u: Tensor, v: Tensor) -> Tensor:
    return u.div_(ELLIPSE[0]).square_().add_(v.div_(ELLIPSE[1]).square_()) < 1


def _in_heart(u: Tensor, v: Tensor) -> Tensor:
    """Between the two branches of y(t) at the same |u|: cos t = ±c with c² = 1 − |u/A|^⅔."""
    A, B, C = HEART
    c2 = u.div_(A).abs_().pow_(2 / 3).neg_().add_(1).clamp_(min=0)
    middle = C - B * (4 - c2 * (2 + 8 * c2))
    return v.sub_(middle).abs_() < c2.sqrt().mul_(19 * B - 8 * B * c2)


def check_factors(factors: Tensor) -> None:
    """Raise unless these are factors of sprites, (n, 5) int64."""
    if factors.dtype != torch.int64 or factors.ndim != 2 or factors.shape[1] != len(SIZES):
        raise ValueError(
            f"Sprites: expected factors (n, 5) int64 ({', '.join(FACTORS)}), got {factors.dtype} "
            f"of shape {tuple(factors.shape)}."
        )
    if bool(((factors < 0) | (factors >= torch.tensor(SIZES))).any()):
        raise ValueError(f"Sprites: expected 0 ≤ factors < {SIZES}, got one outside.")


@final
class Sprites:
    r"""All 737,280 images of dSprites, in the published order (y changes fastest).

    Arguments:
        bits: The published images, (737280, 512) uint8, eight pixels to a byte; None renders each
            batch when it is asked for.

    Example:
        >>> sprites = Sprites()
        >>> x, factors = sprites.batch(torch.tensor([0, 737279]))
        >>> x.shape, factors[1].tolist(), sprites.index(factors).tolist()
        (torch.Size([2, 1, 64, 64]), [2, 5, 39, 31, 31], [0, 737279])
    """

    def __init__(self, bits: Tensor | None = None) -> None:
        if bits is not None and (bits.dtype, bits.shape) != (
            torch.uint8,
            (COUNT, SIDE * SIDE // 8),
        ):
            raise ValueError(
                f"Sprites: expected bits ({COUNT}, {SIDE * SIDE // 8}) uint8, got {bits.dtype} of "
                f"shape {tuple(bits.shape)}."
            )
        self.bits = bits
        self.names = FACTORS
        self.sizes = SIZES

    def __len__(self) -> int:
        return COUNT

    def __repr__(self) -> str:
        return f"Sprites({COUNT:,} of {self.shape}, {'rendered' if self.bits is None else 'read'})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (1, 64, 64) of one image."""
        return 1, SIDE, SIDE

    @property
    def classes(self) -> bool:
        """Whether an image has one label: it has five factors instead."""
        return False

    def factors(self, index: Tensor) -> Tensor:
        """Return (shape, scale, orientation, x, y) of the rows ``index``, (n, 5) int64."""
        check_index(index, COUNT, "Sprites.factors")
        return torch.stack(torch.unravel_index(index, SIZES), 1)

    def index(self, factors: Tensor) -> Tensor:
        """Return the rows (n,) of factors (n, 5)."""
        check_factors(factors)
        steps = [math.prod(SIZES[i + 1 :]) for i in range(len(SIZES))]
        return (factors * torch.tensor(steps)).sum(1)

    def batch(self, index: Tensor) -> Batch:
        """Return images x (n, 1, 64, 64) in {0, 1} and factors y (n, 5) int64."""
        factors = self.factors(index)
        if self.bits is None:
            return Batch(render(factors).to(torch.float32), factors)
        pixels = np.unpackbits(self.bits.index_select(0, index).numpy(), axis=1)
        x = torch.from_numpy(pixels).to(torch.float32)
        return Batch(x.view(-1, *self.shape), factors)


# -- the published file ------------------------------------------------------------------------


def present(root: Path) -> bool:
    """Return whether the published file is in the data folder."""
    return (root / "dsprites" / FILE).is_file()


def load_dsprites(
    root: Path, progress: Progress | None = None
) -> tuple[tuple[Sprites, Sprites, Sprites], tuple[str, ...]]:
    """Load the published images if they are there, else render them."""
    path = root / "dsprites" / FILE
    whole = "dSprites: train, val and test are all 737,280 images (there is no split)"
    if not path.is_file():
        return (Sprites(),) * 3, (
            "re-rendered dSprites: drawn by formulas fitted to published frames, because "
            f"dsprites/{FILE} is not in the data folder",
            whole,
        )

    def make() -> tuple[tuple[int, ...], Iterator[np.ndarray]]:
        check_published(path)
        return (COUNT, SIDE * SIDE // 8), _pack_bits(path, progress)

    bits = load_or_make(f"dsprites-{digest('bits, 1', stamp(path))}", make)
    return (Sprites(torch.from_numpy(bits)),) * 3, ("dSprites: the published images", whole)


def fetch_dsprites(root: Path, progress: Progress | None) -> Path:
    """Download the published file unless it is there, and return its folder."""
    path = root / "dsprites" / FILE
    if not path.is_file():
        download([URL], path, check_published, progress)
    check_published(path)
    return path.parent


def _open_array(
    archive: zipfile.ZipFile, path: Path, name: str, shape: tuple[int, ...]
) -> IO[bytes]:
    """Open an array of the npz at its first value, if it has the shape it should have."""
    try:
        file = archive.open(f"{name}.npy")
        first = np.lib.format.read_magic(file) == (1, 0)
        header = (
            np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        )
        found, fortran, dtype = header(file)
    except Exception as error:
        raise DamagedError(path, f"expected an array {name}, but {error}", "dsprites") from error
    if found != shape or fortran or dtype.kind not in "ui":
        what = f"expected {name} {shape} of integers, found {found} of {dtype}"
        raise DamagedError(path, what, "dsprites")
    return file


def check_published(path: Path) -> None:
    """Check the shapes of the arrays, and that the factors are in the order of their sizes."""
    with open_zip(path, "dsprites") as archive:
        for name, shape in (("imgs", (COUNT, SIDE, SIDE)), ("latents_classes", (COUNT, 6))):
            _open_array(archive, path, name, shape).close()
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            classes = arrays["latents_classes"]
    except Exception as error:
        raise DamagedError(path, f"expected whole arrays, but {error}", "dsprites") from error
    order = np.stack(np.unravel_index(np.arange(COUNT), SIZES), 1)
    if not np.array_equal(classes[:, 1:], order) or classes[:, 0].any():
        raise DamagedError(path, "expected the factors in order, found another order", "dsprites")


def _pack_bits(path: Path, progress: Progress | None) -> Iterator[np.ndarray]:
    """Pack the images as bits, some thousands at a time: unpacked they take 3 GB."""
    step, pixels = 4096, SIDE * SIDE
    with open_zip(path, "dsprites") as archive:
        file = _open_array(archive, path, "imgs", (COUNT, SIDE, SIDE))
        for start in range(0, COUNT, step):
            rows = min(step, COUNT - start)
            try:
                data = file.read(rows * pixels)
            except Exception as error:
                raise DamagedError(
                    path, f"expected whole images, but {error}", "dsprites"
                ) from error
            if len(data) != rows * pixels:
                raise DamagedError(path, "expected whole images, but they end early", "dsprites")
            yield np.packbits(np.frombuffer(data, np.uint8).reshape(rows, pixels), axis=1)
            if progress:
                progress("dsprites", start + rows, COUNT)
