"""What the defaults make of small data: the kept model, the last weights and the plain method.

Folders of 500 digits and 500 faces, short tables and logs, as a new user has them; nothing is set
but the data. The last weights are what a run ended with before it kept the best ones.

    python benchmarks/small_data.py [CASE]...       needs LINEARIZER_DATA
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import machine, read
from PIL import Image
from torch import nn

from linearizer import data
from linearizer.apps.distill.use import distill
from linearizer.apps.registry import find_app
from linearizer.data.files import root_folder
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.training.checkpoint import METRICS, atomic, read_metrics

#: Of images, a class each in a folder of its own.
SAMPLES = 500


def _folder_of_images(name: str, folder: Path) -> Path:
    """Write the first images as PNG files, digits by class."""
    source = data.load(name, root_folder(None), size=32 if name == "mnist" else 64).train
    for i in range(SAMPLES):
        pixels = (255 * source.batch(torch.tensor([i])).x[0]).round().byte()
        home = folder / (str(int(source.labels[i])) if name == "mnist" else "faces")
        home.mkdir(parents=True, exist_ok=True)
        array = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
        Image.fromarray(array.numpy()).save(home / f"{i:03d}.png")
    return folder


def _head_of(path: Path, rows: int, out: Path) -> Path:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [next(file) for _ in range(rows + 1)]
    out.write_text("".join(lines), encoding="utf-8")
    return out


def _walk(out: Path) -> Path:
    """Random walks, like exchange rates: the last value is the best forecast."""
    x = 0.01 * torch.randn(1500, 5, generator=torch.Generator().manual_seed(0)).cumsum(0)
    with open(out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["a", "b", "c", "d", "e"], *(1 + x).tolist()])
    return out


def _images(app: str, name: str) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: _train(app, {"name": str(_folder_of_images(name, folder / name))}, folder)


def _log(folder: Path) -> dict[str, Any]:
    source = root_folder(None) / "identification" / "ball_and_beam.csv"
    rows = source.read_text(encoding="utf-8").splitlines()
    path = folder / "log.csv"
    lines = [f"{0.1 * i:.1f},{row}" for i, row in enumerate(rows[1:])]
    path.write_text("\n".join(["time,u,y", *lines]) + "\n", encoding="utf-8")
    return _train("dynamics", {"name": str(path), "rows": 20}, folder)


def _distil(folder: Path) -> dict[str, Any]:
    """A classifier's logits of scikit-learn's 1,797 digits."""
    torch.manual_seed(0)
    digits = data.load("digits").train
    x, y = digits.batch(torch.arange(len(digits))).x, digits.labels
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    begun = time.perf_counter()
    distill(net, x, folder / "run")
    return _row("distill", folder / "run", time.perf_counter() - begun)


def _train(app: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    plan = make_plan(app, flags={"data": settings, "training": {"tensorboard": False}})
    begun = time.perf_counter()
    execute(plan, folder / "run", say=print)
    return _row(app, folder / "run", time.perf_counter() - begun)


def _row(app: str, run: Path, seconds: float) -> dict[str, Any]:
    metric, rows = find_app(app).metric, read_metrics(run / METRICS)
    measured = [(r["step"], r["validation"][metric]) for r in rows if r.get("validation")]
    plain = rows[-1].get("yardstick")
    fell_back = (run / "trained.safetensors").exists()
    trained = measured[:-1] if fell_back else measured
    best = (max if find_app(app).maximize else min)(trained, key=lambda pair: pair[1])
    return {
        "metric": metric,
        "kept": measured[-1][1] if fell_back else best[1],
        "kept_step": None if fell_back else best[0],
        "last": trained[-1][1],
        "last_step": trained[-1][0],
        "plain": plain and {"name": plain["name"], "value": plain[metric]},
        "seconds": round(seconds),
    }


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "projector, 500 digits": _images("projector", "mnist"),
    "flow, 500 digits": _images("flow", "mnist"),
    "flow, 500 faces": _images("flow", "celeba"),
    "attributes, 500 digits": _images("attributes", "mnist"),
    "distill, 1,200 digits": _distil,
    "forecast, 1,500 rows of random walks": lambda folder: _train(
        "forecast", {"name": str(_walk(folder / "walk.csv"))}, folder
    ),
    "forecast, 3,000 rows of ETTh1": lambda folder: _train(
        "forecast",
        {"name": str(_head_of(root_folder(None) / "ett/ETTh1.csv.gz", 3000, folder / "ett.csv"))},
        folder,
    ),
    "dynamics, 1,000 rows of ball and beam": _log,
}


def main() -> None:
    names = sys.argv[1:] or list(CASES)
    path = Path(__file__).parent / "small_data.json"
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            row = CASES[name](Path(folder))
        print(name, row, flush=True)
        found = read("small_data") if path.exists() else {}
        rows = {**found.get("rows", {}), name: row}
        with atomic(path) as part:
            rows = {k: rows[k] for k in CASES if k in rows}
            part.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
