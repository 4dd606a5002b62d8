r"""Attributes of faces (appendix E), beside a ResNet-18 that is trained for as long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linearizer.apps.attributes.evaluate import accuracies, choose_shown, gather, in_batches
from linearizer.apps.attributes.model import Attributes, augment, score_loss
from linearizer.apps.base import Say
from linearizer.apps.readout.use import edit_images, vary_points
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.store import load_data, open_run
from linearizer.training.checkpoint import fill, read_tensors, tensors_of, write_tensors
from linearizer.training.draws import Draw
from linearizer.training.loop import Training

from .claims import (
    APART,
    MISSING,
    SILENT,
    Claim,
    Found,
    Section,
    command_of,
    describe_images,
    describe_size,
    judge,
    middle,
    runs_of,
    signed,
    spread,
    time_of,
)
from .experiment import (
    EVALUATED,
    Experiment,
    Recipe,
    extend_table,
    read_numbers,
    train_for,
    train_minutes,
)
from .markdown import table_head, table_line

__all__ = ["EXPERIMENT", "PAPER", "ResNet18", "attributes_claims", "measure"]

#: The paper's accuracies on CelebA, with the full training set.
PAPER = {"linearizer": 0.876, "resnet50": 0.861}
#: Points of accuracy within which two are called equal: the error of a mean over a thousand faces.
POINTS = 0.005
SHIPPED = ("celeba-attributes", "mnist-attributes")

Network = Callable[[Tensor], Tensor]


# -- the baseline ------------------------------------------------------------------------------


class ResNet18(nn.Module):
    r"""He et al., *Deep Residual Learning*, 2016: 7×7 of stride 2, eight blocks of two 3×3.

    Arguments:
        channels: Of the images, in [0, 1].
        outputs: How many scores.
    """

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)]
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        inputs = 64
        for width in (64, 128, 256, 512):
            layers += [_Block(inputs, width), _Block(width, width)]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = (4 * x - 2).contiguous(memory_format=torch.channels_last)
        return self.last(self.layers(x))


class _Block(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        stride = 1 if inputs == width else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.match: nn.Module = nn.Identity()
        if stride == 2:
            self.match = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride=2, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.match(x)).relu()


def train_resnet(
    model: Attributes, source: Any, minutes: float, path: Path
) -> tuple[Network, dict[str, Any]]:
    """A ResNet-18 on the same images, augmented alike; kept, and read again for the same time."""
    config = model.config
    torch.manual_seed(0)
    net = ResNet18(config.shape[0], len(config.names)).float()
    key = {"minutes": minutes, "train_images": len(source.train)}
    if path.exists():
        tensors, about = read_tensors(path)
        if all(about.get(k) == v for k, v in key.items()):
            return fill(net, tensors, str(path)).eval(), about["row"]

    def loss(net: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
        scores = net(augment(batch.x, config, draw))
        return {"scores": score_loss(scores, batch.y, config.kind)}

    training = Training(batch=64, rate=1e-3, warmup=100, weight_decay=0.05, checkpoint_every=10**6)
    with torch.enable_grad():
        row = train_for(60 * minutes, net, loss, source.train, training)
    row["parameters"] = sum(p.numel() for p in net.parameters())
    write_tensors(path, tensors_of(net), {**key, "row": row})
    return net.eval(), row


# -- measures ----------------------------------------------------------------------------------


@torch.no_grad()
def measure(
    run: str | Path,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    baseline_minutes: float = 0.0,
) -> dict[str, Any]:
    """Evaluate a classifier, beside a ResNet-18 where minutes are given.

    The ResNet-18 also judges the edited images, and variations that the classifier cannot see.
    """
    opened = open_run(run)
    model = opened.model
    if not isinstance(model, Attributes):
        raise ValueError(f"{run}: expected attributes, but the run holds {opened.app.name}.")
    result = evaluate_run(run, out, root, None, say)
    source: Any = load_data(opened, root)
    found = result["data"]
    facts = {
        "name": found["name"],
        "shape": list(model.config.shape),
        "test_images": found["test_samples"],
        "train_images": len(source.train),
        "notes": found["notes"],
    }
    more: dict[str, Any] = {"data": facts}
    if source.name == "celeba":
        more["paper"] = PAPER
    if baseline_minutes > 0:
        say(f"ResNet-18, {baseline_minutes:g} minutes")
        path = Path(result["files"][0]).with_name("resnet18.safetensors")
        net, row = train_resnet(model, source, baseline_minutes, path)
        x, y = gather(model, source.test, len(source.test))
        more["resnet18"] = {**accuracies(in_batches(net, x), y, model.config.kind), **row}
        more["null_space"] = {**result["null_space"], **_judge_variations(model, net, x[:200])}
        if "edits" in result:
            more["edits"] = _judge_edits(model, net, x[:500], y[:500], result["edits"])
    return extend_table(result, more)


def _judge_edits(
    model: Attributes, net: Network, x: Tensor, y: Tensor, edits: Mapping[str, Any]
) -> dict[str, Any]:
    """Add what another network sees of each attribute that was put on images without it."""
    rows: dict[str, Any] = {}
    scores = in_batches(model.read.outputs_of, x)
    for k in choose_shown(model):
        name = model.config.names[k]
        if name not in edits:
            continue
        some = x[(y[:, k] < 0.5) & (scores[:, k] < 0)]
        old = in_batches(net, some) > 0
        others = [i for i in range(y.shape[1]) if i != k]
        rows[name] = dict(edits[name])
        for way in ("follow", "hold"):
            if way not in edits[name]:
                continue
            parts = [edit_images(model, p, name, hold=way == "hold") for p in some.split(100)]
            new = in_batches(net, torch.cat([p.image for p in parts]).clamp(0, 1)) > 0
            seen = {
                "resnet18_saw_it": float(old[:, k].double().mean()),
                "resnet18_sees_it": float(new[:, k].double().mean()),
                "resnet18_others_unchanged": float((old == new)[:, others].double().mean()),
            }
            rows[name][way] = {**edits[name][way], **seen}
    return rows


def _judge_variations(
    model: Attributes, net: Network, x: Tensor, amount: float = 0.7
) -> dict[str, float]:
    """How many outputs of another network stay where the classifier's cannot change."""
    noise = torch.randn(len(x), model.read.width, generator=torch.Generator().manual_seed(0))
    made = vary_points(model(), x, noise, amount).clamp(0, 1)
    old, new = in_batches(net, x), in_batches(net, made)
    classes = model.config.kind == "classes"
    same = old.argmax(1) == new.argmax(1) if classes else (old > 0) == (new > 0)
    return {"resnet18_outputs_unchanged": float(same.double().mean())}


