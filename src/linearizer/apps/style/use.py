r"""What a trained style model is for: stylise photos, blend, undo, and add styles."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import data
from .apps.style import PHOTO, STRIP, Style, check_name, mixture
from .checkpoint import is_shipped, read_config, read_tensors, save, write_tensors
from .data.files import Progress
from .data.images import Picture, pixels_of_photo
from .data.stylised import shrunk
from .nets import ImageNorm
from .runs import Opened, opened
from .sampling import written
from .teachers import load_style

__all__ = ["add_style", "strip", "style_model", "styles", "stylize"]

#: Photos with more pixels than this are taken in tiles of the side below.
WHOLE = 1 << 21
TILE = 1024
#: Above this condition number an undone picture is said to be doubtful.
DOUBTFUL = 1e3
#: Pictures with more pixels are not undone: f† has a matrix for each frequency of the whole.
UNDONE = 1 << 20
#: Side of the squares that show the statistics of a photo in tiles.
SQUARE = 512
#: One photo at a time: while one is taken in tiles, its statistics are held in the model.
BUSY = threading.Lock()
#: Photos that a style network is asked for when its kernel is fitted.
PAIRS = 12


def style_model(run: str | Path) -> Opened:
    """A run that holds styles."""
    one = opened(run)
    if not isinstance(one.model, Style):
        raise ValueError(f"{run}: expected a style model, but the run holds {one.app.name}.")
    return one


def example_photo() -> tuple[Tensor, str]:
    """A photo that scikit-learn bundles, (3, H, W) bytes, for those who name none."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    return pixels.contiguous(), "china.jpg, which scikit-learn bundles"


def read_photo(path: str | Path) -> Tensor:
    """A photo (3, H, W), bytes; or what ``--tensor`` wrote, as floats."""
    path = Path(path)
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: expected a photo, but {what}.")
    if path.suffix == ".safetensors":
        image = read_tensors(path)[0].get("image")
        if (
            image is None or image.ndim != 3 or image.shape[0] != 3 or not image.numel()
            or not image.is_floating_point() or not bool(image.isfinite().all())
        ):  # fmt: skip
            raise ValueError(
                f"{path}: expected an image (3, H, W) of finite floats, as stylize --tensor writes."
            )
        return image.float()
    return pixels_of_photo(Picture(str(path), path.read_bytes))


