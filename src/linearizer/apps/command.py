"""What the commands of all applications share: arguments, and how they print.

To add a command: write a function with typed arguments in ``cli.py`` of the application and mark it
with ``@commands.command()``. It calls a function of ``use.py`` and prints what that found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "JsonFlag",
    "PngOption",
    "RootOption",
    "RunArgument",
    "TensorOption",
    "answer",
    "list_files",
    "new_commands",
    "note",
    "print_json",
    "run_first",
]

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


def new_commands() -> typer.Typer:
    """An empty list of commands, for those of an application."""
    return typer.Typer(rich_markup_mode=None)


def run_first(inputs: list[str], default: str, bare: bool = False) -> tuple[str, list[str]]:
    """The run, where the first word names one, and the files after it; none will do if bare."""
    from ..runs.store import models

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
        list_files(result["files"])


def print_json(value: object) -> None:
    """For machines, on stdout."""
    typer.echo(json.dumps(value, indent=2, default=str))


def list_files(files: Any) -> None:
    """Name the files that were written."""
    typer.echo("wrote")
    for path in files:
        typer.echo(f"  {path}")


def note(text: str) -> None:
    """A line for people, on stderr."""
    typer.echo(text, err=True)
