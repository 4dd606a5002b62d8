r"""What a trained flow is for: collapse, sample, encode, interpolate, combine, walk."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import data
from ...bijections import Flatten
from ...linearizer import Linearizer
from ...metrics.images import psnr
from ...runs.pictures import image_grid
from ...runs.store import load_data, open_run, place, save
from ...solvers import choose_steps
from ...training.checkpoint import CONFIG, read_config, write_tensors
from ..base import Run
from ..images import make_parent, picture_path, read_images_for
from .model import Flow

__all__ = [
    "Comparison",
    "Steps",
    "choose_number_of_steps",
    "collapse",
    "combine",
    "compare",
    "encode",
    "interpolate",
    "interpolate_between",
    "open_flow",
    "sample",
    "steer",
    "walk",
]


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


def open_flow(run: str | Path | Run) -> Run:
    """Open a run that holds a flow, and refuse any other."""
    opened = run if isinstance(run, Run) else open_run(run)
    if not isinstance(opened.model, Flow):
        held = opened.app.name
        raise ValueError(f"{opened.folder}: expected a flow, but the run holds {held}.")
    return opened


@torch.no_grad()
def collapse(run: str | Path | Run, how: Steps = STEPS, out: Path | None = None) -> dict[str, Any]:
    """Collapse the steps into one operator, and write the one-step map into a folder.

    ``lz.load`` of the folder, RUN/operators/HOW unless told, gives the Linearizer.
    """
    run = open_flow(run)
    folder = out or place(run, f"operators/{how}")
    if (folder / CONFIG).exists() and read_config(folder)["app"] is not None:
        raise ValueError(
            f"collapse: expected a new folder or one of an earlier collapse, but {folder} holds a "
            "run. Choose another with --out."
        )
    begun = time.perf_counter()
    f = run.model.collapse(*how)
    seconds = time.perf_counter() - begun
    save(f, folder)
    return {
        **how._asdict(),
        "seconds": seconds,
        "rank": f.rank(),
        "kind": type(f.operator).__name__,
        "shape": list(f.operator.shape),
        "files": [folder],
    }


def choose_number_of_steps(
    run: str | Path | Run, solver: str, error: float, t0: float = 0.0, t1: float = 1.0
) -> int:
    """Return how many steps reach a relative error, judged in float64."""
    family = copy.deepcopy(open_flow(run).model.family).double()
    return choose_steps(family, solver, error, t0, t1)


# -- on tensors --------------------------------------------------------------------------------


@torch.no_grad()
def steer(
    model: Flow,
    n: int,
    seed: int,
    temperature: float = 1.0,
    V: Tensor | None = None,
    amounts: Sequence[float] = (),
) -> Tensor:
    r"""Return noise moved by Σ aᵢ·σᵢ·vᵢ in its coordinates, vᵢ the first columns of V, (dim, k).

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
    return model.source.points(model.source.coordinates(noise) + V @ (a * noise_spread(model, V)))


def noise_spread(model: Flow, V: Tensor) -> Tensor:
    """Return the standard deviation of noise along each column of V, in its coordinates, (k,)."""
    if isinstance(model.source.g, Flatten):
        return V.new_ones(V.shape[1])
    return (model.source.coordinates(model.noise(512, 0)) @ V).std(0)


