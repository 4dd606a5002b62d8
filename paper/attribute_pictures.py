"""The pictures of docs/attributes.md, of samples of celeba-flow instead of people.

    python -m paper.attribute_pictures

LINEARIZER_DATA must have celeba: what is erased is found from its training images.
"""

from __future__ import annotations

import torch

import linearizer as lz
from linearizer.apps.attributes.model import Attributes
from linearizer.apps.readout.use import (
    aim_at,
    class_gap,
    eraser,
    imagine,
    label_batches,
    vary_points,
)
from linearizer.runs.algebra import write_spectrum
from linearizer.runs.pictures import image_grid
from linearizer.runs.store import load_data, open_run

from .experiment import FOLDER, RUNS

IMAGES = FOLDER.parent / "docs" / "images"
SHOWN = ("Eyeglasses", "Smiling", "Male", "Blond_Hair", "Young", "Wearing_Hat")
IMAGINED = (
    "Bald Bangs Black_Hair Blond_Hair Eyeglasses Gray_Hair Male Mustache Pale_Skin Wearing_Hat "
    "Smiling Young"
)


def _draw(name: str, rows: list[torch.Tensor], labels: list[str], title: str) -> None:
    path = IMAGES / f"attributes-{name}.png"
    image_grid(path, rows, labels, [""] * len(rows[0]), title, cell=1.0)


def draw_edits(model: Attributes, x: torch.Tensor, strength: float = 1.2) -> None:
    """Draw each attribute put on samples, or taken from them."""
    rows = [x]
    for name in SHOWN:
        has = model()(x)[:, model.config.names.index(name)] > 0
        (h, more), (_, less) = (aim_at(model, wish) for wish in (name, f"-{name}"))
        step = h.target.sub(torch.where(has[:, None], less, more), h(x))
        rows.append(h.source.add(x, h.pinv()(h.target.scale(strength, step))))
    labels = ["x", *(f"± {name}" for name in SHOWN)]
    title = (
        f"Each attribute put on samples without it, and taken from others (strength {strength:g})"
    )
    _draw("edits", rows, labels, title)


def draw_variations(model: Attributes, x: torch.Tensor, n: int = 4) -> None:
    """Draw samples of the same scores."""
    noise = torch.randn(n, model.read.width, generator=torch.Generator().manual_seed(0))
    f = model()
    rows = [x] + [vary_points(f, x, e.expand(len(x), -1), 0.7) for e in noise[:, None]]
    gap = max(float((f(row) - f(x)).abs().max()) for row in rows)
    _draw("vary", rows, ["x", *["varied"] * n], f"The same 40 scores, to {gap:.0e}")


def draw_erased(model: Attributes, x: torch.Tensor) -> None:
    """Draw samples without some attributes."""
    names = ("Smiling", "Eyeglasses", "Male", "Blond_Hair")
    index = [model.config.names.index(n) for n in names]
    train = load_data(open_run("celeba-attributes")).train
    f, cut = model(), model.read.width
    gaps = class_gap(f, label_batches(model, train), index)
    rows = [x, *(eraser(f, gap[None], cut)(x) for gap in gaps)]
    rows.append(eraser(f, gaps, cut)(x))
    labels = ["x", *(f"no {n}" for n in names), "none of them"]
    _draw("erased", rows, labels, "Erasure by projection")


@torch.no_grad()
def main() -> None:
    flow, model = lz.load("celeba-flow"), lz.load("celeba-attributes")
    x = flow.collapse("rk4", 100)(0.7 * flow.noise(8, 3)).clamp(0, 1)
    draw_edits(model, x)
    draw_variations(model, x)
    draw_erased(model, x)
    imagine("celeba-attributes", IMAGINED.split(), IMAGES / "attributes-imagine.png")
    folder = RUNS / "attribute-pictures"
    write_spectrum("celeba-attributes", 8, folder)
    made = folder / "input-singular-vectors.png"
    (IMAGES / "attributes-spectrum.png").write_bytes(made.read_bytes())


if __name__ == "__main__":
    main()
