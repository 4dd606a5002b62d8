r"""What to do with a style model: render photos, blend styles, undo them, and add new ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import data
from ...data.files import Progress
from ...data.images import Picture, pixels_of_photo
from ...data.stylised import shrink
from ...data.teachers import load_style
from ...metrics.images import psnr
from ...nets import ImageNorm
from ...runs.pictures import image_grid
from ...runs.store import is_shipped, open_run, save
from ...training.checkpoint import read_tensors, write_tensors
from ..base import Run, Say
from ..images import make_parent
from .model import PHOTO, STRIP, Style, check_name, parse_blend

__all__ = ["add_style", "draw_strip", "list_styles", "open_styles", "stylize"]

#: Photos with more pixels than this are taken in tiles of the side below.
WHOLE = 1 << 21
TILE = 1024
#: Above this condition number an undone picture is said to be doubtful.
DOUBTFUL = 1e3
#: Pictures with more pixels are not undone: f† has a matrix for each frequency of the whole.
UNDONE = 1 << 20
#: Side of the squares that show the statistics of a photo in tiles, and where they lie.
SQUARE, QUARTERS = 512, (0.25, 0.75)
#: One photo at a time: while one is taken in tiles, its statistics are held in the model.
BUSY = threading.Lock()
#: Photos that a style network is asked for when its kernel is fitted.
PAIRS = 12


def open_styles(run: str | Path | Run) -> Run:
    """Open a run that holds styles."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, Style):
        raise ValueError(f"{run}: expected a style model, but the run holds {opened.app.name}.")
    return opened


def example_photo() -> tuple[Tensor, str]:
    """Return a photo that scikit-learn bundles, (3, H, W) bytes, and its title."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    return pixels.contiguous(), "china.jpg, which scikit-learn bundles"


def read_photo(path: str | Path) -> Tensor:
    """Read a photo (3, H, W) as bytes, or what ``--tensor`` wrote as floats."""
    path = Path(path)
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: expected a photo, but {what}.")
    if path.suffix == ".safetensors":
        image = read_tensors(path)[0].get("image", torch.empty(0))
        good = image.ndim == 3 and image.shape[0] == 3 and image.numel()
        if not good or not image.is_floating_point() or not bool(image.isfinite().all()):
            raise ValueError(
                f"{path}: expected an image (3, H, W) of finite floats, as stylize --tensor writes."
            )
        return image.float()
    return pixels_of_photo(Picture(str(path), path.read_bytes))


def to_floats(pixels: Tensor) -> Tensor:
    """Return bytes as floats in [0, 1], and floats as they are."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def _to_bytes(x: Tensor) -> Tensor:
    return x.clamp(0, 1).mul(255).round().to(torch.uint8)


