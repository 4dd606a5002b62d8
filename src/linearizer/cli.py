"""The command line: parse, call, print."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_origin
from urllib.parse import quote

import typer
from typer.core import TyperGroup

# Heavy parts (torch) are imported inside the commands: help and completion answer at once.
from .apps import APPS


class _AppGroup(TyperGroup):
    """One command for each app, with a flag for each of its settings; built when asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(APPS)  # type: ignore[assignment]  # to suggest from

    def list_commands(self, ctx: Any) -> list[str]:
        return list(APPS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _train_command(cmd_name) if cmd_name in APPS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Apps"):
            formatter.write_dl(list(APPS.items()))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        from typer._click.shell_completion import CompletionItem

        return [CompletionItem(n, help=h) for n, h in APPS.items() if n.startswith(incomplete)]


class _Ordered(TyperGroup):
    """Commands in the order in which one meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        first = ["quickstart", "data", "train", "resume", "runs"]
        return first + [name for name in self.commands if name not in first]


app = typer.Typer(
    cls=_Ordered,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain errors: a sentence that no box breaks apart
    help="Nonlinear networks on which linear algebra is exact: f(x) = g_y⁻¹(A g_x(x)).",
)
train = typer.Typer(cls=_AppGroup, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    train,
    name="train",
    help="Train an application into a run folder.\n\n"
    "Example: linearizer train attributes --data mnist --steps 2000 --out runs/mnist",
)
evaluate_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    evaluate_app,
    name="evaluate",
    help="Measure an application, beside the paper's numbers.\n\n"
    "Example: linearizer evaluate flow mnist-flow",
)
style_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    style_app,
    name="style",
    help="List the styles of a model, and add new ones without training.\n\n"
    "Example: linearizer style list",
)
data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(
    data_app,
    name="data",
    help="Show the data sets, and fetch them.\n\nExample: linearizer data",
)

RunArgument = Annotated[str, typer.Argument(help="A run folder, or the name of a shipped model.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
RootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="folder of the data sets [default: $LINEARIZER_DATA]"),
]


@app.callback()
def _root() -> None:
    """Linearizers: train them, and do linear algebra on them."""


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)


# -- training ------------------------------------------------------------------------------


def _flags(
    kind: Any, skip: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
) -> dict[str, inspect.Parameter]:
    """A typed flag for each setting that one word can give; None where it is not given."""
    found = {}
    for name, field in kind.model_fields.items():
        if name in skip or get_origin(field.annotation) is tuple:
            continue
        default = (defaults or {}).get(name, field.default)
        shown = "none" if default is None else str(default)
        option = typer.Option(help=f"{field.description} [default: {shown}]", show_default=False)
        found[name] = _parameter(name, Annotated[Optional[field.annotation], option])  # noqa: UP045
    return found


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _train_command(name: str) -> Any:
    """``linearizer train NAME``: its flags are the settings of the data, the model and training."""
    from . import apps
    from .sources import SOURCES
    from .training import Training

    chosen = apps.get(name)
    source = SOURCES[chosen.source]
    sections = {
        "data": _flags(source.Settings, skip=("name",)),
        "model": _flags(chosen.Config, skip=chosen.decided),
        "training": _flags(Training, defaults=chosen.training),
    }

    def command(**given: Any) -> None:
        flags = {
            section: {k: given[k] for k in names if given[k] is not None}
            for section, names in sections.items()
        }
        if given["data"] is not None:
            flags["data"]["name"] = given["data"]
        _train(name, flags, given)

    own: dict[str, Any] = {
        "data": Annotated[
            str | None,
            typer.Option(
                *filter(None, ("--data", source.also)),
                help=f"{source.Settings.model_fields['name'].description} [default: {chosen.data}]",
                show_default=False,
            ),
        ],
        "out": Annotated[
            Path | None,
            typer.Option("--out", "-o", help=f"run folder [default: runs/{name}-DATA]"),
        ],
        "config": Annotated[
            Path | None,
            typer.Option(help="TOML file with [data], [model], [training]; flags override it"),
        ],
        "preset": Annotated[
            str | None,
            typer.Option(help=f"named settings: {', '.join(chosen.presets) or 'none yet'}"),
        ],
        "resume": Annotated[
            bool, typer.Option("--resume", help="go on with the run in --out, if it has one")
        ],
        "data_root": RootOption,
        "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="no progress")],
        "json_": JsonFlag,
    }
    switches = ("resume", "quiet", "json_")
    parameters = {
        key: _parameter(key, annotation, False if key in switches else None)
        for key, annotation in own.items()
    }
    for names in sections.values():
        assert not names.keys() & parameters.keys(), "two settings share one flag"
        parameters |= names
    function: Any = command
    function.__signature__ = inspect.Signature(list(parameters.values()))
    function.__annotations__ = {k: p.annotation for k, p in parameters.items()}
    function.__doc__ = (
        f"Train: {APPS[name]}.\n\n"
        f"Example: linearizer train {name} --data {chosen.data} --steps 500 --out runs/first"
    )
    one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    one.command(name)(function)
    return typer.main.get_command(one)


def _train(name: str, flags: dict[str, dict[str, Any]], given: dict[str, Any]) -> None:
    from . import runs

    plan = runs.plan(name, file=given["config"], preset=given["preset"], flags=flags)
    out = given["out"]
    if out is None:
        out = Path("runs") / f"{name}-{Path(plan.data.name).stem}"
    _execute(plan, out, given["data_root"], given["resume"], given["quiet"], given["json_"])


def _execute(
    plan: Any, out: Path, root: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    from . import runs
    from .training import Interrupted

    first = os.environ.get("RANK", "0") == "0"
    say: Callable[[str], None] = _note if first and not quiet else lambda text: None
    if resume and not (out / "config.json").exists():
        say(f"{out} holds no run yet: starting one.")
    code = 0
    try:
        result = runs.execute(plan, out, root=root, resume=resume, progress=not quiet, say=say)
    except Interrupted as stop:
        result, code = stop.result, 128 + stop.signal_number
    if first:
        if not as_json:
            _print_result(out, plan, result)
        page = None
        try:
            from . import reporting

            page = reporting.run_page(out, result, root, _note)
        except KeyboardInterrupt:  # the training is done, and its result is not lost
            _note(f"no report: stopped; linearizer report {out} writes it")
        if as_json:
            _json({"run": str(out), **result._asdict(), "report": page})
        elif page is not None and result.stopped != "interrupted":
            typer.echo(f"open {page}")
    raise typer.Exit(code)


def _paged(result: dict[str, Any]) -> dict[str, Any]:
    """An evaluation with its report, which has the command that was typed."""
    from . import reporting

    typed = Path(sys.argv[0]).stem in ("linearizer", "cli")
    command = shlex.join(["linearizer", *sys.argv[1:]]) if typed else ""
    return reporting.evaluation_page(result, command, _note)


def _print_result(out: Path, plan: Any, result: Any) -> None:
    if result.stopped == "interrupted":
        typer.echo(
            f"stopped at step {result.step} of {plan.training.steps}; go on with: "
            f"linearizer resume {out}"
        )
        return
    from .progress import duration

    early = " (no better validation since)" if result.stopped == "early" else ""
    numbers = ", ".join(f"{k} {v:.4g}" for k, v in (result.metrics or result.losses).items())
    typer.echo(f"{result.step} steps in {duration(result.seconds)}{early}: {numbers}")
    typer.echo(f"wrote {out}")


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="steps in all", show_default="as planned")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="learning rate", show_default="as planned")
    ] = None,
    data_root: RootOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    Example: linearizer resume runs/attributes-digits
    """
    from . import runs

    changes = {k: v for k, v in {"steps": steps, "rate": rate}.items() if v is not None}
    plan = runs.planned(run, changes)
    _execute(plan, run, data_root, True, quiet, as_json)


@app.command("runs")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: JsonFlag = False,
) -> None:
    """List the runs in a folder: app, data, steps, and how good the model is.

    Example: linearizer runs
    """
    from .listing import listing

    rows = listing(folder)
    if as_json:
        _json([row._asdict() for row in rows])
        return
    if not rows:
        typer.echo(f"no runs in {folder}. Begin one: linearizer train attributes --data digits")
        return
    from .progress import duration

    cells = [("run", "app", "data", "steps", "key metric", "time", "changed")]
    for row in rows:
        value = row.problem or ("–" if row.value is None else f"{row.metric} {row.value:.4g}")
        cells.append(
            (row.run, row.app, row.data, f"{row.step}/{row.steps}", value,
             duration(row.seconds), row.changed[:16])
        )  # fmt: skip
    widths = [max(len(c[i]) for c in cells) for i in range(len(cells[0]))]
    for line in cells:
        typer.echo("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


@app.command()
def report(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file to write", show_default="RUN/report.html"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the report of a run anew: settings, curves, pictures, laws, the paper's numbers.

    Example: linearizer report runs/flow-digits
    """
    from . import reporting

    result = reporting.run_report(run, out, data_root)
    for problem in result["problems"]:
        _note(f"left out: {problem}")
    _report(result, "", as_json)


# -- algebra -------------------------------------------------------------------------------


@app.command()
def certify(
    run: RunArgument,
    n: Annotated[
        int | None,
        typer.Option(
            "-n", min=1, help="test samples to measure on", show_default="64; 8 of large images"
        ),
    ] = None,
    single: Annotated[
        bool, typer.Option("--float32", help="measure in float32, not in float64")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="largest relative error", show_default="1e-8; 1e-3 in float32"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure every law of a trained map on test samples; exit code 1 if one fails.

    Example: linearizer certify runs/attributes-digits
    """
    from . import runs
    from .progress import Transfer

    with Transfer("laws") as transfer:
        certificate = runs.certified(
            run, n, "float32" if single else "float64", tolerance, data_root,
            lambda done, total: transfer.update("certify", done, total),
        )  # fmt: skip
    if as_json:
        _json(certificate.to_dict())
    else:
        typer.echo(str(certificate))
    if not certificate.passed:
        raise typer.Exit(1)


@app.command()
def spectrum(
    run: RunArgument,
    k: Annotated[int, typer.Option("-k", min=1, help="singular vectors to draw")] = 8,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="folder for the pictures", show_default="RUN/spectrum"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Plot the singular values (and eigenvalues) of a trained map, and draw singular vectors.

    Example: linearizer spectrum runs/attributes-digits -k 6
    """
    from . import runs

    result = runs.spectrum_of(run, k, out)
    if as_json:
        _json(result)
        return
    if "modes" in result:
        for mode in result["modes"]:
            _mode(mode, result["unit"])
        _wrote(result["files"])
        return
    values = result["singular_values"]
    m, size = result["dimensions"]
    typer.echo(f"core {m} × {size}; singular values " + " ".join(f"{v:.3g}" for v in values[:12])
               + (" …" if len(values) > 12 else ""))  # fmt: skip
    _wrote(result["files"])


def _mode(mode: dict[str, Any], unit: str) -> None:
    each, some = (f"/{unit}", f" {unit}") if unit else (" in a unit of time", "")
    turns = f"{mode['frequency']:.4g} cycles{each}" if mode["frequency"] else "no frequency"
    half = mode["half_life"]
    keeps = "keeps its size" if half is None else (
        f"half-life {half:.4g}{some}" if half > 0 else f"doubles in {-half:.4g}{some}"
    )  # fmt: skip
    typer.echo(f"mode {mode['number']}: {turns}, rate {mode['rate']:.4g} ({keeps}), "
               f"share {mode['share']:.1%}")  # fmt: skip


@app.command()
def export(
    run: RunArgument,
    to: Annotated[
        Literal["onnx", "torch-export", "hub"],
        typer.Option("--format", help="hub is the Hugging Face layout"),
    ] = "onnx",
    form: Annotated[
        Literal["f", "pinv", "transpose"],
        typer.Option("--map", help="f itself, its pseudo-inverse f†, or its transpose fᵀ"),
    ] = "f",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="file, or folder for hub", show_default="in RUN"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a trained map as one file that runs elsewhere, checked against the original.

    Example: linearizer export runs/attributes-digits --format onnx --map pinv -o decode.onnx
    """
    from . import runs

    result = runs.exported(run, to, form, out, data_root)
    if as_json:
        _json(result)
        return
    if "max_error" in result:
        typer.echo(
            f"{form} as {to}: (batch, {', '.join(map(str, result['input_shape']))}) → "
            f"(batch, {', '.join(map(str, result['output_shape']))}), largest difference "
            f"{result['max_error']:.1e}"
        )
    _wrote(result["files"])


# -- flows ---------------------------------------------------------------------------------

FlowArgument = Annotated[
    str, typer.Argument(help="A run folder of a flow, or the name of a shipped one.")
]
SolverOption = Annotated[
    Literal["euler", "midpoint", "rk4", "exponential"],
    typer.Option(help="which steps are collapsed"),
]
StepsOption = Annotated[int, typer.Option(min=1, help="how many steps are collapsed")]
PngOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="PNG to write", show_default="in RUN/samples"),
]
TensorOption = Annotated[
    Path | None, typer.Option(help="also write the numbers, as safetensors", show_default="no")
]


@app.command()
def sample(
    run: FlowArgument = "mnist-flow",
    n: Annotated[int, typer.Option("-n", min=1, help="how many")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the noise")] = 0,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    temperature: Annotated[float, typer.Option(min=0, help="factor on the noise")] = 1.0,
    loop: Annotated[
        bool, typer.Option("--loop", help="take the steps one by one, to compare")
    ] = False,
    out: PngOption = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw samples from noise in one step.

    Example: linearizer sample mnist-flow -n 64 --seed 0 -o grid.png
    """
    from . import sampling

    how = sampling.Steps(solver, steps)
    result = sampling.sample(run, n, seed, how, out, tensor, temperature, loop)
    kind = f"{steps} steps" if loop else f"one step, collapsed from {steps}"
    _report(result, f"{n} samples in {result['seconds']:.2g} s ({kind} of {solver})", as_json)


@app.command()
def encode(
    run: FlowArgument,
    images: Annotated[list[str], typer.Argument(help="Image files.")],
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Encode images to the noise that they come from, by the pseudo-inverse, and decode them.

    Example: linearizer encode mnist-flow a.png b.png --tensor noise.safetensors
    """
    from . import sampling

    result = sampling.encode(run, images, sampling.Steps(solver, steps), out, tensor)
    lines = [f"{path}: decoded again at {value:.1f} dB" for path, value in result["psnr"].items()]
    _report(result, "\n".join(lines), as_json)


@app.command()
def interpolate(
    first: Annotated[str, typer.Argument(help="Image to start from.")],
    second: Annotated[str, typer.Argument(help="Image to end at.")],
    run: Annotated[str, typer.Option(help="run folder of a flow, or a shipped one")] = "mnist-flow",
    n: Annotated[int, typer.Option("-n", min=2, max=200, help="images from one to the other")] = 9,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Go from one image to another in a straight line through the noise that they encode to.

    Example: linearizer interpolate three.png eight.png -o path.png
    """
    from . import sampling

    how = sampling.Steps(solver, steps)
    _report(sampling.interpolate(run, first, second, n, how, out), "", as_json)


@app.command()
def combine(
    expression: Annotated[
        str, typer.Argument(help="A sum of image files and class:NAME, each with a factor.")
    ],
    run: Annotated[str, typer.Option(help="run folder of a flow, or a shipped one")] = "mnist-flow",
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add and subtract what images, or the means of classes, encode to.

    Example: linearizer combine "mine.png + 0.8*class:Smiling - 0.8*class:Male" --run celeba-flow
    """
    from . import sampling

    how = sampling.Steps(solver, steps)
    _report(sampling.combine(run, expression, how, out, data_root), "", as_json)


@app.command()
def walk(
    run: FlowArgument = "mnist-flow",
    k: Annotated[int, typer.Option("-k", min=1, help="directions")] = 6,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="seed of the sample to start from")
    ] = 0,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Move one sample along the strongest singular directions of the collapsed map.

    Example: linearizer walk mnist-flow -k 6 --seed 3
    """
    from . import sampling

    _report(sampling.walk(run, k, seed, sampling.Steps(solver, steps), out), "", as_json)


@app.command()
def collapse(
    run: FlowArgument,
    solver: SolverOption = "rk4",
    steps: StepsOption = 1000,
    start: Annotated[float, typer.Option("--from", help="time to start from")] = 0.0,
    end: Annotated[float, typer.Option("--to", help="time to reach")] = 1.0,
    rtol: Annotated[
        float, typer.Option(min=0, help="relative size of what may be dropped from the operator")
    ] = 0.0,
    error: Annotated[
        float | None,
        typer.Option(min=0, help="choose the number of steps for this error", show_default="no"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="even if it is kept already")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Collapse all steps of a solver into one operator, and keep it in the run folder.

    Example: linearizer collapse runs/flow-digits --solver rk4 --steps 1000
    """
    from . import sampling

    one = sampling.flow_of(run)
    if error is not None:
        steps = sampling.steps_for(one, solver, error, start, end)
    done = sampling.collapsed(one, sampling.Steps(solver, steps, start, end, rtol), again)
    A = done.f.operator
    verb = "read" if done.reused else "collapsed"
    files = [] if done.path is None else [done.path]
    result = {
        "solver": solver, "steps": steps, "seconds": done.seconds, "reused": done.reused,
        "rank": done.f.rank(), "kind": type(A).__name__, "shape": list(A.shape), "files": files,
    }  # fmt: skip
    _report(
        result,
        f"{steps} steps of {solver} {verb} in {done.seconds:.2g} s: {type(A).__name__} "
        f"{A.shape[0]} × {A.shape[1]} of rank {result['rank']}",
        as_json,
    )


@evaluate_app.command("flow")
def evaluate_flow(
    run: FlowArgument = "mnist-flow",
    samples: Annotated[int, typer.Option(min=100, help="samples for the FID")] = 10_000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Quality, one step against many, inversion and times of a flow, beside the paper's numbers.

    Example: linearizer evaluate flow mnist-flow --samples 10000
    """
    from . import evaluation

    result = _paged(evaluation.flow(run, samples, out, data_root, _note))
    if as_json:
        _json(result)
        return
    for section in ("fid", "inversion", "round_trip"):
        typer.echo(section.replace("_", " "))
        for key, value in result[section].items():
            typer.echo(f"  {key.replace('_', ' ')}: {value}")
    for steps, row in result["one_against_many"].items():
        typer.echo(f"one step against {steps}: MSE {row['mse_float32']:.1e} in float32, "
                   f"{row['mse_float64']:.1e} in float64")  # fmt: skip
    for batch in ("batch 1", "batch 64"):
        row = result["times"][batch]
        typer.echo(
            f"{batch}: {row['one_step_seconds'] * 1e3:.3g} ms an image in one step; 100 steps take "
            f"{row['coordinates_over_one_step']:.0f} times that in coordinates, "
            f"{row['data_over_one_step']:.0f} times through data"
        )
    _wrote(result["files"])


# -- projectors ----------------------------------------------------------------------------


@app.command()
def project(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] IMAGES...",
            help="Image files of any size, colour or grey; before them, if you like, a run folder "
            "of a projector or the name of a shipped one [default: mnist-projector].",
        ),
    ],
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="keep this many directions", show_default="as trained"),
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="say how unlike the data each image is")
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            help="image, white where pixels are known: fill in the others", show_default="no"
        ),
    ] = None,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Project images onto what a model knows: f(x), and f(f(x)) = f(x).

    Example: linearizer project scribble.png photo.jpg --score -o grid.png
    """
    from . import projecting

    run, images = _run_first(inputs, "mnist-projector")
    result = projecting.project(run, images, rank, known, out)
    lines = [f"rank {result['rank']}; f(f(x)) differs from f(x) by at most "
             f"{result['idempotency_error']:.0e}"]  # fmt: skip
    if score:
        for row in result["scores"]:
            share = row.get("share_of_data_above")
            among = "" if share is None else f"; {share:.0%} of held-out data score as high"
            lines.append(f"{row['image']}: score {row['score']:.3g}{among}")
    _report(result, "\n".join(lines), as_json)


def _run_first(inputs: list[str], default: str, bare: bool = False) -> tuple[str, list[str]]:
    """The run, where the first word names one, and the files after it; none will do if bare."""
    from .checkpoint import models

    first, rest = inputs[0], inputs[1:]
    path = Path(first)
    if path.is_dir() and not (path / "config.json").exists() and first not in models():
        raise ValueError(f"{first}: it is a folder without a run. Name the image files in it.")
    # A word without a suffix that is no file is meant as a run; whether there is one is said later.
    if first in models() or path.is_dir() or (rest and not path.suffix and not path.exists()):
        if not rest and not bare:
            raise ValueError(f"expected image files after the run {first}. Name one or more.")
        return first, rest
    return default, inputs


@evaluate_app.command("projector")
def evaluate_projector(
    run: Annotated[
        str, typer.Argument(help="A run folder of a projector, or the name of a shipped one.")
    ] = "mnist-projector",
    baseline_minutes: Annotated[
        float,
        typer.Option(min=0, help="train an autoencoder and an IGN for this long, to compare"),
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Idempotency, reconstruction, projected noise, anomalies and gaps of a projector.

    Example: linearizer evaluate projector mnist-projector
    """
    from . import evaluation

    result = _paged(evaluation.projector(run, out, data_root, _note, baseline_minutes))
    if as_json:
        _json(result)
        return
    for precision in ("float32", "float64"):
        rows = result[f"idempotency_{precision}"]
        worst = max(rows, key=rows.get)
        typer.echo(f"|f(f(x)) − f(x)| in {precision}: at most {rows[worst]:.1e} ({worst})")
    typer.echo(f"rank {result['rank']} of {result['dim']}: test images at "
               f"{result['reconstruction']['psnr_mean_over_images']:.2f} dB")  # fmt: skip
    for section in ("reconstruction_by_rank", "projected", "anomaly_roc_auc", "gaps",
                    "meet_and_join", "baselines"):  # fmt: skip
        for key, value in result.get(section, {}).items():
            typer.echo(f"{section.replace('_', ' ')}, {key}: {json.dumps(value)}")
    _wrote(result["files"])


# -- classifiers and distilled networks ----------------------------------------------------

ReadArgument = Annotated[
    str, typer.Argument(help="A run folder of attributes or a distilled network, or a shipped one.")
]
ImagesArgument = Annotated[list[str], typer.Argument(help="Image files.")]


@app.command()
def distill(
    network: Annotated[
        str,
        typer.Argument(
            help="An .onnx or .pt2 file, FILE.py:NAME or MODULE:NAME of a torch module (which runs "
            "that code), or an encoder of a VAE: vae, factor, betah, betab, btcvae."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(help="images (a name or a folder), or samples in a .npy, .npz or .csv file"),
    ],
    size: Annotated[
        int | None, typer.Option(min=1, help="side of the images", show_default="their own")
    ] = None,
    same: Annotated[
        bool,
        typer.Option(
            "--same",
            help="start as the network, with its own layers inside g: for images, and for encoders "
            "and torch modules that are chains of layers",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="training steps", show_default="2000, with --same 300"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of weights and order of samples")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="run folder", show_default="runs/distilled-NETWORK"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out, if it has one")
    ] = False,
    data_root: RootOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a Linearizer of a network that you have, from its outputs on data.

    `linearizer train disentangle --teacher NETWORK` is the same with every setting as a flag.

    Example: linearizer distill mine.onnx --data my/images --size 64
    """
    from . import runs

    chosen: dict[str, Any] = {"teacher": network, "name": data}
    if size is not None:
        chosen["size"] = size
    training = {"seed": seed, **({} if steps is None else {"steps": steps})}
    flags = {"data": chosen, "training": training}
    plan = runs.plan("disentangle", preset="same" if same else None, flags=flags)
    out = out or Path("runs") / f"distilled-{Path(network.partition('#')[0]).stem.split(':')[0]}"
    _execute(plan, out, data_root, resume, quiet, as_json)


@app.command()
def read(
    run: ReadArgument,
    images: ImagesArgument,
    as_json: JsonFlag = False,
) -> None:
    """Print the scores of images: which class they are of, which attributes they have.

    Example: linearizer read celeba-attributes face.png
    """
    from . import reading

    result = reading.read(run, images)
    lines = []
    for row in result["images"]:
        if "holds" in row:
            sure = f" ({row['probability']:.1%})" if "probability" in row else ""
            lines.append(f"{row['image']}: {', '.join(row['holds']) or 'nothing'}{sure}")
        else:
            numbers = " ".join(f"{v:.3g}" for v in row["scores"].values())
            lines.append(f"{row['image']}: {numbers}")
    if as_json:
        _json(result)
        return
    for note in result["notes"]:
        _note(note)
    typer.echo("\n".join(lines))


WishOption = Annotated[
    list[str],
    typer.Option(
        "--wish", "-w", help="names with commas: NAME, -NAME, or NAME=SCORE; may be repeated"
    ),
]


@app.command()
def imagine(
    run: ReadArgument,
    wish: WishOption,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw the image of least norm that has the wanted scores, f†(y).

    Example: linearizer imagine celeba-attributes -w "Male, Eyeglasses" -w "Blond_Hair, Smiling"
    """
    from . import reading

    result = reading.imagine(run, wish, out)
    _report(result, f"scores reached to {result['score_error']:.0e}", as_json)


@app.command()
def edit(
    run: ReadArgument,
    images: ImagesArgument,
    wish: WishOption,
    strength: Annotated[float, typer.Option(help="1 reaches the wanted scores")] = 1.0,
    hold: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            "--hold/--follow",
            help="keep all other scores, or let them follow as they do in the data",
            show_default="follow, where the outputs are separate",
        ),
    ] = None,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change images as little as gives them the wanted scores, x ⊕ f†(y ⊖ f(x)).

    Example: linearizer edit celeba-attributes face.png -w Eyeglasses -w -Smiling
    """
    from . import reading

    result = reading.edit(run, images, wish, strength, hold, out)
    _report(
        result,
        f"scores reached to {result['score_error']:.0e}; other scores "
        + ("held to " if result["others_held"] else "follow, by at most ")
        + f"{result['largest_change_of_another_score']:.2g}",
        as_json,
    )


@app.command()
def vary(
    run: ReadArgument,
    images: ImagesArgument,
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="variations of each image")] = 6,
    amount: Annotated[
        float, typer.Option(min=0, max=1, help="how much of what the map cannot see is replaced")
    ] = 0.7,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the variations")] = 0,
    out: PngOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change images in the null space of the map: other pixels, the very same scores.

    Example: linearizer vary celeba-attributes face.png -n 6
    """
    from . import reading

    result = reading.vary(run, images, n, amount, seed, out)
    _report(
        result,
        f"null space of dimension {result['dimension_of_null_space']:,}: scores change by at most "
        f"{result['largest_change_of_a_score']:.0e}, pixels by {result['pixel_change']:.2f}",
        as_json,
    )


@app.command()
def erase(
    run: ReadArgument,
    images: ImagesArgument,
    name: Annotated[
        list[str], typer.Option("--name", "-a", help="attribute or class; may be repeated")
    ],
    out: PngOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Project images onto what no linear probe can tell an attribute from; needs the run's data.

    Example: linearizer erase celeba-attributes face.png -a Smiling
    """
    from . import reading

    result = reading.erase(run, name, images, out, data_root)
    _report(result, f"erasing twice differs from once by {result['idempotency_error']:.0e}",
            as_json)  # fmt: skip


@evaluate_app.command("attributes")
def evaluate_attributes(
    run: ReadArgument = "celeba-attributes",
    baseline_minutes: Annotated[
        float, typer.Option(min=0, help="train a ResNet-18 for this long, to compare")
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Accuracy of a classifier beside the majority's; erasure, edits and null space.

    Example: linearizer evaluate attributes celeba-attributes --baseline-minutes 30
    """
    from . import evaluation

    result = _paged(evaluation.attributes(run, out, data_root, _note, baseline_minutes))
    if as_json:
        _json(result)
        return
    for who in ("linearizer", "resnet18", "majority"):
        if who in result:
            row = result[who]
            typer.echo(f"{who}: accuracy {row['accuracy']:.2%}, balanced {row['balanced']:.2%}")
    if "paper" in result:
        typer.echo(f"paper, full training set: linearizer {result['paper']['linearizer']:.1%}, "
                   f"ResNet-50 {result['paper']['resnet50']:.1%}")  # fmt: skip
    for name, row in result["erasure"]["of_each"].items():
        before, after = row["probe_roc_auc"]
        kept, left = row["others_probe_accuracy"]
        typer.echo(f"{name} erased: ROC-AUC of a probe {before:.3f} → {after:.3f}; accuracy of the "
                   f"others' probes {kept:.2%} → {left:.2%}")  # fmt: skip
    for section in ("edits", "null_space"):
        for key, value in result.get(section, {}).items():
            typer.echo(f"{section.replace('_', ' ')}, {key}: {json.dumps(value)}")
    _wrote(result["files"])


@evaluate_app.command("disentanglement")
def evaluate_disentanglement(
    encoder: Annotated[
        str | None,
        typer.Option(
            help="one network (as `distill` takes them) or run folder",
            show_default="all rows of the paper's table",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many, from 0 on")] = 3,
    distillations: Annotated[
        int, typer.Option(min=1, help="of each teacher, which the seeds take in turn")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="of each distillation", show_default="as the preset")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder of the table and of the trained models")
    ] = Path("runs/disentanglement"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """FactorVAE, SAP and DCI scores on dSprites: teachers and what is distilled from them.

    What is missing is trained first; a stopped table goes on where it was.

    Example: linearizer evaluate disentanglement --encoder betah --seeds 3
    """
    from . import evaluation

    if encoder is not None:
        result = _paged(evaluation.disentanglement_of(encoder, seeds, out, data_root, _note))
    else:
        result = _paged(
            evaluation.disentanglement(seeds, out, data_root, _note, steps, distillations)
        )
    if as_json:
        _json(result)
        return
    typer.echo(result["table"])
    _wrote(result["files"])


# -- styles --------------------------------------------------------------------------------

StyleArgument = Annotated[
    str, typer.Argument(help="A run folder of a style model, or the name of a shipped one.")
]


@app.command()
def stylize(
    inputs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[RUN] [PHOTOS]...",
            help="Photos of any size; before them, if you like, a run folder of a style model or "
            "the name of a shipped one [default: styles]. Without photos, one of scikit-learn's.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="a style, or a sum such as '0.6*candy + 0.4*mosaic'",
            show_default="the model's first",
        ),
    ] = None,
    strength: Annotated[
        float, typer.Option(help="0 leaves the photo, 1 is the style, more exaggerates it")
    ] = 1.0,
    strip: Annotated[
        Optional[tuple[str, str]],  # noqa: UP045
        typer.Option(help="a row of pictures from one style to another", show_default="no"),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="the photo of a picture in this style, by f†")
    ] = False,
    times: Annotated[int, typer.Option(min=1, help="apply it again to its own result")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="file, or folder for several", show_default="PHOTO-STYLE.png"
        ),
    ] = None,
    tensor: TensorOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Photos in a style, or a blend of styles: f(x) = g_y⁻¹(A g_x(x)), A = Σ wᵢ Aᵢ.

    Example: linearizer stylize photo.jpg --style "0.6*candy + 0.4*mosaic" --strength 0.8 -o out.png
    """
    from . import stylizing
    from .progress import Transfer

    run, photos = _run_first(inputs, "styles", bare=True) if inputs else ("styles", [])
    if strip is not None:
        if len(photos) > 1 or undo or style is not None or tensor is not None:
            raise ValueError(
                "stylize: --strip takes one photo, and no --style, --undo or --tensor."
            )
        result = stylizing.strip(run, photos[0] if photos else None, *strip, strength, out)
        _report(result, "", as_json)
        return
    with Transfer("tiles") as transfer:
        result = stylizing.stylize(
            run, photos, style, strength, undo, times, out, tensor, _note, transfer.update
        )
    parts = " + ".join(f"{w:g}*{name}" for name, w in result["style"].items())
    condition = result["condition_number"]
    known = "infinite" if condition is None else f"{condition:.2g}"
    text = f"{parts}, strength {strength:g}; condition number {known}"
    _report(result, text, as_json)


@style_app.command("list")
def list_styles(run: StyleArgument = "styles", as_json: JsonFlag = False) -> None:
    """The styles that a model knows.

    Example: linearizer style list
    """
    from . import stylizing

    result = stylizing.styles(run)
    rows = result["styles"].items()
    text = "\n".join(
        f"{name:16} {row['numbers']:,} numbers, condition number {row['condition_number']:.2g}"
        for name, row in rows
    )
    _report(result, text, as_json)


@style_app.command("add")
def add_style(
    run: StyleArgument,
    name: Annotated[str, typer.Argument(help="What to call the new style.")],
    pair: Annotated[
        Optional[tuple[Path, Path]],  # noqa: UP045
        typer.Option("--from", help="a photo, and the same photo in the style", show_default=False),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            help="or the weights of a style network, asked for a few photos", show_default=False
        ),
    ] = None,
    content: Annotated[str, typer.Option(help="photos for it: bsds500, a folder or zip")] = (
        "bsds500"
    ),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="folder for a copy of the model", show_default="RUN"),
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a style by least squares, with g as it is: seconds, and no training.

    Example: linearizer style add styles mine --from before.png after.png -o runs/my-styles
    """
    from . import stylizing

    result = stylizing.add_style(run, name, pair, teacher, content, out, data_root)
    again = " (replaced)" if result["replaced"] else ""
    several = "s" if result["pairs"] > 1 else ""
    text = (
        f"{name}{again}: fitted to {result['pairs']} pair{several}, "
        f"{result['psnr']:.1f} dB there; condition number {result['condition_number']:.2g}"
    )
    _report(result, text, as_json)


@evaluate_app.command("style")
def evaluate_style(
    run: StyleArgument = "styles",
    photos: Annotated[int, typer.Option("-n", min=1, help="held-out photos")] = 200,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Fidelity to the style networks on held-out photos, blends, undoing, new styles, time.

    Example: linearizer evaluate style styles -n 20
    """
    from . import evaluation

    result = _paged(evaluation.style(run, out, photos, data_root, say=_note))
    lines = []
    for name, row in result["fidelity"].items():
        marks = "; ".join(
            f"{way} {r['psnr']:.1f} dB" + (f", LPIPS {r['lpips']:.3f}" if "lpips" in r else "")
            for way, r in row.items()
        )
        lines.append(f"{name}: {marks}")
    _report(result, "\n".join(lines), as_json)


def _report(result: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _json(result)
        return
    for note in result.get("notes", ()):
        _note(note)
    if text:
        typer.echo(text)
    if result["files"]:
        _wrote(result["files"])


# -- forecasts -----------------------------------------------------------------------------


@app.command()
def forecast(
    run: Annotated[str, typer.Argument(help="A run folder of a forecaster.")],
    table: Annotated[
        Path, typer.Option("--csv", help="CSV file that ends with the last known row")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file to write", show_default="TABLE-forecast.csv"),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="also draw it, as a PNG beside the CSV file")
    ] = False,
    coverage: Annotated[
        float, typer.Option(help="probability that an interval holds the truth")
    ] = 0.9,
    missing: Annotated[
        str | None,
        typer.Option(
            help="what becomes of empty cells: error, interpolate, previous or drop",
            show_default="as in training",
        ),
    ] = None,
    sentinel: Annotated[
        str | None,
        typer.Option(
            help="numbers that mean missing, with commas between", show_default="as in training"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Forecast the rows after those of a table, with lower and upper bounds, in its own units.

    Example: linearizer forecast runs/forecast-my --csv recent.csv -o forecast.csv --plot
    """
    from . import forecasting

    result = forecasting.forecast(run, table, out, plot, coverage, missing, sentinel)
    text = (f"{result['horizon']} rows, {result['first']} to {result['last']}, from the last "
            f"{result['look_back']}; {result['coverage']:.0%} intervals")  # fmt: skip
    _report(result, text, as_json)


@evaluate_app.command("forecast")
def evaluate_forecast(
    run: Annotated[str, typer.Argument(help="A run folder of a forecaster.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Errors on the last fifth of a run's own table, beside simple rows; coverage of intervals.

    Example: linearizer evaluate forecast runs/forecast-my
    """
    from . import evaluation

    result = _paged(evaluation.forecast(run, out, data_root, _note))
    lines = [
        f"{name}: MSE {e['mse']:.4g}, MAE {e['mae']:.4g}" for name, e in result["errors"].items()
    ]
    held = result["intervals"]
    lines.append(f"{held['nominal']:.0%} intervals hold {held['coverage']:.1%} of the true values")
    _report(result, "\n".join(lines), as_json)


@evaluate_app.command("weather")
def evaluate_weather(
    horizons: Annotated[str, typer.Option(help="with commas between")] = "96,192,336,720",
    rows: Annotated[
        str, typer.Option(help="rows of the table, with commas between", show_default="all")
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=0, help="longest training of a baseline, in CPU minutes")
    ] = 2.0,
    look_back: Annotated[
        int, typer.Option(min=2, help="rows of the past; published rows have 96, or say which")
    ] = 96,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder for table, plots and runs")
    ] = Path("runs/weather"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Train and measure all forecasters on the weather benchmark, beside published numbers.

    Example: linearizer evaluate weather --horizons 96 --rows "last value,ridge,strict,daily"
    """
    from . import evaluation

    result = _paged(evaluation.weather(horizons, rows, minutes, out, data_root, _note, look_back))
    if as_json:
        _json(result)
        return
    typer.echo(evaluation.weather_table(result))
    _wrote(result["files"])


# -- dynamics ------------------------------------------------------------------------------


@app.command()
def simulate(
    run: Annotated[str, typer.Argument(help="A run folder of dynamics.")],
    start: Annotated[
        str,
        typer.Option(help="the numbers of a state with commas between, or test:0 for a test state"),
    ],
    times: Annotated[
        str, typer.Option(help="FIRST:LAST:STEP or times with commas between; may be negative")
    ],
    drop: Annotated[
        list[int] | None, typer.Option(help="number of a mode to leave out; may be repeated")
    ] = None,
    damp: Annotated[
        list[str] | None,
        typer.Option(help="MODE=RATE: let a mode decay by that much faster; may be repeated"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV or NPZ to write", show_default="in RUN/samples"),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="also draw it, as a PNG beside the file")
    ] = False,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """States at any times, before or after a start, all at once; modes may be left out or damped.

    Example: linearizer simulate runs/dynamics-pendulum --start "1.0, 0.0" --times 0:10:0.1
    """
    from . import simulating

    result = simulating.simulate(run, start, times, drop or (), out, plot, data_root, damp or ())
    time, state = result["last"]
    shown = ", ".join(f"{v:.5g}" for v in state)
    _report(result, f"{result['rows']} states; at {time:g}: {shown}", as_json)


@evaluate_app.command("dynamics")
def evaluate_dynamics(
    run: Annotated[str, typer.Argument(help="A run folder of dynamics of a known system.")],
    minutes: Annotated[
        float, typer.Option(min=0, help="train the neural ODE for this long; 0 leaves it out")
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Error up to ten times the training horizon, beside DMD, EDMD and a neural ODE; times.

    Example: linearizer evaluate dynamics runs/dynamics-pendulum
    """
    from . import evaluation

    result = _paged(evaluation.dynamics(run, out, data_root, _note, minutes))
    if as_json:
        _json(result)
        return
    for name, row in result["error"].items():
        at = ", ".join(f"{k} {v:.3g}" for k, v in row.items())
        typer.echo(f"{name}: {at}")
    for name, why in result["skipped"].items():
        typer.echo(f"{name}: not measured, {why}")
    for name, row in result["rollout_seconds"].items():
        typer.echo(f"1,000 states in {row * 1e3:.3g} ms: {name}")
    _wrote(result["files"])


# -- data ----------------------------------------------------------------------------------


@data_app.callback()
def list_data(ctx: typer.Context, data_root: RootOption = None, as_json: JsonFlag = False) -> None:
    """Show the data sets, and fetch them.

    Example: linearizer data
    """
    if ctx.invoked_subcommand is not None:
        return
    from . import data

    rows = data.status(data_root)
    if as_json:
        _json([{k: str(v) if isinstance(v, Path) else v for k, v in r._asdict().items()}
               for r in rows])  # fmt: skip
        return
    for row in rows:
        state = "here" if row.present else "can be fetched" if row.downloadable else "not here"
        typer.echo(f"{row.name:<10} {state:<15} {row.description}")
    typer.echo(f"data root: {data.root_folder(data_root)} (set --data-root or LINEARIZER_DATA)")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of a data set.")],
    data_root: RootOption = None,
) -> None:
    """Download a data set from its official address, with its checksum verified.

    Example: linearizer data fetch mnist
    """
    from . import data
    from .progress import Transfer

    with Transfer() as transfer:
        folder = data.fetch(name, data_root, transfer.update)
    _wrote([folder])


# -- the paper -----------------------------------------------------------------------------


@app.command()
def reproduce(
    experiments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="flow, projector, style, disentangle, attributes, weather, or all [default: all]",
        ),
    ] = None,
    scale: Annotated[
        Literal["here", "paper", "tiny"],
        typer.Option(help="as the shipped models; the paper's settings, for a GPU; or to try it"),
    ] = "here",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="page to write",
            show_default="FOLDER/results.md; docs/results.md once all six are in FOLDER",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="for runs and numbers", show_default="runs/reproduce[-SCALE]"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="only write the page of the JSON files in this folder"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="of every training", show_default="as the presets")
    ] = None,
    data_root: RootOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Do the paper's experiments again, and write its numbers beside ours.

    A stopped reproduction goes on where it was, with the same command.

    Example: linearizer reproduce weather --out weather.md
    """
    from . import reproduce as again
    from .training import Interrupted

    if source is not None:
        if experiments or folder or steps or scale != "here":
            raise ValueError("reproduce: --from runs nothing. Leave the other settings out.")
        result = again.compare(source, out)
        result["problems"] = {}
    else:
        say: Callable[[str], None] = (lambda text: None) if quiet else _note
        try:
            result = again.reproduce(
                experiments or ("all",), scale, folder, out, data_root, steps, say, not quiet
            )
        except Interrupted as stop:
            _note(f"{stop}; the same command goes on from there")
            raise typer.Exit(128 + stop.signal_number) from None
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    _report(result, counts, as_json)
    for part, problem in result["problems"].items():
        typer.echo(f"linearizer: {part} was not done. {problem}", err=True)
    if result["problems"]:
        raise typer.Exit(2)


# -- the tour ------------------------------------------------------------------------------


@app.command()
def quickstart(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="folder for pictures and numbers")
    ] = Path("runs/quickstart"),
    steps: Annotated[int, typer.Option(min=1, help="training steps, in each of two stages")] = 1500,
    seed: Annotated[int, typer.Option(help="seed of weights and training")] = 0,
) -> None:
    """Train a one-step flow on real digits in two minutes: sample, encode, interpolate, certify.

    Example: linearizer quickstart --out runs/quickstart
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"quickstart: --out needs a folder, but {folder} is a file.")
    from . import quickstart as tour

    result = tour.run(folder, steps, seed)
    n = result.numbers
    typer.echo(
        f"trained in {n['training_seconds']:.0f} s; one step equals 1,000 to "
        f"{n['one_against_1000_steps_mse']:.0e} (mean square) and takes 1/"
        f"{n['loop_over_one_step_seconds']:.0f} of the time; held-out digits come back at "
        f"{n['reconstruction_psnr']:.1f} dB from {n['rank']:.0f} numbers\n"
        f"largest error of a law: {n['worst_law_float64']:.0e} in float64, "
        f"{n['worst_law_float32']:.0e} in float32"
    )
    if failed := int(n["laws_failed_float64"] + n["laws_failed_float32"]):
        typer.echo(f"{failed} laws fail their tolerance: see certificate.txt")
    _wrote(result.files)


# -- the studio ----------------------------------------------------------------------------


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one")] = 8765,
    runs: Annotated[Path, typer.Option(help="folder of your runs")] = Path("runs"),
    token: Annotated[
        str | None,
        typer.Option(envvar="LINEARIZER_TOKEN", help="what clients must know", show_default="none"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="answer to this name too, as behind a proxy on this machine; may be repeated",
            show_default="none",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
    threads: Annotated[
        int, typer.Option(min=1, help="threads of torch; more help where cores are idle")
    ] = 1,
) -> None:
    """Open the studio: a page to draw, drag and mix on, with the shipped models and your runs.

    Example: linearizer serve --open
    """
    if token is not None and len(token) < 8:
        raise ValueError("serve: expected a token of 8 characters or more. Choose a longer one.")
    if token is not None and not (
        token.isascii() and token.isprintable() and token == token.strip()
    ):
        raise ValueError(
            "serve: expected a token of printable ASCII without spaces around it, as headers hold. "
            "Choose another."
        )
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"serve: expected a folder of runs, but {runs} is a file.")
    from .web.listening import host_name, is_loopback, listen

    names = [host_name(name) for name in allow_host or ()]
    at = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{at.getsockname()[1]}/" + (f"?token={quote(token)}" if token else "")
    if not is_loopback(host):
        _note(
            f"warning: {host} can be reached from other machines, and what they send is not "
            "encrypted."
            if token
            else f"warning: anyone who can reach {host} may use the studio and see your runs, "
            "as there is no token. Add --token, or leave --host out."
        )
    elif names and not token:
        _note(
            f"warning: anyone who can reach {', '.join(names)} may use the studio and see your "
            "runs, as there is no token. Add --token, or leave --allow-host out."
        )

    def ready() -> None:
        typer.echo(f"the studio is at {url} (stop it with Ctrl-C)")
        if open_:
            import webbrowser

            if not webbrowser.open(url):
                _note("no browser was found: open the address yourself.")

    from .web.server import serve as run

    run(at, host, runs, token, names, threads, ready)


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _wrote(files: Any) -> None:
    typer.echo("wrote")
    for path in files:
        typer.echo(f"  {path}")


def _note(text: str) -> None:
    typer.echo(text, err=True)


def main() -> None:
    """Run the command line; a bad request is one sentence on stderr and exit code 2."""
    code = _run()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is written. torch's own threads may abort a process that ends in the usual way,
        # which torchrun would report as a failure.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"linearizer: {error}", err=True)
        return 2
    except RuntimeError as error:
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        typer.echo(
            f"linearizer: not enough memory for that ({error}). Lower the batch or the model's "
            "size.",
            err=True,
        )
        return 2
    except KeyboardInterrupt:
        typer.echo("linearizer: stopped.", err=True)
        return 130
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


if __name__ == "__main__":
    main()
