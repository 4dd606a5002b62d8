r"""Distilled encoders of dSprites (appendix E): their scores beside those of their teachers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linearizer import data
from linearizer.apps.base import Say
from linearizer.apps.registry import find_app
from linearizer.data.files import digest
from linearizer.data.networks import load_network
from linearizer.metrics.disentanglement import Scores, scores
from linearizer.metrics.regression import r_squared
from linearizer.runs.evaluate import write_table
from linearizer.runs.execute import execute
from linearizer.runs.plan import Plan, make_plan
from linearizer.runs.store import load_data, open_run
from linearizer.training.checkpoint import CONFIG

from .claims import (
    APART,
    EQUAL,
    Claim,
    Found,
    Section,
    command_of,
    describe_time,
    judge,
    middle,
    spread,
)
from .experiment import RUNS, Experiment, read_numbers, write_json
from .markdown import table_head, table_line

__all__ = ["EXPERIMENT", "PAPER", "distill_claims", "encode_all", "measure", "measure_table"]

#: Name in the paper's table, and what ``load_network`` knows it by.
TEACHERS = {"VAE": "vae", "FactorVAE": "factor", "BetaH": "betah"}
#: Preset of each Linearizer of a teacher, by what its row is called beside "Linearizer-VAE".
KINDS = {"": "dsprites", ", same layers": "same"}
#: The rows of Linearizers: teacher and preset.
STUDENTS = {
    f"Linearizer-{name}{kind}": (name, preset)
    for name in TEACHERS
    for kind, preset in KINDS.items()
}
#: All rows, each teacher before its students.
ROWS = [
    row for name in TEACHERS for row in (name, *(r for r in STUDENTS if STUDENTS[r][0] == name))
]
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
    "Linearizer-FactorVAE": ((0.35, 0.03), (0.05, 0.01), (0.64, 0.01), (0.50, 0.00), (0.94, 0.00)),
    "BetaH": ((0.59, 0.05), (0.23, 0.01), (0.83, 0.02), (0.71, 0.00), (0.95, 0.00)),
    "Linearizer-BetaH": ((0.69, 0.05), (0.24, 0.01), (0.80, 0.00), (0.71, 0.00), (0.95, 0.00)),
}

Encode = Callable[[Tensor], Tensor]


# -- one encoder -------------------------------------------------------------------------------


@torch.no_grad()
def encode_all(encode: Encode, images: Any, batch: int = 2048) -> Tensor:
    r"""encode(x) of every image of a data set, (N, k) float32 on the CPU, in its order.

    Arguments:
        encode: Images (n, \*shape) to codes (n, k); of a distribution, to its mean.
        images: Anything with ``len`` and ``batch(index).x``, such as ``data.Sprites``.
        batch: Images encoded at once.
    """
    parts: list[Tensor] = []
    for index in torch.arange(len(images)).split(batch):
        z = encode(images.batch(index).x)
        k = parts[0].shape[1] if parts else "k"
        if z.ndim != 2 or len(z) != len(index) or (parts and z.shape[1] != k):
            raise ValueError(
                f"encode_all: expected codes ({len(index)}, {k}) of {len(index)} images, got shape "
                f"{tuple(z.shape)}. Let encode give one row for each image, for example its mean."
            )
        parts.append(z.to("cpu", torch.float32))
    return torch.cat(parts)


def measure(
    encoder: str,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
    seeds: int = 10,
) -> dict[str, Any]:
    """The scores of one network or run, mean ± std over seeds of the scores."""
    is_run = (Path(encoder) / CONFIG).is_file()
    encode: Encode = _open_encoder(encoder) if is_run else load_network(encoder, root)
    sprites, notes = _load_sprites(root)
    for note in notes:
        say(note)
    say("codes of all images")
    codes = encode_all(encode, sprites)
    rows = []
    for seed in range(seeds):
        say(f"scores, seed {seed}")
        rows.append(scores(codes, sprites.sizes, seed)._asdict())
    folder = out or Path("runs/disentanglement")
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(encoder).name
    summary = {name: _summarise(rows)}
    result = {
        "encoder": name,
        "data": list(notes),
        "seeds": rows,
        "rows": summary,
        "table": scores_table(summary),
    }
    return write_table(result, folder / f"{name}.json", [])


def _load_sprites(root: Path | None) -> tuple[data.Sprites, tuple[str, ...]]:
    loaded = data.load("dsprites", root)
    assert isinstance(loaded.train, data.Sprites)
    return loaded.train, loaded.notes


def _open_encoder(run: str | Path) -> Encode:
    opened = open_run(run)
    if opened.app.name != "distill":
        raise ValueError(
            f"{run}: expected a distilled network, but the run holds {opened.app.name}."
        )
    return opened.model.read.outputs_of


# -- the whole table ---------------------------------------------------------------------------


def measure_table(
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
    sprites, notes = _load_sprites(root)
    encoders: dict[tuple[str, int], Encode] = {
        (name, 0): load_network(spec, root) for name, spec in TEACHERS.items()
    }
    students, facts = _distill_all(kept, seeds, out, root, say, steps, distillations)
    encoders |= students
    codes: dict[tuple[str, int], Tensor] = {}
    for seed in range(seeds):
        for row in ROWS:
            if kept.has(row, seed):
                continue
            key = row, seed % distillations if row in STUDENTS else 0
            if key not in codes:
                say(f"{row}: codes of all images")
                codes[key] = encode_all(encoders[key], sprites)
            say(f"{row}: scores, seed {seed}")
            found = scores(codes[key], sprites.sizes, seed)
            kept.put(row, seed, {**found._asdict(), **facts.get(key, {})})
    rows = {row: _summarise([kept.get(row, s) for s in range(seeds)]) for row in ROWS}
    _compare_rows(rows, seeds)
    result = {
        "data": list(notes),
        "seeds": seeds,
        "distillations": distillations,
        "rows": rows,
        "of_each_seed": kept.rows,
        "table": scores_table(rows),
    }
    return write_table(result, out / "disentanglement.json", [])


def _distill_all(
    kept: _Kept,
    seeds: int,
    out: Path,
    root: Path | None,
    say: Say,
    steps: int | None,
    distillations: int,
) -> tuple[dict[tuple[str, int], Encode], dict[tuple[str, int], dict[str, Any]]]:
    """Train those Linearizers whose scores are not all there; encoders, and facts about each."""
    encoders: dict[tuple[str, int], Encode] = {}
    facts: dict[tuple[str, int], dict[str, Any]] = {}
    plans = {
        (row, number): _plan(TEACHERS[name], preset, number, steps)
        for row, (name, preset) in STUDENTS.items()
        for number in range(distillations)
    }
    for row in STUDENTS:  # scores of other settings are not of this table
        kept.forget(row, [_digest(plans[row, n]) for n in range(distillations)])
    for number in range(min(distillations, seeds)):
        for row, (name, preset) in STUDENTS.items():
            if all(kept.has(row, s) for s in range(number, seeds, distillations)):
                continue
            say(f"{row}, distillation {number}")
            plan = plans[row, number]
            run = out / f"{TEACHERS[name]}-{preset}-{number}-{_digest(plan)[:8]}"
            done = execute(plan, run, root=root, resume=True, progress=False)
            facts[row, number] = {
                "r2": _measure_r2(run, root),
                "seconds": done.seconds,
                "steps": done.step,
                "settings": _digest(plan),
            }
            encoders[row, number] = _open_encoder(run)
            say(f"{row}, distillation {number}: R² {facts[row, number]['r2']['mean']:.4f}")
    return encoders, facts


def _compare_rows(rows: dict[str, dict[str, Any]], seeds: int) -> None:
    """Add the paper's numbers, and whether a student is within its teacher's deviation."""
    for row, values in rows.items():
        pairs = PAPER[row.partition(",")[0]]
        values["paper"] = {c: list(pair) for c, pair in zip(COLUMNS, pairs, strict=True)}
        if row in STUDENTS and seeds > 1:
            teacher = rows[STUDENTS[row][0]]
            values["within_one_std_of_teacher"] = {
                c: abs(values[c][0] - teacher[c][0]) <= teacher[c][1] for c in COLUMNS
            }


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
        self.rows.setdefault(row, {})[str(seed)] = dict(value)
        write_json(self.path, self.rows)


def _plan(spec: str, preset: str, number: int, steps: int | None) -> Plan:
    """How a Linearizer is distilled from a teacher."""
    usual = find_app("distill").presets[preset]["training"]["steps"]
    count = steps or STEPS.get((spec, preset), usual)
    flags: dict[str, dict[str, Any]] = {
        "data": {"teacher": spec},
        "model": {"refine": 0},  # the decoder has no part in f(x), which is all that is scored
        "training": {"seed": number, "tensorboard": False, "steps": count},
    }
    return make_plan("distill", preset=preset, flags=flags)


def _digest(plan: Plan) -> str:
    """What tells one way to distil from another."""
    model = find_app("distill").Config(**plan.model)
    return digest(*(part.model_dump(mode="json") for part in (plan.data, model, plan.training)))


@torch.no_grad()
def _measure_r2(run: Path, root: Path | None) -> dict[str, float]:
    """1 − MSE/variance on held-out images, mean and least over the outputs."""
    opened = open_run(run)
    test = load_data(opened, root).test
    pairs = [test.batch(i) for i in torch.arange(len(test)).split(500)]
    found = torch.cat([opened.model.read.outputs_of(p.x) for p in pairs])
    r2 = r_squared(found, torch.cat([p.y for p in pairs]))
    return {"mean": float(r2.mean()), "least": float(r2.min())}


def _summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of each column; of R² the mean and the least."""
    found: dict[str, Any] = {}
    for column in Scores._fields:
        values = torch.tensor([row[column] for row in rows], dtype=torch.float64)
        deviation = float(values.std()) if len(rows) > 1 else None
        found[column] = [float(values.mean()), deviation]
    if "r2" in rows[0]:
        found["r2"] = sum(row["r2"]["mean"] for row in rows) / len(rows)
        found["least_r2_of_an_output"] = min(row["r2"]["least"] for row in rows)
        found["steps"] = rows[0]["steps"]
        found["training_seconds"] = sum(row["seconds"] for row in rows) / len(rows)
    return found


