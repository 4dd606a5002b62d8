"""The tables of docs/projector.md: the shipped projector, other recipes, other architectures.

    python benchmarks/projector.py [mnist-projector] [autoencoder] [ign] [paper] [warm] [sharp]

All of them by default; each replaces its part of projector.json. LINEARIZER_DATA must have mnist
(and bsds500, for photos); pictures go to runs/evaluated.

`autoencoder` and `ign` are trained for as long as the shipped projector was; `paper`, `warm` and
`sharp` by `linearizer train projector --preset NAME --data mnist --size 32`.
"""

from __future__ import annotations

import json
import sys
import time

from common import HERE, write

from linearizer import evaluation, runs
from linearizer.evaluation.projector import BASELINES, baseline
from linearizer.evaluation.tables import rounded

SHIPPED = "mnist-projector"
PRESETS = ("paper", "warm", "sharp")
OUT = HERE.parent / "runs" / "evaluated"


def preset(name: str) -> dict:
    run = OUT.parent / f"projector-{name}"
    flags = {"data": {"name": "mnist", "size": 32}}
    begun = time.process_time()
    result = runs.execute(runs.plan("projector", preset=name, flags=flags), run, resume=True)
    seconds = time.process_time() - begun
    row = evaluation.projector(run, OUT / name, say=print)
    keys = ("rank", "parameters", "idempotency_float32", "idempotency_float64", "reconstruction",
            "projected", "anomaly_roc_auc", "seconds_per_image")  # fmt: skip
    return {"cpu_seconds": seconds, "steps": result.step, **{k: row[k] for k in keys}}


def measured(name: str) -> dict:
    (OUT / name).mkdir(parents=True, exist_ok=True)
    if name in BASELINES:
        minutes = json.loads((HERE / "shipped.json").read_text())[SHIPPED]["cpu_minutes"]
        return baseline(name, SHIPPED, minutes, OUT / name / f"{name}.png")
    if name in PRESETS:
        return preset(name)
    row = evaluation.projector(name, OUT / name, say=print)
    return {k: v for k, v in row.items() if k != "files"}


def main(*names: str) -> None:
    for name in names or (SHIPPED, *BASELINES, *PRESETS):
        row = rounded(measured(name))
        path = HERE / "projector.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        before.pop("machine", None)
        write("projector", {**before, name: row})


if __name__ == "__main__":
    main(*sys.argv[1:])
