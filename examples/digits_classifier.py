r"""The linear algebra of a classifier: singular vectors, null space, pseudo-inverse as images.

f takes an 8×8 image to ten class scores, f(x) = g_y⁻¹(A g_x(x)) with a 10 × 64 core: the app
``attributes``, as ``linearizer train attributes --data digits`` trains it. The rest is algebra.

    python examples/digits_classifier.py --out runs/digits-classifier
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linearizer import Linearizer, data, load
from linearizer.data import Images
from linearizer.runs.execute import execute
from linearizer.runs.pictures import image_grid
from linearizer.runs.plan import make_plan


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) in [0, 1] and classes (n,), to learn from and held out."""

    images: Tensor
    classes: Tensor
    test_images: Tensor
    test_classes: Tensor


class Tour(NamedTuple):
    """What the tour measured, and the files it wrote."""

    numbers: dict[str, float]
    files: list[Path]


def run(out: Path, steps: int = 1000, seed: int = 0) -> Tour:
    """Train, then write the pictures and numbers of the tour into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "run"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier tour
    flags = {"training": {"steps": steps, "seed": seed}}
    result = execute(make_plan("attributes", flags=flags), folder)
    numbers = {"training_seconds": result.seconds, "steps": float(steps)}
    f = load(folder)()
    sets = data.load("digits")
    assert isinstance(sets.train, Images) and isinstance(sets.test, Images)
    digits = Digits(*_all(sets.train), *_all(sets.test))
    with torch.no_grad():
        numbers |= _measure(f, digits, out)
        _draw(f, digits, out)
    summary = out / "summary.json"
    summary.write_text(json.dumps(numbers, indent=2) + "\n")
    return Tour(numbers, [*sorted(p for p in out.iterdir() if p.is_file()), folder])


def _all(images: Images) -> tuple[Tensor, Tensor]:
    x, y = images.batch(torch.arange(len(images)))
    assert y is not None
    return x, y


def _accuracy(f: Linearizer, data: Digits) -> float:
    return (f(data.test_images).argmax(1) == data.test_classes).double().mean().item()


def _measure(f: Linearizer, data: Digits, out: Path) -> dict[str, float]:
    """Accuracy, the closed-form core, and the laws in both precisions; draws the round trip."""
    wanted = F.one_hot(data.classes, 10).to(data.images.dtype)
    numbers = {
        "test_accuracy": _accuracy(f, data),
        "test_accuracy_closed_form_core": _accuracy(
            f.fit_core(data.images, wanted, ridge=1.0), data
        ),
        "rank": float(f.rank()),
    }
    x = data.test_images
    errors, lines = {}, []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        f.to(dtype)
        points = x.to(dtype)
        certificate = f.certify(points[:64])
        lines.append(str(certificate))
        numbers[f"worst_law_{name}"] = certificate.worst
        numbers[f"laws_failed_{name}"] = float(len(certificate.failed))
        back = f.source.points(f.source.coordinates(points))
        errors[name] = (back - points).abs().flatten(1).amax(1)
        numbers[f"round_trip_{name}"] = errors[name].max().item()
    f.to(torch.float32)
    (out / "certificate.txt").write_text("\n\n".join(lines) + "\n")
    _plot_errors(errors, out / "round-trip.png")
    return numbers


def _plot_errors(errors: dict[str, Tensor], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for name, values in errors.items():
        exponents = values.double().clamp_min(1e-18).log10()
        axes.hist(10 ** exponents.numpy(), bins=(10 ** torch.arange(-17, -2, 0.1)).tolist(),
                  label=f"{name}, worst {values.max():.0e}")  # fmt: skip
    axes.set(xscale="log", xlabel="largest error of a pixel, |g⁻¹(g(x)) − x|",
             ylabel="test digits", title="Round trip of the trained g")  # fmt: skip
    axes.legend()
    figure.savefig(path)


def _draw(f: Linearizer, data: Digits, out: Path) -> None:
    X, x, classes = f.source, data.test_images, data.test_classes
    example = {c: x[classes == c][:1] for c in range(10)}

    svd = f.svd(6)
    lengths = [-8.0, -4.0, -1.0, 1.0, 4.0, 8.0]
    walks = [torch.cat([X.scale(s, v[None]) for s in lengths]) for v in svd.V]
    image_grid(
        out / "singular-vectors.png", walks,
        [f"v{i + 1}, σ = {s:.2f}" for i, s in enumerate(svd.S.tolist())],
        [f"{s:+.0f} ⊙ v" for s in lengths], "Input singular vectors of f, as images",
    )  # fmt: skip

    rows, labels = [], []
    s = torch.linspace(0, 1, 9)
    for a, b in ((0, 1), (7, 2), (4, 8)):
        rows += [X.geodesic(example[a], example[b], s)[:, 0],
                 torch.lerp(example[a], example[b], s[:, None, None, None])]  # fmt: skip
        labels += [f"{a} to {b}, geodesic", "pixel cross-fade"]
    image_grid(out / "geodesics.png", rows, labels, [f"s = {v:.3g}" for v in s.tolist()],
               "Straight lines of the induced space")  # fmt: skip

    image_grid(
        out / "pseudo-inverse.png",
        [torch.cat(list(example.values())), f.pinv()(torch.eye(10))],
        ["a test digit", "f†(class)"], [str(c) for c in range(10)],
        "The least-norm image of each class: nobody drew these",
    )  # fmt: skip

    null = f.null_space()[:1]
    steps = [-12.0, -8.0, -4.0, 0.0, 4.0, 8.0, 12.0]
    changed = [torch.cat([X.add(example[c], X.scale(t, null)) for t in steps]) for c in (0, 3, 6)]
    drift = max(float((f(row) - f(example[c])).abs().max())
                for row, c in zip(changed, (0, 3, 6), strict=True))  # fmt: skip
    image_grid(
        out / "null-space.png", changed, ["digit 0", "digit 3", "digit 6"],
        [f"{t:+.0f} ⊙ n" for t in steps],
        f"x ⊕ t⊙n for n in the null space: scores change by {drift:.0e}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/digits-classifier"))
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    result = run(arguments.out, arguments.steps)
    print(json.dumps(result.numbers, indent=2))
    print("wrote", *result.files, sep="\n  ")


if __name__ == "__main__":
    main()
