r"""``report.html`` of a run and of an evaluation, from what lies in their folders."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import __version__, apps
from .certificate import Certificate
from .checkpoint import (
    CONFIG,
    METRICS,
    WEIGHTS,
    atomic,
    find,
    is_shipped,
    read_config,
    read_metrics,
    validated,
)
from .linearizer import Linearizer
from .operators import UnsupportedError
from .progress import duration
from .report import Block, Curves, Picture, Table, Text, is_png, write_page
from .results import claims_of
from .runs import SECTIONS, Opened, opened, points
from .settings import resolve
from .sources import GIVEN, SOURCES
from .training import Result, Training

__all__ = ["REPORT", "command_of", "evaluation_page", "evaluation_report", "run_page",
           "run_report"]  # fmt: skip

REPORT = "report.html"
#: What each app's map is.
FORMULAS = {
    "flow": "f(x) = g_y⁻¹(B g_x(x)): B is all steps of a solver in one, from noise to images",
    "projector": "f(x) = g⁻¹(Λ g(x)): Λ is a diagonal of zeros and ones",
    "style": "f(x) = g_y⁻¹(A g_x(x)): A is a style, or a sum of styles",
    "forecast": "f(x) = g_y⁻¹(A g_x(x)): from the rows of the past to those that follow",
    "dynamics": "x(t) = g⁻¹(e^{tK} g(x(0))): one generator K for all times t",
    "attributes": "f(x) = g_y⁻¹(A g_x(x)): from images to scores, A has a row for each",
    "disentangle": "f(x) = g_y⁻¹(A g_x(x)): what another network gives, as a Linearizer",
}
#: Points that laws are measured on; fewer where a point is large.
POINTS, FEW = 4, 2
#: Coordinates above which a law takes seconds, and training seconds that are worth them.
LARGE, WORTH = 2**14, 600.0
#: Singular values that are drawn, at most.
VALUES = 64
#: Bytes of a picture that are put into a page, at most, and how many pictures of samples.
PICTURE, PICTURES = 8 * 2**20, 3
#: Evaluations of an app, where the paper has numbers for it.
EVALUATED = {"flow": "flow", "projector": "projector", "style": "style", "attributes": "attributes"}


# -- runs ----------------------------------------------------------------------------------


def run_report(
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
    config = read_config(folder)
    if out is None:
        shipped = Path("runs") / f"{folder.name}-{REPORT}"
        out = shipped if is_shipped(folder) else folder / REPORT
    if out.is_dir():
        raise ValueError(f"report: expected a file to write, but {out} is a folder.")
    rows = read_metrics(folder / METRICS)
    step = max((r["step"] for r in rows), default=0)
    steps = (config["training"] or {}).get("steps")
    name = (config["data"] or {}).get("name")
    what = config["app"] or "a model"
    problems: list[str] = []
    blocks: list[Block] = [
        Text(f"{FORMULAS.get(what, 'A Linearizer.')}. {apps.APPS.get(what, '').capitalize()}."),
        Table(("run", ""), list(_facts(folder, config, rows))),
        *_beside_paper(folder, config, problems),
        *_training(folder, rows),
        *_samples(folder / "samples", problems),
    ]
    certificate: Certificate | None = None
    if measure and (folder / WEIGHTS).exists() and config["app"]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found, certificate = _measured(opened(folder), root, problems)
        blocks += found
    elif config["app"]:
        lacks = "the run has no weights yet, then " if not (folder / WEIGHTS).exists() else ""
        blocks.append(Text(f"Not measured: {lacks}linearizer report {folder}", "Every law"))
    blocks += [
        Text("Every setting, resolved, as config.json has it.", "Settings"),
        Table(("setting", "value"), list(_settings(config))),
        Text("Again, from nothing:", "Command"),
        Text(command_of(config) or "This model was not trained by a command.", plain=True),
        Text(_versions(config)),
    ]
    if problems:
        blocks.append(Text("\n".join(problems), "Left out", plain=True))
    title = f"{what} on {Path(str(name)).name}" if name else what
    _write(out, f"{title}: {folder.name}", blocks)
    measured = validated(config, rows)
    return {
        "run": str(run), "app": config["app"], "step": step, "steps": steps, "metrics": measured,
        "worst_law": None if certificate is None else certificate.worst, "problems": problems,
        "files": [str(out)],
    }  # fmt: skip


def _write(out: Path, title: str, blocks: Sequence[Block]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as part:
        write_page(part, title, blocks)


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
    for key, value in validated(config, rows).items():
        if value is not None:
            yield f"{key} on validation data", f"{value:.5g}"


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in SECTIONS:
        for key, value in (config[section] or {}).items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{section}.{key}", shown


def _beside_paper(folder: Path, config: Mapping[str, Any], problems: list[str]) -> list[Block]:
    """Evaluations that lie in the run, beside the paper's numbers."""
    blocks: list[Block] = []
    silent = False
    for path in sorted([*folder.glob("evaluation/*.json"), *folder.glob("*.json")]):
        if path.name == CONFIG:
            continue
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            found = comparison(path.stem, result)
            own = isinstance(result, dict) and path.stem == EVALUATED.get(config["app"])
            silent |= own and not found
            blocks += found
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as problem:
            problems.append(f"{path.name}: not an evaluation that can be read ({problem!r})")
    app = config["app"]
    if not blocks and silent:
        name = Path(str((config["data"] or {}).get("name", "these data"))).name
        return [Text(f"Measured; the paper has no number for {name}.", "Beside the paper")]
    if not blocks and app in EVALUATED:
        text = f"Not measured yet: linearizer evaluate {EVALUATED[app]} {folder.name}"
        where = text if is_shipped(folder) else f"{text[: -len(folder.name)]}{folder}"
        blocks = [Text(where, "Beside the paper")]
    return blocks


