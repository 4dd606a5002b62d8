r"""What every table shares: where it goes, and how it is written."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import atomic, is_shipped
from ..data import root_folder
from ..perceptual import LPIPS, load_lpips
from ..runs import Opened

__all__ = ["Say", "lpips_or_why", "machine", "result_folder", "rounded", "teacher_folder",
           "write_table"]  # fmt: skip

Say = Callable[[str], None]


def machine() -> dict[str, Any]:
    """What numbers were measured with."""
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name()
    return facts


def lpips_or_why(root: Path | None) -> tuple[LPIPS | None, str]:
    """LPIPS on AlexNet, or why it cannot be measured."""
    try:
        return load_lpips("alex", root_folder(root) / "lpips"), ""
    except (ValueError, OSError) as error:
        return None, f"not measured: {error}"


def teacher_folder(config: Mapping[str, Any], root: Path | None) -> Path:
    """Where the style networks are that a run learned from."""
    named = (config.get("data") or {}).get("teachers")
    return Path(named) if named else root_folder(root) / "style_models"


def result_folder(one: Opened, out: Path | None) -> Path:
    """The folder of a run's tables, made where it is not there."""
    shipped = Path(f"{one.folder.name}-evaluation")
    folder = out or (shipped if is_shipped(one.folder) else one.folder / "evaluation")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"evaluate: expected a folder, but {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def rounded(value: Any) -> Any:
    """Four digits are what such figures are good for."""
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write_table(result: Mapping[str, Any], path: Path, pictures: list[Path]) -> dict[str, Any]:
    """Write the numbers as JSON; they come back with the names of the files."""
    numbers = rounded(result)
    with atomic(path) as part:
        part.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return {**numbers, "files": [str(p) for p in (path, *pictures)]}
