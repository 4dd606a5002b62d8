r"""Idempotent projectors (section 4.3), beside an autoencoder and idempotency by training."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linearizer.apps.base import Say
from linearizer.apps.images import measure_psnr, stack_images
from linearizer.apps.projector.evaluate import (
    draw_projections,
    has_digits,
    judge_digits,
    make_inputs,
    measure_idempotency,
    time_map,
)
from linearizer.nets import FromVector, ToVector
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.runs.store import load_data, open_run
from linearizer.training.draws import Draw
from linearizer.training.loop import Loss, Training

from .claims import (
    SILENT,
    Claim,
    Found,
    Section,
    command_of,
    describe_time,
    runs_of,
    time_of,
)
from .experiment import (
    EVALUATED,
    RUNS,
    Experiment,
    Recipe,
    data_of,
    extend_table,
    read_numbers,
    train_for,
    train_minutes,
)
from .markdown import table_head, table_line

__all__ = ["BASELINES", "EXPERIMENT", "measure", "measure_baseline", "projector_claims"]

SHIPPED = "mnist-projector"
#: Other recipes, whose numbers stand beside those of the shipped one.
PRESETS = ("paper", "warm", "sharp")


# -- baselines ---------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    r"""x ↦ decode(encode(x)), with the networks that a subspace has as E and D.

    Arguments:
        shape: (C, H, W).
        rank: Length of the code.
        hidden: Channels.
    """

    def __init__(self, shape: tuple[int, int, int], rank: int, hidden: int = 16) -> None:
        super().__init__()
        dense = max(256, 8 * hidden)
        self.encode = ToVector(shape, rank, hidden, dense)
        self.decode = FromVector(rank, shape, hidden, dense)
        # A coupling starts at zero; an autoencoder would stay there.
        last = self.encode.layers[-1]
        assert isinstance(last, nn.Linear)
        last.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


def autoencoder_loss(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """‖f(x) − x‖²."""
    return {"reconstruction": (model(batch.x) - batch.x).flatten(1).square().sum(1).mean()}


def ign_noise(x: Tensor, draw: Draw) -> Tensor:
    """What an idempotent generative network is trained to make images of."""
    return 0.5 + 0.3 * draw.normal(x)


def ign_loss(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""Idempotency by training: 20·‖f(x) − x‖ + 20·‖f′(f(z)) − f(z)‖ − 2.5·‖f(f′(z)) − f′(z)‖.

    f′ takes no gradient, z is noise, and the last term, which tightens the range, is held below 1.5
    times the first by a tanh. Distances are mean absolute differences.

    Shocher et al., Idempotent Generative Network, 2024.
    """
    x = batch.x
    fixed = copy.deepcopy(model).requires_grad_(False)
    z = ign_noise(x, draw)
    fx, fz = model(x), model(z)
    kept = fz.detach()
    rec = (fx - x).abs().flatten(1).mean(1)
    idempotent = (fixed(fz) - fz).abs().mean()
    tight = -(model(kept) - kept).abs().flatten(1).mean(1)
    limit = 1.5 * rec.detach().clamp_min(1e-6)
    return {
        "reconstruction": 20 * rec.mean(),
        "idempotency": 20 * idempotent,
        "tightness": 2.5 * (torch.tanh(tight / limit) * limit).mean(),
    }


#: Length of the code (as the projector's rank where None) and loss. The range of an idempotent
#: generative network is to be tightened by its loss, not by its width.
BASELINES: dict[str, tuple[int | None, Loss]] = {
    "autoencoder": (None, autoencoder_loss),
    "ign": (128, ign_loss),
}


def measure_baseline(
    name: str, run: str | Path, minutes: float, picture: Path, root: Path | None = None
) -> dict[str, Any]:
    """Train a network without the architecture on a projector's data for as long; measure it."""
    opened = open_run(run)
    source: Any = load_data(opened, root)
    width, loss = BASELINES[name]
    torch.manual_seed(0)
    shape: Any = tuple(opened.model.target.shape)
    code = width or int((opened.model.logits > 0).sum())
    net = Autoencoder(shape, code, opened.model.config.hidden or 16)
    training = Training(batch=128, rate=1e-3, ema=0.999)
    share = 1.0
    with torch.enable_grad():
        if name == "ign":  # its absolute differences alone keep images of few strokes black
            train_for(0.1 * 60 * minutes, net, autoencoder_loss, source.train, training)
            # At 1e-3 it falls to black within a few hundred steps.
            share, training = 0.9, training.model_copy(update={"rate": 2e-4})
        spent = train_for(share * 60 * minutes, net, loss, source.train, training)
    with torch.no_grad():
        x = stack_images(source.test)
        inputs, _ = make_inputs(x)
        if name == "ign":
            inputs["noise of its training"] = ign_noise(x[:1000], Draw(11))
        draw_projections(net, inputs, f"{name}, for comparison", picture)
        row = {
            **spent,
            "cpu_seconds": spent["cpu_seconds"] / share,
            "parameters": sum(p.numel() for p in net.parameters()),
            "code": code,
            "reconstruction": measure_psnr(net, x),
            "idempotency_float32": measure_idempotency(net, inputs),
            "seconds_per_image": time_map(net, x),
        }
        return (
            {**row, "projected": judge_digits(net, inputs)} if has_digits(source.name, x) else row
        )


