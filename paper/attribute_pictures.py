"""The pictures of docs/attributes.md, of samples of celeba-flow instead of people.

    python benchmarks/attribute_pictures.py

LINEARIZER_DATA must have celeba: what is erased is found from its training images.
"""

from __future__ import annotations

import torch
from common import HERE

import linearizer as lz
from linearizer import reading
from linearizer.apps.attributes import Attributes
from linearizer.pictures import image_grid
from linearizer.runs import opened, run_data, spectrum_of

IMAGES = HERE.parent / "docs" / "images"
SHOWN = ("Eyeglasses", "Smiling", "Male", "Blond_Hair", "Young", "Wearing_Hat")


def edits(model: Attributes, x: torch.Tensor, strength: float = 1.2) -> None:
    rows = [x]
    for name in SHOWN:
        has = model()(x)[:, model.config.names.index(name)] > 0
        (h, more), (_, less) = (reading.wished(model, wish) for wish in (name, f"-{name}"))
        step = h.target.sub(torch.where(has[:, None], less, more), h(x))
        rows.append(h.source.add(x, h.pinv()(h.target.scale(strength, step))))
    labels = ["x", *(f"± {name}" for name in SHOWN)]
    image_grid(IMAGES / "attributes-edits.png", rows, labels, [""] * len(x),
               f"Each attribute put on samples without it, and taken from others "
               f"(strength {strength:g})", cell=1.0)  # fmt: skip


def varied(model: Attributes, x: torch.Tensor, n: int = 4) -> None:
    noise = torch.randn(n, model.read.width, generator=torch.Generator().manual_seed(0))
    f = model()
    rows = [x] + [reading.variations(f, x, e.expand(len(x), -1), 0.7) for e in noise[:, None]]
    gap = max(float((f(row) - f(x)).abs().max()) for row in rows)
    image_grid(IMAGES / "attributes-vary.png", rows, ["x", *["varied"] * n], [""] * len(x),
               f"The same 40 scores, to {gap:.0e}", cell=1.0)  # fmt: skip


def erased(model: Attributes, x: torch.Tensor) -> None:
    names = ("Smiling", "Eyeglasses", "Male", "Blond_Hair")
    index = [model.config.names.index(n) for n in names]
    train = run_data(opened("celeba-attributes")).train
    f, cut = model(), model.read.width
    gaps = reading.class_gap(f, reading.labelled(model, train), index)
    rows = [x, *(reading.eraser(f, gap[None], cut)(x) for gap in gaps)]
    rows.append(reading.eraser(f, gaps, cut)(x))
    labels = ["x", *(f"no {n}" for n in names), "none of them"]
    image_grid(IMAGES / "attributes-erased.png", rows, labels, [""] * len(x),
               "Erasure by projection", cell=1.0)  # fmt: skip


def main() -> None:
    flow, model = lz.load("celeba-flow"), lz.load("celeba-attributes")
    x = flow.collapse("rk4", 100)(0.7 * flow.noise(8, 3)).clamp(0, 1)
    edits(model, x)
    varied(model, x)
    erased(model, x)
    reading.imagine("celeba-attributes",
                    ["Bald", "Bangs", "Black_Hair", "Blond_Hair", "Eyeglasses", "Gray_Hair", "Male",
                     "Mustache", "Pale_Skin", "Wearing_Hat", "Smiling", "Young"],
                    IMAGES / "attributes-imagine.png")  # fmt: skip
    folder = HERE.parent / "runs" / "attribute-pictures"
    spectrum_of("celeba-attributes", 8, folder)
    made = folder / "input-singular-vectors.png"
    (IMAGES / "attributes-spectrum.png").write_bytes(made.read_bytes())


if __name__ == "__main__":
    with torch.no_grad():
        main()
