"""Make a shipped model of a trained run: its settings, and its weights rounded to half precision.

    python benchmarks/ship.py runs/flow-mnist mnist-flow 35

The number is the minutes of one core that the training took (`time` tells); shipped.json keeps it.

g is a bijection whatever its weights are, so rounding them costs no exactness; what it costs in
quality is in the tables, which are measured on the shipped files. Small tensors stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from common import HERE

from linearizer import checkpoint
from linearizer.apps import get
from linearizer.runs import opened, run_data

SMALL = 2048  # numbers


def _rounded(key: str, tensor: torch.Tensor) -> bool:
    derived = key.endswith(("triangle", "basis"))  # orthonormal, or exact for rounded axes
    return tensor.numel() > SMALL and tensor.is_floating_point() and not derived


def _round(model: torch.nn.Module) -> None:
    for key, tensor in checkpoint.tensors_of(model).items():
        if _rounded(key, tensor):
            tensor.data.copy_(tensor.data.half())
    model.float()  # what is derived from rounded axes follows them


def _note(name: str, size: int, minutes: float) -> None:
    path = HERE / "shipped.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = {"cpu_minutes": minutes, "mib": round(size / 2**20, 2)}
    path.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def main(run: str, name: str, minutes: str) -> None:
    config = checkpoint.read_config(Path(run))
    model = checkpoint.load(run)
    app = get(config["app"])
    _round(model)
    if app.finish is not None:  # what is set in closed form follows the rounded weights
        app.finish(model, run_data(opened(run)))
        _round(model)
    tensors = {
        key: t.detach().half() if _rounded(key, t) else t.detach()
        for key, t in checkpoint.tensors_of(model).items()
    }
    assert all(bool(t.isfinite().all()) for t in tensors.values())
    folder = checkpoint.SHIPPED / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in config.items() if k not in ("format", "linearizer")}
    checkpoint.write_config(folder, kept)
    checkpoint.write_weights(folder, tensors, config)
    again = checkpoint.load(name)
    space = app.linearizer(again).target
    x = torch.rand(2, *space.shape)
    gap = space.points(space.coordinates(x)) - x
    _note(name, (folder / checkpoint.WEIGHTS).stat().st_size, float(minutes))
    print(f"wrote {folder}, {(folder / checkpoint.WEIGHTS).stat().st_size / 2**20:.1f} MiB; "
          f"round trip {float(gap.abs().max()):.0e}")  # fmt: skip


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
