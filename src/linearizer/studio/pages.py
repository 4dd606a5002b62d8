r"""The page, put together of what the applications bring."""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..apps.base import App
from ..apps.page import Page, Tab
from ..apps.registry import BUILT_IN, describe_apps, find_app

__all__ = ["STATIC", "Room", "list_rooms", "write_index"]

log = logging.getLogger("linearizer.studio")
STATIC = Path(__file__).parent / "static"
#: Ids of the page around the tabs, and addresses that are there for every model.
TAKEN = {
    *("announcer", "gate", "main", "outage", "page-list", "tabs", "theme", "version"),
    *("algebra", "apply", "certify", "health", "model", "models", "spectrum"),
}


class Room(NamedTuple):
    """A page that was read: the HTML of its sections, and its script."""

    page: Page
    html: str
    #: Where the browser finds the script, from the studio's own.
    script: str
    #: What is there, unless it is one of the studio's own files.
    code: bytes | None = None


def list_rooms() -> list[Room]:
    """Return the page of each application, a general one for those without, and the algebra.

    An application of another package that cannot be imported has no tab, and the log says why.
    """
    rooms: list[Room] = []
    for name in describe_apps():
        try:
            app = find_app(name)
            if app.page is None or all(app.page is not room.page for room in rooms):
                rooms.append(_read(app, [room.page for room in rooms]))
        except Exception as problem:  # whatever another package's code raises
            if name in BUILT_IN:
                raise
            log.warning("no tab for the application %s: %s", name, problem)
    tab = Tab("algebra", "Algebra", "A = UΣV<sup>⊤</sup>")
    return [*rooms, Room(Page((tab,), STATIC), _text("algebra.html"), "./algebra.js")]


def _read(app: App[Any, Any, Any], before: Iterable[Page]) -> Room:
    page: Page = app.page or Page((Tab(app.name, app.name.capitalize(), "f(x)"),), STATIC)
    taken = TAKEN.union(*map(_names, before))
    for word in _names(page):
        if word in taken or not re.fullmatch(r"[a-z][a-z0-9/_-]*", word):
            raise ValueError(f"its tab or request {word!r} is taken, or not of small letters")
    if app.page is None:
        summary = app.summary[:1].upper() + app.summary[1:]
        words = {"ID": app.name, "TITLE": page.tabs[0].title, "SUMMARY": summary}
        text = _text("general.html")
        for word, value in {**words, "FORMULA": app.formula}.items():
            text = text.replace(f"{{{word}}}", html.escape(value))
        return Room(page, text, "./general.js")
    text = (page.folder / "page.html").read_text(encoding="utf-8")
    code = (page.folder / "page.js").read_bytes()
    return Room(page, text, f"./apps/{page.tabs[0].id}/page.js", code)


def _names(page: Page) -> set[str]:
    return {tab.id for tab in page.tabs} | {request.path for request in page.requests}


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def write_index(rooms: Sequence[Room]) -> str:
    """Return the HTML of the whole page."""
    buttons = "\n".join(
        f'    <button type="button" role="tab" id="tab-{tab.id}" aria-controls="{tab.id}">'
        f'{html.escape(tab.title)}<span class="formula" aria-hidden="true">{tab.formula}</span>'
        "</button>"
        for room in rooms
        for tab in room.page.tabs
    )
    listed = [{"script": r.script, "tabs": [tab.id for tab in r.page.tabs]} for r in rooms]
    return (
        _text("index.html")
        .replace("    <!-- tabs -->", buttons)
        .replace("<!-- list -->", json.dumps(listed).replace("<", "\\u003c"))
        .replace("<!-- pages -->", "\n\n".join(room.html for room in rooms))
    )
