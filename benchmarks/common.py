"""What the benchmarks share: the machine's description, peak memory, and writing the result."""

from __future__ import annotations

import json
import os
import platform
import resource
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def machine() -> dict[str, Any]:
    """What numbers were measured with."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def peak_mib() -> float:
    """Largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(name: str) -> dict[str, Any]:
    """The numbers of NAME.json."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, result: dict[str, Any]) -> None:
    path = HERE / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    print(f"wrote {path}")
