r"""The two-minute tour: train a one-step flow on real digits, and look at what is exact.

The app ``flow``, as ``linearizer train flow --data digits`` trains it: f(x) = g⁻¹(B x) takes noise
to 8×8 digits, with a thousand solver steps collapsed into B, and f† takes digits to noise.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .apps.flow.model import Flow
from .apps.flow.use import open_flow
from .linearizer import Linearizer
from .metrics.images import psnr
from .report.pages import Block, Picture, Table, Text, write_page
from .runs.execute import execute
from .runs.pictures import image_grid
from .runs.plan import make_plan
from .runs.store import test_points
from .training.checkpoint import check_target, read_config

__all__ = ["STEPS", "Tour", "run"]

#: Steps of training, in each of two stages.
STEPS = 1500
#: What a run of the tour may hold, and the tour may remove.
OWN = {
    "config.json",
    "weights.safetensors",
    "metrics.jsonl",
    "state",
    "samples",
    "operators",
    "tensorboard",
    "report.html",
}


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
    result = execute(make_plan("flow", preset="digits", flags=flags), folder)
    numbers = {"training_seconds": result.seconds, "training_steps": float(steps)}
    flow = open_flow(folder)
    model: Flow = flow.model
    x = test_points(flow, 297)
    with torch.no_grad():
        f = model.collapse("rk4", 1000)
        numbers |= _compare_with_loop(model, f)
        numbers |= _draw(model, f, x, out)
        laws, lines = _certify(model, x)
    numbers |= laws
    whole = {
        "certificate.txt": "\n\n".join(lines),
        "summary.json": json.dumps(numbers, indent=2),
    }
    for name, text in whole.items():
        check_target(out / name).write_text(text + "\n", encoding="utf-8")
    _write_page(out, numbers, lines)
    return Tour(numbers, [*sorted(p for p in out.iterdir() if p.is_file()), folder])


def _clear(folder: Path) -> None:
    """Remove the run of an earlier tour, and nothing else."""
    if not folder.exists():
        return
    config = read_config(folder) if (folder / "config.json").is_file() else {}
    tour = config.get("app") == "flow" and (config.get("data") or {}).get("name") == "digits"
    if not tour or {p.name for p in folder.iterdir()} - OWN:
        raise ValueError(
            f"quickstart: {folder} is there already and not from an earlier tour. Choose another "
            "folder with --out."
        )
    shutil.rmtree(folder)


def _compare_with_loop(model: Flow, f: Linearizer) -> dict[str, float]:
    """Compare the collapsed map with the loop of a thousand steps, from the same noise."""
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
    """Draw samples, digits encoded and decoded, and ways between two; measure the decoding."""
    rows = [*f(model.noise(48, 0)).split(12), x[:12]]
    labels = ["one step", "", "", "", "real digits"]
    title = "Noise to digits, a thousand steps in one"
    image_grid(out / "samples.png", rows, labels, title=title)
    codes = f.pinv()(x)
    back = f(codes)
    rows, labels = [x[:12], codes[:12] / 4 + 0.5, back[:12]], ["x", "f†(x)", "f(f†(x))"]
    title = "Held-out digits, the noise that they come from, and back"
    image_grid(out / "encoded.png", rows, labels, title=title)
    rows, s = [], torch.linspace(0, 1, 9)
    for a, b in ((0, 1), (7, 2), (3, 5)):
        path = f.source.geodesic(codes[a : a + 1], codes[b : b + 1], s)
        rows.append(f(path.flatten(0, 1)))
        rows.append(torch.lerp(x[a : a + 1], x[b : b + 1], s[:, None, None, None]))
    labels, columns = 3 * ["through the noise", "cross-fade"], [f"{v:.3g}" for v in s.tolist()]
    image_grid(out / "interpolation.png", rows, labels, columns, "Between two held-out digits")
    return {"reconstruction_psnr": float(psnr(back.clamp(0, 1), x).mean())}


def _certify(model: Flow, x: Tensor) -> tuple[dict[str, float], list[str]]:
    """Measure every law on digits, in both precisions, and the round trip of g."""
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


def _write_page(out: Path, n: dict[str, float], lines: list[str]) -> None:
    def both(name: str) -> str:
        return f"{n[f'{name}_float32']:.0e} (float32), {n[f'{name}_float64']:.0e} (float64)"

    difference = "one step against 1,000, mean squared difference"
    rows = [
        ("training", f"{n['training_seconds']:.0f} s"),
        ("rank of the collapsed operator", f"{n['rank']:.0f} of 64"),
        (difference, f"{n['one_against_1000_steps_mse']:.0e}"),
        ("time of 1,000 steps over one", f"{n['loop_over_one_step_seconds']:.0f}"),
        ("held-out digits decoded again", f"{n['reconstruction_psnr']:.1f} dB"),
        ("round trip of g, largest error", both("round_trip")),
        ("largest error of a law", both("worst_law")),
    ]
    idea = (
        "f(x) = g⁻¹(B x) takes noise to 8×8 digits. Between coordinates the flow is linear, so a "
        "thousand solver steps are one small operator B, exactly; and its pseudo-inverse f† "
        "encodes digits to noise."
    )
    blocks: list[Block] = [
        Text(idea),
        Table(("measured in this run", ""), rows),
        Text("Each image is one application of f.", "Samples"),
        Picture(out / "samples.png", "Samples of one step, over real digits."),
        Text("f† finds the noise of a digit that it has never seen.", "Encoding"),
        Picture(out / "encoded.png", "Held-out digits, their noise, and what it decodes to."),
        Text("A straight line between the two encodings, decoded.", "Interpolation"),
        Picture(out / "interpolation.png", "Through the noise, and the cross-fade of pixels."),
        Text("\n\n".join(lines), "Every law, measured", plain=True),
    ]
    write_page(out / "index.html", "A one-step flow on digits", blocks)
