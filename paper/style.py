r"""Styles (section 4.2): blends, a style that was never seen, times, and the paper's recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearizer import data
from linearizer.apps.base import Say
from linearizer.apps.style.evaluate import compare, fit_filter, stylise_training_photos
from linearizer.apps.style.model import STRIP, Style
from linearizer.apps.style.use import PAIRS, fit_pairs
from linearizer.data.stylised import Stylised, shrink
from linearizer.data.teachers import load_styles
from linearizer.metrics.images import psnr
from linearizer.metrics.perceptual import load_lpips
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.pictures import image_grid
from linearizer.runs.plan import make_plan
from linearizer.runs.store import load_data, open_run

from .claims import SILENT, Claim, Found, Section, command_of, describe_time, runs_of, time_of
from .experiment import (
    EVALUATED,
    RUNS,
    Experiment,
    Measure,
    Recipe,
    extend_table,
    read_numbers,
    train_minutes,
)
from .markdown import table_head, table_line

__all__ = ["EXPERIMENT", "measure", "style_claims"]

Map = Callable[[Tensor], Tensor]
SHIPPED = "styles"
STYLES = "candy,mosaic,rain_princess,udnie"
#: Held-out photos that are undone, blended, and drawn in a style that was never seen, at most.
UNDONE, BLENDED, NEW = 20, 8, 50
#: Held-out photos that the paper's recipe is compared on.
FEW = 16


# -- measures ----------------------------------------------------------------------------------


@torch.no_grad()
def measure(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    photos: int = 200,
) -> dict[str, Any]:
    """Evaluate a style model; then new styles, blends and times."""
    result = evaluate_run(run, out, root, photos, say)
    opened = open_run(run)
    model: Style = opened.model
    source = load_data(opened, root)
    train: Stylised = source.train
    held = [shrink(source.test.photo(i), train.longest) for i in range(result["photos"])]
    more: dict[str, Any] = {}
    named = (opened.config.get("data") or {}).get("teachers")
    nets = load_styles(named or data.root_folder(root) / "style_models")
    new = [name for name in nets if name not in model.config.names]
    if new:
        say(f"a new style in closed form: {', '.join(new)}")
        more["new_style"] = {name: _add_style(model, train, nets[name], held[:NEW]) for name in new}
    say("blending, time")
    if len(model.config.names) > 2:
        if train.judge is not None:
            more["blend"] = _measure_blends(model, held[:BLENDED], train.judge)
        path = Path(result["files"][0]).with_name("strip-by-index.png")
        _draw_index(model, held[0], path)
        more["pictures"] = [path]
    known = [name for name in model.config.names if name in nets]
    more["seconds"] = _time_styles(model, nets[known[0]]) if known else {}
    return extend_table(result, more)


def _add_style(model: Style, train: Stylised, net: Map, photos: list[Tensor]) -> dict[str, Any]:
    """A style network that the model never saw: its kernel in closed form, and from one pair."""
    x, y = stylise_training_photos(train, net)
    begun = time.perf_counter()
    kernel, _ = fit_pairs(model, list(zip(x[:PAIRS], y[:PAIRS], strict=True)))
    seconds = time.perf_counter() - begun
    single, _ = fit_pairs(model, [(x[0], y[0])])
    ways: dict[str, Map] = {
        f"{min(PAIRS, len(x))} pairs": lambda x: model.render(x, kernel),
        "one pair": lambda x: model.render(x, single),
        "linear": fit_filter(x, y),
        "photo": lambda x: x,
    }
    return {"seconds": seconds, **compare(ways, net, photos, train.judge)}


def _measure_blends(model: Style, photos: list[Tensor], judge: Any) -> dict[str, Any]:
    """From the first style to the third, by operator, by pixels and by index.

    Neighbours along the strip in LPIPS, the largest over the mean (1 is even); whether the
    distance to the start grows all the way; and how near the strip comes to the second style,
    which lies between them by number only.
    """
    first, between, last = model.config.names[:3]
    A, B, C = (model.kernel(n) for n in (first, between, last))
    drawn = [[model.render(x[None], K).clamp(0, 1) for x in photos] for K in (A, B, C)]
    ways: dict[str, Callable[[int, float], Tensor]] = {
        "operator": lambda i, a: model.render(photos[i][None], (1 - a) * A + a * C),
        "pixels": lambda i, a: (1 - a) * drawn[0][i] + a * drawn[2][i],
        "index": lambda i, a: model.render(photos[i][None], model.family.kernels(2 * a)),
    }
    table: dict[str, Any] = {"from": first, "to": last, "between_by_number": between}
    for way, f in ways.items():
        neighbours, start, near = (torch.zeros(len(photos), n) for n in (10, 11, 11))
        for i in range(len(photos)):
            row = [f(i, step / 10).clamp(0, 1) for step in range(11)]
            neighbours[i] = torch.tensor([float(judge(p, q)) for p, q in pairwise(row)])
            start[i] = torch.tensor([float(judge(row[0], p)) for p in row])
            near[i] = torch.tensor([float(judge(drawn[1][i], p)) for p in row])
        gap = neighbours.mean(0)
        table[way] = {
            "neighbours": gap.tolist(),
            "largest_over_mean": float(gap.max() / gap.mean()),
            "from_start": start.mean(0).tolist(),
            "monotone": bool((start.mean(0).diff() > 0).all()),
            "monotone_share_of_photos": float((start.diff(dim=1) > 0).all(1).float().mean()),
            "to_the_style_between": near.mean(0).tolist(),
        }
    return table


def _time_styles(model: Style, net: Map, rounds: int = 5) -> dict[str, Any]:
    """Ours and the style network in turn on one photo, least of several rounds; and a blend."""
    rows: dict[str, Any] = {}
    names = model.config.names
    kernel = model.kernel(names[0])
    ways: dict[str, Map] = {"ours": lambda x: model.render(x, kernel), "network": net}
    for side in (256, 1024):
        x = torch.rand(1, 3, side, side, dtype=model.plain.dtype)
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds if side == 256 else 2):
            for way, f in ways.items():
                begun = time.perf_counter()
                f(x)
                best[way] = min(best[way], time.perf_counter() - begun)
        rows[str(side)] = {**best, "network_over_ours": best["network"] / best["ours"]}
    seconds = []
    for weights in ({names[0]: 1.0}, dict.fromkeys(names, 1 / len(names))):
        model.blend(weights)
        begun = time.perf_counter()
        for _ in range(20):
            model.blend(weights)
        seconds.append((time.perf_counter() - begun) / 20)
    share = (seconds[1] - seconds[0]) / rows["256"]["ours"]
    return {**rows, "blend": {"styles": len(names), "share_of_256": share}}


def _draw_index(model: Style, photo: Tensor, path: Path) -> None:
    """Draw blends of operators from the first style to the third; below, the same by index."""
    first, _, last = model.config.names[:3]
    A, C, x = model.kernel(first), model.kernel(last), photo[None]
    rows = [
        torch.cat([model.render(x, (1 - s) * A + s * C) for s in STRIP]),
        torch.cat([model.render(x, model.family.kernels(2 * s)) for s in STRIP]),
    ]
    labels = [f"{first} → {last}", "the same by index"]
    image_grid(path, rows, labels, [f"{s:.2f}" for s in STRIP], "Blends of operators", cell=1.5)


# -- other recipes -----------------------------------------------------------------------------


def _train(run: Path, preset: str, **flags: str) -> float:
    """Seconds of the processor that a preset takes on our four styles."""
    begun = time.process_time()
    plan = make_plan("style", preset=preset, flags={"data": {"styles": STYLES, **flags}})
    execute(plan, run, resume=True)
    return time.process_time() - begun


def _record_shipped(say: Say) -> dict[str, Any]:
    return {SHIPPED: measure(SHIPPED, EVALUATED / SHIPPED, None, say)}


def _record_single(say: Say) -> dict[str, Any]:
    """Train `linearizer train style --preset single --image PHOTO` on a held-out photo.

    What is measured is the PSNR to each style network on that photo.
    """
    from PIL import Image

    photos = data.load("bsds500").test
    name = photos.names[0].split("/")[-1].split(".")[0]
    file = EVALUATED / "single" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = (photos.photo(0) * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(file)
    run = RUNS / f"style-single-{name}"
    seconds = _train(run, "single", image=str(file))
    opened = open_run(run)
    model, source = opened.model, load_data(opened).train
    row = {}
    with torch.no_grad():
        for s, style in enumerate(model.config.names):
            x, y = (source._bytes(0, j).float()[None] / 255 for j in (len(source.names), s))
            row[style] = float(psnr(model.render(x, model.kernel(style)).clamp(0, 1), y))
    size = list(source._bytes(0, -1).shape[1:])
    return {"single": {name: {"cpu_seconds": seconds, "size": size, "psnr": row}}}


def _record_paper(say: Say) -> dict[str, Any]:
    """Train `--preset paper`; it and the shipped styles on some of the held-out photos."""
    run = RUNS / "style-paper"
    seconds = _train(run, "paper")
    folder = data.root_folder(None)
    judge, nets = load_lpips("alex", folder / "lpips"), load_styles(folder / "style_models")
    photos = data.load("bsds500").test
    held = [photos.photo(i) for i in range(FEW)]
    models = {"paper": open_run(run).model, "ours": open_run(SHIPPED).model}
    rows = {}
    with torch.no_grad():
        for name in STYLES.split(","):
            ways = {way: partial(m.render, kernel=m.kernel(name)) for way, m in models.items()}
            rows[name] = compare(ways, nets[name], held, judge)
    parameters = sum(p.numel() for p in models["paper"].parameters())
    about = {"cpu_seconds": seconds, "photos": FEW, "parameters": parameters}
    return {"paper": {**about, "fidelity": rows}}


# -- claims ------------------------------------------------------------------------------------


def style_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.2, for one evaluated style model."""

    def mean(way: str, key: str) -> float | None:
        values = [r[way].get(key) for r in row["fidelity"].values() if way in r]
        return sum(values) / len(values) if values and None not in values else None

    def photos(n: int) -> str:
        some = min(n, row["photos"])
        if not row.get("held_out", True):
            return "its own photo"
        return f"{some} held-out photo{'s' if some != 1 else ''}"

    rows = []
    for key, form, unit in (("psnr", ".1f", " dB"), ("lpips", ".3f", "")):
        ours, linear = mean("ours", key), mean("linear", key)
        if ours is not None and linear is not None:
            what = f"{key.upper()} to the style network, mean of {len(row['fidelity'])} styles"
            shown = f"{ours:{form}}{unit} (best linear filter: {linear:{form}}{unit})"
            rows.append((what, shown, photos(row["photos"])))
    if "blend" in row:
        blend = row["blend"]
        what = f"blend of {blend['from']} and {blend['to']}: largest step over the mean one"
        shown = (
            f"{blend['operator']['largest_over_mean']:.2f} by operator, "
            f"{blend['index']['largest_over_mean']:.2f} by index"
        )
        how = f"{photos(BLENDED)}, 11 steps; the paper says nothing of a measure"
        rows.append((what, shown, how))
    if row.get("undo"):
        least = min(r["psnr"] for r in row["undo"].values())
        how = f"{photos(UNDONE)}; the least of the styles' means"
        rows.append(("undone by f†, PSNR", f"at least {least:.0f} dB", how))
    return [Claim(what, "pictures", ours, SILENT, how, time, command) for what, ours, how in rows]


