r"""One-page HTML reports that need nothing beside themselves: pictures and curves are inside."""

from __future__ import annotations

import base64
import html
import math
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
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: currentColor; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid #8885; }
pre { overflow-x: auto; font-size: .8rem; line-height: 1.35; }
.key { margin-right: 1.2rem; white-space: nowrap; }
.key svg { width: 2rem; height: .6rem; display: inline; }
"""

#: Of lines, to be told apart on white and on black, and by their dashes where colours cannot be.
COLOURS = ("#0b84d8", "#e0592a", "#2ca25f", "#b052c0", "#b8860b", "#6f7bd9", "#d64f8a", "#5f8f3c")
DASHES = ("", "7 3", "2 2", "9 3 2 3")
WIDTH, HEIGHT, LEFT, RIGHT, ABOVE, BELOW = 720, 260, 64, 10, 8, 40
#: Points of a line that are drawn, at most.
DRAWN = 400


def write_page(path: Path, title: str, blocks: Iterable[Block]) -> None:
    """Write the page; its language is English and it makes no request."""
    path.write_text(page(title, blocks), encoding="utf-8")


def page(title: str, blocks: Iterable[Block]) -> str:
    """The page as text."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{html.escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def is_png(path: Path) -> bool:
    """Whether a file begins and ends as a PNG does, so that a browser shows all of it."""
    data = path.read_bytes()
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data[-8:-4] == b"IEND"


def _html(block: Block) -> str:
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
        return _curves(block)
    head = "".join(f"<th>{html.escape(c)}</th>" for c in block.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in block.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


# -- curves --------------------------------------------------------------------------------


def _curves(block: Curves) -> str:
    """An SVG in the page's own text colour, so that it is read on light and on dark."""
    series = {name: _finite(points) for name, points in block.series.items()}
    series = {name: points for name, points in series.items() if points}
    caption = html.escape(block.caption)
    if not series:
        return f"<p>{caption} Nothing that can be drawn.</p>"
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    log = min(ys) > 0 and max(ys) > 30 * min(ys)
    across, up = _Axis(min(xs), max(xs), False), _Axis(min(ys), max(ys), log)
    parts = []
    for value in up.ticks:
        y = ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - up.place(value))
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity=".18"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for value in across.ticks:
        x = LEFT + (WIDTH - LEFT - RIGHT) * across.place(value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{value:g}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{html.escape(block.across)}'
        "</text>"
    )
    keys = []
    for i, (name, points) in enumerate(series.items()):
        stroke = (
            f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.8" '
            f'stroke-dasharray="{DASHES[i % len(DASHES)]}"'
        )
        places = [
            (
                LEFT + (WIDTH - LEFT - RIGHT) * across.place(x),
                ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - up.place(y)),
            )
            for x, y in _thinned(points)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline fill="none" {stroke} points="{line}"/>')
        if len(places) <= 64:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{COLOURS[i % len(COLOURS)]}"/>'
                for x, y in places
            ]
        keys.append(
            f'<span class="key"><svg viewBox="0 0 32 8" aria-hidden="true"><line x1="0" x2="32" '
            f'y1="4" y2="4" {stroke}/></svg> {html.escape(name)} ({points[-1][1]:.4g})</span>'
        )
    scale = " The scale is logarithmic." if log else ""
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{caption}">'
        f"{''.join(parts)}</svg><figcaption>{''.join(keys)}<br>{caption}{scale}</figcaption>"
        "</figure>"
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``DRAWN`` of them, evenly, with both ends."""
    if len(points) <= DRAWN:
        return points
    return [points[round(i * (len(points) - 1) / (DRAWN - 1))] for i in range(DRAWN)]


class _Axis:
    """Where values are between the ends, 0 to 1, and the round ones among them."""

    def __init__(self, low: float, high: float, log: bool) -> None:
        from matplotlib.ticker import LogLocator, MaxNLocator

        if low == high:
            low, high = (low - 0.5, high + 0.5) if not log else (low / 2, high * 2)
        self.log = log
        locator = LogLocator(numticks=6) if log else MaxNLocator(6)
        found = [float(v) for v in locator.tick_values(low, high)]
        inside = [v for v in found if low <= v <= high]
        self.ticks = inside if len(inside) > 1 else [low, high]
        self.low, self.high = self._scaled(low), self._scaled(high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        return (self._scaled(value) - self.low) / (self.high - self.low)
