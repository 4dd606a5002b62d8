r"""What to do with a readout: score images, imagine, edit, vary and erase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import data
from ...data.files import shorten
from ...data.images import Picture
from ...linearizer import Linearizer
from ...operators import Identity, LowRank
from ...runs.pictures import image_grid
from ...runs.store import load_data, open_run
from ...training.settings import did_you_mean
from ..base import Run
from ..images import border_of, make_parent, picture_path
from .model import ReadoutModel

__all__ = [
    "Edited",
    "aim_at",
    "class_gap",
    "edit",
    "edit_images",
    "erase",
    "eraser",
    "hold_others",
    "imagine",
    "label_batches",
    "load_images",
    "open_readout",
    "parse_wish",
    "read",
    "vary",
    "vary_points",
]


def open_readout(run: str | Path | Run) -> Run:
    """Open a run that reads numbers from data: one of attributes or of distill."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, ReadoutModel):
        raise ValueError(
            f"{run}: expected a run of attributes or distill, but it holds {opened.app.name}."
        )
    return opened


def _image_shape(run: Run) -> tuple[int, ...]:
    """Return the shape of the images that a run takes, or raise if it takes other data."""
    shape: tuple[int, ...] = run.model.read.source.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"{run.folder.name}: it takes data of shape {shape}, not images in grey or colour."
        )
    return shape


def load_images(run: Run, images: Sequence[str | Path | Picture]) -> tuple[Tensor, list[str]]:
    """Read images as a readout takes them, with a note for each that was converted."""
    shape = _image_shape(run)
    if not images:
        raise ValueError("expected image files, got none.")
    x, notes = data.read_images(images, shape, border_of(run))
    return x.to(run.model.read.weight), notes


@torch.no_grad()
def read(run: str | Path | Run, images: Sequence[str | Path]) -> dict[str, Any]:
    """Return f(x), the scores of image files, with the names of those that hold."""
    run = open_readout(run)
    model: ReadoutModel = run.model
    x, notes = load_images(run, images)
    scores, names = model.read.outputs_of(x), model.output_names
    rows = []
    for path, row in zip(images, scores.tolist(), strict=True):
        entry: dict[str, Any] = {"image": str(path), "scores": dict(zip(names, row, strict=True))}
        if model.output_kind == "classes":
            best = max(range(len(row)), key=row.__getitem__)
            entry["holds"] = [names[best]]
            if model.logits:
                entry["probability"] = float(torch.tensor(row).softmax(0)[best])
        elif model.output_kind == "attributes":
            order = sorted(range(len(row)), key=row.__getitem__, reverse=True)
            entry["holds"] = [names[i] for i in order if row[i] > 0]
        rows.append(entry)
    return {"images": rows, "notes": notes}


def find_name(names: Sequence[str], name: str, where: str) -> int:
    """Return the number of a name, as it is written, or but for upper and lower case."""
    if name in names:
        return list(names).index(name)
    like = [i for i, n in enumerate(names) if n.lower() == name.lower()]
    if len(like) != 1:
        raise ValueError(f"{where}: there is no output {name!r}. {did_you_mean(name, names)}")
    return like[0]


def parse_wish(model: ReadoutModel, wish: str) -> dict[int, float]:
    r"""Return wanted scores by number of the output, from ``Eyeglasses, -Smiling, Young=3``.

    A name sets the score that images with it have on average, ``-NAME`` that of images without it,
    and ``NAME=NUMBER`` any score. For classes a name sets all scores to the class's average.
    """
    names = model.output_names
    of_class = model.output_kind == "classes"
    words = [wish] if wish in names else [w.strip() for w in wish.split(",") if w.strip()]
    found: dict[int, float] = {}
    named = ""
    for word in words:
        name, equals, number = word, "", ""
        if word not in names:
            name, equals, number = (part.strip() for part in word.rpartition("="))
            name, number = (name, number) if equals else (number, "")
        without = not equals and name not in names and name.startswith("-")
        i = find_name(names, name[1:].strip() if without else name, "wish")
        if equals:
            try:
                found[i] = float(torch.tensor(float(number), dtype=model.read.weight.dtype))
            except ValueError:
                found[i] = math.nan
            if not math.isfinite(found[i]):
                raise ValueError(f"wish: expected {name}=NUMBER, got {word!r}.")
        elif model.output_kind == "numbers":
            raise ValueError(
                f"wish: an output of a network has no presence or absence, so {word!r} says too "
                f"little. Give a number, as in {name}=1.5."
            )
        elif of_class:
            if without or named:
                other = f" beside {named}" if named else ""
                raise ValueError(f"wish: an image has one class, so {word!r}{other} names none.")
            named = name
            found = {**dict(enumerate(model.typical[i].tolist())), **found}
        else:
            found[i] = float(model.typical[0 if without else 1, i])
    if not found:
        raise ValueError(f"wish: expected names with commas between, got {wish!r}.")
    return found