def split_side(side: int, reach: int, multiple: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """Yield which part of a side each tile reads, and which part of that it keeps."""
    margin = -(-reach // multiple) * multiple
    for start in range(0, side, tile):
        end = min(start + tile, side)
        yield slice(max(0, start - margin), min(side, end + margin)), slice(start, end)


def needs_tiles(model: Style, photo: Tensor, undo: bool = False) -> bool:
    """Return whether a photo is taken in tiles; refuse one that is too large for the model."""
    pixels = photo.shape[1] * photo.shape[2]
    most = UNDONE if undo else 4 * WHOLE
    if pixels > most and (undo or model.reach is None):
        why = "to undo a style" if undo else "for this model, whose g sees all of an image at once"
        raise ValueError(
            f"stylize: expected at most {most:,} pixels {why}, got {pixels:,}. "
            "Make the picture smaller first."
        )
    return not undo and model.reach is not None and pixels > WHOLE


@torch.inference_mode()
def render(
    model: Style,
    kernel: Tensor,
    photo: Tensor,
    undo: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> Tensor:
    """Apply f or f† to a photo (3, H, W) of any size, in tiles if large; safe in several threads.

    What is given as bytes and taken in tiles comes back as bytes, unless ``exact``.
    """
    with BUSY:
        if not needs_tiles(model, photo, undo):
            return model.render(to_floats(photo)[None], kernel, undo)[0]
        out = torch.empty(photo.shape) if exact else torch.empty_like(photo)
        with _hold_statistics(model, kernel, photo):
            _render_tiles(model, kernel, photo, out, progress)
    return out


@contextmanager
def _hold_statistics(model: Style, kernel: Tensor, photo: Tensor) -> Iterator[None]:
    """Normalise every tile alike, by the statistics of four squares of the photo."""
    norms = [m for m in model.modules() if isinstance(m, ImageNorm)]
    side = max(model.multiple, min(SQUARE, *photo.shape[1:]) // model.multiple * model.multiple)
    starts = [
        [
            int(share * max(0, length - side)) // model.multiple * model.multiple
            for share in QUARTERS
        ]
        for length in photo.shape[1:]
    ]
    squares = torch.stack(
        [to_floats(photo[:, r : r + side, c : c + side]) for r, c in product(*starts)]
    )
    try:
        for norm in norms:
            norm.recording = True
        model.render(squares, kernel)
        for norm in norms:
            norm.recording = False
        yield
    finally:
        for norm in norms:
            norm.recording, norm.held = False, None


def _render_tiles(
    model: Style, kernel: Tensor, photo: Tensor, out: Tensor, progress: Progress | None
) -> None:
    """Fill ``out`` with f of a photo, tile by tile."""
    assert model.reach is not None
    _, H, W = photo.shape
    done, count = 0, math.prod(-(-side // TILE) for side in (H, W))
    for rows, inner_rows in split_side(H, model.reach, model.multiple, TILE):
        for columns, inner_columns in split_side(W, model.reach, model.multiple, TILE):
            made = model.render(to_floats(photo[:, rows, columns])[None], kernel)[0]
            top, left = inner_rows.start - rows.start, inner_columns.start - columns.start
            height = inner_rows.stop - inner_rows.start
            width = inner_columns.stop - inner_columns.start
            made = made[:, top : top + height, left : left + width]
            out[:, inner_rows, inner_columns] = (
                _to_bytes(made) if out.dtype == torch.uint8 else made
            )
            done += 1
            if progress is not None:
                progress("stylize", done, count)


def _write(path: Path, image: Tensor) -> None:
    """Write an image (3, H, W) of bytes, or of floats in [0, 1]."""
    from PIL import Image

    make_parent(path)
    pixels = image if image.dtype == torch.uint8 else _to_bytes(image)
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(path)


def _check_ending(path: Path) -> None:
    """Raise unless a file of this ending can be written."""
    from PIL import Image

    known = Image.registered_extensions()
    if known.get(path.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"stylize: expected an image file such as out.png to write, got {path}.")


def _choose_files(photos: Sequence[str | Path], out: Path | None, ending: str) -> list[Path]:
    """Return where the picture of each photo goes."""
    if out is not None and len(photos) == 1 and out.suffix and not out.is_dir():
        _check_ending(out)
        return [out]
    if out is not None and out.suffix and not out.is_dir():
        raise ValueError(f"stylize: expected a folder for {len(photos)} pictures, got {out}.")
    folder = out or Path(".")
    places = [folder / f"{Path(p).stem}-{ending}.png" for p in photos]
    if len(set(places)) < len(places):
        raise ValueError("stylize: two photos have the same name. Take them one by one, with -o.")
    return places


def stylize(
    run: str | Path | Run,
    photos: Sequence[str | Path],
    style: str | None = None,
    strength: float = 1.0,
    undo: bool = False,
    times: int = 1,
    out: Path | None = None,
    tensor: Path | None = None,
    say: Say = lambda text: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Render photos in a style or a blend of styles; or undo it: find the photos of such pictures.

    With ``times`` f is applied to its own result, or undone as often.
    """
    model: Style = open_styles(run).model
    named = model.config.names[0] if style is None else style
    weights = parse_blend(named, model.names)
    kernel = model.blend(weights, strength).detach()
    if tensor is not None and len(photos) > 1:
        raise ValueError("stylize: --tensor goes with one photo.")
    label = "undone" if undo else _label(weights, strength)
    places = _choose_files(photos or ["china"], out, label)
    condition = model.condition(kernel)
    if undo and condition > DOUBTFUL:
        say(
            f"this operator has condition number {condition:.2g}: what it made small comes back "
            "noisy or not at all"
        )
    for i, place in enumerate(places):
        image = _read_or_take(photos[i] if photos else None, say)
        if needs_tiles(model, image, undo):
            say(f"{place.name}: {image.shape[2]}×{image.shape[1]} pixels, in tiles of {TILE}")
        for _ in range(times):
            exact = tensor is not None or times > 1
            image = render(model, kernel, image, undo, exact, progress)
        _write(place, image)
        if tensor is not None:
            write_tensors(make_parent(tensor), {"image": image.contiguous()}, {"style": named})
    return {
        "style": weights,
        "strength": strength,
        "undo": undo,
        "times": times,
        "condition_number": condition if math.isfinite(condition) else None,
        "files": [str(f) for f in (*places, *([tensor] if tensor is not None else []))],
    }


def _read_or_take(photo: str | Path | None, say: Say) -> Tensor:
    """Read a photo, or take the example where none is named."""
    if photo is not None:
        return read_photo(photo)
    image, title = example_photo()
    say(f"no photo named: taking {title}")
    return image


def _label(weights: Mapping[str, float], strength: float) -> str:
    """Return a name for a blend that no other blend has."""
    parts = [name if w == 1 else f"{w:g}{name}" for name, w in weights.items()]
    return "+".join(parts) + ("" if strength == 1 else f"-at-{strength:g}")


def draw_strip(
    run: str | Path | Run,
    photo: str | Path | None,
    first: str,
    second: str,
    strength: float = 1.0,
    out: Path | None = None,
) -> dict[str, Any]:
    """Draw one photo along (1 − α)·first + α·second, as one picture."""
    model: Style = open_styles(run).model
    notes: list[str] = []
    x = shrink(to_floats(_read_or_take(photo, notes.append)), 320)
    path = make_parent(out or Path(f"{first}-{second}.png"))
    A, B = (model.blend(style, strength).detach() for style in (first, second))
    row = torch.stack([x, *(render(model, torch.lerp(A, B, a), x) for a in STRIP)])
    labels = [PHOTO, *(f"{a:.2f}" for a in STRIP)]
    image_grid(path, [row], [], labels, f"{first} → {second}", cell=1.6)
    return {"weights": list(STRIP), "notes": notes, "files": [str(path)]}


def list_styles(run: str | Path | Run) -> dict[str, Any]:
    """List the styles that a model knows, with the size and condition number of each operator."""
    model: Style = open_styles(run).model
    kernels = {name: model.kernel(name) for name in model.names}
    rows = {
        name: {"numbers": kernel.numel(), "condition_number": model.condition(kernel)}
        for name, kernel in kernels.items()
    }
    return {"styles": rows, "files": []}


def add_style(
    run: str | Path | Run,
    name: str,
    pair: tuple[Path, Path] | None = None,
    teacher: Path | None = None,
    content: str = "bsds500",
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Add a style by least squares, with g as it is: from one pair, or from a style network."""
    run = open_styles(run)
    check_name(name)
    folder = out or run.folder
    elsewhere = folder.resolve() != run.folder.resolve()
    if elsewhere and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"style add: {folder} holds something already. Name a new folder.")
    if is_shipped(folder):
        raise ValueError(
            f"style add: {run.folder.name} is part of the package and stays as it is. Name a "
            "folder for a copy that knows the new style, with --out."
        )
    if pair is not None and teacher is None:
        pairs = [_read_pair(*pair)]
    elif teacher is not None and pair is None:
        pairs = _ask_network(teacher, content, root)
    else:
        raise ValueError("style add: expected either --from BEFORE AFTER or --teacher FILE.")
    model: Style = run.model
    kernel, error = fit_pairs(model, pairs)
    if not bool(kernel.isfinite().all()):
        raise ValueError("style add: no finite kernel fits these pictures. Take others.")
    replaced = name in model.config.added
    model = model.add(name, kernel)
    config = {**run.config, "model": model.config.model_dump(mode="json")}
    save(model, folder, {k: v for k, v in config.items() if k not in ("format", "linearizer")})
    return {
        "name": name,
        "pairs": len(pairs),
        "psnr": error,
        "replaced": replaced,
        "condition_number": model.condition(kernel),
        "files": [str(folder)],
    }


def _read_pair(before: Path, after: Path) -> tuple[Tensor, Tensor]:
    """Read a photo, and the same photo in a style."""
    x, y = read_photo(before), read_photo(after)
    if x.shape != y.shape:
        raise ValueError(
            f"style add: expected both pictures of one size, got {tuple(x.shape[1:])} and "
            f"{tuple(y.shape[1:])} (height, width)."
        )
    return shrink(to_floats(x)), shrink(to_floats(y))


@torch.no_grad()
def _ask_network(teacher: Path, content: str, root: Path | None) -> list[tuple[Tensor, Tensor]]:
    """Return some photos, and what a style network makes of them."""
    net = load_style(teacher)
    photos = data.load(content, root, whole=True).train
    before = [shrink(photos.photo(i)) for i in range(min(PAIRS, len(photos)))]
    return [(x, net(x[None])[0]) for x in before]


def fit_pairs(model: Style, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """Fit a kernel to photos and pictures (3, H, W) of any sizes; return it and its PSNR there.

    Each pair is cut to sides that fit, and to a common size by tiles; the kernel is drawn a little
    to the mean of the known styles, which decides where the pairs say nothing.
    """
    m = model.multiple
    side = min(256, *(min(x.shape[1:]) // m * m for x, _ in pairs))
    if side < 4 * m:
        raise ValueError(
            f"style add: expected pictures of at least {4 * m} pixels on each side, got "
            f"{min(min(x.shape[1:]) for x, _ in pairs)}."
        )
    squares: list[tuple[Tensor, Tensor]] = []
    for x, y in pairs:
        for top in range(0, x.shape[1] - side + 1, side):
            for left in range(0, x.shape[2] - side + 1, side):
                at = (..., slice(top, top + side), slice(left, left + side))
                squares.append((x[at], y[at]))
    before, after = (torch.stack(part) for part in zip(*squares, strict=True))
    known = [model.kernel(name).detach() for name in model.config.names]
    kernel = model.fit(before, after, ridge=1e-3, prior=torch.stack(known).mean(0))
    with torch.no_grad():
        made = torch.cat([model.render(x, kernel) for x in before.split(4)]).clamp(0, 1)
    return kernel, float(psnr(made.flatten()[None], after.flatten()[None]))
