r"""The paper's experiments again: train, measure, and write the page that compares them.

What is done is kept: runs resume, and the JSON of each evaluation lies in the folder, in the same
shape as in ``benchmarks``, so that :func:`paper.pages.make_page` makes the page of either.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linearizer.apps.base import Say
from linearizer.report.runs import try_evaluation_report, try_run_report
from linearizer.runs.evaluate import round_numbers
from linearizer.runs.execute import execute
from linearizer.runs.plan import Plan, make_plan
from linearizer.training.checkpoint import atomic
from linearizer.training.settings import did_you_mean

from .claims import count_verdicts
from .experiment import FOLDER, Experiment, Recipe, machine, write_json
from .pages import EXPERIMENTS, make_page, make_sections, read_folder

__all__ = ["SCALES", "compare", "plan_recipe", "reproduce", "verify"]

STATE, PAGE = "state.json", "results.md"
#: How large experiments are, with the steps of every training where they are not the presets'. Of
#: "tiny" the numbers say nothing: it tells whether the whole way works.
SCALES: dict[str, int | None] = {"here": None, "paper": None, "tiny": 60}


def reproduce(
    names: Sequence[str] = ("all",),
    scale: str = "here",
    folder: Path | None = None,
    out: Path | None = None,
    root: Path | None = None,
    steps: int | None = None,
    say: Say = lambda text: None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train and measure experiments of the paper, and write the page that compares them.

    Arguments:
        names: Of the experiments, or "all".
        scale: "here" for the shipped models' settings, "paper" for the paper's, "tiny" to try.
        folder: For runs and results; a stopped reproduction goes on there.
        out: The page; where it is not given, results.md in the folder, or in docs once all
            experiments are in the folder.
        root: The data folder.
        steps: Of every training, where they are not to be the presets'.
        progress: Show bars of trainings.
    """
    if scale not in SCALES:
        raise ValueError(f"reproduce: there is no scale {scale!r}. {did_you_mean(scale, SCALES)}")
    chosen = list(EXPERIMENTS) if "all" in names or not names else list(dict.fromkeys(names))
    for name in chosen:
        if name not in EXPERIMENTS:
            known = did_you_mean(name, [*EXPERIMENTS, "all"])
            raise ValueError(f"reproduce: there is no experiment {name!r}. {known}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("reproduce: expected one process, got several. Start it without torchrun.")
    folder = folder or Path("runs") / ("reproduce" if scale == "here" else f"reproduce-{scale}")
    if out is not None:
        _require_file(out)
    work = _Work(folder, scale, steps, root, say, progress)
    try:
        work.do_all(chosen)
    except BaseException:  # Ctrl-C: the page of what is done, and then it stops
        with contextlib.suppress(Exception):
            compare(folder, out)
        raise
    result: dict[str, Any] = {"verdicts": count_verdicts([]), "files": []}
    try:
        if _measured(read_folder(folder)) or not work.problems:
            result = compare(folder, out)
    except (ValueError, OSError) as problem:
        work.problems["page"] = str(problem)
    return {"scale": scale, "folder": str(folder), **result, "problems": dict(work.problems)}


def compare(folder: Path, out: Path | None = None) -> dict[str, Any]:
    """Write the page of what a folder's JSON files hold, and count its verdicts.

    Arguments:
        out: The page; as for :func:`reproduce` where it is not given.
    """
    if not folder.is_dir():
        raise ValueError(f"reproduce: expected a folder of measured JSON, but {folder} is none.")
    found = read_folder(folder)
    there = _measured(found)
    if not there:
        raise ValueError(f"reproduce: {folder} holds no measured JSON, such as flow.json.")
    if out is None:
        docs, tiny = Path("docs"), found.get("state", {}).get("scale") == "tiny"
        whole = there == list(EXPERIMENTS) and docs.is_dir() and not tiny
        out = (docs if whole else folder) / PAGE
    _require_file(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as part:
        part.write_text(make_page(found, folder.as_posix()), encoding="utf-8")
    claims = [claim for section in make_sections(found) for claim in section.claims]
    return {"verdicts": count_verdicts(claims), "files": [str(out)]}


def verify(folder: Path) -> dict[str, Any]:
    """The numbers of a reproduction beside the committed ones, experiment by experiment."""
    known = {c.what: c.ours for s in make_sections(read_folder(FOLDER)) for c in s.claims}
    found = read_folder(folder)
    if "state" not in found or "shipped" not in found:
        raise ValueError(f"{folder}: expected a folder that `python -m paper` has filled.")
    rows = {
        section.name: {
            claim.what: {"reproduced": claim.ours, "committed": known.get(claim.what)}
            for claim in section.claims
        }
        for section in make_sections(found)
        if section.claims and section.name in found["state"]["commands"]
    }
    minutes = {name: run["minutes"] for name, run in found["shipped"].items()}
    return {"done": found["state"]["done"], "training_minutes": minutes, "rows": rows}


def _measured(found: Mapping[str, Any]) -> list[str]:
    """Names of the experiments of which something is measured."""
    return [s.name for s in make_sections(found) if s.claims and s.name in EXPERIMENTS]


def _require_file(out: Path) -> None:
    if out.is_dir():
        raise ValueError(f"reproduce: expected a file for the page, but {out} is a folder.")


def plan_recipe(recipe: Recipe, steps: int | None) -> Plan:
    """The preset with its flags, and with as many steps as are given, also in a second stage."""
    flags = {k: dict(v) for k, v in recipe.flags.items()}
    if steps is not None:
        few = {"steps": steps, "checkpoint_every": max(1, steps // 5)}
        flags["training"] = {**flags.get("training", {}), **few}
        usual = make_plan(recipe.app, preset=recipe.preset, flags=flags)
        if getattr(usual.app.Config(**usual.model), "refine", 0):
            flags["model"] = {**flags.get("model", {}), "refine": steps}
    return make_plan(recipe.app, preset=recipe.preset, flags=flags)


class _Work:
    """One folder of runs and results, and what of it is done."""

    def __init__(
        self,
        folder: Path,
        scale: str,
        steps: int | None,
        root: Path | None,
        say: Say,
        progress: bool,
    ) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"reproduce: expected a folder, but {folder} is a file.")
        self.folder, self.scale, self.root = folder, scale, root
        self.steps = steps or SCALES[scale]
        self.tell, self.progress, self.place = say, progress, ""
        self.problems: dict[str, str] = {}
        before = self._read(STATE)
        self.about: dict[str, Any] = {"scale": scale, "steps": steps}
        for key, value in self.about.items():
            if before and before.get(key) != value:
                raise ValueError(
                    f"{folder}: it was begun with {key} {before.get(key)}, not {value}. Go on so, "
                    "or choose another --folder."
                )
        self.done: list[str] = before.get("done", [])
        folder.mkdir(parents=True, exist_ok=True)
        self._write_state()

    def say(self, text: str) -> None:
        self.tell(f"{self.place}: {text}")

    def do_all(self, names: Sequence[str]) -> None:
        """Do the parts of these experiments; what one of them fails at leaves the others."""
        todo = [(EXPERIMENTS[name], part) for name in names for part in self._parts(name)]
        for i, (experiment, part) in enumerate(todo):
            self.place = f"[{i + 1}/{len(todo)}] {part}"
            try:
                self.do(experiment, part)
            except (ValueError, OSError) as problem:  # data that are not here, say
                self._note_problem(part, str(problem))
            except Exception as problem:  # whatever it is, the other parts can be done
                words = " ".join(str(problem).split())
                self._note_problem(part, f"{type(problem).__name__}: {words}")

    def _parts(self, name: str) -> list[str]:
        """The runs of an experiment; or itself, where one table trains what it needs."""
        recipes = EXPERIMENTS[name].recipes.get(self.scale, ())
        return [recipe.name for recipe in recipes] or [name]

    def do(self, experiment: Experiment, part: str) -> None:
        """Train and measure one part, unless it is done."""
        file = f"{experiment.file}.json"
        key = part if experiment.table is None else "rows"
        before = self._read(file)  # a broken file is said before anything is trained
        if f"{part} measured" in self.done and key in before:
            self.say("done before")
            return
        if experiment.table is None:
            recipe = next(r for r in experiment.recipes[self.scale] if r.name == part)
            row = self._train_and_measure(recipe)
        else:
            settings = experiment.settings[self.scale]
            out = self.folder / experiment.file
            row = experiment.table(
                **settings, out=out, root=self.root, say=self.say, steps=self.steps
            )
            row = experiment.keep(row)
        try_evaluation_report(row, "", self.say)
        kept = {k: v for k, v in row.items() if k not in ("files", "table")}
        rows = kept if experiment.table is not None else {**self._read(file), part: kept}
        write_json(self.folder / file, {"machine": machine(), **rows})
        self._finish(f"{part} measured")

    def _train_and_measure(self, recipe: Recipe) -> dict[str, Any]:
        run = self.folder / recipe.name
        before = self._read("shipped.json")
        if f"{recipe.name} trained" not in self.done or recipe.name not in before:
            self.say("training")
            plan = plan_recipe(recipe, self.steps)
            result = execute(
                plan, run, root=self.root, resume=True, progress=self.progress, say=self.say
            )
            try_run_report(run, result, self.root, self.say)
            # Rounded as it is kept, so that what is measured for as long is known again.
            row = {"minutes": result.seconds / 60, "steps": result.step, "machine": machine()}
            before = {**self._read("shipped.json"), recipe.name: round_numbers(row)}
            write_json(self.folder / "shipped.json", before)
            self._finish(f"{recipe.name} trained")
        self.say("measuring")
        minutes = before[recipe.name]["minutes"]
        return recipe.measure(run, run / "evaluation", self.root, self.say, minutes)

    def _note_problem(self, part: str, problem: str) -> None:
        self.problems[part] = problem
        self.say(f"not done: {problem}")
        self._write_state()

    def _finish(self, what: str) -> None:
        # Another process may have done other parts since.
        before = self._read(STATE).get("done", self.done)
        self.done = [*(d for d in before if d != what), what]
        self._write_state()

    def _write_state(self) -> None:
        scale, steps = self.about["scale"], self.about["steps"]
        more = "" if scale == "here" else f" --scale {scale}"
        more += "" if steps is None else f" --steps {steps}"
        commands = {name: f"python -m paper {name}{more}" for name in EXPERIMENTS}
        state = {**self.about, "done": self.done, "problems": self.problems, "commands": commands}
        write_json(self.folder / STATE, state)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected JSON. Remove it to begin anew.")
        return value
