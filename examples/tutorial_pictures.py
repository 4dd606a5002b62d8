r"""The pictures of the tutorials, drawn from the variables of their pages.

Each page of docs/tutorials is run as the doctest that it is; what it leaves behind is drawn.

    python examples/tutorial_pictures.py --out docs/images
"""

from __future__ import annotations

import argparse
import doctest
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from linearizer.runs.pictures import image_grid

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
TEAL, RED, GREY = "#00897b", "#c62828", "#9e9e9e"


def run(page: str) -> SimpleNamespace:
    """The names that the code of a page defines."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    for example in doctest.DocTestParser().get_examples(text):
        if example.exc_msg is None:
            exec(compile(example.source, page, "single"), names)  # prints what the page prints
    return SimpleNamespace(**names)


def figure(columns: int, width: float = 8.0, height: float = 3.6) -> tuple[Figure, list]:
    made = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = made.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return made, list(axes)


def scatter(ax: object, x: Tensor, color: str = GREY, **options: object) -> None:
    ax.scatter(*x.detach().cpu().T, s=6, color=color, linewidths=0, **options)  # type: ignore[attr-defined]


def algebra(folder: Path) -> None:
    p = run("1-algebra")
    made, (left, right) = figure(2)
    scatter(left, p.x)
    for level in torch.linspace(-2.5, 2.5, 11).double():
        line = torch.linspace(-2.5, 2.5, 100).double()
        for z in (
            torch.stack([line, level.expand(100)], 1),
            torch.stack([level.expand(100), line], 1),
        ):
            left.plot(*p.X.points(z).T, color=TEAL, linewidth=0.7)
    left.set_title("coordinates of the space", fontsize=10)
    scatter(right, p.x)
    path = p.X.geodesic(p.left, p.right, torch.linspace(0, 1, 50).double())[:, 0]
    right.plot(*path.T, color=TEAL, label="line of the space")
    right.plot(*p.ends.T, color=RED, linestyle="--", label="line of the plane")
    right.plot(*p.middle[0], "o", color=TEAL)
    right.plot(*p.ends.mean(0), "o", color=RED)
    right.legend(frameon=False, fontsize=9, loc="lower center")
    right.set_title("two ends and their mean", fontsize=10)
    for ax in (left, right):
        ax.set(xlim=(-2.6, 2.6), ylim=(-0.6, 2.9), aspect="equal")
    made.savefig(folder / "tutorial-space.png")

    powers = (-0.5, 0, 0.5, 1, 2, 4)
    made, axes = figure(len(powers), 9.0, 1.6)
    for ax, power in zip(axes, powers, strict=True):
        scatter(ax, (p.f**power)(p.x), TEAL)
        ax.set(xlim=(-2.6, 2.6), ylim=(-1.2, 2.9), aspect="equal", xticks=[], yticks=[])
        ax.set_title(f"p = {power:g}".replace("-", "−"), fontsize=10)
    made.savefig(folder / "tutorial-powers.png")


def flow(folder: Path) -> None:
    p = run("2-one-step-flow")
    image_grid(folder / "tutorial-samples.png", p.digits.split(16), cell=0.5)
    image_grid(
        folder / "tutorial-encoded.png",
        [p.x, (p.code + 2.5) / 5, p.again],
        ["digits", "their noise", "decoded"],
        cell=0.7,
    )
    rows = []
    for i, j in ((0, 1), (2, 3), (4, 5)):
        code = p.f.source.geodesic(p.code[i : i + 1], p.code[j : j + 1], p.s)[:, 0]
        fade = torch.stack([(1 - t) * p.again[i] + t * p.again[j] for t in p.s])
        rows += [p.f(code), fade]
    image_grid(folder / "tutorial-between.png", rows, ["line", "cross-fade"] * 3, cell=0.6)


def projector_and_styles(folder: Path) -> None:
    p = run("3-projector-and-styles")
    rows = [(p.x / 2).clamp(0, 1), p.y, p.f(p.y), p.eight(p.x)]
    labels = ["x", "f(x)", "f(f(x))", "rank 8"]
    rows[0][0] = p.x[0]  # noise at half its contrast, the scribble as it is
    image_grid(folder / "tutorial-projected.png", rows, labels, cell=0.7)
    shown = [
        p.photo,
        p.candy(p.photo),
        p.half(p.photo),
        p.mosaic(p.photo),
        p.weak(p.photo),
        p.undone,
    ]
    gap, (H, W) = 6, p.photo.shape[2:]
    canvas = Image.new("RGB", (3 * W + 2 * gap, 2 * H + gap), "white")
    for i, image in enumerate(shown):
        pixels = (image[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        canvas.paste(Image.fromarray(pixels), (i % 3 * (W + gap), i // 3 * (H + gap)))
    canvas.save(folder / "tutorial-styles.jpg", quality=88)


def forecast_and_dynamics(folder: Path) -> None:
    p = run("4-forecast-and-dynamics")
    made, (left, right) = figure(2)
    times = torch.linspace(-5, 25, 400).double()
    for i, color in ((0, TEAL), (3, RED)):
        states = p.model.simulate(p.truth.x[i : i + 1, 0], times)[0]
        left.plot(times, states[:, 0], color=color, linewidth=1.2)
        left.plot(p.truth.t[0][:51], p.truth.x[i, :51, 0], ".", color=color, markersize=4)
        z = p.model(0.0).source.coordinates(p.model.pad(states))
        right.plot(*z.T, color=color, linewidth=1.2)
    left.axvline(0, color=GREY, linewidth=0.7)
    left.set(xlabel="t", ylabel="θ")
    right.set(xlabel="z₁", ylabel="z₂", aspect="equal")
    made.savefig(folder / "tutorial-pendulum.png")

    made, axes = figure(2, height=3.0)
    i = len(p.past) // 2
    rows = {name: p.station.unscale(getattr(p, name)[i]) for name in
            ("past", "future", "low", "middle", "high")}  # fmt: skip
    hours = torch.arange(48 + 24)
    for channel, (ax, name) in enumerate(zip(axes, ("temperature", "humidity"), strict=True)):
        ax.plot(hours[:48], rows["past"][:, channel], color=GREY)
        ax.plot(hours[48:], rows["future"][:, channel], color=GREY, label="what came")
        ax.plot(hours[48:], rows["middle"][:, channel], color=TEAL, label="forecast")
        bounds = rows["low"][:, channel], rows["high"][:, channel]
        ax.fill_between(hours[48:], *bounds, color=TEAL, alpha=0.2, linewidth=0)
        ax.set(title=name, xlabel="hours")
    axes[0].legend(frameon=False, fontsize=9)
    made.savefig(folder / "tutorial-forecast.png")


def network(folder: Path) -> None:
    p = run("5-your-own-network")
    rows = [p.a, p.other, p.edited, p.drawn]
    labels = ["x", "same scores", "neighbour's", "f†(class)"]
    image_grid(
        folder / "tutorial-distilled.png", [r.reshape(-1, 1, 8, 8) for r in rows], labels, cell=0.6
    )


def application(folder: Path) -> None:
    p = run("6-your-own-application")
    rows = [r[:12] for r in (p.half, p.filled, p.whole)]
    image_grid(folder / "tutorial-inpaint.png", rows, ["x", "f(x)", "whole"], cell=0.6)


DRAWN: dict[str, Callable[[Path], None]] = {
    "1-algebra": algebra,
    "2-one-step-flow": flow,
    "3-projector-and-styles": projector_and_styles,
    "4-forecast-and-dynamics": forecast_and_dynamics,
    "5-your-own-network": network,
    "6-your-own-application": application,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGES.parent / "images")
    parser.add_argument("--page", choices=DRAWN, action="append", help="one page alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for page in options.page or DRAWN:
        DRAWN[page](options.out)
        print(f"{page}: drawn to {options.out}")


if __name__ == "__main__":
    main()
