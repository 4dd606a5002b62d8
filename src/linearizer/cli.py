"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain errors: a sentence that no box breaks apart
    help="Nonlinear networks on which linear algebra is exact: f(x) = g_y⁻¹(A g_x(x)).",
)
out = Console()


@app.callback()
def _root() -> None:
    """Linearizers: train them, and do linear algebra on them."""


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)


@app.command()
def quickstart(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for pictures and numbers.")
    ] = Path("runs/quickstart"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of data split, weights and training.")] = 0,
) -> None:
    """Train a Linearizer on real digits in under two minutes and look at its linear algebra.

    Example: linearizer quickstart --out runs/quickstart
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"quickstart: --out needs a folder, but {folder} is a file.")
    from . import quickstart as tour

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=steps)

        def report(step: int, losses: dict[str, float]) -> None:
            text = "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
            bar.update(task, completed=step, description=text)
            if bar.disable and (step % 100 == 0 or step == steps):
                typer.echo(f"step {step}/{steps}  {text}")

        result = tour.run(folder, steps, seed, report)
    n = result.numbers
    typer.echo(
        f"trained in {n['training_seconds']:.0f} s; test accuracy {n['test_accuracy']:.1%} "
        f"({n['test_accuracy_closed_form_core']:.1%} with the closed-form core)\n"
        f"largest error of a law: {n['worst_law_float64']:.0e} in float64, "
        f"{n['worst_law_float32']:.0e} in float32"
    )
    if failed := int(n["laws_failed_float64"] + n["laws_failed_float32"]):
        typer.echo(f"{failed} laws fail their tolerance: see certificate.txt")
    typer.echo("wrote")
    for path in result.files:
        typer.echo(f"  {path}")


def main() -> None:
    """Run the command line; a bad request is one sentence on stderr and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"linearizer: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
