r"""What a trained flow is for: collapse, sample, encode, interpolate, combine, walk."""

from __future__ import annotations

import copy
import hashlib
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import data
from .apps.flow import Flow
from .bijections import Flatten
from .checkpoint import HUB_WEIGHTS, WEIGHTS, is_shipped, read_tensors, write_tensors
from .data.images import Picture
from .linearizer import Linearizer
from .operators import Dense, LowRank, Operator, ScaledIdentityPlusLowRank
from .pictures import image_grid
from .runs import Opened, opened, run_data
from .solvers import choose_steps

__all__ = ["Collapsed", "Compared", "Steps", "along", "bordered", "collapsed", "combine",
           "compared", "encode", "interpolate", "place", "read_for", "sample", "steered", "walk",
           "written"]  # fmt: skip


class Steps(NamedTuple):
    """Which solver, how often, and what may be dropped from the result."""

    solver: str = "rk4"
    steps: int = 1000
    t0: float = 0.0
    t1: float = 1.0
    rtol: float = 0.0

    def __str__(self) -> str:
        times = "" if (self.t0, self.t1) == (0.0, 1.0) else f"-from-{self.t0:g}-to-{self.t1:g}"
        return f"{self.solver}-{self.steps}{times}" + (f"-rtol-{self.rtol:g}" if self.rtol else "")


STEPS = Steps()


class Collapsed(NamedTuple):
    """The one-step map, and where its operator is kept."""

    f: Linearizer
    path: Path | None  #: None for a shipped model, whose folder stays as it is
    reused: bool
    seconds: float


def flow_of(run: str | Path) -> Opened:
    """A run that holds a flow."""
    one = opened(run)
    if not isinstance(one.model, Flow):
        raise ValueError(f"{run}: expected a flow, but the run holds {one.app.name}.")
    return one


@torch.no_grad()
def collapsed(run: Opened, how: Steps = STEPS, again: bool = False) -> Collapsed:
    """The steps as one operator, from the run folder where it was kept."""
    begun = time.perf_counter()
    model: Flow = run.model
    path = None
    if not is_shipped(run.folder):
        path = run.folder / "operators" / f"{how}.safetensors"
        key = {"weights": _digest(run.folder), **how._asdict()}
        if path.exists() and not again and (kept := _kept(path, key)) is not None:
            f = Linearizer(model.source, kept, model.target)
            return Collapsed(f, path, True, time.perf_counter() - begun)
    f = model.collapse(*how)
    if path is not None:
        tensors, kind = _pack(f.operator)
        try:
            path.parent.mkdir(exist_ok=True)
            write_tensors(path, tensors, {"kind": kind, **key})
        except OSError:
            path = None  # a folder that cannot be written; it works without
    return Collapsed(f, path, False, time.perf_counter() - begun)


def _kept(path: Path, key: dict[str, Any]) -> Operator | None:
    """The operator in a file, if it is whole and of these weights and steps."""
    try:
        tensors, about = read_tensors(path)
        if any(about.get(name) != value for name, value in key.items()):
            return None
        return _unpack(tensors, about["kind"])
    except (ValueError, OSError, KeyError):
        return None  # damaged: it is made again


def steps_for(run: Opened, solver: str, error: float, t0: float = 0.0, t1: float = 1.0) -> int:
    """How many steps reach a relative error, judged in float64."""
    return choose_steps(copy.deepcopy(run.model.family).double(), solver, error, t0, t1)


def _digest(folder: Path) -> str:
    path = folder / WEIGHTS
    if not path.exists():
        path = folder / HUB_WEIGHTS
    return hashlib.sha256(path.read_bytes()).hexdigest()


_KINDS: dict[str, tuple[type[Operator], tuple[str, ...]]] = {
    "LowRank": (LowRank, ("U", "V")),
    "ScaledIdentityPlusLowRank": (ScaledIdentityPlusLowRank, ("alpha", "U", "V")),
    "Dense": (Dense, ("matrix",)),
}


def _pack(A: Operator) -> tuple[dict[str, Tensor], str]:
    kind = type(A).__name__
    if kind not in _KINDS:
        A, kind = Dense(A.dense()), "Dense"
    return {name: getattr(A, name).detach().contiguous() for name in _KINDS[kind][1]}, kind


def _unpack(tensors: dict[str, Tensor], kind: str) -> Operator:
    make, names = _KINDS[kind]
    return make(*(tensors[name] for name in names))


# -- uses --------------------------------------------------------------------------------------


@torch.no_grad()
def steered(
    model: Flow, n: int, seed: int, temperature: float = 1.0, V: Tensor | None = None,
    amounts: Sequence[float] = (),
) -> Tensor:  # fmt: skip
    r"""Noise moved by Σ aᵢ·σᵢ·vᵢ in its coordinates, vᵢ the first columns of V, (dim, k).

    σᵢ is the spread of noise along vᵢ: 1 where noise is its own coordinates, else measured.
    """
    noise = temperature * model.noise(n, seed)
    if V is None or not any(amounts):
        return noise
    if len(amounts) > V.shape[1]:
        raise ValueError(
            f"directions: expected at most {V.shape[1]}, the rank of f, got {len(amounts)}."
        )
    V = V[:, : len(amounts)]
    a = torch.tensor(amounts).to(V)
    if not isinstance(model.source.g, Flatten):
        a = a * (model.source.coordinates(model.noise(512, 0)) @ V).std(0)
    return model.source.points(model.source.coordinates(noise) + V @ a)


