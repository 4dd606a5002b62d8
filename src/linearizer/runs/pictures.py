r"""Grids of images and plots of spectra, for a person to look at."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.dates import clock, scale
from ..linearizer import Linearizer
from ..operators import UnsupportedError
from ..spaces import Space
from ..training.checkpoint import atomic

__all__ = ["amounts", "draw_spectrum", "image_grid", "save_figure", "series_plot", "values_of"]


def save_figure(figure: Any, path: Path, **how: Any) -> None:
    """Write a figure of matplotlib in the format of the name's ending, PNG where it has none."""
    with atomic(path) as part:
        figure.savefig(part, format=path.suffix[1:].lower() or "png", **how)


def image_grid(
    path: Path,
    rows: Sequence[Tensor],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    title: str = "",
    cell: float = 0.8,
) -> None:
    """Write rows of images, each (n, C, H, W) in [0, 1], as one labelled PNG.

    Labels are broken into lines that fit, and the picture grows with them.
    """
    from matplotlib.figure import Figure

    columns = max(len(row) for row in rows)
    H, W = rows[0].shape[2:]
    row_labels = [textwrap.fill(label, 30) for label in row_labels]
    column_labels = [textwrap.fill(label, max(5, int(cell / 0.075))) for label in column_labels]
    title = textwrap.fill(title, max(30, int(columns * cell / 0.09)))
    # Inches kept free for the labels on the left and the title above.
    longest = max((len(line) for label in row_labels for line in label.split("\n")), default=0)
    left = 0.25 + 0.075 * longest
    lines = 1 + max((label.count("\n") for label in column_labels), default=0)
    above = 0.15 + (0.3 + 0.18 * title.count("\n") if title else 0)
    above += 0.05 + 0.14 * lines if column_labels else 0
    width, height = left + columns * cell + 0.1, above + len(rows) * cell * H / W + 0.1
    figure = Figure(figsize=(width, height), dpi=130)
    inside = (left / width, 0.1 / height, columns * cell / width, 1 - (above + 0.1) / height)
    axes = figure.add_axes(inside)
    axes.set_axis_off()
    # All images as one, enlarged to whole pixels with a little space around each.
    factor = max(1, math.ceil(130 * cell / W))
    gap = max(1, round(0.03 * W * factor))
    tile, tall = W * factor + gap, H * factor + gap
    canvas = torch.ones(len(rows) * tall, columns * tile, 3)
    for i, row in enumerate(rows):
        for j, image in enumerate(row.detach().float().clamp(0, 1).cpu()):
            large = image.expand(3, H, W).repeat_interleave(factor, 1).repeat_interleave(factor, 2)
            canvas[i * tall : i * tall + H * factor, j * tile : j * tile + W * factor] = (
                large.movedim(0, -1)
            )
    axes.imshow(canvas.numpy(), interpolation="nearest", aspect="auto")
    for i, label in enumerate(row_labels[: len(rows)]):
        middle = i * tall + H * factor / 2
        axes.text(-gap - 4, middle, label, ha="right", va="center", fontsize=9)
    for j, label in enumerate(column_labels[:columns]):
        axes.text(j * tile + W * factor / 2, -gap, label, ha="center", va="bottom", fontsize=9)
    if title:
        figure.suptitle(title, x=0.5, y=1 - 0.12 / height, va="top", fontsize=11)
    save_figure(figure, path, bbox_inches="tight", pad_inches=0.08)


def series_plot(
    path: Path,
    past: Tensor,
    middle: Tensor,
    lower: Tensor,
    upper: Tensor,
    truth: Tensor | None,
    names: Sequence[str],
    shown: Sequence[int] | None = None,
    title: str = "",
    times: Sequence[str] = (),
) -> None:
    """Write a panel for each channel: past, forecast and its interval, truth where it is known.

    ``past`` is (look_back, channels), all others (horizon, channels). Where ``times`` of all these
    rows can be read, they are on the axis.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    shown = range(len(names)) if shown is None else shown
    figure = Figure(figsize=(9, 0.6 + 1.7 * len(shown)), dpi=110, layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    place = _place_times(times, len(past), len(middle))
    before, after = place[: len(past)], place[len(past) :]
    for axes, i in zip(panels, shown, strict=True):
        line, low, high, old = (v[:, i].cpu().numpy() for v in (middle, lower, upper, past))
        axes.fill_between(after, low, high, color="C0", alpha=0.2, linewidth=0, label="interval")
        axes.plot(before, old, color="0.3", linewidth=1, label="past")
        axes.plot(after, line, color="C0", linewidth=1.5, label="forecast")
        if truth is not None:
            axes.plot(after, truth[:, i].cpu().numpy(), color="C1", linewidth=1, label="truth")
        axes.set_title(names[i], fontsize=9, loc="left")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8, ncols=4, loc="upper left")
    if place.dtype.kind == "M":
        ticks = AutoDateLocator()
        panels[-1].xaxis.set_major_locator(ticks)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(ticks))
    elif place[len(past) - 1] == 0:
        panels[-1].set_xlabel("steps after the last row")
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def _place_times(times: Sequence[str], past: int, future: int) -> np.ndarray:
    """Return where rows are on the axis: dates or numbers, or steps where these are not known."""
    found = scale(times) if len(times) == past + future else None
    if found is None:
        return np.arange(1 - past, future + 1)
    at = clock(times)
    return found.at if at is None else (at * 1000).astype("datetime64[ms]")


@torch.no_grad()
def values_of(f: Linearizer, limit: int = 512) -> tuple[Tensor, Tensor | None]:
    """Singular values, and eigenvalues where f goes from a Space to itself; ``limit`` at most."""
    count = min(*f.operator.shape, limit)
    eigenvalues = None
    if f.source is f.target:
        try:
            eigenvalues = f.operator.eig(count).values
        except UnsupportedError:
            eigenvalues = None
    return f.operator.svd(count).S, eigenvalues


@torch.no_grad()
def draw_spectrum(
    f: Linearizer,
    folder: Path,
    k: int = 8,
    limit: int = 512,
    names: Sequence[str] = (),
    reach: float | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    r"""Plot the singular values (and eigenvalues) of f, and draw its first singular vectors.

    Arguments:
        f: The map; eigenvalues need one from a Space to itself.
        folder: Where spectrum.png and the pictures of the singular vectors go.
        k: How many singular vectors to draw.
        limit: How many values to compute and plot at most.
        names: Of the channels, where points are series (steps, channels).
        reach: How far to go along each singular vector; √dim if not given, as far as data lie
            whose coordinates all have variance 1.
        notes: Words beside each singular vector.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = min(f.operator.shape)
    k = min(k, size)
    values, eigenvalues = values_of(f, limit)
    files = [folder / "spectrum.png"]
    _plot_spectrum(values, eigenvalues, size, files[0])
    svd = f.svd(k)
    for name, vectors, space in (("input", svd.V, f.source), ("output", svd.U, f.target)):
        if len(space.shape) == 3 and space.shape[0] in (1, 3):
            files.append(folder / f"{name}-singular-vectors.png")
            _walks(vectors, svd.S, space, name, files[-1], reach, notes)
        elif len(space.shape) == 2:
            files.append(folder / f"{name}-singular-vectors.png")
            _curves(vectors, svd.S, space, name, files[-1], names)
    result: dict[str, Any] = {"dimensions": list(f.operator.shape)}
    result["singular_values"] = values.tolist()
    if eigenvalues is not None:
        result["eigenvalues"] = [[v.real, v.imag] for v in eigenvalues.tolist()]
    return {**result, "files": [str(p) for p in files]}