def _floats(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def _bytes(x: Tensor) -> Tensor:
    return x.clamp(0, 1).mul(255).round().to(torch.uint8)


def tiles(side: int, reach: int, multiple: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """What is read, and what of it is kept, of parts of a line; both in its own numbers."""
    margin = -(-reach // multiple) * multiple
    for start in range(0, side, tile):
        end = min(start + tile, side)
        yield slice(max(0, start - margin), min(side, end + margin)), slice(start, end)


def in_tiles(model: Style, photo: Tensor, undo: bool = False) -> bool:
    """Whether a photo is too large to be taken as a whole; refused where it has to be."""
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
    """f or f† of a photo (3, H, W) of any size, large ones in tiles; safe in several threads.

    What is given as bytes and taken in tiles comes back as bytes, unless ``exact``.
    """
    with BUSY:
        if not in_tiles(model, photo, undo):
            return model.render(_floats(photo)[None], kernel, undo)[0]
        out = torch.empty(photo.shape) if exact else torch.empty_like(photo)
        with _statistics(model, kernel, photo):
            _tiled(model, kernel, photo, out, progress)
    return out


@contextmanager
def _statistics(model: Style, kernel: Tensor, photo: Tensor) -> Iterator[None]:
    """Every tile is normalised alike: by what four squares of the photo show together."""
    norms = [m for m in model.modules() if isinstance(m, ImageNorm)]
    side = max(model.multiple, min(SQUARE, *photo.shape[1:]) // model.multiple * model.multiple)
    rows, columns = (
        [int(share * max(0, length - side)) // model.multiple * model.multiple
         for share in (0.25, 0.75)]
        for length in photo.shape[1:]
    )  # fmt: skip
    squares = torch.stack(
        [_floats(photo[:, r : r + side, c : c + side]) for r in rows for c in columns]
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


def _tiled(
    model: Style, kernel: Tensor, photo: Tensor, out: Tensor, progress: Progress | None
) -> None:
    assert model.reach is not None
    _, H, W = photo.shape
    done, count = 0, math.prod(-(-side // TILE) for side in (H, W))
    for rows, inner_rows in tiles(H, model.reach, model.multiple, TILE):
        for columns, inner_columns in tiles(W, model.reach, model.multiple, TILE):
            made = model.render(_floats(photo[:, rows, columns])[None], kernel)[0]
            top, left = inner_rows.start - rows.start, inner_columns.start - columns.start
            height = inner_rows.stop - inner_rows.start
            width = inner_columns.stop - inner_columns.start
            made = made[:, top : top + height, left : left + width]
            out[:, inner_rows, inner_columns] = _bytes(made) if out.dtype == torch.uint8 else made
            done += 1
            if progress is not None:
                progress("stylize", done, count)


def _write(path: Path, image: Tensor) -> None:
    from PIL import Image

    written(path)
    pixels = image if image.dtype == torch.uint8 else _bytes(image)
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(path)


def _check_ending(path: Path) -> None:
    from PIL import Image

    known = Image.registered_extensions()
    if known.get(path.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"stylize: expected an image file such as out.png to write, got {path}.")


def _places(photos: Sequence[str | Path], out: Path | None, ending: str) -> list[Path]:
    """Where the picture of each photo goes."""
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
    run: str | Path,
    photos: Sequence[str | Path],
    style: str | None = None,
    strength: float = 1.0,
    undo: bool = False,
    times: int = 1,
    out: Path | None = None,
    tensor: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Photos in a style or a blend of styles; or, to undo it, the photos of such pictures.

    With ``times`` f is applied to its own result, or undone as often.
    """
    model: Style = style_model(run).model
    named = model.config.names[0] if style is None else style
    weights = mixture(named, model.names)
    kernel = model.blend(weights, strength).detach()
    if tensor is not None and len(photos) > 1:
        raise ValueError("stylize: --tensor goes with one photo.")
    label = "undone" if undo else _label(weights, strength)
    places = _places(photos or ["china"], out, label)
    condition = model.condition(kernel)
    if undo and condition > DOUBTFUL:
        say(
            f"this operator has condition number {condition:.2g}: what it made small comes back "
            "noisy or not at all"
        )
    for i, place in enumerate(places):
        if photos:
            made = read_photo(photos[i])
        else:
            made, what = example_photo()
            say(f"no photo named: taking {what}")
        if in_tiles(model, made, undo):
            say(f"{place.name}: {made.shape[2]}×{made.shape[1]} pixels, in tiles of {TILE}")
        for _ in range(times):
            exact = tensor is not None or times > 1
            made = render(model, kernel, made, undo, exact, progress)
        _write(place, made)
        if tensor is not None:
            written(tensor)
            write_tensors(tensor, {"image": made.contiguous()}, {"style": named})
    files = [*places, *([tensor] if tensor is not None else [])]
    return {
        "style": weights, "strength": strength, "undo": undo, "times": times,
        "condition_number": condition if math.isfinite(condition) else None,
        "files": [str(f) for f in files],
    }  # fmt: skip


def _label(weights: Mapping[str, float], strength: float) -> str:
    """A name for a blend that no other blend has."""
    parts = [name if w == 1 else f"{w:g}{name}" for name, w in weights.items()]
    return "+".join(parts) + ("" if strength == 1 else f"-at-{strength:g}")


def strip(
    run: str | Path,
    photo: str | Path | None,
    first: str,
    second: str,
    strength: float = 1.0,
    out: Path | None = None,
    weights: Sequence[float] = STRIP,
) -> dict[str, Any]:
    """One photo along (1 − α)·first + α·second, as one picture."""
    from .pictures import image_grid

    model: Style = style_model(run).model
    notes: list[str] = []
    if photo is None:
        image, what = example_photo()
        notes.append(f"no photo named: taking {what}")
    else:
        image = read_photo(photo)
    x = shrunk(_floats(image), 320)
    row = [x]
    for a in weights:
        kernel = (1 - a) * model.blend(first, strength) + a * model.blend(second, strength)
        row.append(render(model, kernel.detach(), x))
    path = out or Path(f"{first}-{second}.png")
    written(path)
    labels = [PHOTO, *(f"{a:.2f}" for a in weights)]
    image_grid(path, [torch.stack(row)], [], labels, f"{first} → {second}", cell=1.6)
    return {"weights": list(weights), "notes": notes, "files": [str(path)]}


def styles(run: str | Path) -> dict[str, Any]:
    """The styles that a model knows, with the size and condition number of each operator."""
    model: Style = style_model(run).model
    rows = {
        name: {
            "numbers": model.kernel(name).numel(),
            "condition_number": model.condition(model.kernel(name)),
        }
        for name in model.names
    }
    return {"styles": rows, "files": []}


def add_style(
    run: str | Path,
    name: str,
    pair: tuple[Path, Path] | None = None,
    teacher: Path | None = None,
    content: str = "bsds500",
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """A new style by least squares, with g as it is: from one pair, or from a style network."""
    one = style_model(run)
    model: Style = one.model
    if (pair is None) == (teacher is None):
        raise ValueError("style add: expected either --from BEFORE AFTER or --teacher FILE.")
    check_name(name)
    folder = out or one.folder
    elsewhere = folder.resolve() != one.folder.resolve()
    if elsewhere and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"style add: {folder} holds something already. Name a new folder.")
    if is_shipped(folder):
        raise ValueError(
            f"style add: {run} is part of the package and stays as it is. Name a folder for a "
            "copy that knows the new style, with --out."
        )
    if pair is not None:
        before, after = (read_photo(p) for p in pair)
        if before.shape != after.shape:
            raise ValueError(
                f"style add: expected both pictures of one size, got {tuple(before.shape[1:])} "
                f"and {tuple(after.shape[1:])} (height, width)."
            )
        pairs = [(shrunk(_floats(before)), shrunk(_floats(after)))]
    else:
        net = load_style(teacher)  # type: ignore[arg-type]
        photos = data.load(content, root, whole=True).train
        pairs = []
        with torch.no_grad():
            for i in range(min(PAIRS, len(photos))):
                x = shrunk(photos.photo(i))  # type: ignore[union-attr]
                pairs.append((x, net(x[None])[0]))
    kernel, error = fit_pairs(model, pairs)
    if not bool(kernel.isfinite().all()):
        raise ValueError("style add: no finite kernel fits these pictures. Take others.")
    replaced = name in model.config.added
    model = model.add(name, kernel)
    config = {**read_config(one.folder), "model": model.config.model_dump(mode="json")}
    for key in ("format", "linearizer"):
        config.pop(key, None)
    save(model, folder, config)
    return {
        "name": name, "pairs": len(pairs), "psnr": error, "replaced": replaced,
        "condition_number": model.condition(kernel), "files": [str(folder)],
    }  # fmt: skip


def fit_pairs(model: Style, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """The kernel of photos and pictures (3, H, W) of any sizes, and the PSNR that it has there.

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
    error = (made - after).square().mean()
    return kernel, float(-10 * error.clamp_min(1e-10).log10())