def _measure_alone(
    run: Path, out: Path, root: Path | None, say: Say, minutes: float
) -> dict[str, Any]:
    return measure(run, out, root, say)


def _record(name: str, say: Say) -> dict[str, Any]:
    return {name: measure(name, EVALUATED / name, None, say, train_minutes(name))}


# -- claims ------------------------------------------------------------------------------------


def attributes_claims(row: Mapping[str, Any], time: str = "", command: str = "") -> list[Claim]:
    """Accuracies of appendix E, for one evaluated classifier."""
    data, paper = row["data"]["name"], row.get("paper")
    ours, base = row["linearizer"]["accuracy"], middle(row["majority"]["accuracy"])
    shown = f"{spread(ours, '.1%')} (majority: {base:.1%})"
    part = f"{row['data'].get('train_images', 0):,} training images, {describe_images(row)}"
    if paper is None:
        return [Claim(f"{data}: accuracy", "–", shown, SILENT, part, time, command)]
    size = describe_size(row)
    part += size
    how = f"no: {part}" if "part of" in part or size else f"yes: {part}"
    verdict = judge(middle(ours), paper["linearizer"], POINTS)
    rows = [("mean accuracy over 40 attributes", f"{paper['linearizer']:.1%}", shown, verdict, how)]
    residual = f"{paper['resnet50']:.1%}"
    if "resnet18" not in row:
        why = "not measured here: --baseline-minutes trains a ResNet-18"
        rows.append(("residual network", residual, why, MISSING, "–"))
    else:
        said = paper["linearizer"] - paper["resnet50"]
        other = row["resnet18"]["accuracy"]
        gap = middle(ours) - middle(other)
        ratio = f"no: {part}; ResNet-18 of equal training time, the paper's is a ResNet-50"
        what = "residual network, to compare with"
        rows.append((what, residual, spread(other, ".1%"), APART, ratio))
        what = "Linearizer over the residual network, points"
        before, now = signed([100 * said], "+.1f"), signed([100 * gap], "+.1f")
        rows.append((what, before, now, judge(gap, said, POINTS), ratio))
    return [
        Claim(f"{data}: {what}", said, ours, verdict, protocol, time, command)
        for what, said, ours, verdict, protocol in rows
    ]


def attributes_section(found: Found) -> Section:
    """Accuracies of appendix E."""
    rows = found["attributes"]
    claims: list[Claim] = []
    notes: list[str] = []
    for name, row in runs_of(rows, "majority"):
        command = command_of(found, "attributes", f"python -m paper measure attributes {name}")
        claims += attributes_claims(row, time_of(found, rows, name), command)
        notes += row["data"]["notes"]
    text = (
        f"Accuracies within {100 * POINTS:g} points are called equal: that is what a mean over a "
        "thousand faces is good for."
    )
    return Section("attributes", "Attributes of faces (appendix E)", text, claims, notes)


# -- the table of docs/attributes.md -----------------------------------------------------------


