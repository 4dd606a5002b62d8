r"""The two-minute tour: train a one-step flow on real digits, and look at what is exact.

The app ``flow``, as ``linearizer train flow --data digits`` trains it: f(x) = g⁻¹(B x) takes noise
to 8×8 digits, with a thousand solver steps collapsed into B, and f† takes digits to noise.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import runs
from .apps.flow import Flow
from .checkpoint import read_config
from .linearizer import Linearizer
from .metrics import psnr
from .pictures import image_grid
from .report import Picture, Table, Text, write_page
from .sampling import collapsed, flow_of

__all__ = ["STEPS", "Tour", "run"]

#: Of training.
STEPS = 1500


class Tour(NamedTuple):
    """What the tour measured, and the files it wrote."""

    numbers: dict[str, float]
    files: list[Path]


def run(out: Path, steps: int = STEPS, seed: int = 0) -> Tour:
    """Train, then write the pictures, the numbers and the page of the tour into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "run"
    _clear(folder)
    flags = {
        "model": {"refine": steps},
        "training": {"steps": steps, "seed": seed, "validate_every": steps},
    }
    result = runs.execute(runs.plan("flow", preset="digits", flags=flags), folder)
    numbers = {"training_seconds": result.seconds, "training_steps": float(steps)}
    one = flow_of(folder)
    x = runs.points(one, 297)
    with torch.no_grad():
        f = collapsed(one).f
        numbers |= _collapse(one.model, f)
        numbers |= _draw(one.model, f, x, out)
        laws, lines = _certify(one.model, x)
    numbers |= laws
    (out / "certificate.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    (out / "summary.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    _page(out, numbers, lines)
    return Tour(numbers, [*sorted(p for p in out.iterdir() if p.is_file()), folder])


def _clear(folder: Path) -> None:
    """Remove the run of an earlier tour, and nothing else."""
    if not folder.exists():
        return
    own = {"config.json", "weights.safetensors", "metrics.jsonl", "state", "samples", "operators",
           "tensorboard", "report.html"}  # fmt: skip
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    tour = config.get("app") == "flow" and (config.get("data") or {}).get("name") == "digits"
    if not tour or {p.name for p in folder.iterdir()} - own:
        raise ValueError(
            f"quickstart: {folder} is there already and not from an earlier tour. Choose another "
            "folder with --out."
        )
    shutil.rmtree(folder)


def _collapse(model: Flow, f: Linearizer) -> dict[str, float]:
    """The collapsed map against the loop of a thousand steps, from the same noise."""
    noise = model.noise(64, 1)
    begun = time.perf_counter()
    loop = model.integrate(noise, "rk4", 1000)
    middle = time.perf_counter()
    once = f(noise)
    end = time.perf_counter()
    return {
        "rank": float(f.rank()),
        "one_against_1000_steps_mse": float((once - loop).square().mean()),
        "loop_over_one_step_seconds": (middle - begun) / (end - middle),
    }


def _draw(model: Flow, f: Linearizer, x: Tensor, out: Path) -> dict[str, float]:
    samples = f(model.noise(48, 0))
    image_grid(out / "samples.png", [*samples.split(12), x[:12]],
               ["one step", "", "", "", "real digits"],
               title="Noise to digits, a thousand steps in one")  # fmt: skip
    codes = f.pinv()(x)
    back = f(codes)
    shown = codes[:12] / 4 + 0.5
    image_grid(out / "encoded.png", [x[:12], shown, back[:12]], ["x", "f†(x)", "f(f†(x))"],
               title="Held-out digits, the noise that they come from, and back")  # fmt: skip
    rows, labels, s = [], [], torch.linspace(0, 1, 9)
    for a, b in ((0, 1), (7, 2), (3, 5)):
        rows += [f(f.source.geodesic(codes[a : a + 1], codes[b : b + 1], s).flatten(0, 1)),
                 torch.lerp(x[a : a + 1], x[b : b + 1], s[:, None, None, None])]  # fmt: skip
        labels += ["through the noise", "cross-fade"]
    image_grid(out / "interpolation.png", rows, labels, [f"{v:.3g}" for v in s.tolist()],
               "Between two held-out digits")  # fmt: skip
    return {"reconstruction_psnr": float(psnr(back.clamp(0, 1), x).mean())}


def _certify(model: Flow, x: Tensor) -> tuple[dict[str, float], list[str]]:
    """Every law on digits, in both precisions; and the round trip of g."""
    numbers, lines = {}, []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        model.to(dtype)
        f = model()
        certificate = f.certify(x[:64].to(dtype))
        lines.append(str(certificate))
        numbers[f"worst_law_{name}"] = certificate.worst
        numbers[f"laws_failed_{name}"] = float(len(certificate.failed))
        points = x.to(dtype)
        back = model.target.points(model.target.coordinates(points))
        numbers[f"round_trip_{name}"] = float((back - points).abs().max())
    model.to(torch.float32)
    return numbers, lines


def _page(out: Path, n: dict[str, float], lines: list[str]) -> None:
    rows: list[Any] = [
        ("training", f"{n['training_seconds']:.0f} s"),
        ("rank of the collapsed operator", f"{n['rank']:.0f} of 64"),
        ("one step against 1,000, mean squared difference",
         f"{n['one_against_1000_steps_mse']:.0e}"),
        ("time of 1,000 steps over one", f"{n['loop_over_one_step_seconds']:.0f}"),
        ("held-out digits decoded again", f"{n['reconstruction_psnr']:.1f} dB"),
        ("round trip of g, largest error",
         f"{n['round_trip_float32']:.0e} (float32), {n['round_trip_float64']:.0e} (float64)"),
        ("largest error of a law",
         f"{n['worst_law_float32']:.0e} (float32), {n['worst_law_float64']:.0e} (float64)"),
    ]  # fmt: skip
    write_page(
        out / "index.html",
        "A one-step flow on digits",
        [
            Text("f(x) = g⁻¹(B x) takes noise to 8×8 digits. Between coordinates the flow is "
                 "linear, so a thousand solver steps are one small operator B, exactly; and its "
                 "pseudo-inverse f† encodes digits to noise."),
            Table(("measured in this run", ""), rows),
            Text("Each image is one application of f.", "Samples"),
            Picture(out / "samples.png", "Samples of one step, over real digits."),
            Text("f† finds the noise of a digit that it has never seen.", "Encoding"),
            Picture(out / "encoded.png", "Held-out digits, their noise, and what it decodes to."),
            Text("A straight line between the two encodings, decoded.", "Interpolation"),
            Picture(out / "interpolation.png", "Through the noise, and the cross-fade of pixels."),
            Text("\n\n".join(lines), "Every law, measured", plain=True),
        ],
    )  # fmt: skip