def comparison(kind: str, result: Any) -> list[Block]:
    """The table of an evaluation's numbers and the paper's, where it has them."""
    claims = claims_of(kind, result) if isinstance(result, dict) else []
    if all(claim.paper == "–" for claim in claims):
        return []
    head = ("what", "paper", "ours", "how we compare", "same protocol?")
    return [Text("", "Beside the paper"), Table(head, [claim[:5] for claim in claims])]


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
    second = read_metrics(folder / "state" / "refine" / METRICS)
    blocks += _losses(second, "Loss of the second stage.") if second else []
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
    """The newest pictures, the last of training first."""
    if not folder.is_dir():
        return []
    previews = sorted(folder.glob("step-*.png"))
    others = [p for p in folder.glob("*.png") if p not in previews]
    others.sort(key=lambda p: (p.stat().st_mtime, p.name), reverse=True)
    chosen = [*previews[-1:], *others][:PICTURES]
    pictures = [Picture(p, p.name) for p in _shown(chosen, problems)]
    return [Text("", "Pictures"), *pictures] if pictures else []


def _shown(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    """Those that a page can hold."""
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


def _measured(
    one: Opened, root: Path | None, problems: list[str]
) -> tuple[list[Block], Certificate | None]:
    """Every law on a few points, and the singular values; what fails is a problem to tell."""
    blocks: list[Block] = []
    certificate = None
    try:
        f: Linearizer = one.app.linearizer(one.model.double())
        x, where = _points(one, f, root)
        certificate = f.certify(x)
        blocks += _laws(certificate, where)
        values = f.operator.svd(min(VALUES, *f.operator.shape)).S
    except (ValueError, RuntimeError, OSError, UnsupportedError) as problem:
        problems.append(f"laws and spectrum: {problem}")
        return blocks, certificate
    m, n = f.operator.shape
    line = [(i + 1.0, float(v)) for i, v in enumerate(values.flatten()[:VALUES].tolist())]
    caption = f"The largest singular values of the core, {m:,} × {n:,}."
    return [*blocks, Text("", "Spectrum"), Curves(caption, {"σ": line}, "i")], certificate


def _points(one: Opened, f: Linearizer, root: Path | None) -> tuple[Tensor, str]:
    n = POINTS if f.source.dim <= LARGE else FEW
    try:
        x = points(one, n, root).double()
        if tuple(x.shape[1:]) == tuple(f.source.shape):
            return x, f"{len(x)} test samples"
    except (ValueError, OSError, RuntimeError):
        pass  # the data are elsewhere: the laws hold on any points
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, f.source.dim, dtype=torch.float64, generator=generator)
    return f.source.points(z), f"{n} points g⁻¹(z) with normal z, since the data are not here"