def attributes_table() -> str:
    """Accuracies, erasure, edits and null space of the shipped classifiers."""
    found = {name: row for name, row in read_numbers("attributes").items() if name != "machine"}
    lines = table_head("", ("accuracy", "balanced", "parameters", "training, one core"))
    for name, row in found.items():
        lines += _accuracy_lines(name, row)
    for name, row in found.items():
        lines += ["", *_erasure_lines(name, row["erasure"])]
    faces = found["celeba-attributes"]
    null = faces["null_space"]
    lines += ["", *_edit_lines(faces["edits"]), ""]
    lines.append(
        f"Null space of the face classifier: {null['dimension']:,} dimensions. With "
        f"{null['amount']:g} of it replaced by noise, scores change by at most "
        f"{null['largest_change_of_a_score']:.0e} in float32 and "
        f"{null['largest_change_float64']:.0e} in float64, pixels by {null['pixel_change']:.2f}; "
        f"{null['resnet18_outputs_unchanged']:.1%} of the ResNet-18's outputs stay."
    )
    return "\n".join(lines) + "\n"


def _accuracy_lines(name: str, row: Mapping[str, Any]) -> list[str]:
    where = f"{row['data']['name']}, {row['data']['test_images']:,} test images"
    other = row["resnet18"]
    lines = []
    for label, numbers, parameters, minutes in (
        (f"**{name}** ({where})", row["linearizer"], row["parameters"], train_minutes(name)),
        ("ResNet-18", other, other["parameters"], other["cpu_seconds"] / 60),
    ):
        cells = (f"{numbers['accuracy']:.2%}", f"{numbers['balanced']:.2%}")
        lines.append(table_line(label, (*cells, f"{parameters:,}", f"{minutes:.0f} min")))
    base = row["majority"]
    lines.append(f"| majority | {base['accuracy']:.2%} | {base['balanced']:.2%} | | |")
    if "paper" in row:
        both = f"{row['paper']['linearizer']:.1%}, {row['paper']['resnet50']:.1%}"
        lines.append(f"| paper, full set: Linearizer, ResNet-50 | {both} | | | |")
    return lines


def _erasure_lines(name: str, erasure: Mapping[str, Any]) -> list[str]:
    lines = [
        f"Erasure, {name}. Gap and projector from {erasure['images'][0]:,} training "
        f"images, probes from {erasure['images'][1]:,} of them; *fresh*: gap and "
        "projector from the other half. All numbers are of test images. Before → after:",
        "",
        "| erased | probe for it, ROC-AUC | its accuracy (majority) | fresh probe, ROC-AUC | "
        "own score, ROC-AUC | probes for the others, mean accuracy | most lost by another |",
        "|---|---|---|---|---|---|---|",
    ]

    def both(values: list[float], form: str = ".3f") -> str:
        return f"{values[0]:{form}} → {values[1]:{form}}"

    for what, row in erasure["of_each"].items():
        worst, loss = row["largest_loss_of_another"]
        cells = (
            both(row["probe_roc_auc"]),
            f"{both(row['probe_accuracy'], '.1%')} ({row['majority']:.1%})",
            both(row["fresh_probe_roc_auc"]),
            both(row["own_score_roc_auc"]),
            both(row["others_probe_accuracy"], ".2%"),
            f"{worst}, {loss:+.1%}",
        )
        lines.append(table_line(what, cells))
    return lines


def _edit_lines(edits: Mapping[str, Any]) -> list[str]:
    lines = [
        "| put on faces without it | others | score reached to | the ResNet-18 sees it: before → "
        "after | its other 39 outputs unchanged | pixels change by |",
        "|---|---|---|---|---|---|",
    ]
    for what, ways in edits.items():
        for way in ("follow", "hold"):
            row = ways[way]
            cells = (
                way,
                f"{row['score_error']:.0e}",
                f"{row['resnet18_saw_it']:.0%} → {row['resnet18_sees_it']:.0%}",
                f"{row['resnet18_others_unchanged']:.1%}",
                f"{row['pixel_change']:.3f}",
            )
            lines.append(table_line(what, cells))
    return lines


_TINY: dict[str, dict[str, Any]] = {
    "data": {"name": "digits"},
    "model": {"blocks": 2, "hidden": 16},
}
_FACES = Recipe("celeba-attributes", "attributes", "celeba", {}, measure)

EXPERIMENT = Experiment(
    name="attributes",
    title="Attributes",
    file="attributes",
    claims=attributes_claims,
    section=attributes_section,
    recipes={
        "here": (_FACES,),
        "paper": (_FACES,),
        "tiny": (Recipe("digits-attributes", "attributes", None, _TINY, _measure_alone),),
    },
    records={name: partial(_record, name) for name in SHIPPED},
    tables={("attributes.md", "attributes"): attributes_table},
)