# -- claims ------------------------------------------------------------------------------------


def distill_claims(
    row: Mapping[str, Any], time: Callable[[float | None], str] = lambda s: "", command: str = ""
) -> list[Claim]:
    """The table of appendix E, for an evaluation of all its rows; none for one encoder alone."""
    if "encoder" in row:
        return []
    rows = {name: r for name, r in row["rows"].items() if "paper" in r}
    drawn = any("re-rendered" in note for note in row["data"])
    several = f"{row['seeds']} seed{'s' if row['seeds'] != 1 else ''}"
    how = f"no: re-rendered dSprites, {several}" if drawn else f"yes: {several}"
    claims = []
    for name, r in rows.items():
        ours = " / ".join(spread(r[k], ".3f") for k in COLUMNS)
        said = " / ".join(spread(r["paper"][k], ".2f") for k in COLUMNS)
        verdict = EQUAL if _agree(r) else APART
        spent = time(r.get("training_seconds"))
        claims.append(Claim(name, said, ours, verdict, how, spent, command))
    for name, r in rows.items():
        teacher = rows.get(name.removeprefix("Linearizer-").partition(",")[0])
        if name.startswith("Linearizer-") and teacher is not None:
            fair = _agree(teacher) and not drawn
            apart = f"no: its teacher does not have the paper's scores; {several}"
            claim = _gap_claim(name, r, teacher, how if fair else apart, fair)
            spent = time(r.get("training_seconds"))
            claims.append(claim._replace(time=spent, command=command))
    return claims


