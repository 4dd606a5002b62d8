"""What faults do: kill −9 at random moments, damaged files, and 10,000 mixed requests.

1. A run is started and killed at a random moment, again and again, until it is done; its weights
   are compared bit for bit with those of a run that nobody killed.
2. Run folders, images and tables with random damage are opened. Each either opens or is one
   sentence (ValueError or OSError); anything else counts as broken.
3. The studio answers 10,000 requests of four clients (``studio_load.py``).

    python benchmarks/faults.py [KILLS] [DAMAGES] [REQUESTS]
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import studio_load
import torch
from common import read, write
from PIL import Image

import linearizer as lz
from linearizer import data
from linearizer.runs.execute import execute
from linearizer.runs.listing import list_runs
from linearizer.runs.plan import make_plan
from linearizer.training.checkpoint import read_about, read_tensors
from linearizer.training.loop import STATE

#: A run of a few seconds, with a checkpoint every few steps.
STEPS = 400
FLAGS = {
    "model": {"blocks": 2, "hidden": 32},
    "training": {
        "steps": STEPS, "batch": 32, "checkpoint_every": 7, "validate_every": 50,
        "tensorboard": False, "patience": 0,
    },
}  # fmt: skip


def train(run: Path) -> None:
    execute(make_plan("attributes", flags=FLAGS), run, resume=True, progress=False)


def step_of(run: Path) -> int:
    return read_about(run / STATE)["step"] if (run / STATE).exists() else 0


def kill_at_random(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill runs until there were so many kills in the middle of one; compare all that finish."""
    rng = random.Random(seed)
    train(folder / "whole")
    whole, _ = read_tensors(folder / "whole" / "weights.safetensors")
    begun, real, before, steps, finished, differing = time.perf_counter(), 0, 0, [], 0, 0
    run = folder / "run-0"
    while real < kills:
        child = os.fork()
        if not child:  # the imports are done, so that kills hit training and writing
            try:
                train(run)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        time.sleep(rng.uniform(0.05, 1.0))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            step = step_of(run)
            real += 0 < step < STEPS
            before += step == 0
            steps.append(step)
            continue
        if os.WEXITSTATUS(status):
            raise SystemExit(f"{run}: resuming failed after {len(steps)} kills")
        finished += 1
        found, _ = read_tensors(run / "weights.safetensors")
        differing += any(not torch.equal(found[k], v) for k, v in whole.items())
        run = folder / f"run-{finished}"
    return {
        "kills": len(steps),
        "in_the_middle_of_training": real,
        "before_the_first_checkpoint": before,
        "different_steps": len(set(steps)),
        "runs_finished": finished,
        "runs_that_differ": differing,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def damage(raw: bytes, rng: random.Random) -> bytes:
    """Cut, flip, repeat, zero or fill in some bytes."""
    found = bytearray(raw)
    place = rng.randrange(len(found) + 1)
    size = rng.choice((1, 8, 100, 5000))
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(found[:place])
    if kind == 1:
        for _ in range(size):
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        found[place:place] = found[place : place + size]
    elif kind == 3:
        found[place : place + size] = bytes(min(size, len(found) - place))
    elif kind == 4:
        found[place:place] = rng.randbytes(size)
    else:
        del found[place : place + size]
    return bytes(found)


def open_damaged(
    name: str, path: Path, open_it: Callable[[], Any], count: int, rng: random.Random
) -> dict[str, Any]:
    raw, results, broken, longest = path.read_bytes(), Counter[str](), [], 0.0
    for _ in range(count):
        path.write_bytes(damage(raw, rng))
        begun = time.perf_counter()
        try:
            open_it()
            results["opened"] += 1
        except (ValueError, OSError) as problem:
            results["one sentence"] += 1
            if "\n" in str(problem) or not str(problem):
                broken.append(f"{name}: {problem!r}"[:300])
        except Exception as problem:
            broken.append(f"{name}: {problem!r}"[:300])
        longest = max(longest, time.perf_counter() - begun)
    path.write_bytes(raw)
    return {
        "files": count, **results, "broken": len(broken), "first_broken": broken[:5],
        "longest_seconds": round(longest, 2),
    }  # fmt: skip


def open_all_damaged(folder: Path, count: int, seed: int = 1) -> dict[str, Any]:
    rng = random.Random(seed)
    run = folder / "whole"
    images, table = folder / "images", folder / "table.csv"
    images.mkdir()
    pixels = torch.randint(0, 255, (12, 24, 24, 3), dtype=torch.uint8).numpy()
    for i, square in enumerate(pixels):
        file = io.BytesIO()
        Image.fromarray(square).save(file, "PNG" if i % 2 else "JPEG")
        (images / f"{i}.{'png' if i % 2 else 'jpg'}").write_bytes(file.getvalue())
    rows = [f"2024-01-01 {h:02d}:{m:02d},{h + m / 60:.3f},{rng.gauss(0, 1):.5f}"
            for h in range(24) for m in range(0, 60, 5)]  # fmt: skip
    table.write_text("date,a,b\n" + "\n".join(rows) + "\n")

    def read_table() -> None:
        data.read_csv(table)

    kinds: dict[str, tuple[Path, Callable[[], Any]]] = {
        "config.json": (run / "config.json", lambda: lz.load(run)),
        "weights.safetensors": (run / "weights.safetensors", lambda: lz.load(run)),
        "state/latest.safetensors": (run / STATE, lambda: read_tensors(run / STATE)),
        "metrics.jsonl": (run / "metrics.jsonl", lambda: list_runs(folder)),
        "a png": (images / "1.png", lambda: data.load(str(images))),
        "a jpg": (images / "0.jpg", lambda: data.load(str(images))),
        "a table": (table, read_table),
    }
    return {name: open_damaged(name, *what, count, rng) for name, what in kinds.items()}


def main(kills: int = 100, damages: int = 200, requests: int = 10_000) -> None:
    folder = Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    try:
        result: dict[str, Any] = {"kill_9": kill_at_random(folder, kills)}
        print(result["kill_9"], flush=True)
        result["damaged_files"] = open_all_damaged(folder, damages)
        print(result["damaged_files"], flush=True)
    finally:
        shutil.rmtree(folder)
    if requests:
        studio_load.main(requests)
        load = read("studio_load")
        result["studio"] = {k: v for k, v in load.items() if k not in ("machine", "first_errors")}
    write("faults", result)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
