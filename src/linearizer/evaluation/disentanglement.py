r"""FactorVAE, SAP and DCI scores of encoders of dSprites, and of what is distilled from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import data
from ..apps.disentangle import APP, Config, Distillation
from ..checkpoint import CONFIG, atomic
from ..data.files import digest
from ..disentanglement import Scores, codes_of, scores
from ..networks import load_network
from ..runs import Plan, execute, opened, plan, run_data
from .tables import Say, rounded, write_table

__all__ = ["disentanglement", "disentanglement_of", "table"]

#: Name in the paper's table, and what ``load_network`` knows it by.
TEACHERS = {"VAE": "vae", "FactorVAE": "factor", "BetaH": "betah"}
#: Preset of each Linearizer of a teacher, by what its row is called beside "Linearizer-VAE".
KINDS = {"": "dsprites", ", same layers": "same"}
#: Steps of a distillation where they are not those of the preset: some are harder to learn.
STEPS = {("factor", "dsprites"): 6_000, ("betah", "dsprites"): 6_000}
COLUMNS = {
    "factor_vae": "FactorVAE",
    "sap": "SAP",
    "disentanglement": "DCI-D",
    "completeness": "DCI-C",
    "informativeness": "DCI-I",
}
#: Mean and standard deviation of each column in the paper's table.
PAPER = {
    "VAE": ((0.28, 0.03), (0.02, 0.01), (0.49, 0.02), (0.27, 0.01), (0.94, 0.00)),
    "Linearizer-VAE": ((0.29, 0.03), (0.02, 0.00), (0.49, 0.01), (0.27, 0.01), (0.93, 0.01)),
    "FactorVAE": ((0.33, 0.01), (0.06, 0.01), (0.64, 0.01), (0.51, 0.01), (0.94, 0.00)),
    "Linearizer-FactorVAE": (
        (0.35, 0.03), (0.05, 0.01), (0.64, 0.01), (0.50, 0.00), (0.94, 0.00),
    ),
    "BetaH": ((0.59, 0.05), (0.23, 0.01), (0.83, 0.02), (0.71, 0.00), (0.95, 0.00)),
    "Linearizer-BetaH": ((0.69, 0.05), (0.24, 0.01), (0.80, 0.00), (0.71, 0.00), (0.95, 0.00)),
}  # fmt: skip

Encode = Callable[[Tensor], Tensor]


def disentanglement_of(
    encoder: str,
    seeds: int = 10,
    out: Path = Path("runs/disentanglement"),
    root: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """The scores of one network or run, mean ± std over seeds of the scores."""
    is_run = (Path(encoder) / CONFIG).is_file()
    encode: Encode = _of_run(encoder) if is_run else load_network(encoder, root)
    sprites, notes = _sprites(root)
    for note in notes:
        say(note)
    say("codes of all images")
    codes = codes_of(encode, sprites)
    rows = []
    for seed in range(seeds):
        say(f"scores, seed {seed}")
        rows.append(scores(codes, sprites.sizes, seed)._asdict())
    out.mkdir(parents=True, exist_ok=True)
    name = Path(encoder).name
    summary = {name: _summary(rows)}
    result = {"encoder": name, "data": list(notes), "seeds": rows, "rows": summary,
              "table": table(summary)}  # fmt: skip
    return write_table(result, out / f"{name}.json", [])


def disentanglement(
    seeds: int = 10,
    out: Path = Path("runs/disentanglement"),
    root: Path | None = None,
    say: Say = lambda text: None,
    steps: int | None = None,
    distillations: int = 1,
) -> dict[str, Any]:
    r"""All rows of the paper's table: each teacher, and Linearizers distilled from it.

    Both are scored with every seed. Of several distillations, each with a seed of its own, the
    seeds of the scores take one after the other. What is done is kept in ``out``, so that a stopped
    table goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    kept = _Kept(out / "scores.json")
    sprites, notes = _sprites(root)
    teachers = {name: load_network(spec, root) for name, spec in TEACHERS.items()}
    encoders: dict[tuple[str, int], Encode] = {(name, 0): net for name, net in teachers.items()}
    facts: dict[tuple[str, int], dict[str, Any]] = {}
    learned = {f"Linearizer-{name}{kind}": (name, preset) for name in TEACHERS
               for kind, preset in KINDS.items()}  # fmt: skip
    for row, (name, preset) in learned.items():  # scores of other settings are not of this table
        every = [_plan(TEACHERS[name], preset, n, steps) for n in range(distillations)]
        kept.forget(row, [_digest(one) for one in every])
    for number in range(min(distillations, seeds)):
        for row, (name, preset) in learned.items():
            if all(kept.has(row, s) for s in range(number, seeds, distillations)):
                continue
            say(f"{row}, distillation {number}")
            wanted = _plan(TEACHERS[name], preset, number, steps)
            run = out / f"{TEACHERS[name]}-{preset}-{number}-{_digest(wanted)[:8]}"
            facts[row, number] = _distilled(wanted, run, root)
            encoders[row, number] = _of_run(run)
            say(f"{row}, distillation {number}: R² {facts[row, number]['r2']['mean']:.4f}")
    order = [
        row for name in TEACHERS for row in (name, *(r for r in learned if learned[r][0] == name))
    ]
    codes: dict[tuple[str, int], Tensor] = {}
    for seed in range(seeds):
        for row in order:
            if kept.has(row, seed):
                continue
            key = row, seed % distillations if row in learned else 0
            if key not in codes:
                say(f"{row}: codes of all images")
                codes[key] = codes_of(encoders[key], sprites)
            say(f"{row}: scores, seed {seed}")
            found = scores(codes[key], sprites.sizes, seed)
            kept.put(row, seed, {**found._asdict(), **facts.get(key, {})})
    rows: dict[str, Any] = {
        row: _summary([kept.get(row, s) for s in range(seeds)]) for row in order
    }
    for row, values in rows.items():
        pairs = PAPER[row.partition(",")[0]]
        values["paper"] = {c: list(pair) for c, pair in zip(COLUMNS, pairs, strict=True)}
        if row in learned and seeds > 1:
            teacher = rows[learned[row][0]]
            values["within_one_std_of_teacher"] = {
                c: abs(values[c][0] - teacher[c][0]) <= teacher[c][1] for c in COLUMNS
            }
    result = {"data": list(notes), "seeds": seeds, "distillations": distillations, "rows": rows,
              "of_each_seed": kept.rows, "table": table(rows)}  # fmt: skip
    return write_table(result, out / "disentanglement.json", [])