def _gap_claim(
    name: str, row: Mapping[str, Any], teacher: Mapping[str, Any], how: str, fair: bool
) -> Claim:
    """How far a student's scores are from its teacher's."""
    gaps = {k: abs(middle(row[k]) - middle(teacher[k])) for k in COLUMNS}
    theirs = {k: abs(row["paper"][k][0] - teacher["paper"][k][0]) for k in COLUMNS}
    far, paper_far = max(gaps, key=lambda k: gaps[k]), max(theirs, key=lambda k: theirs[k])
    stds = [s[far][1] for s in (row, teacher)]
    std = None if None in stds else math.hypot(*stds)
    # The paper's numbers are rounded, and those of few seeds.
    tolerance = 0.01 + max(s["paper"][paper_far][1] for s in (row, teacher))
    verdict = judge(gaps[far], theirs[paper_far], tolerance, less=True) if fair else APART
    return Claim(
        f"{name}: largest difference of a score to its teacher's",
        f"{theirs[paper_far]:.2f} ({COLUMNS[paper_far]})",
        f"{spread((gaps[far], std))} ({COLUMNS[far]}); R² {row['r2']:.4f} on held-out images",
        verdict,
        how,
    )


def _agree(row: Mapping[str, Any]) -> bool:
    """Whether all scores are the paper's, within both deviations and the paper's rounding."""

    def close(ours: Sequence[float | None], paper: Sequence[float]) -> bool:
        return abs((ours[0] or 0.0) - paper[0]) <= (ours[1] or 0.0) + paper[1] + 0.005

    return all(close(row[k], row["paper"][k]) for k in COLUMNS)