def _curves(
    vectors: Tensor, values: Tensor, space: Space, name: str, path: Path, names: Sequence[str]
) -> None:
    """Each singular vector of windows (steps, channels) as curves, the strongest channels named.

    Drawn is v ⊖ 0 as a difference of points, g⁻¹(v) − g⁻¹(0).
    """
    from matplotlib.figure import Figure

    columns = 1 if len(vectors) == 1 else 2
    rows = -(-len(vectors) // columns)
    figure = Figure(figsize=(5.5 * columns, 0.5 + 1.8 * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    difference = (vectors - space.zero()).float().cpu()
    for axes, curve, value in zip(panels, difference, values.tolist(), strict=False):
        strong = curve.square().sum(0).argsort(descending=True)[:3].tolist()
        for i in range(curve.shape[1]):
            label = (names[i] if names else f"channel {i}") if i in strong else None
            shown = {"linewidth": 1.5} if label else {"linewidth": 0.6, "color": "0.75"}
            axes.plot(curve[:, i].numpy(), label=label, **shown)
        axes.set_title(f"σ = {value:.3g}", fontsize=9, loc="left")
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    for axes in panels[len(vectors) :]:
        axes.set_axis_off()
    figure.suptitle(f"{name.capitalize()} singular vectors, as curves over steps", fontsize=11)
    save_figure(figure, path)


def _plot_spectrum(values: Tensor, eigenvalues: Tensor | None, size: int, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = 1 if eigenvalues is None else 2
    figure = Figure(figsize=(5.5 * panels, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot(1, panels, 1)
    s = values.double().cpu().numpy()
    axes.plot(range(1, len(s) + 1), s, "o-", markersize=3, linewidth=1)
    # A logarithm where the values span decades; exact zeros have no place on it.
    if s.min() > 0 and s.max() > 30 * s.min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    shown = "" if len(s) == size else f", the first {len(s)} of {size}"
    axes.set(xlabel="i", ylabel="σᵢ", title=f"Singular values{shown}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.1)
    axes.grid(alpha=0.3)
    if eigenvalues is not None:
        plane = figure.add_subplot(1, panels, 2)
        points = eigenvalues.cpu().numpy()
        circle = torch.linspace(0, 2 * torch.pi, 200)
        plane.plot(circle.cos().numpy(), circle.sin().numpy(), color="0.7", linewidth=1)
        plane.plot(points.real, points.imag, "o", markersize=4)
        plane.set(xlabel="Re λ", ylabel="Im λ", title="Eigenvalues and the unit circle")
        plane.set_aspect("equal", "datalim")
        plane.grid(alpha=0.3)
    save_figure(figure, path)


def amounts(space: Space, reach: float | None = None) -> list[float]:
    """How far to go along a vector; data with unit variance has norms around √dim."""
    if reach is None:
        return [c * space.dim**0.5 for c in (-1.0, -0.5, -0.125, 0.125, 0.5, 1.0)]
    return [c * reach for c in (-1.0, -2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3, 1.0)]


def _walks(
    vectors: Tensor,
    values: Tensor,
    space: Space,
    name: str,
    path: Path,
    reach: float | None,
    notes: Sequence[str],
) -> None:
    """Rows c ⊙ v for each singular vector."""
    steps = amounts(space, reach)
    words = [f" {note}" for note in notes] or [""] * len(vectors)
    image_grid(
        path,
        [torch.cat([space.scale(c, v[None]) for c in steps]) for v in vectors],
        [f"{i + 1}, σ = {s:.3g}{words[i]}" for i, s in enumerate(values.tolist())],
        [f"{c:+.3g} ⊙ v" for c in steps],
        f"{name.capitalize()} singular vectors, as images",
    )