# -- measures ----------------------------------------------------------------------------------


def measure(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    baseline_minutes: float = 0.0,
) -> dict[str, Any]:
    """Evaluate a projector, beside networks without its architecture where minutes are given."""
    result = evaluate_run(run, out, root, None, say)
    more: dict[str, Any] = {"data": data_of(result)}
    if baseline_minutes > 0:
        folder = Path(result["files"][0]).parent
        more |= {"baselines": {}, "pictures": []}
        for name in BASELINES:
            say(f"{name}, {baseline_minutes:g} minutes")
            more["pictures"].append(folder / f"{name}.png")
            row = measure_baseline(name, run, baseline_minutes, more["pictures"][-1], root)
            more["baselines"][name] = row
    return extend_table(result, more)


def _measure(run: Path, out: Path, root: Path | None, say: Say, minutes: float) -> dict[str, Any]:
    return measure(run, out, root, say)


def _record_shipped(say: Say) -> dict[str, Any]:
    return {SHIPPED: measure(SHIPPED, EVALUATED / SHIPPED, None, say)}


def _record_baseline(name: str, say: Say) -> dict[str, Any]:
    """A baseline that is trained for as long as the shipped projector was."""
    folder = EVALUATED / name
    folder.mkdir(parents=True, exist_ok=True)
    row = measure_baseline(name, SHIPPED, train_minutes(SHIPPED), folder / f"{name}.png")
    return {name: row}


def _record_preset(name: str, say: Say) -> dict[str, Any]:
    """Train `linearizer train projector --preset NAME --data mnist --size 32`, and measure it."""
    run = RUNS / f"projector-{name}"
    begun = time.process_time()
    result = execute(make_plan("projector", preset=name, flags=_MNIST), run, resume=True)
    seconds = time.process_time() - begun
    row = measure(run, EVALUATED / name, None, say)
    keys = (
        "rank",
        "parameters",
        "idempotency_float32",
        "idempotency_float64",
        "reconstruction",
        "projected",
        "anomaly_roc_auc",
        "seconds_per_image",
    )
    kept = {key: row[key] for key in keys}
    return {name: {"cpu_seconds": seconds, "steps": result.step, **kept}}


# -- claims ------------------------------------------------------------------------------------