def distill_section(found: Found) -> Section:
    """The table of appendix E."""
    row = found["disentanglement"]
    command = command_of(found, "distill", "python -m paper measure distill")

    def time(seconds: float | None) -> str:
        return "published encoder" if seconds is None else describe_time(seconds / 60, row)

    claims = distill_claims(row, time, command)
    several = f"mean ± standard deviation over {row['seeds']} seeds of the scores"
    if row["seeds"] == 1:
        several = "of one seed"
    text = (
        f"Scores in the order {' / '.join(COLUMNS.values())}, {several}. Teachers are the "
        "published encoders that the paper distils. Where a teacher does not get the paper's "
        "scores, definitions or images differ, and nothing can be compared: the last rows then "
        "only say how near a Linearizer is to its teacher. “Same layers” has the teacher's layers "
        "inside g and starts as the teacher; the others start from nothing."
    )
    title = "Distilled encoders of dSprites (appendix E)"
    return Section("distill", title, text, claims, list(row["data"]))


# -- tables of docs/distill.md -----------------------------------------------------------------


def scores_table(rows: Mapping[str, Any]) -> str:
    """Rows of Markdown, the paper's numbers in brackets."""
    lines = table_head("model", (*COLUMNS.values(), "R²"))
    for name, row in rows.items():
        cells = []
        for column in COLUMNS:
            paper = row.get("paper", {}).get(column)
            other = f" ({spread(paper, '.2f')})" if paper else ""
            cells.append(spread(row[column]) + other)
        lines.append(table_line(name, [*cells, f"{row['r2']:.4f}" if "r2" in row else ""]))
    return "\n".join(lines)


def distill_table() -> str:
    """The rows of the paper's table, ours beside the paper's."""
    found = read_numbers("disentanglement")
    seeds = f"Seeds of the scores: {found['seeds']}; distillations of each teacher: "
    lines = [scores_table(found["rows"]), "", f"{seeds}{found['distillations']}.", ""]
    lines += [_student_line(name, found["rows"][name]) for name in STUDENTS]
    each = found["of_each_seed"]
    gaps = {
        (abs(each[student][seed][column] - each[teacher][seed][column]), COLUMNS[column])
        for student, (teacher, preset) in STUDENTS.items()
        if preset == "same"
        for seed in each[student]
        for column in COLUMNS
    }
    gap, column = max(gaps)
    lines += [
        "",
        f"Codes of “same layers” are the teacher's to rounding. Still, scores of a single seed "
        f"differ by up to {gap:.4f} ({column}): so much do boosted trees make of rounding, and a "
        "mean over few seeds is no finer than that.",
    ]
    return "\n".join(lines) + "\n"


def _student_line(name: str, row: Mapping[str, Any]) -> str:
    verdict = ""
    if "within_one_std_of_teacher" in row:
        outside = [k for k, ok in row["within_one_std_of_teacher"].items() if not ok]
        where = f"outside in {', '.join(outside)}" if outside else "within in all columns"
        verdict = f"; one standard deviation of the teacher: {where}"
    return (
        f"- {name}: R² {row['r2']:.4f} on 5,000 held-out images (the least of an output "
        f"{row['least_r2_of_an_output']:.3f}), {row['steps']:,} steps in "
        f"{row['training_seconds'] / 60:.1f} minutes of one core{verdict}."
    )


def boosting_line() -> str:
    """The boosted trees of ``paper/boosting.py`` beside scikit-learn's."""
    rows = read_numbers("boosting")["rows"].values()
    again = [row["scikit_learn_with_another_random_state"] for row in rows]

    def differ(parts: Any) -> str:
        told = max(p["test_samples_told_otherwise"] for p in parts)
        shares = max(p["largest_difference_of_an_importance"] for p in parts)
        return f"at most {told} of 5,000 test samples and {shares:.4f} of an importance"

    fast = [row["times_as_fast"] for row in rows]
    return (
        f"Against scikit-learn's trees: {min(fast):.1f} to {max(fast):.1f} times as fast; they "
        f"differ in {differ(rows)}, scikit-learn's own with another `random_state` in "
        f"{differ(again)} (three encoders, two factors; `python -m paper.boosting`).\n"
    )


def _record(say: Say) -> dict[str, Any]:
    result = measure_table(out=RUNS / "disentanglement", say=say)
    return {key: value for key, value in result.items() if key != "table"}


EXPERIMENT = Experiment(
    name="distill",
    title="Distilled encoders",
    file="disentanglement",
    claims=distill_claims,
    section=distill_section,
    table=measure_table,
    settings={
        "here": {"seeds": 10},
        "paper": {"seeds": 10, "distillations": 3},
        "tiny": {"seeds": 1},
    },
    records={"table": _record},
    tables={
        ("distill.md", "disentanglement"): distill_table,
        ("distill.md", "boosting"): boosting_line,
    },
)
