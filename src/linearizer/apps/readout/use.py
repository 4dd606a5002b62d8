r"""What a readout is for: scores of images, images of scores, edits, variations, erasure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import data
from .apps.attributes import Attributes
from .apps.disentangle import Distillation
from .data.images import Picture
from .linearizer import Linearizer
from .operators import Identity, LowRank
from .pictures import image_grid
from .runs import Opened, opened, run_data
from .sampling import bordered, place, written
from .settings import did_you_mean

__all__ = ["Edited", "class_gap", "edit", "edited", "erase", "eraser", "held", "images_for",
           "imagine", "labelled", "names_of", "parse_wish", "read", "readout_of", "variations",
           "vary", "wished"]  # fmt: skip


def readout_of(run: str | Path) -> Opened:
    """A run that reads numbers from data: attributes, or a distilled network."""
    one = opened(run)
    if not isinstance(one.model, Attributes | Distillation):
        raise ValueError(
            f"{run}: expected attributes or a distilled network, but the run holds {one.app.name}."
        )
    return one


def names_of(model: Attributes | Distillation) -> list[str]:
    """Of the outputs."""
    if isinstance(model, Attributes):
        return list(model.config.names)
    return [str(i) for i in range(model.config.outputs)]


def _image_shape(one: Opened) -> tuple[int, ...]:
    shape: tuple[int, ...] = one.model.read.source.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"{one.folder.name}: it takes data of shape {shape}, not images in grey or colour."
        )
    return shape


def images_for(one: Opened, images: Sequence[str | Path | Picture]) -> tuple[Tensor, list[str]]:
    """Images as a readout takes them, and a note for each that was converted."""
    shape = _image_shape(one)
    if not images:
        raise ValueError("expected image files, got none.")
    x, notes = data.read_images(images, shape, bordered(one))
    return x.to(one.model.read.weight), notes


@torch.no_grad()
def read(run: str | Path, images: Sequence[str | Path]) -> dict[str, Any]:
    """f(x): the scores of image files, with the names of those that hold."""
    one = readout_of(run)
    model = one.model
    x, notes = images_for(one, images)
    scores, names = model.read.outputs_of(x), names_of(model)
    rows = []
    for path, row in zip(images, scores.tolist(), strict=True):
        entry: dict[str, Any] = {"image": str(path), "scores": dict(zip(names, row, strict=True))}
        if isinstance(model, Attributes) and model.config.kind == "classes":
            best = max(range(len(row)), key=row.__getitem__)
            entry["holds"] = [names[best]]
            if model.logits:
                entry["probability"] = math.exp(row[best] - torch.tensor(row).logsumexp(0).item())
        elif isinstance(model, Attributes):
            order = sorted(range(len(row)), key=row.__getitem__, reverse=True)
            entry["holds"] = [names[i] for i in order if row[i] > 0]
        rows.append(entry)
    return {"images": rows, "notes": notes}


def find_name(names: Sequence[str], name: str, where: str) -> int:
    """The number of a name, as it is written, or but for upper and lower case."""
    if name in names:
        return list(names).index(name)
    like = [i for i, n in enumerate(names) if n.lower() == name.lower()]
    if len(like) != 1:
        raise ValueError(f"{where}: there is no output {name!r}. {did_you_mean(name, names)}")
    return like[0]


def parse_wish(model: Attributes | Distillation, wish: str) -> dict[int, float]:
    r"""Wanted scores by number of the output, of a wish such as ``Eyeglasses, -Smiling, Young=3``.

    A name sets the score that images with it have on average, ``-NAME`` that of images without it,
    and ``NAME=NUMBER`` any score. For classes a name sets all scores to the class's average.
    """
    names = names_of(model)
    of_class = isinstance(model, Attributes) and model.config.kind == "classes"
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
        elif isinstance(model, Distillation):
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


def wished(model: Attributes | Distillation, wish: str) -> Wish:
    """The wish alone, which leaves all other outputs free, where outputs are separate."""
    found = parse_wish(model, wish)
    if not model.read.separate and len(found) < model.read.outputs:
        raise ValueError(
            "wish: g_y mixes the outputs of this model, so that some cannot be left free. Hold "
            "the others, or train with output_blocks = 0."
        )
    f = model.read.only(list(found)) if model.read.separate else model()
    values = [found[i] for i in (found if model.read.separate else sorted(found))]
    return Wish(f, model.read.weight.new_tensor([values]))


def held(model: Attributes | Distillation, wish: str, scores: Tensor) -> Tensor:
    """The scores (n, k) with the wish in them, and all others as they are."""
    y = scores.clone()
    for i, value in parse_wish(model, wish).items():
        y[:, i] = value
    return y


@torch.no_grad()
def imagine(run: str | Path, wishes: Sequence[str], out: Path | None = None) -> dict[str, Any]:
    r"""f†(y): the image of least norm with the wanted scores, whatever its others are."""
    one = readout_of(run)
    _image_shape(one)
    model = one.model
    zero = model.read.source.zero()
    images, gaps = [], []
    for wish in wishes:
        if model.read.separate:
            f, y = wished(model, wish)
        else:  # the others as they are on average
            f = model()
            y = held(model, wish, f(zero))
        images.append(f.pinv()(y))
        gaps.append((f(images[-1]) - y).abs().max())
    error = _largest(gaps)
    out = out or place(one, "imagined.png")
    written(out)
    image_grid(out, [torch.cat([zero, *images])], [], ["zero", *map(_short, wishes)],
               "Images of least norm, f†(y)", cell=1.3)  # fmt: skip
    return {"score_error": error, "files": [out]}


class Edited(NamedTuple):
    """Images changed as a wish has it, and how well it was met."""

    image: Tensor
    scores: Tensor  #: of the images as they came, (n, outputs)
    edited_scores: Tensor
    error: Tensor  #: largest miss of the scores that were aimed at


@torch.no_grad()
def edited(
    model: Attributes | Distillation,
    x: Tensor,
    wish: str,
    strength: float = 1.0,
    hold: bool | None = None,
) -> Edited:
    r"""x ⊕ s ⊙ f†(y ⊖ f(x)); the arguments are those of :func:`edit`."""
    if not math.isfinite(strength):
        raise ValueError(f"edit: expected a finite strength, got {strength}.")
    f = model()
    hold = not model.read.separate if hold is None else hold
    before = f(x)
    h, y = (f, held(model, wish, before)) if hold else wished(model, wish)
    start = h(x)
    step = h.target.scale(strength, h.target.sub(y.expand(len(x), -1), start))
    made = h.source.add(x, h.pinv()(step))
    error = (h(made) - h.target.add(start, step)).abs().max()
    return Edited(made, before, f(made), error)


@torch.no_grad()
def edit(
    run: str | Path,
    images: Sequence[str | Path],
    wishes: Sequence[str],
    strength: float = 1.0,
    hold: bool | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    r"""x ⊕ s ⊙ f†(y ⊖ f(x)): the nearest image with the wanted scores.

    Arguments:
        wishes: Each makes one picture, see :func:`parse_wish`.
        strength: s; 1 reaches the wanted scores, more goes beyond.
        hold: Keep all other scores as they are; otherwise they follow as they do in the data, which
            is the default where outputs are separate.
    """
    one = readout_of(run)
    model = one.model
    hold = not model.read.separate if hold is None else hold
    x, notes = images_for(one, images)
    columns, gaps, kept = [x], [], [torch.zeros(()).to(x)]
    for wish in wishes:
        made = edited(model, x, wish, strength, hold)
        columns.append(made.image)
        gaps.append(made.error)
        others = torch.ones(made.scores.shape[1], dtype=torch.bool)
        others[list(parse_wish(model, wish))] = False
        if bool(others.any()):
            kept.append((made.edited_scores - made.scores)[:, others].abs().max())
    error = _largest(gaps)
    out = out or place(one, "edited.png")
    written(out)
    rows = [torch.stack(row) for row in zip(*columns, strict=True)]
    title = "Edits x ⊕ f†(y ⊖ f(x))" + ("" if strength == 1 else f", strength {strength:g}")
    labels = ["x", *map(_short, wishes)]
    image_grid(out, rows, [Path(p).stem[:14] for p in images], labels, title, cell=1.3)
    return {
        "score_error": error,
        "others_held": hold,
        "largest_change_of_another_score": _largest(kept),
        "notes": notes,
        "files": [out],
    }


@torch.no_grad()
def vary(
    run: str | Path,
    images: Sequence[str | Path],
    n: int = 6,
    amount: float = 0.7,
    seed: int = 0,
    out: Path | None = None,
) -> dict[str, Any]:
    r"""Other images with the very same scores: z ← Rz + √(1 − a²) Nz + a Nε, R = A†A, N = I − R.

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
    one = readout_of(run)
    f, width = one.model(), one.model.read.width
    if width == one.model.read.outputs:
        raise ValueError(
            f"{run}: it has no coordinates beside its outputs to vary. Train with extra > 0."
        )
    x, notes = images_for(one, images)
    noise = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    rows, gaps = [], []
    for image in x.split(1):
        made = variations(f, image.expand(n, -1, -1, -1), noise, amount)
        gaps.append((f(made) - f(image)).abs().max())
        rows.append(torch.cat([image, made]))
    change = _largest(gaps)
    moved = float(torch.cat([(row[1:] - row[:1]).flatten() for row in rows]).square().mean().sqrt())
    out = out or place(one, "varied.png")
    written(out)
    image_grid(out, rows, [Path(p).stem[:14] for p in images], ["x"],
               f"The same scores to {change:.0e}; pixels differ by {moved:.2f}",
               cell=1.1)  # fmt: skip
    return {
        "largest_change_of_a_score": change,
        "pixel_change": moved,
        "dimension_of_null_space": f.source.dim - f.rank(),
        "notes": notes,
        "files": [out],
    }


