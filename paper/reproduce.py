r"""The paper's experiments again: train, measure, and write the page that compares them.

What is done is kept: runs resume, and the JSON of each evaluation lies in the folder, in the same
shape as in ``benchmarks``, so that :func:`linearizer.results.page` makes the page of either.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import evaluation, runs
from .checkpoint import atomic
from .evaluation.tables import Say, machine, rounded
from .reporting import evaluation_page, run_page
from .results import EXPERIMENTS, counted, gathered, page, sections
from .settings import did_you_mean

__all__ = ["SCALES", "Recipe", "Scale", "compare", "reproduce"]

STATE, PAGE = "state.json", "results.md"
STYLES = "candy,mosaic,rain_princess,udnie"
#: (run, folder of results, data root, say, minutes of its training) ↦ the evaluation
Measure = Callable[[Path, Path, Path | None, Say, float], dict[str, Any]]


class Recipe(NamedTuple):
    """One run: an app's preset with some flags, and how it is measured."""

    name: str
    app: str
    preset: str | None
    flags: Mapping[str, Mapping[str, Any]]
    measure: Measure


class Scale(NamedTuple):
    """How large the experiments are."""

    #: Runs of each experiment that has some of its own.
    recipes: Mapping[str, Sequence[Recipe]]
    #: Settings of the two evaluations that train what they need.
    weather: Mapping[str, Any]
    disentangle: Mapping[str, Any]
    #: Steps of every training where they are not the presets'.
    steps: int | None = None


# -- scales --------------------------------------------------------------------------------


def _flow(samples: int) -> Measure:
    return lambda run, out, root, say, minutes: evaluation.flow(run, samples, out, root, say)


def _style(photos: int) -> Measure:
    return lambda run, out, root, say, minutes: evaluation.style(run, out, photos, root, say)


def _projector(run: Path, out: Path, root: Path | None, say: Say, minutes: float) -> dict[str, Any]:
    return evaluation.projector(run, out, root, say)


def _attributes(
    run: Path, out: Path, root: Path | None, say: Say, minutes: float
) -> dict[str, Any]:
    """Beside a ResNet-18 that is trained for as long."""
    return evaluation.attributes(run, out, root, say, minutes)


def _accuracy(run: Path, out: Path, root: Path | None, say: Say, minutes: float) -> dict[str, Any]:
    return evaluation.attributes(run, out, root, say)


_MNIST, _CELEBA = {"data": {"name": "mnist", "size": 32}}, {"data": {"name": "celeba", "size": 64}}

SCALES = {
    "here": Scale(
        {
            "flow": (
                Recipe("mnist-flow", "flow", "mnist", {}, _flow(10_000)),
                Recipe("celeba-flow", "flow", "celeba", {}, _flow(1_000)),
            ),
            "projector": (
                Recipe("mnist-projector", "projector", "mnist", {}, _projector),
                Recipe("projector-paper", "projector", "paper", _MNIST, _projector),
            ),
            "style": (Recipe("styles", "style", None, {"data": {"styles": STYLES}}, _style(200)),),
            "attributes": (Recipe("celeba-attributes", "attributes", "celeba", {}, _attributes),),
        },
        weather={"minutes": 2.0},
        disentangle={"seeds": 10},
    ),
    "paper": Scale(
        {
            "flow": (
                Recipe("mnist-flow", "flow", "paper", _MNIST, _flow(10_000)),
                Recipe("celeba-flow", "flow", "paper", _CELEBA, _flow(10_000)),
            ),
            "projector": (Recipe("projector-paper", "projector", "paper", _MNIST, _projector),),
            "style": (
                Recipe("styles", "style", "paper", {"data": {"styles": STYLES}}, _style(200)),
            ),
            "attributes": (Recipe("celeba-attributes", "attributes", "celeba", {}, _attributes),),
        },
        weather={"minutes": 60.0},
        disentangle={"seeds": 10, "distillations": 3},
    ),
    # Whether the whole way works; its numbers say nothing.
    "tiny": Scale(
        {
            "flow": (Recipe("digits-flow", "flow", "digits", {}, _flow(100)),),
            "projector": (Recipe("digits-projector", "projector", "digits", {}, _projector),),
            "style": (
                Recipe("styles", "style", None,
                       {"data": {"styles": STYLES, "size": 32}, "model": {"hidden": 4},
                        "training": {"batch": 2}}, _style(1)),
            ),
            "attributes": (
                Recipe("digits-attributes", "attributes", None,
                       {"data": {"name": "digits"}, "model": {"blocks": 2, "hidden": 16}},
                       _accuracy),
            ),
        },
        weather={"horizons": "96", "rows": "last value,strict", "minutes": 0.01},
        disentangle={"seeds": 1},
        steps=60,
    ),
}  # fmt: skip


# -- all of it -----------------------------------------------------------------------------


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
            known = [*EXPERIMENTS, "all"]
            raise ValueError(
                f"reproduce: there is no experiment {name!r}. {did_you_mean(name, known)}"
            )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("reproduce: expected one process, got several. Start it without torchrun.")
    folder = folder or Path("runs") / ("reproduce" if scale == "here" else f"reproduce-{scale}")
    if out is not None:
        _writable(out)
    work = _Work(folder, scale, steps, root, say, progress)
    todo = [(name, part) for name in chosen for part in work.parts(name)]
    try:
        for i, (name, part) in enumerate(todo):
            work.place = f"[{i + 1}/{len(todo)}] {part}"
            try:
                work.do(name, part)
            except (ValueError, OSError) as problem:  # data that are not here, say
                work.trouble(part, str(problem))
            except Exception as problem:  # whatever it is, the other parts can be done
                work.trouble(part, f"{type(problem).__name__}: {' '.join(str(problem).split())}")
    except BaseException:  # Ctrl-C: the page of what is done, and then it stops
        with contextlib.suppress(Exception):
            compare(folder, out)
        raise
    result: dict[str, Any] = {"verdicts": counted([]), "files": []}
    try:
        if _experiments(gathered(folder)) or not work.problems:
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
    found = gathered(folder)
    there = _experiments(found)
    if not there:
        raise ValueError(f"reproduce: {folder} holds no measured JSON, such as flow.json.")
    if out is None:
        docs, tiny = Path("docs"), found.get("state", {}).get("scale") == "tiny"
        whole = there == list(EXPERIMENTS) and docs.is_dir() and not tiny
        out = (docs if whole else folder) / PAGE
    _writable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as part:
        part.write_text(page(found, folder.as_posix()), encoding="utf-8")
    claims = [c for section in sections(found) for c in section.claims]
    return {"verdicts": counted(claims), "files": [str(out)]}