def style_section(found: Found) -> Section:
    """Section 4.2."""
    rows = found["style"]
    claims: list[Claim] = []
    for name, row in runs_of(rows, "condition_number"):
        command = command_of(found, "style", f"python -m paper measure style {name}")
        made = style_claims(row, time_of(found, rows, name), command)
        claims += [claim._replace(what=f"{name}: {claim.what}") for claim in made]
    paper = rows.get("paper", {})
    if "fidelity" in paper and "cpu_seconds" in paper:
        every = paper["fidelity"].values()
        theirs, ours = (sum(r[w]["lpips"] for r in every) / len(every) for w in ("paper", "ours"))
        claim = Claim(
            "preset `paper` (glow, 4×4 kernels): LPIPS to the style network, mean of "
            f"{len(every)} styles",
            "pictures",
            f"{theirs:.3f} (shipped: {ours:.3f})",
            SILENT,
            f"{paper['photos']} held-out photos",
            describe_time(paper["cpu_seconds"] / 60, rows),
            "python -m paper record style paper",
        )
        claims.append(claim)
    text = "The paper shows pictures and has no number."
    return Section("style", "Styles (section 4.2)", text, claims, [])


# -- the table of docs/style.md ----------------------------------------------------------------


def style_table() -> str:
    """The shipped styles beside their networks; one photo alone; the paper's recipe."""
    found = read_numbers("style")
    ours = found[SHIPPED]
    lines = [
        f"{ours['photos']} held-out photos; {ours['parameters']:,} parameters, "
        f"{train_minutes(SHIPPED):.0f} minutes of one core.",
        "",
        "| style | ours | linear | the photo itself | condition number | undone, exact | "
        "undone, from 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in ours["fidelity"].items():
        undo = ours["undo"][name]
        cells = [_marks(row[way]) for way in ("ours", "linear", "photo")]
        cells += [f"{ours['condition_number'][name]:.0f}", f"{undo['psnr']:.0f} dB"]
        lines.append(table_line(name, [*cells, f"{undo['psnr_of_8_bits']:.1f} dB"]))
    lines += ["", f"The operator `photo` gives the photo back at {ours['photo']['psnr']:.1f} dB."]
    for name, row in ours.get("new_style", {}).items():
        ways = "; ".join(
            f"{way} {r['psnr']:.1f} dB, LPIPS {r['lpips']:.3f}"
            for way, r in row.items()
            if isinstance(r, dict)
        )
        lines += ["", f"A new style, {name}, in {row['seconds']:.1f} s: {ways}."]
    lines += ["", *_blend_lines(ours["blend"]), "", _time_line(ours["seconds"])]
    lines += _recipe_lines(found)
    return "\n".join(lines) + "\n"


def _marks(row: Mapping[str, float]) -> str:
    return f"{row['psnr']:.1f} dB, {row['lpips']:.3f}"


def _blend_lines(blend: Mapping[str, Any]) -> list[str]:
    columns = (
        "largest step over mean step (LPIPS)",
        "away from the start all the way",
        f"nearest to {blend['between_by_number']} on the way",
    )
    lines = table_head(f"{blend['from']} → {blend['to']}", columns)
    for way in ("operator", "pixels", "index"):
        row = blend[way]
        cells = (
            f"{row['largest_over_mean']:.2f}",
            f"{row['monotone_share_of_photos']:.0%} of photos",
            f"{min(row['to_the_style_between']):.3f}",
        )
        lines.append(table_line(f"by {way}", cells))
    return lines


def _time_line(times: Mapping[str, Any]) -> str:
    ratios = (f"{times[n]['network_over_ours']:.2f}× at {n}×{n}" for n in ("256", "1024"))
    share = max(0.0, times["blend"]["share_of_256"])
    return (
        f"Time of a photo, the style network's over ours: {', '.join(ratios)}. Blending "
        f"{times['blend']['styles']} styles adds {share:.2%} at 256×256."
    )


def _recipe_lines(found: Mapping[str, Any]) -> list[str]:
    """One photo alone, and the paper's recipe, where they are measured."""
    lines: list[str] = []
    if single := found.get("single"):
        names = list(next(iter(single.values()))["psnr"])
        lines += ["", *table_head("one photo alone", (*names, "training, one core"))]
        for photo, row in single.items():
            cells = [f"{row['psnr'][n]:.1f} dB" for n in names]
            lines.append(table_line(photo, [*cells, f"{row['cpu_seconds'] / 60:.0f} min"]))
    if paper := found.get("paper"):
        lines += ["", *table_head(f"on {paper['photos']} of these photos", paper["fidelity"])]
        name = f"`paper`, {paper['cpu_seconds'] / 60:.0f} minutes of one core"
        for way, what in (("paper", name), ("ours", "shipped")):
            lines.append(table_line(what, (_marks(r[way]) for r in paper["fidelity"].values())))
    return lines


def _measure(photos: int) -> Measure:
    return lambda run, out, root, say, minutes: measure(run, out, root, say, photos)


_DATA: dict[str, dict[str, Any]] = {"data": {"styles": STYLES}}
_TINY: dict[str, dict[str, Any]] = {
    "data": {"styles": STYLES, "size": 32},
    "model": {"hidden": 4},
    "training": {"batch": 2},
}

EXPERIMENT = Experiment(
    name="style",
    title="Styles",
    file="style",
    claims=style_claims,
    section=style_section,
    recipes={
        "here": (Recipe(SHIPPED, "style", None, _DATA, _measure(200)),),
        "paper": (Recipe(SHIPPED, "style", "paper", _DATA, _measure(200)),),
        "tiny": (Recipe(SHIPPED, "style", None, _TINY, _measure(1)),),
    },
    records={"styles": _record_shipped, "single": _record_single, "paper": _record_paper},
    tables={("style.md", "style"): style_table},
)
