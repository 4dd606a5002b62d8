r"""From the paper's recipe to the shipped flow of digits, one change a row.

    python -m paper.ladder [ROW]...

Trains each row into runs/ladder/ROW (a stopped one goes on), measures it with 10,000 samples, and
writes benchmarks/ladder.json and docs/images/ladder-ROW.png. Other rows stay as they are.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from linearizer.apps.flow.model import Flow
from linearizer.apps.images import stack_images
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.pictures import save_figure
from linearizer.runs.plan import make_plan
from linearizer.runs.store import find, is_shipped, load_data, open_run
from linearizer.training.checkpoint import CONFIG, METRICS, read_config, read_metrics
from linearizer.training.draws import Draw

from .experiment import FOLDER, RUNS, machine, read_numbers, train_minutes, write_json

__all__ = ["ROWS", "Row", "explain", "ladder_table", "measure_row"]

PICTURES = FOLDER.parent / "docs" / "images"


class Row(NamedTuple):
    """One flow: what is changed to get it from the row above, and how it is trained."""

    change: str
    preset: str
    model: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    data: Mapping[str, Any] = {"name": "mnist", "size": 32}
    run: str = ""  #: a shipped model, which is not trained


_FACES = {"name": "celeba", "size": 64}
_HOUR = {"steps": 1000, "validate_every": 250}  #: about an hour of one core on faces

#: On digits each row has the changes of all rows above it.
ROWS: dict[str, Row] = {
    "paper": Row("the recipe as printed", "paper"),
    "authors": Row("beside it: their code's choices", "authors"),
    "prediction": Row(
        "A_t predicts z₁, so that the last step has α = 0", "paper", {"core": "prediction"}
    ),
    "autoencoder": Row(
        "g by an encoder and a decoder, with the likelihood of its code of 32 numbers",
        "matching",
        {"precondition": False, "noise_likelihood": 0.0},
    ),
    "preconditioned": Row(
        "time and size of A_t by the moments of both ends", "matching", {"noise_likelihood": 0.0}
    ),
    "matching": Row("a likelihood for g(noise) as well", "matching"),
    "shipped": Row(
        "noise is its own coordinates, the core in closed form, 256 numbers of detail",
        "mnist",
        run="mnist-flow",
    ),
    "paper-faces": Row("faces: the recipe as printed", "paper", {}, _HOUR, _FACES),
    "authors-faces": Row("faces: their code's choices", "authors", {}, _HOUR, _FACES),
    "matching-faces": Row(
        "faces: one g, a learned A_t",
        "matching",
        {"rank": 64, "mirror": True},
        {"steps": 4000, "batch": 64},
        _FACES,
    ),
    "shipped-faces": Row("faces: the closed form", "celeba", data=_FACES, run="celeba-flow"),
}


def measure_row(name: str, samples: int = 10_000) -> dict[str, Any]:
    """Train one row, or go on with it, and measure it."""
    row = ROWS[name]
    run = find(row.run) if row.run else RUNS / "ladder" / name
    if not row.run:
        flags = {"data": row.data, "model": row.model, "training": row.training}
        plan = make_plan("flow", preset=row.preset, flags=flags)
        execute(plan, run, resume=(run / CONFIG).exists(), say=print)
    n = samples if row.data["name"] == "mnist" else samples // 10
    found = evaluate_run(run, run / "evaluation" if not row.run else RUNS / name, n=n, say=print)
    shutil.copy(next(f for f in found["files"] if Path(f).name == "flow.png"),
                PICTURES / f"ladder-{name}.png")  # fmt: skip
    kept = ("shape", "core", "rank", "parameters", "fid", "closed_form", "inversion", "times")
    ends = ("coordinates", "coordinates_of_noise", "one_against_many")
    result = {key: found[key] for key in (*kept, *ends) if key in found}
    if name == "paper":
        result["why"] = explain(run)
    return {"change": row.change, **_describe_training(run, row), **result}


@torch.no_grad()
def explain(run: str | Path, samples: int = 10_000) -> dict[str, Any]:
    r"""Measure the two reasons why the recipe as printed stalls, on a run of it.

    The loss in coordinates, of g(data) and of a Gaussian with the same second moments: as
    E‖A_t z_t − v‖² is quadratic in z, they are the same, though one is data and the other is not.
    And how many directions B leaves as they are: their singular values are 1, to a hundredth.
    """
    opened = open_run(run)
    model: Flow = opened.model
    x = stack_images(load_data(opened).train, samples)
    z1 = torch.cat([model.target.coordinates(p) for p in x.split(500)])
    noise = model.noise(len(z1), 11)
    z0 = torch.cat([model.source.coordinates(p) for p in noise.split(500)])
    values, Q = torch.linalg.eigh((z1.mT @ z1).double() / len(z1))
    draw = Draw(12)
    root = ((Q * values.clamp_min(0).sqrt()) @ Q.mT).to(z1)
    gaussian = draw.normal(z1) @ root
    t = draw.uniform(z1[:, 0])

    def loss(end: torch.Tensor) -> float:
        parts = zip(t.split(500), z0.split(500), end.split(500), strict=True)
        errors = [
            (model.family(t)((1 - t[:, None]) * a + t[:, None] * b) - (b - a)).square().mean()
            for t, a, b in parts
        ]
        return float(torch.stack(errors).mean())

    B = model.collapse("rk4", 1000).operator.dense().double()
    kept = ((torch.linalg.svdvals(B) - 1).abs() < 0.01).sum()
    z = (z1 - z1.mean(0)) / z1.std(0).clamp_min(1e-6)
    return {
        "loss_of_data": loss(z1),
        "loss_of_a_gaussian": loss(gaussian),
        "kurtosis_of_data": float(z.pow(4).mean()),
        "directions": len(B),
        "directions_left_as_they_are": int(kept),
    }


def _describe_training(run: Path, row: Row) -> dict[str, Any]:
    if is_shipped(run):
        return {"training_cpu_minutes": train_minutes(row.run)}
    rows = read_metrics(run / METRICS)
    logged = [r for r in rows if "loss" in r]
    curves = {
        key: [[r["step"], r[key]] for r in logged[:: max(1, len(logged) // 60)] if key in r]
        for key in logged[0]
        if key not in ("step", "rate", "norm", "seconds")
    }
    seconds = [r["seconds"] for r in rows if "seconds" in r]
    config = read_config(run)
    return {
        "steps": config["training"]["steps"],
        "batch": config["training"]["batch"],
        "training_minutes": seconds[-1] / 60,
        "threads": machine()["threads"],
        "curves": curves,
    }


def draw_steps(found: Mapping[str, Any], path: Path) -> None:
    """Draw FID by the number of full steps, with the one step that holds 1,000 as a level line."""
    from matplotlib.figure import Figure

    groups = {"digits": [n for n in ROWS if n in found and "faces" not in n]}
    groups["faces"] = [n for n in ROWS if n in found and "faces" in n]
    groups = {title: names for title, names in groups.items() if names}
    figure = Figure(figsize=(5.5 * len(groups), 4), dpi=120, layout="constrained")
    for place, (title, names) in enumerate(groups.items(), 1):
        axes = figure.add_subplot(1, len(groups), place)
        for i, name in enumerate(names):
            fid = found[name]["fid"]
            for solver, line in (("euler", "--"), ("rk4", "-")):
                steps = {int(n): v for n, v in fid["full steps"][solver].items()}
                label = f"{name}, {'Euler' if solver == 'euler' else 'RK4'}"
                axes.plot(list(steps), list(steps.values()), line, marker="o", markersize=3,
                          color=f"C{i}", label=label, linewidth=1.2)  # fmt: skip
            axes.axhline(fid["one step (1000 of rk4)"], color=f"C{i}", linewidth=0.6, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="full steps", ylabel="FID", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    save_figure(figure, path)


def ladder_table() -> str:
    """The rows on digits, and those on faces, as two tables."""
    found = read_numbers("ladder")
    head = (
        "| change | FID, one step | FID, 1 / 2 / 5 / 10 / 100 full Euler steps "
        "| inversion, rank of B | kurtosis of g(noise), g(data) | off closed form | training |\n"
        "|---|---|---|---|---|---|---|"
    )
    digits = [_cells(found[n]) for n in ROWS if n in found and "faces" not in n]
    faces = [_cells(found[n]) for n in ROWS if n in found and "faces" in n]
    tables = ["\n".join([head, *rows]) for rows in (digits, faces) if rows]
    missing = [f"`{name}` ({row.change})" for name, row in ROWS.items() if name not in found]
    note = [f"Not measured yet: {'; '.join(missing)}."] if missing else []
    return "\n\n".join([*tables, *_reasons(found), *note]) + "\n"


def _reasons(found: Mapping[str, Any]) -> list[str]:
    why = found.get("paper", {}).get("why")
    if why is None:
        return []
    return [
        "Of the row as printed: the loss in coordinates is "
        f"{why['loss_of_data']:.4g} for g(data) and {why['loss_of_a_gaussian']:.4g} for a Gaussian "
        f"with its second moments (kurtosis {why['kurtosis_of_data']:.3g} and 3), and B leaves "
        f"{why['directions_left_as_they_are']:,} of {why['directions']:,} directions of the noise "
        "as they are, to a hundredth."
    ]


def _cells(row: Mapping[str, Any]) -> str:
    fid, inverse, closed = row["fid"], row["inversion"], row.get("closed_form")
    steps = " / ".join(f"{v:.3g}" for v in fid["full steps"]["euler"].values())
    ends = (row[f"coordinates{of}"]["kurtosis"] for of in ("_of_noise", ""))
    minutes = row.get("training_minutes", row.get("training_cpu_minutes"))
    cells = (
        row["change"],
        f"{fid['one step (1000 of rk4)']:.3g}",
        steps,
        f"{inverse['psnr_mean_over_images']:.1f} dB, {inverse['rank']}",
        ", ".join(f"{v:.3g}" for v in ends),
        "is it" if closed is None else f"{closed['relative_error']:.2g}; FID {closed['fid']:.3g}",
        f"{minutes:.0f} min",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    names = sys.argv[1:] or list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"ladder: there is no row {unknown[0]}. Known: {', '.join(ROWS)}.")
    for name in names:
        row = measure_row(name)
        path = FOLDER / "ladder.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = {"machine": machine(), **found, name: row}
        found = {k: found[k] for k in ("machine", *ROWS) if k in found}
        write_json(path, found)
        draw_steps(found, PICTURES / "fid-by-steps.png")


if __name__ == "__main__":
    main()
