"""Train, resume, list runs and report on them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_origin

import typer
from typer.core import TyperGroup

from ..apps.command import JsonFlag, RootOption, RunArgument, answer, note, print_json
from ..apps.registry import describe_apps, origin_of
from ..training.settings import names_of
from .base import app

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

    from ..apps.base import App
    from ..runs.plan import Plan
    from ..training.loop import Result
    from ..training.settings import Settings


class _AppGroup(TyperGroup):
    """One command for each app, with a flag for each of its settings; built when asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(describe_apps())  # type: ignore[assignment]  # to suggest

    def list_commands(self, ctx: Context) -> list[str]:
        return list(describe_apps())

    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        return _train_command(cmd_name) if ":" in cmd_name or cmd_name in describe_apps() else None

    def resolve_command(self, ctx: Context, args: list[str]) -> Any:
        name, known = args[0], list(describe_apps())
        if ":" not in name and name not in known and not get_close_matches(name, known):
            ctx.fail(
                f"No such application {name!r}. Known: {', '.join(known)}; one of your own is "
                "FILE.py:APP or MODULE:APP."
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        with formatter.section("Apps"):
            formatter.write_dl(list(describe_apps().items()))

    def shell_complete(self, ctx: Context, incomplete: str) -> Any:
        from typer._click.shell_completion import CompletionItem

        return [
            CompletionItem(n, help=h)
            for n, h in describe_apps().items()
            if n.startswith(incomplete)
        ]


train = typer.Typer(cls=_AppGroup, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    train,
    name="train",
    help="Train an application into a run folder.\n\n"
    "Example: linearizer train attributes --data mnist --steps 2000 --out runs/mnist",
)


def _flags(
    kind: type[Settings], skip: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
) -> dict[str, inspect.Parameter]:
    """A typed flag for each setting that one word can give; None where it is not given."""
    found = {}
    for name, field in kind.model_fields.items():
        if name in skip or get_origin(field.annotation) is tuple:
            continue
        default = (defaults or {}).get(name, field.default)
        shown = "none" if default is None else str(default)
        flags = [f"--{other.replace('_', '-')}" for other in names_of(kind, name)]
        about = f"{field.description} [default: {shown}]"
        option = typer.Option(*(flags if flags[1:] else ()), help=about, show_default=False)
        found[name] = _parameter(name, Annotated[Optional[field.annotation], option])  # noqa: UP045
    return found


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _own_flags(chosen: App[Any, Any, Any]) -> dict[str, Any]:
    """Flags that are not settings."""
    named = chosen.kind.Settings.model_fields["name"].description
    return {
        "data": Annotated[
            str | None,
            typer.Option(
                *filter(None, ("--data", chosen.kind.also)),
                help=f"{named} [default: {chosen.data}]",
                show_default=False,
            ),
        ],
        "out": Annotated[
            Path | None,
            typer.Option("--out", "-o", help=f"run folder [default: runs/{chosen.name}-DATA]"),
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


def _train_command(name: str) -> Any:
    """``linearizer train NAME``: its flags are the settings of the data, the model and training."""
    from ..apps.registry import find_app, load_app
    from ..training.loop import Training

    chosen = load_app(name) if ":" in name else find_app(name)
    name = chosen.name
    sections = {
        "data": _flags(chosen.kind.Settings, skip=("name",)),
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

    switches = ("resume", "quiet", "json_")
    parameters = {
        key: _parameter(key, annotation, False if key in switches else None)
        for key, annotation in _own_flags(chosen).items()
    }
    for names in sections.values():
        if twice := sorted(names.keys() & parameters.keys()):
            raise ValueError(
                f"{name}: two settings of its data, model and training are called {twice[0]!r}, "
                "and each is a flag of `linearizer train`. Rename that of the application."
            )
        parameters |= names
    function: Any = command
    function.__signature__ = inspect.Signature(list(parameters.values()))
    function.__annotations__ = {k: p.annotation for k, p in parameters.items()}
    function.__doc__ = (
        f"Train: {chosen.summary}.\n\n"
        f"Example: linearizer train {name} --data {chosen.data} --steps 500 --out runs/first"
    )
    one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    one.command(name)(function)
    return typer.main.get_command(one)


def _train(name: str, flags: dict[str, dict[str, Any]], given: dict[str, Any]) -> None:
    from ..runs.plan import make_plan

    plan = make_plan(name, file=given["config"], preset=given["preset"], flags=flags)
    out = given["out"]
    if out is None:
        out = Path("runs") / f"{name}-{Path(plan.data.name).stem}"
    _carry_out(plan, out, given["data_root"], given["resume"], given["quiet"], given["json_"])


def _carry_out(
    plan: Plan, out: Path, root: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    from ..runs.execute import close, execute
    from ..training.loop import Interrupted

    first = os.environ.get("RANK", "0") == "0"
    closing: list[str] = []
    say: Callable[[str], None] = note if first and not quiet else lambda text: None
    if resume and not (out / "config.json").exists():
        say(f"{out} holds no run yet: starting one.")
    code = 0
    try:
        result = execute(plan, out, root=root, resume=resume, progress=not quiet, say=say)
        closing, learned = close(result, plan.app, plan.training.steps)
        code = 0 if learned else 1
    except Interrupted as stop:
        result, code = stop.result, 128 + stop.signal_number
    if first:
        if not as_json:
            _print_result(out, plan, result, closing)
        page = None
        try:
            from ..report import runs as reporting

            page = reporting.try_run_report(out, result, root, note)
        except KeyboardInterrupt:  # the training is done, and its result is not lost
            note(f"no report: stopped; linearizer report {out} writes it")
        if as_json:
            numbers = {k: v for k, v in result._asdict().items() if k != "model"}
            print_json({"run": str(out), **numbers, "report": page})
        elif page is not None and result.stopped != "interrupted":
            typer.echo(f"open {page}")
    raise typer.Exit(code)


def _print_result(out: Path, plan: Plan, result: Result, closing: list[str]) -> None:
    if result.stopped == "interrupted":
        origin = origin_of(plan.app.name)
        words = ["linearizer", *([origin] if origin.startswith("--app") else []), f"resume {out}"]
        typer.echo(
            f"stopped at step {result.step} of {plan.training.steps}; go on with: "
            + " ".join(words)
        )
        return
    from ..training.progress import duration

    early = " (no better validation since)" if result.stopped == "early" else ""
    numbers = ", ".join(f"{k} {v:.4g}" for k, v in (result.metrics or result.losses).items())
    typer.echo(f"{result.step} steps in {duration(result.seconds)}{early}: {numbers}")
    for line in closing:
        typer.echo(line)
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
    from ..runs.plan import plan_of

    changes = {k: v for k, v in {"steps": steps, "rate": rate}.items() if v is not None}
    plan = plan_of(run, changes)
    _carry_out(plan, run, data_root, True, quiet, as_json)


@app.command("runs")
def show_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: JsonFlag = False,
) -> None:
    """List the runs in a folder: app, data, steps, and how good the model is.

    Example: linearizer runs
    """
    from ..runs.listing import list_runs

    rows = list_runs(folder)
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    if not rows:
        typer.echo(f"no runs in {folder}. Begin one: linearizer train attributes --data digits")
        return
    from ..training.progress import duration

    cells = [("run", "app", "data", "steps", "key metric", "linear", "time", "changed")]
    for row in rows:
        value = row.problem or ("–" if row.value is None else f"{row.metric} {row.value:.4g}")
        cells.append(
            (
                row.run,
                row.app,
                row.data,
                f"{row.step}/{row.steps}",
                value,
                "–" if row.yardstick is None else f"{row.yardstick:.4g}",
                duration(row.seconds),
                row.changed[:16],
            )
        )
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
    from ..report import runs as reporting

    result = reporting.write_run_report(run, out, data_root)
    for problem in result["problems"]:
        note(f"left out: {problem}")
    answer(result, "", as_json)