class Wish(NamedTuple):
    """A map to the outputs that a wish speaks of, and what it wants of them, (1, k)."""

    f: Linearizer
    y: Tensor


def aim_at(model: ReadoutModel, wish: str) -> Wish:
    """Aim at the wish alone and leave all other outputs free, where outputs are separate."""
    found = parse_wish(model, wish)
    if not model.read.separate and len(found) < model.read.outputs:
        raise ValueError(
            "wish: g_y mixes the outputs of this model, so that some cannot be left free. Hold "
            "the others, or train with output_blocks = 0."
        )
    f = model.read.only(list(found)) if model.read.separate else model()
    values = [found[i] for i in (found if model.read.separate else sorted(found))]
    return Wish(f, model.read.weight.new_tensor([values]))


def hold_others(model: ReadoutModel, wish: str, scores: Tensor) -> Tensor:
    """Return the scores (n, k) with the wish in them, and all others as they are."""
    y = scores.clone()
    for i, value in parse_wish(model, wish).items():
        y[:, i] = value
    return y


@torch.no_grad()
def imagine(
    run: str | Path | Run, wishes: Sequence[str], out: Path | None = None
) -> dict[str, Any]:
    r"""Draw f†(y): the image of least norm with the wanted scores, whatever its others are."""
    run = open_readout(run)
    _image_shape(run)
    model: ReadoutModel = run.model
    zero = model.read.source.zero()
    images, gaps = [], []
    for wish in wishes:
        if model.read.separate:
            f, y = aim_at(model, wish)
        else:  # the others as they are on average
            f = model()
            y = hold_others(model, wish, f(zero))
        images.append(f.pinv()(y))
        gaps.append((f(images[-1]) - y).abs().max())
    error = _largest(gaps)
    out = make_parent(out or picture_path(run, "imagined.png"))
    labels = ["zero", *map(_shorten, wishes)]
    row = torch.cat([zero, *images])
    image_grid(out, [row], [], labels, "Images of least norm, f†(y)", cell=1.3)
    return {"score_error": error, "files": [out]}


class Edited(NamedTuple):
    """Images changed as a wish has it, and how well it was met."""

    image: Tensor
    scores: Tensor  #: of the images as they came, (n, outputs)
    edited_scores: Tensor
    error: Tensor  #: largest miss of the scores that were aimed at


@torch.no_grad()
def edit_images(
    model: ReadoutModel,
    x: Tensor,
    wish: str,
    strength: float = 1.0,
    hold: bool | None = None,
) -> Edited:
    r"""Return x ⊕ s ⊙ f†(y ⊖ f(x)); the arguments are those of :func:`edit`."""
    if not math.isfinite(strength):
        raise ValueError(f"edit: expected a finite strength, got {strength}.")
    f = model()
    hold = not model.read.separate if hold is None else hold
    before = f(x)
    h, y = (f, hold_others(model, wish, before)) if hold else aim_at(model, wish)
    start = h(x)
    step = h.target.scale(strength, h.target.sub(y.expand(len(x), -1), start))
    made = h.source.add(x, h.pinv()(step))
    error = (h(made) - h.target.add(start, step)).abs().max()
    return Edited(made, before, f(made), error)


