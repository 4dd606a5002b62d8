"""The tables of docs/dynamics.md: each system trained by its preset, and compared.

    python benchmarks/dynamics.py [pendulum] [duffing] [van-der-pol] [lorenz] [lambda-omega]

All of them by default; each replaces its part of dynamics.json. Runs go to runs/dynamics-NAME and
are used again if they are there; pictures go to runs/evaluated. Rows of PyDMD, deeptime and
torchdiffeq need `pip install "linearizer[dynamics]"`. The neural ODE trains for as much processor
time as the model did.
"""

from __future__ import annotations

import json
import sys
import time

from common import HERE, write

from linearizer import apps, evaluation, runs
from linearizer.evaluation.tables import rounded

OUT = HERE.parent / "runs"


def measured(name: str) -> dict:
    run = OUT / f"dynamics-{name}"
    seconds = run / "cpu_seconds.json"
    if not seconds.exists():
        begun = time.process_time()
        runs.execute(runs.plan("dynamics", preset=name), run, resume=True)
        seconds.write_text(json.dumps(time.process_time() - begun))
    taken = json.loads(seconds.read_text())
    row = evaluation.dynamics(run, OUT / "evaluated" / name, say=print, minutes=taken / 60)
    return {"cpu_seconds": taken, **{k: v for k, v in row.items() if k not in ("files", "run")}}


def main(*names: str) -> None:
    for name in names or apps.get("dynamics").presets:
        row = rounded(measured(name))
        path = HERE / "dynamics.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        before.pop("machine", None)
        write("dynamics", {**before, name: row})


if __name__ == "__main__":
    main(*sys.argv[1:])
