r"""One-page HTML reports that need nothing beside themselves: pictures and curves are inside."""

from __future__ import annotations

import base64
import html
import io
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Curves", "Picture", "Table", "Text", "is_png", "page", "write_page"]


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


class Curves(NamedTuple):
    """Lines through points (x, y); the scale is logarithmic where values span decades."""

    caption: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    across: str = "step"


Block = Text | Picture | Table | Curves

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; } h2 { margin-top: 2.2rem; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; opacity: .8; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
svg { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid #8885; }
pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; }
"""

#: Colours of lines, to be told apart on white and on black, and dashes where colours cannot be.
COLOURS = ("#0b84d8", "#e0592a", "#2ca25f", "#b052c0", "#b8860b", "#6f7bd9", "#d64f8a", "#5f8f3c")
DASHES = ("-", (0, (4, 2)), (0, (1, 1)), (0, (5, 2, 1, 2)))
#: Points of a line that are drawn, at most.
DRAWN = 400
#: What matplotlib draws in this colour gets the page's own text colour, light or dark.
INK = "#010203"


def write_page(path: Path, title: str, blocks: Iterable[Block]) -> None:
    """Write the page; its language is English and it makes no request."""
    path.write_text(page(title, blocks), encoding="utf-8")


def page(title: str, blocks: Iterable[Block]) -> str:
    """Return the page as text."""
    body = "\n".join(_html(block, number) for number, block in enumerate(blocks))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def is_png(path: Path) -> bool:
    """Return whether a file begins and ends as a PNG, so that a browser shows all of it."""
    data = path.read_bytes()
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data[-8:-4] == b"IEND"


def _html(block: Block, number: int) -> str:
    if isinstance(block, Text):
        head = f"<h2>{html.escape(block.heading)}</h2>\n" if block.heading else ""
        tag = "pre" if block.plain else "p"
        return f"{head}<{tag}>{html.escape(block.text)}</{tag}>" if block.text else head
    if isinstance(block, Picture):
        data = base64.b64encode(block.path.read_bytes()).decode()
        caption = html.escape(block.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    if isinstance(block, Curves):
        return _curves(block, f"figure{number}-")
    head = "".join(f"<th>{html.escape(c)}</th>" for c in block.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in block.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


# -- curves --------------------------------------------------------------------------------


def _curves(block: Curves, prefix: str) -> str:
    """Draw the curves as an SVG inside the page, whose ids begin with ``prefix``."""
    series = {name: _finite(points) for name, points in block.series.items()}
    series = {name: points for name, points in series.items() if points}
    caption = html.escape(block.caption)
    if not series:
        return f"<p>{caption} Nothing that can be drawn.</p>"
    heights = [y for points in series.values() for _, y in points]
    log = min(heights) > 0 and max(heights) > 30 * min(heights)
    text = _draw(series, block.across, log)
    # What an SVG file needs and one inside a page does not; ids differ from those of other figures.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = text[text.index("<svg") :].replace("xlink:href", "href").replace(INK, "currentColor")
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    head = f'<svg {box.group()} role="img" aria-label="{caption}">'
    text = re.sub(r"<svg[^>]*>", lambda found: head, text, count=1)
    scale = " The scale is logarithmic." if log else ""
    return f"<figure>{text}<figcaption>{caption}{scale}</figcaption></figure>"


def _draw(series: Mapping[str, list[tuple[float, float]]], across: str, log: bool) -> str:
    """Return matplotlib's SVG file of the curves, with a legend and text as text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    file = io.StringIO()
    how = rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "linearizer",
            "path.simplify": False,
            "text.parse_math": False,
        }
    )
    with how, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's own fonts lack
        figure = Figure(figsize=(8, 3), layout="constrained")
        axes = figure.add_subplot(xlabel=across, yscale="log" if log else "linear")
        for i, (name, points) in enumerate(series.items()):
            axes.plot(
                *zip(*_thin(points), strict=True),
                color=COLOURS[i % len(COLOURS)],
                linestyle=DASHES[i % len(DASHES)],
                marker="." if len(points) <= 64 else "",
                label=f"{name.lstrip('_')} ({points[-1][1]:.4g})",
                gid=f"curve-{i}",
            )
        axes.grid(color=INK, alpha=0.15)
        axes.tick_params(which="both", color=INK, labelcolor=INK)
        axes.xaxis.label.set_color(INK)
        axes.spines[:].set_visible(False)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside upper left", ncols=4, frameon=False, labelcolor=INK)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``DRAWN`` of them, evenly, with both ends."""
    if len(points) <= DRAWN:
        return points
    return [points[round(i * (len(points) - 1) / (DRAWN - 1))] for i in range(DRAWN)]