@torch.no_grad()
def along(f: Linearizer, back: Linearizer, a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    r"""f((1−s) f†(a) ⊕ s f†(b)) for all s; ``back`` is f†."""
    codes = back(torch.cat([a, b]))
    return f(f.source.geodesic(codes[:1], codes[1:], s.to(codes)).flatten(0, 1))


class Compared(NamedTuple):
    """One sample by one operator and by the loop that it equals."""

    one_step: Tensor
    loop: Tensor
    one_step_seconds: float
    loop_seconds: float


@torch.no_grad()
def compared(model: Flow, f: Linearizer, how: Steps, seed: int) -> Compared:
    """Both ways from the same noise, timed."""
    noise = model.noise(1, seed)
    f(noise)  # not timed: the first call of all is slower
    start = time.perf_counter()
    one = f(noise)
    middle = time.perf_counter()
    loop = model.integrate(noise, how.solver, how.steps)
    return Compared(one, loop, middle - start, time.perf_counter() - middle)


@torch.no_grad()
def sample(
    run: str | Path,
    n: int,
    seed: int = 0,
    how: Steps = STEPS,
    out: Path | None = None,
    tensor: Path | None = None,
    temperature: float = 1.0,
    loop: bool = False,
) -> dict[str, Any]:
    """Samples from noise, by the collapsed operator or by the loop that it equals."""
    if not math.isfinite(temperature):
        raise ValueError(f"sample: expected a finite temperature, got {temperature}.")
    one = flow_of(run)
    model: Flow = one.model
    noise = temperature * model.noise(n, seed)
    if loop:
        begun = time.perf_counter()
        x = torch.cat([model.integrate(part, how.solver, how.steps) for part in noise.split(256)])
        facts: dict[str, Any] = {"operator": None, "reused": False}
    else:
        B = collapsed(one, how)
        begun = time.perf_counter()
        x = torch.cat([B.f(part) for part in noise.split(256)])
        facts = {"operator": B.path, "reused": B.reused, "collapse_seconds": B.seconds}
    seconds = time.perf_counter() - begun
    out = out or place(one, f"seed-{seed}.png")
    columns = min(n, max(1, round(n**0.5)))
    written(out)
    kind = f"{how.steps} steps of {how.solver}" + ("" if loop else ", collapsed into one")
    image_grid(out, x[: 32 * columns].split(columns), title=f"{one.folder.name}: {kind}", cell=0.6)
    files = [out]
    if tensor is not None:
        written(tensor)
        write_tensors(tensor, {"x": x, "noise": noise}, {"seed": seed, "run": one.folder.name})
        files.append(tensor)
    return {"samples": n, "seconds": seconds, **facts, "files": files}


@torch.no_grad()
def encode(
    run: str | Path,
    images: Sequence[str | Path],
    how: Steps = STEPS,
    out: Path | None = None,
    tensor: Path | None = None,
) -> dict[str, Any]:
    """Images to noise by f†, and back."""
    from .metrics import psnr

    one = flow_of(run)
    x, notes = read_for(one, images)
    f = collapsed(one, how).f
    noise = f.pinv()(x)
    back = f(noise)
    out = out or place(one, "encoded.png")
    written(out)
    names = [Path(p).name[:14] for p in images]
    shown = noise / (2 * noise.flatten(1).std(1).clamp_min(1e-6))[:, None, None, None] / 2 + 0.5
    image_grid(
        out, [x[:16], shown[:16], back[:16]], ["x", "f†(x)", "f(f†(x))"], names[:16],
        "Images, the noise that they come from, and back",
    )  # fmt: skip
    files = [out]
    if tensor is not None:
        written(tensor)
        write_tensors(tensor, {"noise": noise, "x": x}, {"run": one.folder.name})
        files.append(tensor)
    rows = {str(p): v for p, v in zip(images, psnr(back.clamp(0, 1), x).tolist(), strict=True)}
    return {"psnr": rows, "notes": notes, "files": files}


@torch.no_grad()
def interpolate(
    run: str | Path, a: str | Path, b: str | Path, n: int = 9, how: Steps = STEPS,
    out: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    r"""f((1−s) f†(a) ⊕ s f†(b)) for n values of s, over the cross-fade of pixels."""
    one = flow_of(run)
    x, notes = read_for(one, [a, b])
    f = collapsed(one, how).f
    s = torch.linspace(0, 1, n)
    path = along(f, f.pinv(), x[:1], x[1:], s)
    fade = torch.cat([(1 - v) * x[:1] + v * x[1:] for v in s])
    out = out or place(one, "interpolation.png")
    written(out)
    image_grid(out, [path, fade], ["through the noise", "cross-fade"], [f"{v:.2g}" for v in s],
               f"From {Path(a).name} to {Path(b).name}")  # fmt: skip
    return {"notes": notes, "files": [out]}


@torch.no_grad()
def combine(
    run: str | Path,
    expression: str,
    how: Steps = STEPS,
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    r"""f(⊕ᵢ aᵢ ⊙ f†(xᵢ)) for a sum such as ``class:3 - class:8 + photo.png``.

    ``class:NAME`` is the mean, in the induced space of the noise, of the training images of a
    class or attribute.
    """
    one = flow_of(run)
    terms = _parse(expression)
    f = collapsed(one, how).f
    encode = f.pinv()
    points, notes, labels = [], [], []
    for weight, what in terms:
        if what.startswith("class:"):
            code = _class_mean(one, what[6:], encode, root)
        else:
            x, more = read_for(one, [what])
            notes += more
            code = encode(x)
        points.append(code)
        labels.append(f"{weight:+g} {Path(what).name}")
    result = f(f.source.combine([w for w, _ in terms], torch.cat(points)))
    out = out or place(one, "combination.png")
    written(out)
    image_grid(out, [torch.cat([*(f(p) for p in points), result])], [], [*labels, "sum"],
               "Arithmetic of what the images encode to", cell=1.2)  # fmt: skip
    return {"terms": labels, "notes": notes, "files": [out]}


@torch.no_grad()
def walk(
    run: str | Path, k: int = 6, seed: int = 0, how: Steps = STEPS, out: Path | None = None
) -> dict[str, Any]:
    r"""From one noise x₀ along the strongest singular directions vᵢ of f, with ⟨x, vᵢ⟩ = −3 … 3."""
    one = flow_of(run)
    f = collapsed(one, how).f
    svd = f.operator.svd(k)
    start = f.source.coordinates(one.model.noise(1, seed))
    amounts = torch.linspace(-3, 3, 9)
    rows = []
    for v in svd.V.mT[:k]:
        z = start + (amounts[:, None].to(start) - start[0] @ v) * v
        rows.append(f(f.source.points(z)))
    out = out or place(one, f"walk-seed-{seed}.png")
    written(out)
    image_grid(out, rows, [f"v{i + 1}, σ = {s:.3g}" for i, s in enumerate(svd.S[:k].tolist())],
               [f"{c:+.2g}" for c in amounts], "One sample along singular directions")  # fmt: skip
    return {"singular_values": svd.S[:k].tolist(), "files": [out]}


def _parse(expression: str) -> list[tuple[float, str]]:
    """``2*a.png - class:8 + b.png`` as [(2.0, "a.png"), (-1.0, "class:8"), (1.0, "b.png")]."""
    terms = []
    text = expression.strip()
    first, text = (text[0], text[1:].strip()) if text[:1] in ("+", "-") else ("+", text)
    pieces = re.split(r"\s+([+-])\s+", text)
    for sign, piece in zip([first, *pieces[1::2]], pieces[0::2], strict=True):
        number, star, what = piece.partition("*")
        if not star:
            number, what = "1", piece
        try:
            weight = float(number)
        except ValueError:
            weight = float("nan")
        if not what.strip() or not math.isfinite(weight):
            raise ValueError(
                f"combine: expected terms like 0.5*a.png or class:3 with + and - between them, "
                f"got {piece!r}."
            )
        terms.append((weight if sign == "+" else -weight, what.strip()))
    return terms


def _class_mean(one: Opened, name: str, encode: Linearizer, root: Path | None) -> Tensor:
    train = run_data(one, root).train
    if not isinstance(train, data.Images) or train.labels is None:
        raise ValueError(f"combine: {one.folder.name} was trained on images without labels.")
    names = [n.lower() for n in train.names]
    if name.lower() not in names:
        raise ValueError(f"combine: there is no class {name!r}. Known: {', '.join(train.names)}.")
    i = names.index(name.lower())
    of = train.labels == i if train.labels.ndim == 1 else train.labels[:, i] > 0
    index = of.nonzero()[:2000, 0]
    return encode.target.mean(torch.cat([encode(train.batch(p).x) for p in index.split(256)]))


def read_for(one: Opened, images: Sequence[str | Path | Picture]) -> tuple[Tensor, list[str]]:
    """Images as a model takes them, and a note for each that was converted."""
    x, notes = data.read_images(images, tuple(one.model.target.shape), bordered(one))
    return x.to(one.model._like()), notes


def bordered(one: Opened) -> int | None:
    """The side of images that get a border rather than being resized, as the run's data did."""
    name = str((one.config.get("data") or {}).get("name"))
    return {"mnist": 28, "digits": 8}.get(name)


def place(one: Opened, name: str) -> Path:
    """Where a picture goes unless told: into the run, or beside the user for a shipped model."""
    if is_shipped(one.folder):
        return Path(f"{one.folder.name}-{name}")
    return one.folder / "samples" / name


def written(path: Path) -> None:
    """Make the folder of a file that is to be written."""
    if path.is_dir():
        raise ValueError(f"{path}: expected a file to write, but it is a folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
