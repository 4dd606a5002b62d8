"""The recipe of the shipped flow on MNIST, cut to a few CPU minutes and rank 32.

    python -m paper.short_flow [RUN]

Trains by `linearizer train flow --preset best --data mnist --size 32 --steps 1500 --refine 2500
--likelihood 0.15`, then takes samples and inversion from its evaluation.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan

from .experiment import FOLDER, machine, write_json

FLAGS: dict[str, dict[str, Any]] = {
    "data": {"name": "mnist", "size": 32},
    "model": {"refine": 2500, "likelihood": 0.15},
    "training": {"steps": 1500, "validate_every": 1500},
}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "short-flow"
        begun = _cpu_seconds()
        result = execute(make_plan("flow", preset="best", flags=FLAGS), run)
        minutes = (_cpu_seconds() - begun) / 60
        found = evaluate_run(run, n=10_000, say=print)
    row = {
        "machine": machine(),
        "training_seconds": round(result.seconds),
        "training_cpu_minutes": round(minutes, 1),
        **{key: found[key] for key in ("rank", "fid", "inversion")},
    }
    write_json(FOLDER / "short_flow.json", row)


if __name__ == "__main__":
    main()
