"""``python -m paper``: the paper's experiments again, with the library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from linearizer.apps.command import JsonFlag, RootOption, RunArgument, answer, note, print_json

HELP = "The paper's experiments again: `python -m paper [EXPERIMENT]...` trains and measures them."
app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
measures = typer.Typer(
    help="Measure a run beside other methods and the paper.", rich_markup_mode=None
)
app.add_typer(measures, name="measure")

MinutesOption = Annotated[
    float, typer.Option("--baseline-minutes", min=0, help="of one core, for each baseline")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
]


@app.command()
def reproduce(
    experiments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="flow, projector, style, distill, attributes, weather, or all [default: all]",
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

    The word `reproduce` may be left out. A stopped reproduction goes on where it was, with the same
    command.

    Example: python -m paper weather --out weather.md
    """
    from linearizer.training.loop import Interrupted

    from . import reproduce as work

    if source is not None:
        if experiments or folder or steps or scale != "here":
            raise ValueError("reproduce: --from runs nothing. Leave the other settings out.")
        result = {**work.compare(source, out), "problems": {}}
    else:
        say: Callable[[str], None] = (lambda text: None) if quiet else note
        names = experiments or ["all"]
        try:
            result = work.reproduce(
                names, scale, folder, out, data_root, steps, say, progress=not quiet
            )
        except Interrupted as stop:
            note(f"{stop}; the same command goes on from there")
            raise typer.Exit(128 + stop.signal_number) from None
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result["verdicts"].items())
    answer(result, counts, as_json)
    for part, problem in result["problems"].items():
        note(f"paper: {part} was not done. {problem}")
    if result["problems"]:
        raise typer.Exit(2)


# -- one evaluation ------------------------------------------------------------------------


def _show(name: str, result: dict[str, Any], as_json: bool) -> None:
    """Write the report, and print the paper's numbers beside those of an evaluation."""
    import shlex

    from linearizer.report.runs import try_evaluation_report

    from .pages import EVERY

    command = shlex.join(["python", "-m", "paper", *sys.argv[1:]])
    result = try_evaluation_report(result, command, note)
    if as_json:
        print_json(result)
        return
    for claim in EVERY[name].claims(result):
        typer.echo(f"{claim.what}: {claim.ours} (paper: {claim.paper}; {claim.verdict})")
    answer({"files": result["files"]}, str(result.get("table", "")), False)