def projector_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Section 4.3, for one evaluated projector."""
    worst = max(row["idempotency_float32"].values())
    exact = row.get("idempotency_float64")
    double = f", {max(exact.values()):.0e} in float64" if exact else ""
    name = row.get("run", "")
    rank, psnr = row.get("rank"), row["reconstruction"]["psnr_mean_over_images"]
    lost = ": everything goes to one image" if rank == 0 else ""
    rows = [("rank, and PSNR of test images", "pictures", f"{rank}{lost}; {psnr:.1f} dB")]
    if rank != 0:  # a constant is idempotent, and says nothing
        what = "largest |f(f(x)) − f(x)| over data, noise, photos and others"
        rows.insert(0, (what, "f(f(x)) = f(x), exactly", f"{worst:.0e}{double}"))
    noise = row.get("projected", {}).get("noise 1")
    if noise and rank != 0:
        classes = sum(n > 0 for n in noise["classes"])
        what = "projected noise (σ = 1) of which a digit classifier is sure"
        shown = f"{noise['share_confident']:.0%}, of {classes} of 10 classes"
        rows.append((what, "pictures", shown))
    return [
        Claim(f"{name}: {what}" if name else what, said, ours, SILENT, "–", time, command)
        for what, said, ours in rows
    ]


def projector_section(found: Found) -> Section:
    """Section 4.3."""
    rows = found["projector"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in sorted(runs_of(rows, "idempotency_float32"), key=lambda r: r[0] == "paper"):
        if "run" in row:
            command = f"linearizer evaluate {name}"
            title, time = name, time_of(found, rows, name)
        elif name == "paper":
            command = f"linearizer train projector --preset {name} --data mnist --size 32"
            title = f"preset `{name}`, {row['steps']:,} steps"
            time = describe_time(row["cpu_seconds"] / 60, rows)
        else:
            continue  # baselines, and recipes of ours
        command = command_of(found, "projector", command)
        claims += projector_claims({**row, "run": title}, time, command)
        notes += row.get("data", {}).get("notes", [])
    if "ign" in rows:
        error = rows["ign"]["idempotency_float32"]
        claim = Claim(
            "IGN, whose idempotency is trained: |f(f(x)) − f(x)| on data, on noise (σ = 10)",
            "“only around the training data”",
            f"{error['data']:.2g}, {error['noise 10']:.2g}",
            SILENT,
            "our own IGN, with a network of ours",
            describe_time(rows["ign"]["cpu_seconds"] / 60, rows),
            "python -m paper record projector ign",
        )
        claims.append(claim)
    text = "The paper shows pictures and has no number. It proves idempotency; here it is measured."
    return Section("projector", "Idempotent projectors (section 4.3)", text, claims, notes)


# -- the table of docs/projector.md ------------------------------------------------------------

NAMES = {
    SHIPPED: f"{SHIPPED} (`best`)",
    "paper": "`paper`",
    "warm": "`warm`",
    "sharp": "`sharp`, reconstruction alone",
    "autoencoder": "plain autoencoder",
    "ign": "IGN, trained idempotency",
}


def projector_table() -> str:
    """The shipped projector, the paper's recipe, and networks without the architecture."""
    found = read_numbers("projector")
    names = {key: name for key, name in NAMES.items() if key in found}
    lines = [
        "| | rank or code | parameters | training, one core | PSNR on test digits | "
        "worst ‖f(f(x))−f(x)‖∞, float32 | the same, float64 | "
        "confident digits of projected noise (σ = 1) |",
        "|---|---|---|---|---|---|---|---|",
        *(_network_line(name, found[key]) for key, name in names.items()),
    ]
    own = found.get("ign", {}).get("projected", {}).get("noise of its training")
    if own is not None:
        count = sum(n > 0 for n in own["classes"])
        lines += [
            "",
            f"Of the noise that IGN was trained on it makes {own['share_confident']:.0%} "
            f"confident digits, of {count} classes.",
        ]
    ours = found[SHIPPED]
    ranks, kinds = ours["reconstruction_by_rank"], ours["idempotency_float32"]
    ways = next(iter(ours["gaps"].values()))
    lines += [
        "",
        *table_head("rank", ranks),
        table_line("PSNR", (f"{r['psnr']:.1f}" for r in ranks.values())),
        table_line("principal components", (f"{r['pca_psnr']:.1f}" for r in ranks.values())),
        "",
        *table_head("idempotency", kinds),
    ]
    for key, name in names.items():
        lines.append(
            table_line(name, (f"{v:.0e}" for v in found[key]["idempotency_float32"].values()))
        )
    lines += ["", *table_head("test digits against", ("ROC-AUC of the score",))]
    lines += [table_line(name, (f"{v:.3f}",)) for name, v in ours["anomaly_roc_auc"].items()]
    lines += ["", *table_head("unknown pixels", ways)]
    for name, row in ours["gaps"].items():
        lines.append(table_line(f"{name}, PSNR there", (f"{v:.1f} dB" for v in row.values())))
    return "\n".join(lines) + "\n"


def _network_line(name: str, row: Mapping[str, Any]) -> str:
    exact, noise = row.get("idempotency_float64"), row["projected"]["noise 1"]
    minutes = row["cpu_seconds"] / 60 if "cpu_seconds" in row else train_minutes(SHIPPED)
    cells = (
        str(row.get("rank", row.get("code"))),
        f"{row['parameters']:,}",
        f"{minutes:.0f} min",
        f"{row['reconstruction']['psnr_mean_over_images']:.1f} dB",
        f"{max(row['idempotency_float32'].values()):.0e}",
        "–" if exact is None else f"{max(exact.values()):.0e}",
        f"{noise['share_confident']:.0%}, {sum(n > 0 for n in noise['classes'])} classes",
    )
    return table_line(name, cells)


_MNIST = {"data": {"name": "mnist", "size": 32}}
_PAPER = Recipe("projector-paper", "projector", "paper", _MNIST, _measure)

EXPERIMENT = Experiment(
    name="projector",
    title="Projectors",
    file="projector",
    claims=projector_claims,
    section=projector_section,
    recipes={
        "here": (Recipe(SHIPPED, "projector", "mnist", {}, _measure), _PAPER),
        "paper": (_PAPER,),
        "tiny": (Recipe("digits-projector", "projector", "digits", {}, _measure),),
    },
    records={
        SHIPPED: _record_shipped,
        **{name: partial(_record_baseline, name) for name in BASELINES},
        **{name: partial(_record_preset, name) for name in PRESETS},
    },
    tables={("projector.md", "projector"): projector_table},
)
