"""What the benchmarks share: the machine's description, peak memory, and writing the result."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from linearizer.evaluation.tables import machine

HERE = Path(__file__).parent


def peak_mib() -> float:
    """Largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write(name: str, result: dict[str, Any]) -> None:
    path = HERE / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    print(f"wrote {path}")
