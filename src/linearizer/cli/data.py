"""Data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..apps.command import JsonFlag, RootOption, list_files, print_json
from .base import app

data_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(
    data_app,
    name="data",
    help="Show the data sets, and fetch them.\n\nExample: linearizer data",
)


@data_app.callback()
def list_data(ctx: typer.Context, data_root: RootOption = None, as_json: JsonFlag = False) -> None:
    """Show the data sets, and fetch them.

    Example: linearizer data
    """
    if ctx.invoked_subcommand is not None:
        return
    from .. import data

    rows = data.status(data_root)
    if as_json:
        print_json(
            [
                {k: str(v) if isinstance(v, Path) else v for k, v in r._asdict().items()}
                for r in rows
            ]
        )
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
    from .. import data
    from ..training.progress import Transfer

    with Transfer() as transfer:
        folder = data.fetch(name, data_root, transfer.update)
    list_files([folder])