def variations(f: Linearizer, x: Tensor, noise: Tensor, amount: float) -> Tensor:
    """Points with the scores of x, moved in the null space along noise of the first coordinates."""
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
    r"""E[g(x) | with] − E[g(x) | without] for each attribute of ``index``, (len(index), dim)."""
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
    r"""The projector g⁻¹(I − QQᵀ)g of the source along the span of ``gaps``, (k, dim).

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
    one = Identity(f.source.dim, dtype=Q.dtype, device=Q.device)
    return Linearizer(f.source, one - LowRank(Q, Q), f.source)


@torch.no_grad()
def erase(
    run: str | Path,
    names: Sequence[str],
    images: Sequence[str | Path],
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    """Images without what tells an attribute from its absence, by a projector of the space."""
    one = readout_of(run)
    model = one.model
    if not isinstance(model, Attributes):
        raise ValueError(f"{run}: only attributes or classes can be erased; it has neither.")
    index = list(dict.fromkeys(find_name(model.config.names, name, "erase") for name in names))
    names = [model.config.names[i] for i in index]
    x, notes = images_for(one, images)
    f = model()
    gaps = class_gap(f, labelled(model, run_data(one, root).train), index)
    cut = model.read.width if model.read.encodes else 0
    rows = [x, *(eraser(f, gap[None], cut)(x) for gap in gaps)]
    labels = ["x", *(f"no {n}" for n in names)]
    P = eraser(f, gaps, cut)
    if len(names) > 1:
        rows.append(P(x))
        labels.append("none of them")
    once = P(x)
    out = out or place(one, "erased.png")
    written(out)
    image_grid(out, rows, labels, [Path(p).stem[:14] for p in images], "Erasure by projection",
               cell=1.1)  # fmt: skip
    return {"idempotency_error": float((P(once) - once).abs().max()), "notes": notes,
            "files": [out]}  # fmt: skip


def labelled(model: Attributes, part: Any, count: int = 20_000) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of images and 0/1 labels (n, names)."""
    k = len(model.config.names)
    for index in torch.arange(min(count, len(part))).split(500):
        x, y = part.batch(index)
        marks = torch.nn.functional.one_hot(y, k) if model.config.kind == "classes" else y
        yield x.to(model.read.weight), marks


def _largest(values: Sequence[Tensor]) -> float:
    """The largest of some numbers; NaN and infinity are refused."""
    largest = float(torch.stack(list(values)).max())
    if not math.isfinite(largest):
        raise ValueError("the result is too large for the numbers of this model. Ask for less.")
    return largest


def _short(wish: str) -> str:
    return wish if len(wish) < 17 else wish[:15] + "…"
