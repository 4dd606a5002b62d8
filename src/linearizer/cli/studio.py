"""The studio."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from ..apps.command import note
from .base import app


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
    _check_token(token)
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"serve: expected a folder of runs, but {runs} is a file.")
    from ..studio.listening import host_name, listen

    names = [host_name(name) for name in allow_host or ()]
    at = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{at.getsockname()[1]}/" + (f"?token={quote(token)}" if token else "")
    _warn_of_strangers(host, names, token)

    def ready() -> None:
        typer.echo(f"the studio is at {url} (stop it with Ctrl-C)")
        if open_:
            import webbrowser

            if not webbrowser.open(url):
                note("no browser was found: open the address yourself.")

    from ..studio.server import serve as run

    run(at, host, runs, token, names, threads, ready)


def _check_token(token: str | None) -> None:
    """Refuse a token that is easily guessed, or that headers do not hold."""
    if token is None:
        return
    if len(token) < 8:
        raise ValueError("serve: expected a token of 8 characters or more. Choose a longer one.")
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ValueError(
            "serve: expected a token of printable ASCII without spaces around it, as headers hold. "
            "Choose another."
        )


def _warn_of_strangers(host: str, names: list[str], token: str | None) -> None:
    """Say who else may use the studio."""
    from ..studio.listening import is_loopback

    if token and not is_loopback(host):
        note(
            f"warning: {host} can be reached from other machines, and what they send is not "
            "encrypted."
        )
    elif not token and (names or not is_loopback(host)):
        who, flag = (", ".join(names), "--allow-host") if is_loopback(host) else (host, "--host")
        note(
            f"warning: anyone who can reach {who} may use the studio and see your runs, as there "
            f"is no token. Add --token, or leave {flag} out."
        )
