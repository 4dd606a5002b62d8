"""Make a shipped model of a trained run: its settings, and its weights rounded to half precision.

    python -m paper.ship runs/flow-mnist mnist-flow 35

The number is the minutes of one core that the training took (`time` tells); shipped.json keeps it.

g is a bijection whatever its weights are, so rounding them costs no exactness; what it costs in
quality is in the tables, which are measured on the shipped files. Small tensors stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from linearizer.apps.registry import find_app
from linearizer.runs.store import SHIPPED, load, load_data, open_run
from linearizer.training.checkpoint import (
    WEIGHTS,
    read_config,
    tensors_of,
    write_config,
    write_weights,
)

from .experiment import FOLDER

SMALL = 2048  # numbers


def _is_rounded(key: str, tensor: torch.Tensor) -> bool:
    derived = key.endswith(("triangle", "basis"))  # orthonormal, or exact for rounded axes
    return tensor.numel() > SMALL and tensor.is_floating_point() and not derived


def _round(model: torch.nn.Module) -> None:
    for key, tensor in tensors_of(model).items():
        if _is_rounded(key, tensor):
            tensor.data.copy_(tensor.data.half())
    model.float()  # what is derived from rounded axes follows them


def _note(name: str, size: int, minutes: float) -> None:
    path = FOLDER / "shipped.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = {"cpu_minutes": minutes, "mib": round(size / 2**20, 2)}
    path.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


@torch.no_grad()
def main(run: str, name: str, minutes: str) -> None:
    config = read_config(Path(run))
    model = load(run)
    app = find_app(config["app"])
    _round(model)
    if app.finish is not None:  # what is set in closed form follows the rounded weights
        app.finish(model, load_data(open_run(run)))
        _round(model)
    tensors = {
        key: t.detach().half() if _is_rounded(key, t) else t.detach()
        for key, t in tensors_of(model).items()
    }
    assert all(bool(t.isfinite().all()) for t in tensors.values())
    folder = SHIPPED / name
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, {k: v for k, v in config.items() if k not in ("format", "linearizer")})
    write_weights(folder, tensors, config)
    space = app.linearizer(load(name)).target
    x = torch.rand(2, *space.shape)
    gap = float((space.points(space.coordinates(x)) - x).abs().max())
    size = (folder / WEIGHTS).stat().st_size
    _note(name, size, float(minutes))
    print(f"wrote {folder}, {size / 2**20:.1f} MiB; round trip {gap:.0e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