def _experiments(found: Mapping[str, Any]) -> list[str]:
    """Those of which something is measured."""
    return [s.name for s in sections(found) if s.claims and s.name in EXPERIMENTS]


def _writable(out: Path) -> None:
    if out.is_dir():
        raise ValueError(f"reproduce: expected a file for the page, but {out} is a folder.")


def _planned(recipe: Recipe, steps: int | None) -> runs.Plan:
    """The preset with its flags, and with as many steps as are given, also in a second stage."""
    flags = {k: dict(v) for k, v in recipe.flags.items()}
    if steps is not None:
        few = {"steps": steps, "checkpoint_every": max(1, steps // 5)}
        flags["training"] = {**flags.get("training", {}), **few}
        usual = runs.plan(recipe.app, preset=recipe.preset, flags=flags)
        if getattr(usual.app.Config(**usual.model), "refine", 0):
            flags["model"] = {**flags.get("model", {}), "refine": steps}
    return runs.plan(recipe.app, preset=recipe.preset, flags=flags)


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
        self.folder, self.scale, self.root = folder, SCALES[scale], root
        self.steps = steps or self.scale.steps
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
        self._state()

    def say(self, text: str) -> None:
        self.tell(f"{self.place}: {text}")

    def parts(self, name: str) -> list[str]:
        """The runs of an experiment; or itself, where the evaluation trains what it needs."""
        return [recipe.name for recipe in self.scale.recipes.get(name, ())] or [name]

    def do(self, name: str, part: str) -> None:
        (file,) = EXPERIMENTS[name].files
        whole = name in ("weather", "disentangle")  # one table, not one of each part
        before = self._read(f"{file}.json")
        if f"{part} measured" in self.done and ("rows" if whole else part) in before:
            self.say("done before")
            return
        if name == "weather":
            row = evaluation.weather(
                **self.scale.weather, out=self.folder / "weather", root=self.root, say=self.say,
                steps=self.steps,
            )  # fmt: skip
            for errors in (e for rows in row["rows"].values() for e in rows.values()):
                by_step = errors.pop("mse_by_step")
                errors["mse_first_step"], errors["mse_last_step"] = by_step[0], by_step[-1]
        elif name == "disentangle":
            row = evaluation.disentanglement(
                **self.scale.disentangle, out=self.folder / "disentanglement", root=self.root,
                say=self.say, steps=self.steps,
            )  # fmt: skip
        else:
            recipe = next(r for r in self.scale.recipes[name] if r.name == part)
            row = self._run(recipe)
        evaluation_page(row, "", self.say)
        kept = {k: v for k, v in row.items() if k not in ("files", "table")}
        self._put(file, kept if whole else {**self._read(f"{file}.json"), part: kept})
        self._finished(f"{part} measured")

    def _run(self, recipe: Recipe) -> dict[str, Any]:
        run = self.folder / recipe.name
        before = self._read("shipped.json")
        if f"{recipe.name} trained" not in self.done or recipe.name not in before:
            self.say("training")
            result = runs.execute(_planned(recipe, self.steps), run, root=self.root, resume=True,
                                  progress=self.progress, say=self.say)  # fmt: skip
            run_page(run, result, self.root, self.say)
            # Rounded as it is kept, so that what is measured for as long is known again.
            row = rounded(
                {"minutes": result.seconds / 60, "steps": result.step, "machine": machine()}
            )
            before = {**self._read("shipped.json"), recipe.name: row}
            self._put("shipped", before, False)
            self._finished(f"{recipe.name} trained")
        self.say("measuring")
        minutes = before[recipe.name]["minutes"]
        return recipe.measure(run, run / "evaluation", self.root, self.say, minutes)

    def trouble(self, part: str, problem: str) -> None:
        self.problems[part] = problem
        self.say(f"not done: {problem}")
        self._state()

    def _finished(self, what: str) -> None:
        # Another process may have done other parts since.
        before = self._read(STATE).get("done", self.done)
        self.done = [*(d for d in before if d != what), what]
        self._state()

    def _state(self) -> None:
        scale, steps = self.about["scale"], self.about["steps"]
        more = ("" if scale == "here" else f" --scale {scale}") + (
            "" if steps is None else f" --steps {steps}"
        )
        commands = {name: f"linearizer reproduce {name}{more}" for name in EXPERIMENTS}
        state = {**self.about, "done": self.done, "problems": self.problems, "commands": commands}
        self._write(STATE, state)

    def _put(self, name: str, value: Mapping[str, Any], with_machine: bool = True) -> None:
        head = {"machine": machine()} if with_machine else {}
        self._write(f"{name}.json", {**head, **value})

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        with atomic(self.folder / name) as part:
            part.write_text(json.dumps(rounded(value), indent=2) + "\n", encoding="utf-8")

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