@torch.no_grad()
def edit(
    run: str | Path | Run,
    images: Sequence[str | Path],
    wishes: Sequence[str],
    strength: float = 1.0,
    hold: bool | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    r"""Draw x ⊕ s ⊙ f†(y ⊖ f(x)): the nearest image with the wanted scores.

    Arguments:
        wishes: Each makes one picture, see :func:`parse_wish`.
        strength: s; 1 reaches the wanted scores, more goes beyond.
        hold: Keep all other scores as they are; otherwise they follow as they do in the data, which
            is the default where outputs are separate.
    """
    run = open_readout(run)
    model: ReadoutModel = run.model
    hold = not model.read.separate if hold is None else hold
    x, notes = load_images(run, images)
    columns, gaps, kept = [x], [], [torch.zeros(()).to(x)]
    for wish in wishes:
        made = edit_images(model, x, wish, strength, hold)
        columns.append(made.image)
        gaps.append(made.error)
        others = torch.ones(made.scores.shape[1], dtype=torch.bool)
        others[list(parse_wish(model, wish))] = False
        if bool(others.any()):
            kept.append((made.edited_scores - made.scores)[:, others].abs().max())
    error = _largest(gaps)
    out = make_parent(out or picture_path(run, "edited.png"))
    rows = [torch.stack(row) for row in zip(*columns, strict=True)]
    title = "Edits x ⊕ f†(y ⊖ f(x))" + ("" if strength == 1 else f", strength {strength:g}")
    labels = ["x", *map(_shorten, wishes)]
    image_grid(out, rows, _file_names(images), labels, title, cell=1.3)
    return {
        "score_error": error,
        "others_held": hold,
        "largest_change_of_another_score": _largest(kept),
        "notes": notes,
        "files": [out],
    }


@torch.no_grad()
def vary(
    run: str | Path | Run,
    images: Sequence[str | Path],
    n: int = 6,
    amount: float = 0.7,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    r"""Draw images with the very same scores: z ← Rz + √(1 − a²) Nz + a Nε, R = A†A, N = I − R.

    ε is normal in the coordinates that a decoder draws from. Nothing of the null space is seen by
    f, so that no score changes.

    Arguments:
        n: Variations of each image.
        amount: a, from 0 (the image itself) to 1 (nothing of it is kept but its scores).
    """
    if not 0 <= amount <= 1 or n < 1:
        raise ValueError(
            f"vary: expected an amount from 0 to 1 and n of 1 or more, got {amount} and {n}."
        )
    run = open_readout(run)
    f, width = run.model(), run.model.read.width
    if width == run.model.read.outputs:
        raise ValueError(
            f"{run.folder.name}: it has no coordinates beside its outputs to vary. Train with "
            "extra > 0."
        )
    x, notes = load_images(run, images)
    noise = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    rows, gaps = [], []
    for image in x.split(1):
        made = vary_points(f, image.expand(n, -1, -1, -1), noise, amount)
        gaps.append((f(made) - f(image)).abs().max())
        rows.append(torch.cat([image, made]))
    change = _largest(gaps)
    moved = float(torch.cat([(row[1:] - row[:1]).flatten() for row in rows]).square().mean().sqrt())
    out = make_parent(out or picture_path(run, "varied.png"))
    title = f"The same scores to {change:.0e}; pixels differ by {moved:.2f}"
    image_grid(out, rows, _file_names(images), ["x"], title, cell=1.1)
    return {
        "largest_change_of_a_score": change,
        "pixel_change": moved,
        "dimension_of_null_space": f.source.dim - f.rank(),
        "notes": notes,
        "files": [out],
    }


def vary_points(f: Linearizer, x: Tensor, noise: Tensor, amount: float) -> Tensor:
    """Move x in the null space, along noise of the first coordinates: no score changes."""
    z = f.source.coordinates(x)
    seen = f.operator.pinv() @ f.operator
    padded = torch.nn.functional.pad(noise.to(z), (0, z.shape[1] - noise.shape[1]))
    kept = seen(z)
    hidden = math.sqrt(1 - amount**2) * (z - kept) + amount * (padded - seen(padded))
    return f.source.points(kept + hidden)


# -- erasure -----------------------------------------------------------------------------------


def class_gap(
    f: Linearizer, batches: Iterable[tuple[Tensor, Tensor]], index: Sequence[int]
) -> Tensor:
    r"""Return E[g(x) | with] − E[g(x) | without] of each attribute of ``index``, (k, dim)."""
    sums, counts = None, torch.zeros(2, len(index), dtype=torch.float64)
    for x, y in batches:
        mark = y[:, list(index)].double()
        z = f.source.coordinates(x).double()
        part = torch.stack([(1 - mark).mT @ z, mark.mT @ z])
        sums = part if sums is None else sums + part
        counts += torch.stack([(1 - mark).sum(0), mark.sum(0)])
    if sums is None or bool((counts == 0).any()):
        raise ValueError("erase: expected images with and without each attribute, got one kind.")
    without, with_ = sums / counts[..., None]
    return with_ - without


def eraser(f: Linearizer, gaps: Tensor, cut: int = 0) -> Linearizer:
    r"""Return the projector g⁻¹(I − QQᵀ)g of the source along the span of ``gaps``, (k, dim).

    The images that the gaps are of then have equal mean coordinates with and without an attribute,
    so that no linear probe of them does better than a constant (Belrose et al., LEACE, 2023,
    theorem 3.1). Idempotent by architecture.

    With a ``cut`` the coordinates before and behind it lose directions of their own. Means are
    equal as before, and what is well known of a gap does not bear the noise of the rest.
    """
    rows = gaps.double()
    if cut:
        first = torch.arange(gaps.shape[1], device=gaps.device) < cut
        rows = torch.cat([rows * first, rows * ~first])
    U, S, _ = torch.linalg.svd(rows.mT, full_matrices=False)
    Q = U[:, 1e-10 * S[0] < S].to(f.operator.dtype)  # gaps of all classes depend on each other
    identity = Identity(f.source.dim, dtype=Q.dtype, device=Q.device)
    return Linearizer(f.source, identity - LowRank(Q, Q), f.source)


@torch.no_grad()
def erase(
    run: str | Path | Run,
    names: Sequence[str],
    images: Sequence[str | Path],
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Draw images without what tells an attribute from its absence, by a projector."""
    run = open_readout(run)
    model: ReadoutModel = run.model
    if model.output_kind == "numbers":
        raise ValueError(
            f"{run.folder.name}: only attributes or classes can be erased; it has neither."
        )
    index = list(dict.fromkeys(find_name(model.output_names, name, "erase") for name in names))
    names = [model.output_names[i] for i in index]
    x, notes = load_images(run, images)
    f = model()
    gaps = class_gap(f, label_batches(model, load_data(run, root).train), index)
    cut = model.read.width if model.read.encodes else 0
    rows = [x, *(eraser(f, gap[None], cut)(x) for gap in gaps)]
    labels = ["x", *(f"no {n}" for n in names)]
    P = eraser(f, gaps, cut)
    if len(names) > 1:
        rows.append(P(x))
        labels.append("none of them")
    once = P(x)
    out = make_parent(out or picture_path(run, "erased.png"))
    image_grid(out, rows, labels, _file_names(images), "Erasure by projection", cell=1.1)
    error = float((P(once) - once).abs().max())
    return {"idempotency_error": error, "notes": notes, "files": [out]}


def label_batches(
    model: ReadoutModel, part: Any, count: int = 20_000
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield images and 0/1 labels (n, names) of the first ``count`` samples, in batches."""
    known, names = list(model.output_names), list(getattr(part, "names", ()))
    classes = model.output_kind == "classes"
    if getattr(part, "labels", part) is None or not set(names) <= set(known):
        found = f"those of {shorten(names)}" if names else "none"
        raise ValueError(
            f"labels: expected those of {shorten(known)}, as in training, found {found}. Put the "
            "images of each class into a folder of its name."
        )
    places = torch.tensor([known.index(name) for name in names] or range(len(known)))
    for index in torch.arange(min(count, len(part))).split(500):
        x, y = part.batch(index)
        if classes:
            marks = torch.nn.functional.one_hot(places[y], len(known))
        else:
            marks = y.new_zeros(len(y), len(known)).index_copy(1, places, y)
        yield x.to(model.read.weight), marks


def _largest(values: Sequence[Tensor]) -> float:
    """Return the largest of some numbers, and refuse NaN and infinity."""
    largest = float(torch.stack(list(values)).max())
    if not math.isfinite(largest):
        raise ValueError("the result is too large for the numbers of this model. Ask for less.")
    return largest


def _shorten(wish: str) -> str:
    return wish if len(wish) < 17 else wish[:15] + "…"


def _file_names(images: Sequence[str | Path]) -> list[str]:
    return [Path(p).stem[:14] for p in images]
