"""The studio."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from .base import app, note


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
    from ..web.listening import host_name, is_loopback, listen

    names = [host_name(name) for name in allow_host or ()]
    at = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{at.getsockname()[1]}/" + (f"?token={quote(token)}" if token else "")
    if not is_loopback(host):
        note(
            f"warning: {host} can be reached from other machines, and what they send is not "
            "encrypted."
            if token
            else f"warning: anyone who can reach {host} may use the studio and see your runs, "
            "as there is no token. Add --token, or leave --host out."
        )
    elif names and not token:
        note(
            f"warning: anyone who can reach {', '.join(names)} may use the studio and see your "
            "runs, as there is no token. Add --token, or leave --allow-host out."
        )

    def ready() -> None:
        typer.echo(f"the studio is at {url} (stop it with Ctrl-C)")
        if open_:
            import webbrowser

            if not webbrowser.open(url):
                note("no browser was found: open the address yourself.")

    from ..web.server import serve as run

    run(at, host, runs, token, names, threads, ready)
