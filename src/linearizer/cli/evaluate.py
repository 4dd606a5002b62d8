"""Measure any run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..apps.command import JsonFlag, RootOption, RunArgument, list_files, note, print_json
from .base import app

__all__ = ["evaluate"]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def evaluate(
    ctx: typer.Context,
    run: RunArgument,
    data: Annotated[
        str | None, typer.Option(help="other data of the same kind", show_default="the run's own")
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="another setting of the data, such as teacher=net.py:net; may be repeated",
            show_default="the run's own",
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="samples to take at most", show_default="all")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder", show_default="RUN/evaluation")
    ] = None,
    data_root: RootOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a trained model on its test data, or on yours, with a report.

    Settings of the data are flags as well, such as --fill interpolate for a table with gaps.

    What compares with the paper or with other methods is `python -m paper`, in the repository.

    Example: linearizer evaluate mnist-flow
    """
    from ..report.runs import try_evaluation_report
    from ..runs.evaluate import evaluate_run

    changes = {} if data is None else {"name": data}
    for setting in [*(settings or ()), *_join_flags(ctx.args)]:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"evaluate: expected --set NAME=VALUE, got {setting!r}.")
        changes[name.strip()] = value.strip()
    result = evaluate_run(run, out, data_root, n, note, changes)
    result = try_evaluation_report(result, shlex.join(["linearizer", *sys.argv[1:]]), note)
    if as_json:
        print_json(result)
        return
    for line in _lines({k: v for k, v in result.items() if k not in ("files", "data")}):
        typer.echo(line)
    list_files(result["files"])


def _join_flags(words: list[str]) -> list[str]:
    """Return flags as NAME=VALUE; one without a value is a switch."""
    found: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append(f"{name.replace('-', '_')}={value if equals else ''}")
        elif found and found[-1].endswith("="):
            found[-1] += word
        else:
            raise ValueError(f"evaluate: expected one run and flags, got {word!r} as well.")
    return [f"{one}true" if one.endswith("=") else one for one in found]


def _lines(result: dict[str, Any], before: str = "") -> list[str]:
    """One line for each group of numbers."""
    plain = [(k, v) for k, v in result.items() if not isinstance(v, dict | list)]
    words = ", ".join(f"{k.replace('_', ' ')} {_short(v)}" for k, v in plain)
    lines = [f"{before}{words}"] if words else []
    for key, value in result.items():
        if isinstance(value, dict):
            lines += _lines(value, f"{before}{str(key).replace('_', ' ')}: ")
    return lines


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