@measures.command()
def flow(
    run: RunArgument,
    samples: Annotated[int, typer.Option("-n", min=16, help="samples, and test images")] = 10_000,
    out: OutOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a flow, beside figure 5."""
    from .flow import measure

    _show("flow", measure(run, out, data_root, note, samples), as_json)


@measures.command()
def projector(
    run: RunArgument,
    baseline_minutes: MinutesOption = 0.0,
    out: OutOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a projector, beside an autoencoder and idempotency by training."""
    from .projector import measure

    _show("projector", measure(run, out, data_root, note, baseline_minutes), as_json)


@measures.command()
def style(
    run: RunArgument,
    photos: Annotated[int, typer.Option("-n", min=1, help="held-out photos")] = 200,
    out: OutOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure styles: fidelity, blends, a style never seen, times."""
    from .style import measure

    _show("style", measure(run, out, data_root, note, photos), as_json)


@measures.command()
def attributes(
    run: RunArgument,
    baseline_minutes: MinutesOption = 0.0,
    out: OutOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a classifier, beside a ResNet-18 that also judges its edits."""
    from .attributes import measure

    _show("attributes", measure(run, out, data_root, note, baseline_minutes), as_json)


@measures.command()
def distill(
    encoder: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="a run, or a network of dSprites such as mine.onnx", show_default="the table"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="of the scores")] = 10,
    distillations: Annotated[int, typer.Option(min=1, help="of each teacher")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="of each distillation")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder")] = Path("runs/disentanglement"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Score an encoder of dSprites (FactorVAE, SAP, DCI); or make the paper's whole table."""
    from .distill import measure, measure_table

    if encoder is not None:
        result = measure(encoder, out, data_root, note, seeds)
    else:
        result = measure_table(seeds, out, data_root, note, steps, distillations)
    _show("distill", result, as_json)


@measures.command()
def weather(
    horizons: Annotated[str, typer.Option(help="with commas between")] = "96,192,336,720",
    rows: Annotated[str, typer.Option(help="names with commas between", show_default="all")] = "",
    minutes: Annotated[float, typer.Option(min=0, help="for each other method")] = 2.0,
    look_back: Annotated[int, typer.Option(min=1, help="rows of the past")] = 96,
    steps: Annotated[int | None, typer.Option(min=1, help="of our own rows")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder")] = Path("runs/weather"),
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the weather table: our forecasters, others and published rows."""
    from .weather import measure_table, weather_table

    result = measure_table(horizons, rows, minutes, out, data_root, note, look_back, steps)
    _show("weather", {**result, "table": weather_table(result)}, as_json)


@measures.command()
def dynamics(
    run: RunArgument,
    baseline_minutes: MinutesOption = 2.0,
    out: OutOption = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare dynamics of a known system with DMD, EDMD and a neural ODE."""
    from .dynamics import measure

    _show("dynamics", measure(run, out, data_root, note, baseline_minutes), as_json)


# -- the committed numbers -----------------------------------------------------------------


@app.command()
def record(
    experiment: Annotated[str, typer.Argument(help="flow, projector, style, …")],
    parts: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[PART]...", help="of its numbers [default: all]"),
    ] = None,
) -> None:
    """Measure the shipped models and baselines anew, into benchmarks/EXPERIMENT.json.

    Example: python -m paper record flow learned
    """
    from linearizer.training.settings import did_you_mean

    from .experiment import FOLDER, machine, read_numbers, write_json
    from .pages import EVERY

    if experiment not in EVERY:
        known = did_you_mean(experiment, EVERY)
        raise ValueError(f"record: there is no experiment {experiment!r}. {known}")
    chosen = EVERY[experiment]
    for part in parts or chosen.records:
        if part not in chosen.records:
            known = did_you_mean(part, chosen.records)
            raise ValueError(f"record: {experiment} has no part {part!r}. {known}")
        path = FOLDER / f"{chosen.file}.json"
        made = {k: v for k, v in chosen.records[part](note).items() if k != "files"}
        for row in made.values():
            if isinstance(row, dict):
                row.pop("files", None)
        before = read_numbers(chosen.file) if path.exists() else {}
        write_json(path, {**before, "machine": machine(), **made})
        typer.echo(f"wrote {part} into {path}")


@app.command()
def tables() -> None:
    """Write docs/results.md and the tables of the other documents from benchmarks/*.json."""
    from .experiment import FOLDER
    from .markdown import put_between
    from .pages import EVERY, make_page, read_folder

    docs = FOLDER.parent / "docs"
    for experiment in EVERY.values():
        for (page, mark), make in experiment.tables.items():
            put_between(docs / page, mark, make())
            typer.echo(f"wrote the table {mark!r} of {page}")
    (docs / "results.md").write_text(make_page(read_folder(FOLDER)), encoding="utf-8")
    typer.echo("wrote results.md")


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="of a reproduction, such as runs/reproduce")],
) -> None:
    """Write the numbers of a reproduction beside the committed ones: benchmarks/reproduced.json."""
    from .experiment import FOLDER, machine, write_json
    from .reproduce import verify as compare

    path = FOLDER / "reproduced.json"
    write_json(path, {"machine": machine(), **compare(folder)})
    typer.echo(f"wrote {path}")


def main(words: list[str] | None = None) -> int:
    """Run a command; without one, its words are names and flags of `reproduce`."""
    words = sys.argv[1:] if words is None else words
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    if not words or words[0] not in known | {"measure", "--help"}:
        words = ["reproduce", *words]
    try:
        app(words)
    except (ValueError, OSError) as error:
        note(f"paper: {error}")
        return 2
    except KeyboardInterrupt:
        note("paper: stopped.")
        return 130
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
