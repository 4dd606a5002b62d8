"""The program that commands are added to, and what they share."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Ordered(TyperGroup):
    """Commands in the order in which one meets them; those of other packages' applications last."""

    def list_commands(self, ctx: Any) -> list[str]:
        first = ["quickstart", "data", "train", "resume", "runs"]
        own = first + [name for name in self.commands if name not in first]
        return own + [name for name in _foreign() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _foreign().get(cmd_name)


def _foreign() -> dict[str, Any]:
    """Commands of applications that are not of this package."""
    from ..apps.registry import foreign_apps

    found: dict[str, Any] = {}
    for each in foreign_apps(lambda text: typer.echo(text, err=True)):
        if each.commands is not None:
            group = typer.main.get_group(each.commands)
            found |= group.commands
    return found


def _load_apps(given: list[str]) -> list[str]:
    from ..apps.registry import load_app

    for where in given or ():
        load_app(where)
    return given


app = typer.Typer(
    cls=_Ordered,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain errors: a sentence that no box breaks apart
    help="Nonlinear networks on which linear algebra is exact: f(x) = g_y⁻¹(A g_x(x)).",
)


@app.callback()
def _root(
    app: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:APP",
            help="an application of your own, from a file or a module; it runs that code",
            callback=_load_apps,
            is_eager=True,
            show_default="none",
        ),
    ] = None,
) -> None:
    """Linearizers: train them, and do linear algebra on them."""


@app.command()
def version() -> None:
    """Print the version."""
    from .. import __version__

    typer.echo(__version__)


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
    except (RuntimeError, MemoryError) as error:
        said = str(error).lower()
        if isinstance(error, RuntimeError) and not ("alloc" in said or "memory" in said):
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
