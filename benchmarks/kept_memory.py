"""Training steps with memory that is kept, and as the C library has it: time of each, in turns.

    python benchmarks/kept_memory.py     writes kept_memory.json (needs the data folder)

Each turn is a process of its own, since a process cannot go back.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from common import write

RUNS = {
    "projector, MNIST": ("projector", "mnist", 16),
    "flow, MNIST": ("flow", "mnist", 40),
    "distilled encoder, dSprites": ("distill", "dsprites", 40),
}
TURNS = 2


def measure(app: str, preset: str, steps: int) -> None:
    """Print CPU seconds, page faults and MiB of some steps, after as many to begin with."""
    from linearizer.runs.execute import execute
    from linearizer.runs.plan import make_plan
    from linearizer.training.loop import Training

    def usage() -> resource.struct_rusage:
        return resource.getrusage(resource.RUSAGE_SELF)

    seen = []
    step = make_plan(app, preset=preset).app.loss

    def loss(model, batch, draw):  # type: ignore[no-untyped-def]
        seen.append(usage())
        return step(model, batch, draw)

    flags = {"training": {"steps": 2 * steps, "validate_every": 0, "tensorboard": False,
                          "checkpoint_every": 10**6}}  # fmt: skip
    plan = make_plan(app, preset=preset, flags=flags)
    assert isinstance(plan.training, Training)
    object.__setattr__(plan.app, "loss", loss)
    object.__setattr__(plan.app, "stages", ())
    object.__setattr__(plan.app, "finish", None)
    with tempfile.TemporaryDirectory() as folder:
        execute(plan, Path(folder) / "run", progress=False)
    a, b = seen[steps], seen[2 * steps - 1]
    spent = (b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime) / (steps - 1)
    print("measured", spent, (b.ru_minflt - a.ru_minflt) / (steps - 1), usage().ru_maxrss / 1024)


def main() -> None:
    rows = {}
    own = {k: v for k, v in os.environ.items()
           if k != "GLIBC_TUNABLES" and not k.startswith("MALLOC_")}  # fmt: skip
    for name, (app, preset, steps) in RUNS.items():
        found: dict[str, list[list[float]]] = {"1": [], "0": []}
        for _ in range(TURNS):
            for keep, turns in found.items():
                env = {**own, "LINEARIZER_KEEP_MEMORY": keep, "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, app, preset, str(steps)]
                done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True,
                                      check=True)  # fmt: skip
                line = next(x for x in done.stdout.splitlines() if x.startswith("measured"))
                turns.append([float(v) for v in line.split()[1:]])
        (kept, faults, mib), (usual, faults_usual, mib_usual) = (
            [median(column) for column in zip(*turns, strict=True)] for turns in found.values()
        )
        rows[name] = {
            "times_as_fast": usual / kept,
            "cpu_seconds_of_a_step": kept,
            "page_faults_of_a_step": [faults, faults_usual],
            "peak_mib": [mib, mib_usual],
        }
        print(name, rows[name])
    write("kept_memory", {"turns": TURNS, "rows": rows})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