@torch.no_grad()
def interpolate_between(f: Linearizer, back: Linearizer, a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    r"""Return f((1−s) f†(a) ⊕ s f†(b)) for all s; ``back`` is f†."""
    codes = back(torch.cat([a, b]))
    return f(f.source.geodesic(codes[:1], codes[1:], s.to(codes)).flatten(0, 1))


class Comparison(NamedTuple):
    """One sample by one operator and by the loop that it equals."""

    one_step: Tensor
    loop: Tensor
    one_step_seconds: float
    loop_seconds: float


@torch.no_grad()
def compare(model: Flow, f: Linearizer, how: Steps, seed: int) -> Comparison:
    """Go both ways from the same noise, and time them."""
    noise = model.noise(1, seed)
    f(noise)  # not timed: the first call of all is slower
    start = time.perf_counter()
    once = f(noise)
    middle = time.perf_counter()
    loop = model.integrate(noise, how.solver, how.steps)
    return Comparison(once, loop, middle - start, time.perf_counter() - middle)


# -- on files ----------------------------------------------------------------------------------


@torch.no_grad()
def sample(
    run: str | Path | Run,
    n: int,
    seed: int = 0,
    how: Steps = STEPS,
    out: Path | None = None,
    tensor: Path | None = None,
    temperature: float = 1.0,
    loop: bool = False,
) -> dict[str, Any]:
    """Draw samples from noise, by the collapsed operator or by the loop that it equals."""
    if not abs(temperature) <= 1e6:
        raise ValueError(f"sample: expected a finite temperature up to 1e6, got {temperature:g}.")
    run = open_flow(run)
    model: Flow = run.model
    noise = temperature * model.noise(n, seed)
    begun = time.perf_counter()
    f = None if loop else model.collapse(*how)
    middle = time.perf_counter()
    parts = noise.split(256)
    x = torch.cat([f(p) if f else model.integrate(p, how.solver, how.steps) for p in parts])
    end = time.perf_counter()
    kind = f"{how.steps} steps of {how.solver}" + ("" if loop else ", collapsed into one")
    columns = max(1, round(n**0.5))
    out = make_parent(out or picture_path(run, f"seed-{seed}.png"))
    image_grid(out, x[: 32 * columns].split(columns), title=f"{run.folder.name}: {kind}", cell=0.6)
    files = [out]
    if tensor is not None:
        files.append(make_parent(tensor))
        write_tensors(tensor, {"x": x, "noise": noise}, {"seed": seed, "run": run.folder.name})
    return {
        "samples": n,
        "seconds": end - middle,
        "collapse_seconds": 0.0 if loop else middle - begun,
        "files": files,
    }


@torch.no_grad()
def encode(
    run: str | Path | Run,
    images: Sequence[str | Path],
    how: Steps = STEPS,
    out: Path | None = None,
    tensor: Path | None = None,
) -> dict[str, Any]:
    """Encode images to noise by f†, and decode them again."""
    run = open_flow(run)
    x, notes = read_images_for(run, images)
    f = run.model.collapse(*how)
    noise = f.pinv()(x)
    back = f(noise)
    out = make_parent(out or picture_path(run, "encoded.png"))
    names = [Path(p).name[:14] for p in images[:16]]
    spread = noise.flatten(1).std(1).clamp_min(1e-6)[:, None, None, None]
    rows = [row[:16] for row in (x, noise / (4 * spread) + 0.5, back)]
    title = "Images, the noise that they come from, and back"
    image_grid(out, rows, ["x", "f†(x)", "f(f†(x))"], names, title)
    files = [out]
    if tensor is not None:
        files.append(make_parent(tensor))
        write_tensors(tensor, {"noise": noise, "x": x}, {"run": run.folder.name})
    values = psnr(back.clamp(0, 1), x).tolist()
    found = {str(path): value for path, value in zip(images, values, strict=True)}
    return {"psnr": found, "notes": notes, "files": files}


@torch.no_grad()
def interpolate(
    run: str | Path | Run,
    a: str | Path,
    b: str | Path,
    n: int = 9,
    how: Steps = STEPS,
    out: Path | None = None,
) -> dict[str, Any]:
    r"""Draw f((1−s) f†(a) ⊕ s f†(b)) for n values of s, over the cross-fade of pixels."""
    run = open_flow(run)
    x, notes = read_images_for(run, [a, b])
    f = run.model.collapse(*how)
    s = torch.linspace(0, 1, n)
    path = interpolate_between(f, f.pinv(), x[:1], x[1:], s)
    fade = torch.cat([(1 - v) * x[:1] + v * x[1:] for v in s])
    out = make_parent(out or picture_path(run, "interpolation.png"))
    labels, title = ["through the noise", "cross-fade"], f"From {Path(a).name} to {Path(b).name}"
    image_grid(out, [path, fade], labels, [f"{v:.2g}" for v in s], title)
    return {"notes": notes, "files": [out]}


@torch.no_grad()
def combine(
    run: str | Path | Run,
    expression: str,
    how: Steps = STEPS,
    out: Path | None = None,
    root: Path | None = None,
) -> dict[str, Any]:
    r"""Draw f(⊕ᵢ aᵢ ⊙ f†(xᵢ)) for a sum such as ``class:3 - class:8 + photo.png``.

    ``class:NAME`` is the mean, in the induced space of the noise, of the training images of a
    class or attribute.
    """
    run = open_flow(run)
    terms = _parse(expression)
    f = run.model.collapse(*how)
    encode = f.pinv()
    points, notes, labels = [], [], []
    for weight, what in terms:
        if what.startswith("class:"):
            code = _class_mean(run, what[6:], encode, root)
        else:
            x, more = read_images_for(run, [what])
            notes += more
            code = encode(x)
        points.append(code)
        labels.append(f"{weight:+g} {Path(what).name}")
    result = f(f.source.combine([w for w, _ in terms], torch.cat(points)))
    row = torch.cat([*(f(p) for p in points), result])
    out = make_parent(out or picture_path(run, "combination.png"))
    title = "Arithmetic of what the images encode to"
    image_grid(out, [row], [], [*labels, "sum"], title, cell=1.2)
    return {"terms": labels, "notes": notes, "files": [out]}


@torch.no_grad()
def walk(
    run: str | Path | Run, k: int = 6, seed: int = 0, how: Steps = STEPS, out: Path | None = None
) -> dict[str, Any]:
    r"""Walk from a noise x₀ along the strongest singular directions vᵢ of f: ⟨x, vᵢ⟩ = −3 … 3 times
    the deviation of noise along vᵢ.
    """
    run = open_flow(run)
    f = run.model.collapse(*how)
    svd = f.operator.svd(k)
    start = f.source.coordinates(run.model.noise(1, seed))
    amounts = torch.linspace(-3, 3, 9)
    rows = []
    for v, spread in zip(svd.V.mT[:k], noise_spread(run.model, svd.V[:, :k]), strict=True):
        z = start + (amounts[:, None].to(start) * spread - start[0] @ v) * v
        rows.append(f(f.source.points(z)))
    values = svd.S[:k].tolist()
    labels = [f"v{i}, σ = {s:.3g}" for i, s in enumerate(values, 1)]
    out = make_parent(out or picture_path(run, f"walk-seed-{seed}.png"))
    title = "One sample along singular directions"
    image_grid(out, rows, labels, [f"{c:+.2g}" for c in amounts], title)
    return {"singular_values": values, "files": [out]}


def _parse(expression: str) -> list[tuple[float, str]]:
    """Read ``2*a.png - class:8 + b.png`` as [(2.0, "a.png"), (-1.0, "class:8"), (1.0, "b.png")]."""
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


def _class_mean(run: Run, name: str, encode: Linearizer, root: Path | None) -> Tensor:
    train = load_data(run, root).train
    if not isinstance(train, data.Images) or train.labels is None:
        raise ValueError(f"combine: {run.folder.name} was trained on images without labels.")
    names = [n.lower() for n in train.names]
    if name.lower() not in names:
        raise ValueError(f"combine: there is no class {name!r}. Known: {', '.join(train.names)}.")
    i = names.index(name.lower())
    member = train.labels == i if train.labels.ndim == 1 else train.labels[:, i] > 0
    index = member.nonzero()[:2000, 0]
    return encode.target.mean(torch.cat([encode(train.batch(p).x) for p in index.split(256)]))