def _laws(certificate: Certificate, where: str) -> list[Block]:
    words = {"passed": "pass", "failed": "FAIL"}
    rows = [
        (law.name, law.formula,
         *("–" if v is None else f"{v:.1e}" for v in (law.error, law.tolerance)),
         words.get(law.verdict, law.verdict) + (f": {law.note}" if law.note else ""))
        for law in certificate.laws
    ]  # fmt: skip
    digits = ", ".join(f"{v:.0f} around {k}" for k, v in certificate.digits.items())
    text = (
        f"Relative error on {where}, in {certificate.dtype}. The tolerance of each law is what "
        f"rounding can do to it; digits that g keeps: {digits}. {certificate.measured} of "
        f"{len(certificate.laws)} laws are measured."
    )
    return [Text(text, "Every law, measured"), Table(("law", "", "error", "tolerance", ""), rows)]


def worth_measuring(run: Path, seconds: float) -> bool:
    """Whether laws are cheap beside a training that took so long."""
    model = read_config(run)["model"] or {}
    return seconds >= WORTH or math.prod(model.get("shape") or (1,)) <= LARGE


def run_page(
    run: Path, result: Result, root: Path | None, say: Callable[[str], None]
) -> str | None:
    """The report of a run that has ended. What goes wrong with it is a note: the run is done."""
    try:
        cheap = result.stopped != "interrupted" and worth_measuring(run, result.seconds)
        return str(run_report(run, root=root, measure=cheap)["files"][0])
    except Exception as problem:
        say(f"no report: {problem}")
        return None


# -- the command ---------------------------------------------------------------------------


def command_of(config: Mapping[str, Any]) -> str:
    """``linearizer train …`` that gives this configuration, by the preset that leaves least to say.

    Empty where no command can: a model put together by hand, or data given in Python.
    """
    if config.get("app") not in apps.APPS or not config.get("training"):
        return ""
    if any(str(v).startswith(GIVEN) for v in (config.get("data") or {}).values()):
        return ""
    app = apps.get(config["app"])
    kinds = {"data": SOURCES[app.source].Settings, "model": app.Config, "training": Training}
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
    return shlex.join(["linearizer", "train", app.name, *best])


def _flags(
    words: list[str] | None, now: Mapping[str, Any], usual: Mapping[str, Any], section: str
) -> list[str] | None:
    """The words and a flag for each setting that is not as usual; None where no flag says it."""
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
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}."
    )


# -- evaluations ---------------------------------------------------------------------------


def evaluation_report(
    result: Mapping[str, Any], command: str = "", out: Path | None = None
) -> dict[str, Any]:
    """Write the report of one evaluation beside its JSON; its files come back with the report.

    Arguments:
        result: What a function of ``linearizer.evaluation`` gave back.
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
    body = {k: v for k, v in result.items() if k not in ("files", "paper", "table")}
    blocks: list[Block] = [
        *comparison(kind, result),
        *(Picture(p, p.stem.replace("-", " ")) for p in _shown(pictures, problems)),
        *_tables(body),
    ]
    if command:
        blocks += [Text("Again:", "Command"), Text(command, plain=True)]
    blocks.append(Text(f"linearizer {__version__}, torch {torch.__version__}."))
    if problems:
        blocks.append(Text("\n".join(problems), "Left out", plain=True))
    _write(out, f"Evaluation: {kind}, {result.get('run', files[0].parent.name)}", blocks)
    return {**result, "files": [*map(str, files), str(out)]}


def evaluation_page(
    result: dict[str, Any], command: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """An evaluation with its report among its files; or, with a note, without."""
    try:
        return evaluation_report(result, command)
    except Exception as problem:
        say(f"no report: {problem}")
        return result


def _tables(value: Mapping[str, Any], heading: str = "All numbers") -> Iterator[Block]:
    """Any nested result: single numbers first, then a table for each group of equal rows."""
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
            yield Table(("", *map(_words, columns)),
                        [(_words(n), *(_cell(g.get(c, "")) for c in columns))
                         for n, g in inner.items()])  # fmt: skip
            for name in dict.fromkeys(k for g in groups for k, v in g.items() if _long(v)):
                yield Curves(f"{_words(name)}.",
                             {_words(n): _line(g[name]) for n, g in inner.items() if name in g},
                             "number")  # fmt: skip
        else:
            yield from _tables(inner, title)


def _nested(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 12 and isinstance(value[0], int | float)


def _line(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(i + 1.0, v) for i, v in enumerate(values) if isinstance(v, int | float)]


def _title(words: str) -> str:
    return words[:1].upper() + words[1:]


def _words(key: str) -> str:
    return str(key).replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value) if not isinstance(value, dict) else "–"
