r"""``report.html`` of a run and of an evaluation, from what lies in their folders."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .. import __version__
from ..apps.base import Say
from ..apps.registry import describe_apps, find_app
from ..certificate import Certificate
from ..data.kinds import GIVEN
from ..operators import UnsupportedError
from ..runs.algebra import certify_map, largest_values, open_map
from ..runs.plan import SECTIONS
from ..runs.store import find, is_shipped
from ..training.checkpoint import (
    CONFIG,
    METRICS,
    WEIGHTS,
    atomic,
    best_measures,
    check_target,
    find_yardstick,
    make_parent,
    model_settings,
    read_config,
    read_metrics,
)
from ..training.loop import Result, Training
from ..training.progress import duration
from ..training.settings import Settings, resolve
from .pages import Block, Curves, Picture, Table, Text, is_png, write_page

__all__ = [
    "REPORT",
    "command_of",
    "try_evaluation_report",
    "try_run_report",
    "write_evaluation_report",
    "write_run_report",
]

REPORT = "report.html"
#: Points that laws are measured on; fewer where a point is large.
POINTS, FEW = 4, 2
#: Coordinates above which a law takes seconds, and training seconds that are worth them.
LARGE, WORTH = 2**14, 600.0
#: Singular values that are drawn, at most.
VALUES = 64
#: Bytes of a picture that are put into a page, at most, and how many pictures of samples.
PICTURE, PICTURES = 8 * 2**20, 3


# -- runs ----------------------------------------------------------------------------------


def write_run_report(
    run: str | Path, out: Path | None = None, root: Path | None = None, measure: bool = True
) -> dict[str, Any]:
    """Write the report of a run as far as it has come, or of a shipped model.

    Arguments:
        out: The file; RUN/report.html where it is not given, or for a shipped model
            runs/NAME-report.html.
        root: The data folder, for points to measure laws on.
        measure: Whether laws and spectrum are measured; else only what is written is told.
    """
    folder = find(run)
    config, rows = read_config(folder), read_metrics(folder / METRICS)
    if out is None:
        shipped = Path("runs") / f"{folder.name}-{REPORT}"
        out = shipped if is_shipped(folder) else folder / REPORT
    check_target(out)
    problems: list[str] = []
    blocks: list[Block] = [
        Text(_about(config, folder)),
        Table(("run", ""), list(_facts(folder, config, rows))),
        *_evaluations(folder, config, problems),
        *_training(folder, rows),
        *_samples(folder / "samples", problems),
    ]
    worst: float | None = None
    if measure and (folder / WEIGHTS).exists():
        found, worst = _measure(folder, root, problems)
        blocks += found
    else:
        lacks = "the run has no weights yet, then " if not (folder / WEIGHTS).exists() else ""
        blocks.append(Text(f"Not measured: {lacks}linearizer report {folder}", "Every law"))
    blocks += [
        Text("Every setting, resolved, as config.json has it.", "Settings"),
        Table(("setting", "value"), list(_settings(config))),
        Text("Again, from nothing:", "Command"),
        Text(command_of(config) or "This model was not trained by a command.", plain=True),
        Text(_versions(config)),
    ]
    name, what = (config["data"] or {}).get("name"), config["app"] or "a Linearizer"
    title = f"{what} on {Path(str(name)).name}" if name else what
    _write(out, f"{title}: {folder.name}", blocks, problems)
    return {
        "run": str(run),
        "app": config["app"],
        "step": max((r["step"] for r in rows), default=0),
        "steps": (config["training"] or {}).get("steps"),
        "metrics": best_measures(config, rows),
        "worst_law": worst,
        "problems": problems,
        "files": [str(out)],
    }


def _write(out: Path, title: str, blocks: Sequence[Block], problems: Sequence[str]) -> None:
    left = [Text("\n".join(problems), "Left out", plain=True)] if problems else []
    with atomic(make_parent(out)) as part:
        write_page(part, title, [*blocks, *left])


def _facts(
    folder: Path, config: Mapping[str, Any], rows: list[dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    yield "folder", str(folder)
    if (name := (config["data"] or {}).get("name")) is not None:
        yield "data", str(name)
    steps = (config["training"] or {}).get("steps")
    if rows:
        step = max(r["step"] for r in rows)
        ended = "" if step == steps else ", not finished or stopped early"
        yield "steps", f"{step:,} of {steps:,}{ended}" if steps else f"{step:,}"
        yield "training time", duration(max(r.get("seconds", 0.0) or 0.0 for r in rows))
    elif is_shipped(folder):
        yield "steps", f"{steps:,}, in the model that is shipped"
    else:
        yield "steps", "none yet: metrics.jsonl is empty or not there"
    for key, value in best_measures(config, rows).items():
        if value is not None:
            yield f"{key} on validation data", f"{value:.5g}"
    plain = find_yardstick(rows)
    if config.get("plain"):
        yield "the model", f"{plain.get('name')} itself: training found no better"
    for key, value in plain.items():
        if isinstance(value, int | float):
            yield f"{key} of {plain.get('name')}, the plain linear yardstick", f"{value:.5g}"


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in SECTIONS:
        for key, value in (config[section] or {}).items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{section}.{key}", shown


def _about(config: Mapping[str, Any], folder: Path) -> str:
    if config["app"] is None:
        return "A Linearizer."
    app = find_app(config["app"], str(folder), str(config.get("origin") or ""))
    return f"{app.formula}. {app.summary.capitalize()}."


def _evaluations(folder: Path, config: Mapping[str, Any], problems: list[str]) -> list[Block]:
    """Return the evaluations that lie in the run."""
    blocks: list[Block] = []
    for path in sorted(folder.glob("evaluation/*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            blocks += _tables({k: v for k, v in result.items() if k != "files"}, "Evaluation")
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as problem:
            problems.append(f"{path.name}: not an evaluation that can be read ({problem!r})")
    if not blocks and config["app"]:
        name = folder.name if is_shipped(folder) else folder
        blocks = [Text(f"Not measured yet: linearizer evaluate {name}", "Evaluation")]
    return blocks


# -- curves and pictures -------------------------------------------------------------------


def _training(folder: Path, rows: list[dict[str, Any]]) -> list[Block]:
    if not rows:
        return []
    blocks: list[Block] = [Text("", "Training")]
    blocks += _losses(rows, "Loss and its terms.")
    validations = [r for r in rows if r.get("validation")]
    names = dict.fromkeys(k for r in validations for k in r["validation"])
    for name in names:
        line = [(r["step"], r["validation"].get(name)) for r in validations]
        blocks.append(Curves(f"{name} on validation data.", {name: _numbers(line)}))
    for more in sorted(folder.glob(f"state/*/{METRICS}")):
        words = more.parent.name.replace("-", " ")
        blocks += _losses(read_metrics(more), f"Loss of {words}.")
    return blocks


def _losses(rows: list[dict[str, Any]], caption: str) -> list[Block]:
    other = {"step", "rate", "norm", "seconds", "validation"}
    names = dict.fromkeys(k for r in rows for k in r if k not in other)
    # A single term is the loss itself.
    shown = ["loss"] if set(names) - {"loss"} and len(names) == 2 else list(names)
    series = {name: _series(rows, name) for name in shown}
    return [Curves(caption, series)] if any(series.values()) else []


def _series(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return _numbers([(r["step"], r.get(name)) for r in rows])


def _numbers(line: Sequence[tuple[int, Any]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in line if isinstance(y, int | float)]


def _samples(folder: Path, problems: list[str]) -> list[Block]:
    """Return the newest pictures, the last of training first."""
    if not folder.is_dir():
        return []
    previews = sorted(folder.glob("step-*.png"))
    others = [p for p in folder.glob("*.png") if p not in previews]
    others.sort(key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    chosen = [*previews[-1:], *others][:PICTURES]
    pictures = [Picture(p, p.name) for p in _choose_pictures(chosen, problems)]
    return [Text("", "Pictures"), *pictures] if pictures else []


def _choose_pictures(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    """Yield the pictures that a page can hold."""
    for path in paths:
        try:
            size = path.stat().st_size
            if size > PICTURE:
                problems.append(f"{path.name}: a picture of {size / 2**20:.0f} MiB")
            elif not is_png(path):
                problems.append(f"{path.name}: not a whole PNG")
            else:
                yield path
        except OSError as problem:
            problems.append(f"{path.name}: {problem}")


# -- laws and spectrum ---------------------------------------------------------------------


def _measure(
    folder: Path, root: Path | None, problems: list[str]
) -> tuple[list[Block], float | None]:
    """Measure every law on a few points, and the singular values; what fails is a problem."""
    blocks: list[Block] = []
    worst = None
    try:
        found = open_map(folder, "float64")
        n = POINTS if found.f.source.dim <= LARGE else FEW
        certificate, where = certify_map(found, n, root)
        blocks, worst = _laws(certificate, where), certificate.worst
        values = largest_values(found.f, VALUES)
    except (ValueError, RuntimeError, OSError, UnsupportedError) as problem:
        problems.append(f"laws and spectrum: {problem}")
        return blocks, worst
    rows, columns = found.f.operator.shape
    line = [(i, value) for i, value in enumerate(values, 1)]
    caption = f"The largest singular values of the core, {rows:,} × {columns:,}."
    return [*blocks, Text("", "Spectrum"), Curves(caption, {"σ": line}, "i")], worst


def _laws(certificate: Certificate, where: str) -> list[Block]:
    words = {"passed": "pass", "failed": "FAIL"}
    rows = []
    for law in certificate.laws:
        numbers = ("–" if v is None else f"{v:.1e}" for v in (law.error, law.tolerance))
        verdict = words.get(law.verdict, law.verdict) + (f": {law.note}" if law.note else "")
        rows.append((law.name, law.formula, *numbers, verdict))
    digits = ", ".join(f"{v:.0f} around {k}" for k, v in certificate.digits.items())
    text = (
        f"Relative error on {where}, in {certificate.dtype}. The tolerance of each law is what "
        f"rounding can do to it; digits that g keeps: {digits}. {certificate.measured} of "
        f"{len(certificate.laws)} laws are measured."
    )
    return [Text(text, "Every law, measured"), Table(("law", "", "error", "tolerance", ""), rows)]


def worth_measuring(run: Path, seconds: float) -> bool:
    """Return whether laws are cheap beside a training that took so long."""
    model = model_settings(read_config(run)) or {}
    return seconds >= WORTH or math.prod(model.get("shape") or (1,)) <= LARGE


def try_run_report(run: Path, result: Result, root: Path | None, say: Say) -> str | None:
    """Write the report of a run that has ended; where that fails it is a note: the run is done."""
    try:
        cheap = result.stopped != "interrupted" and worth_measuring(run, result.seconds)
        return str(write_run_report(run, root=root, measure=cheap)["files"][0])
    except Exception as problem:
        say(f"no report: {problem}")
        return None


# -- the command ---------------------------------------------------------------------------


def command_of(config: Mapping[str, Any]) -> str:
    """Return the shortest ``linearizer train …`` that gives this configuration.

    It is empty where no command can: a model put together by hand, or data given in Python.
    """
    if config.get("app") not in describe_apps() or not config.get("training"):
        return ""
    if any(str(v).startswith(GIVEN) for v in (config.get("data") or {}).values()):
        return ""
    app = find_app(config["app"])
    kinds: dict[str, type[Settings]] = {
        "data": app.kind.Settings,
        "model": app.Config,
        "training": Training,
    }
    best: list[str] | None = None
    for preset in (None, *app.presets):
        named: Mapping[str, Any] = app.presets[preset] if preset is not None else {}
        words: list[str] | None = [] if preset is None else ["--preset", preset]
        for section, kind in kinds.items():
            start = {"data": {"name": app.data}, "model": {}, "training": app.training}[section]
            usual = resolve(kind, config["app"], start, named.get(section, {}))
            before, now = usual.model_dump(mode="json"), config.get(section) or {}
            skip = app.decided if section == "model" else ()
            words = _flags(words, {k: v for k, v in now.items() if k not in skip}, before, section)
        if words is not None and (best is None or len(words) < len(best)):
            best = words
    if best is None:
        return ""
    # An application of a file is named by the file.
    name = str(config.get("origin") or "").partition("--app ")[2] or app.name
    return shlex.join(["linearizer", "train", name, *best])


def _flags(
    words: list[str] | None, now: Mapping[str, Any], usual: Mapping[str, Any], section: str
) -> list[str] | None:
    """Add a flag for each setting that is not as usual; None where no flag says it."""
    for key, value in now.items():
        if words is None or usual.get(key) == value or isinstance(value, list):
            continue  # lists are what data decide, or what was added afterwards
        word = "data" if (section, key) == ("data", "name") else key.replace("_", "-")
        if value is None:
            words = None
        elif isinstance(value, bool):
            words = [*words, f"--{word}" if value else f"--no-{word}"]
        else:
            words = [*words, f"--{word}", str(value)]
    return words


def _versions(config: Mapping[str, Any]) -> str:
    return (
        f"Trained by linearizer {config.get('linearizer')}. This page: linearizer {__version__}, "
        f"torch {version('torch')}, Python {platform.python_version()}, {platform.machine()}."
    )


# -- evaluations ---------------------------------------------------------------------------


def write_evaluation_report(
    result: Mapping[str, Any], command: str = "", out: Path | None = None
) -> dict[str, Any]:
    """Write the report of one evaluation beside its JSON; its files come back with the report.

    Arguments:
        result: What ``runs.evaluate.evaluate_run`` gave back.
        command: What repeats it.
        out: The file; report.html beside the JSON where it is not given, or in the folder of a
            run, which has a report.html of its own, KIND-report.html.
    """
    files = [Path(p) for p in result["files"]]
    kind = files[0].stem
    if out is None:
        own = files[0].with_name(CONFIG).exists()
        out = files[0].with_name(f"{kind}-{REPORT}" if own else REPORT)
    problems: list[str] = []
    pictures = [p for p in files[1:] if p.suffix == ".png"]
    body = {k: v for k, v in result.items() if k not in ("files", "table")}
    blocks: list[Block] = [
        *(Picture(p, p.stem.replace("-", " ")) for p in _choose_pictures(pictures, problems)),
        *_tables(body),
    ]
    if command:
        blocks += [Text("Again:", "Command"), Text(command, plain=True)]
    blocks.append(Text(f"linearizer {__version__}, torch {version('torch')}."))
    _write(out, f"Evaluation: {kind}, {result.get('run', files[0].parent.name)}", blocks, problems)
    return {**result, "files": [*map(str, files), str(out)]}


def try_evaluation_report(result: dict[str, Any], command: str, say: Say) -> dict[str, Any]:
    """Return an evaluation with its report among its files; or, with a note, without."""
    try:
        return write_evaluation_report(result, command)
    except Exception as problem:
        say(f"no report: {problem}")
        return result


def _tables(value: Mapping[str, Any], heading: str = "All numbers") -> Iterator[Block]:
    """Yield any nested result: single numbers first, then a table for each group of rows."""
    single = [(_words(k), _cell(v)) for k, v in value.items() if not _nested(v) and not _long(v)]
    if single or heading == "All numbers":
        yield Text("", _title(heading))
    if single:
        yield Table(("", ""), single)
    lines = {_words(k): _line(v) for k, v in value.items() if _long(v)}
    if lines:
        yield Curves(f"{heading}.", lines, "number")
    for key, inner in value.items():
        if not _nested(inner):
            continue
        title = _words(key) if heading == "All numbers" else f"{heading}: {_words(key)}"
        groups = list(inner.values())
        if all(isinstance(g, dict) and not any(map(_nested, g.values())) for g in groups):
            columns = list(dict.fromkeys(k for g in groups for k, v in g.items() if not _long(v)))
            yield Text("", _title(title))
            cells = {n: [_cell(g.get(c, "")) for c in columns] for n, g in inner.items()}
            rows = [(_words(n), *row) for n, row in cells.items()]
            yield Table(("", *map(_words, columns)), rows)
            for name in dict.fromkeys(k for g in groups for k, v in g.items() if _long(v)):
                lines = {_words(n): _line(g[name]) for n, g in inner.items() if name in g}
                yield Curves(f"{_words(name)}.", lines, "number")
        else:
            yield from _tables(inner, title)


def _nested(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


def _long(value: object) -> bool:
    return isinstance(value, list) and len(value) > 12 and isinstance(value[0], int | float)


def _line(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(i + 1.0, v) for i, v in enumerate(values) if isinstance(v, int | float)]


def _title(words: str) -> str:
    return words[:1].upper() + words[1:]


def _words(key: str) -> str:
    return str(key).replace("_", " ")


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value) if not isinstance(value, dict) else "–"
