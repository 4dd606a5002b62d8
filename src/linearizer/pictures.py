r"""Grids of images with labels, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

__all__ = ["image_grid"]


def image_grid(
    path: Path,
    rows: Sequence[Tensor],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    title: str = "",
    cell: float = 0.8,
) -> None:
    """Write rows of images, each (n, C, H, W) in [0, 1], as one labelled PNG."""
    from matplotlib.figure import Figure

    columns = max(len(row) for row in rows)
    # Inches kept free for the labels on the left and the title above.
    left = 0.25 + 0.075 * max(map(len, row_labels), default=0)
    above = 0.15 + (0.35 if title else 0) + (0.25 if column_labels else 0)
    width, height = left + columns * cell + 0.1, above + len(rows) * cell + 0.1
    figure = Figure(figsize=(width, height), dpi=130)
    grid = figure.add_gridspec(
        len(rows), columns, wspace=0.06, hspace=0.06, left=left / width, right=1 - 0.1 / width,
        top=1 - above / height, bottom=0.1 / height,
    )  # fmt: skip
    for i, row in enumerate(rows):
        for j, image in enumerate(row.detach().clamp(0, 1).cpu()):
            axes = figure.add_subplot(grid[i, j])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            grey = image.shape[0] == 1
            pixels = image[0] if grey else image.movedim(0, -1)
            axes.imshow(pixels.numpy(), cmap="gray" if grey else None, vmin=0, vmax=1)
            if j == 0 and i < len(row_labels):
                axes.set_ylabel(row_labels[i], rotation=0, ha="right", va="center", fontsize=9)
            if i == 0 and j < len(column_labels):
                axes.set_title(column_labels[j], fontsize=9, pad=4)
    if title:
        figure.suptitle(title, x=0.5, y=1 - 0.12 / height, va="top", fontsize=11)
    figure.savefig(path)
