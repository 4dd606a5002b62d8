"""The tables of docs/style.md: the shipped styles, one image alone, and the paper's recipe.

    python benchmarks/style.py [styles] [single] [paper]

All of them by default; each replaces its part of style.json. LINEARIZER_DATA must have bsds500,
style_models and lpips; pictures go to runs/evaluated.

`single` trains `linearizer train style --preset single --image PHOTO` on a held-out photo, `paper`
trains `--preset paper` and compares on a few photos.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from common import HERE, write

from linearizer import data, evaluation, runs
from linearizer.evaluation.style import compared
from linearizer.evaluation.tables import rounded
from linearizer.metrics import psnr
from linearizer.perceptual import load_lpips
from linearizer.teachers import load_styles

SHIPPED = "styles"
STYLES = "candy,mosaic,rain_princess,udnie"
OUT = HERE.parent / "runs" / "evaluated"
PHOTOS = (0,)  # of the test part, for `single`
PHOTOS_HELD, FEW = 200, 16


def _trained(run, preset: str, **flags) -> float:
    begun = time.process_time()
    plan = runs.plan("style", preset=preset, flags={"data": {"styles": STYLES, **flags}})
    runs.execute(plan, run, resume=True)
    return time.process_time() - begun


@torch.no_grad()
def single() -> dict:
    """PSNR to each style network on the one photo that a model was trained on."""
    from PIL import Image

    photos = data.load("bsds500").test
    rows: dict = {}
    for i in PHOTOS:
        name = photos.names[i].split("/")[-1].split(".")[0]
        file = OUT / "single" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = (photos.photo(i) * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(file)
        run = OUT.parent / f"style-single-{name}"
        with torch.enable_grad():
            seconds = _trained(run, "single", image=str(file))
        one = runs.opened(run)
        source = runs.run_data(one).train
        row = {}
        for s, style in enumerate(one.model.config.names):
            x, y = (source._bytes(0, j).float()[None] / 255 for j in (len(source.names), s))
            made = one.model.render(x, one.model.kernel(style)).clamp(0, 1)
            row[style] = float(psnr(made, y))
        rows[name] = {"cpu_seconds": seconds, "size": list(x.shape[2:]), "psnr": row}
    return rows


@torch.no_grad()
def paper() -> dict:
    """The paper's recipe, on some of the held-out photos; and ours on the same."""
    run = OUT.parent / "style-paper"
    with torch.enable_grad():
        seconds = _trained(run, "paper")
    folder = data.root_folder(None)
    judge, nets = load_lpips("alex", folder / "lpips"), load_styles(folder / "style_models")
    photos = data.load("bsds500").test
    held = [photos.photo(i) for i in range(FEW)]
    models = {"paper": runs.opened(run).model, "ours": runs.opened(SHIPPED).model}
    rows = {}
    for name in STYLES.split(","):
        ways = {
            way: lambda x, model=model: model.render(x, model.kernel(name))  # noqa: B023
            for way, model in models.items()
        }
        rows[name] = compared(ways, nets[name], held, judge)
    parameters = sum(p.numel() for p in models["paper"].parameters())
    return {"cpu_seconds": seconds, "photos": FEW, "parameters": parameters, "fidelity": rows}


def shipped() -> dict:
    row = evaluation.style(SHIPPED, OUT / SHIPPED, PHOTOS_HELD, say=print)
    return {k: v for k, v in row.items() if k != "files"}


def main(*names: str) -> None:
    parts = {"styles": shipped, "single": single, "paper": paper}
    for name in names or parts:
        row = rounded(parts[name]())
        path = HERE / "style.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        before.pop("machine", None)
        write("style", {**before, name: row})


if __name__ == "__main__":
    main(*sys.argv[1:])
