"""Lines of Markdown, and their places in the documents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["put_between", "table_head", "table_line"]


def table_line(name: str, cells: Iterable[str]) -> str:
    """Return one row of a table."""
    return f"| {' | '.join((name, *cells))} |"


def table_head(name: str, columns: Iterable[str]) -> list[str]:
    """Return the first two lines of a table."""
    every = [name, *columns]
    first = f"| {' | '.join(every)} |" if name else f"| | {' | '.join(every[1:])} |"
    return [first, "|---" * len(every) + "|"]


def put_between(path: Path, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- /mark -->``."""
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
    old = path.read_text(encoding="utf-8")
    if start not in old or end not in old:
        raise ValueError(f"{path}: expected the marks {start.strip()} and {end.strip()}.")
    path.write_text(old.split(start)[0] + start + text + end + old.split(end)[1], encoding="utf-8")
