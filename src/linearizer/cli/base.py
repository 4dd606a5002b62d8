"""The program that commands are added to, and what they share."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


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
evaluate_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    evaluate_app,
    name="evaluate",
    help="Measure an application, beside the paper's numbers.\n\n"
    "Example: linearizer evaluate flow mnist-flow",
)

RunArgument = Annotated[str, typer.Argument(help="A run folder, or the name of a shipped model.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
RootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="folder of the data sets [default: $LINEARIZER_DATA]"),
]
PngOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="PNG to write", show_default="in RUN/samples"),
]
TensorOption = Annotated[
    Path | None, typer.Option(help="also write the numbers, as safetensors", show_default="no")
]


@app.callback()
def _root() -> None:
    """Linearizers: train them, and do linear algebra on them."""


@app.command()
def version() -> None:
    """Print the version."""
    from .. import __version__

    typer.echo(__version__)


def paged(result: dict[str, Any]) -> dict[str, Any]:
    """An evaluation with its report, which has the command that was typed."""
    from .. import reporting

    program = Path(sys.argv[0])
    typed = program.stem == "linearizer" or program.parts[-2:] == ("cli", "__main__.py")
    command = shlex.join(["linearizer", *sys.argv[1:]]) if typed else ""
    return reporting.evaluation_page(result, command, note)


def run_first(inputs: list[str], default: str, bare: bool = False) -> tuple[str, list[str]]:
    """The run, where the first word names one, and the files after it; none will do if bare."""
    from ..checkpoint import models

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


def answer(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print what a command has found, and which files it wrote."""
    if as_json:
        print_json(result)
        return
    for line in result.get("notes", ()):
        note(line)
    if text:
        typer.echo(text)
    if result["files"]:
        wrote(result["files"])


def print_json(value: Any) -> None:
    """For machines, on stdout."""
    typer.echo(json.dumps(value, indent=2, default=str))


def wrote(files: Any) -> None:
    """Name the files that were written."""
    typer.echo("wrote")
    for path in files:
        typer.echo(f"  {path}")


def note(text: str) -> None:
    """A line for people, on stderr."""
    typer.echo(text, err=True)


def main() -> None:
    """Run the command line; a bad request is one sentence on stderr and exit code 2."""
    code = run()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is written. torch's own threads may abort a process that ends in the usual way,
        # which torchrun would report as a failure.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run() -> int:
    """The exit code of the command that was typed."""
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
