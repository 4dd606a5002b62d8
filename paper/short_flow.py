"""The recipe of the shipped flow on MNIST, cut to a few CPU minutes and rank 32.

    python benchmarks/short_flow.py [RUN]

Trains by `linearizer train flow --preset best --data mnist --size 32 --steps 1500 --refine 2500
--likelihood 0.15`, then measures samples and inversion as `linearizer evaluate flow` does.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import torch
from common import write

from linearizer import runs
from linearizer.evaluation.flow import _inversion, _quality
from linearizer.evaluation.tables import rounded
from linearizer.sampling import flow_of

FLAGS = {
    "data": {"name": "mnist", "size": 32},
    "model": {"refine": 2500, "likelihood": 0.15},
    "training": {"steps": 1500, "validate_every": 1500},
}


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "short-flow"
        begun = cpu()
        result = runs.execute(runs.plan("flow", preset="best", flags=FLAGS), run)
        minutes = (cpu() - begun) / 60
        one = flow_of(run)
        source = runs.run_data(one)
        with torch.no_grad():
            x = torch.cat([source.test.batch(i).x for i in torch.arange(10_000).split(1000)])
            f = one.model.collapse("rk4", 1000)
            fid = _quality(one.model, f, source, x, 10_000, None)
            measured = {
                "rank": f.rank(),
                "fid": fid,
                "inversion": _inversion(f, x, None),
            }
    seconds = round(result.seconds)
    write("short_flow", {"training_seconds": seconds, "training_cpu_minutes": round(minutes, 1),
                         **rounded(measured)})  # fmt: skip


if __name__ == "__main__":
    main()