def _sprites(root: Path | None) -> tuple[data.Sprites, tuple[str, ...]]:
    loaded = data.load("dsprites", root)
    assert isinstance(loaded.train, data.Sprites)
    return loaded.train, loaded.notes


class _Kept:
    """Scores by row and seed, in a file that is whole after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                self.rows = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise ValueError(f"{path}: expected JSON. Remove it to begin anew.") from None

    def has(self, row: str, seed: int) -> bool:
        return str(seed) in self.rows.get(row, {})

    def get(self, row: str, seed: int) -> dict[str, Any]:
        return self.rows[row][str(seed)]

    def forget(self, row: str, settings: list[str]) -> None:
        """Drop those of a row that were distilled otherwise; the seeds take each in turn."""
        self.rows[row] = {
            seed: value
            for seed, value in self.rows.get(row, {}).items()
            if value.get("settings") == settings[int(seed) % len(settings)]
        }

    def put(self, row: str, seed: int, value: Mapping[str, Any]) -> None:
        self.rows.setdefault(row, {})[str(seed)] = rounded(dict(value))
        with atomic(self.path) as part:
            part.write_text(json.dumps(self.rows, indent=2) + "\n", encoding="utf-8")


def _plan(spec: str, preset: str, number: int, steps: int | None) -> Plan:
    """How a Linearizer is distilled from a teacher."""
    usual = STEPS.get((spec, preset), APP.presets[preset]["training"]["steps"])
    flags: dict[str, dict[str, Any]] = {
        "data": {"teacher": spec},
        "model": {"refine": 0},  # the decoder has no part in f(x), which is all that is scored
        "training": {"seed": number, "tensorboard": False, "steps": steps or usual},
    }
    return plan("disentangle", preset=preset, flags=flags)


def _digest(wanted: Plan) -> str:
    """What tells one way to distil from another."""
    model = Config(**wanted.model).model_dump(mode="json")
    return digest(
        wanted.data.model_dump(mode="json"), model, wanted.training.model_dump(mode="json")
    )


def _distilled(wanted: Plan, run: Path, root: Path | None) -> dict[str, Any]:
    """Train one Linearizer, unless it is there; how well it stands in for its teacher."""
    done = execute(wanted, run, root=root, resume=True, progress=False)
    return {"r2": _r2(run, root), "seconds": done.seconds, "steps": done.step,
            "settings": _digest(wanted)}  # fmt: skip


def _of_run(run: str | Path) -> Encode:
    one = opened(run)
    if not isinstance(one.model, Distillation):
        raise ValueError(f"{run}: expected a distilled network, but the run holds {one.app.name}.")
    return one.model.read.outputs_of


@torch.no_grad()
def _r2(run: Path, root: Path | None) -> dict[str, float]:
    """1 − MSE/variance on held-out images, mean and least over the outputs."""
    one = opened(run)
    test = run_data(one, root).test
    pairs = [test.batch(i) for i in torch.arange(len(test)).split(500)]
    y = torch.cat([p.y for p in pairs if p.y is not None]).double()
    gap = torch.cat([one.model.read.outputs_of(p.x) for p in pairs]).double() - y
    r2 = 1 - gap.square().mean(0) / y.var(0, correction=0)
    return {"mean": float(r2.mean()), "least": float(r2.min())}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of each column; of R² the mean and the least."""
    found: dict[str, Any] = {}
    for column in Scores._fields:
        values = torch.tensor([row[column] for row in rows], dtype=torch.float64)
        spread = float(values.std()) if len(rows) > 1 else None
        found[column] = [float(values.mean()), spread]
    if "r2" in rows[0]:
        found["r2"] = sum(row["r2"]["mean"] for row in rows) / len(rows)
        found["least_r2_of_an_output"] = min(row["r2"]["least"] for row in rows)
        found["steps"] = rows[0]["steps"]
        found["training_seconds"] = sum(row["seconds"] for row in rows) / len(rows)
    return found


def table(rows: Mapping[str, Any]) -> str:
    """Rows of Markdown, the paper's numbers in brackets."""
    lines = ["| model | " + " | ".join(COLUMNS.values()) + " | R² |", "|---" * 7 + "|"]
    for name, row in rows.items():
        cells = []
        for column in COLUMNS:
            mean, std = row[column]
            paper = row.get("paper", {}).get(column)
            other = f" ({paper[0]:.2f} ± {paper[1]:.2f})" if paper else ""
            spread = "" if std is None else f" ± {std:.3f}"
            cells.append(f"{mean:.3f}{spread}{other}")
        cells.append(f"{row['r2']:.4f}" if "r2" in row else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
