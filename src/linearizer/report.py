r"""One-page HTML reports that need nothing beside themselves: pictures are inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Picture", "Table", "Text", "write_page"]


class Text(NamedTuple):
    """A paragraph, or a heading with one below it, or plain lines."""

    text: str
    heading: str = ""
    plain: bool = False


class Picture(NamedTuple):
    """A PNG file and what it shows."""

    path: Path
    caption: str


class Table(NamedTuple):
    """Rows of cells under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; opacity: .8; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8885; }
pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; }
"""


def write_page(path: Path, title: str, blocks: Iterable[Text | Picture | Table]) -> None:
    """Write the page; its language is English and it makes no request."""
    body = "\n".join(_html(block) for block in blocks)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}</h1>\n{body}\n</main></body></html>\n",
        encoding="utf-8",
    )


def _html(block: Text | Picture | Table) -> str:
    if isinstance(block, Text):
        head = f"<h2>{html.escape(block.heading)}</h2>\n" if block.heading else ""
        tag = "pre" if block.plain else "p"
        return f"{head}<{tag}>{html.escape(block.text)}</{tag}>"
    if isinstance(block, Picture):
        data = base64.b64encode(block.path.read_bytes()).decode()
        caption = html.escape(block.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    head = "".join(f"<th>{html.escape(c)}</th>" for c in block.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in block.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
