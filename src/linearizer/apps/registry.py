r"""Which applications there are: those of this package, of installed ones, and of a file.

A run folder names its application and nothing more: what is not known here is never imported
because a folder says so.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from ..training.settings import did_you_mean

if TYPE_CHECKING:
    from .base import App

__all__ = [
    "BUILT_IN",
    "app_of",
    "current_name",
    "describe_apps",
    "find_app",
    "foreign_apps",
    "load_app",
    "origin_of",
    "register",
]

#: Name and one line, so that help needs no torch; ``app.py`` in the folder defines ``APP``.
BUILT_IN = {
    "flow": "noise to images in one step, and back by the pseudo-inverse",
    "projector": "any image to the nearest one of the data; f(f(x)) = f(x) by architecture",
    "style": "photos to pictures; a style is an operator to blend, weaken, undo or add",
    "forecast": "rows of a table to the rows that follow, with intervals",
    "dynamics": "states to states at any time, before or after, by one generator",
    "attributes": "images to class scores or attributes, with a rectangular core",
    "distill": "what a network of yours (or an encoder of a VAE) gives, as a Linearizer",
}
#: Names in run folders of earlier versions.
FORMER = {"disentangle": "distill"}
GROUP = "linearizer.apps"

_registered: dict[str, App[Any, Any, Any]] = {}
_origins: dict[str, str] = {}


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BUILT_IN}


def current_name(name: str | None) -> str | None:
    """The name that an application has now, of a name in a run folder."""
    return None if name is None else FORMER.get(name, name)


def describe_apps() -> dict[str, str]:
    """Every known application with its line; an installed one is not imported for it."""
    others = {name: f"from the package {_package(point)}" for name, point in _installed().items()}
    given = {name: app.summary for name, app in _registered.items()}
    return {**BUILT_IN, **others, **given}


def register(app: App[Any, Any, Any]) -> App[Any, Any, Any]:
    """Make an application known to this process, by its name."""
    from .base import App

    if not isinstance(app, App):
        raise ValueError(f"register: expected an App, got {type(app).__name__}.")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", app.name):
        raise ValueError(
            f"register: expected a name of small letters, digits, - and _, got {app.name!r}."
        )
    if app.name in BUILT_IN or app.name in FORMER:
        raise ValueError(
            f"register: {app.name!r} is an application of linearizer itself. Choose another name."
        )
    _registered[app.name] = app
    return app


def load_app(where: str) -> App[Any, Any, Any]:
    """The application that ``FILE.py:NAME`` or ``MODULE:NAME`` defines; this runs code."""
    from ..data.code import take

    source, _, name = where.rpartition(":")
    if not source or not name.isidentifier():
        raise ValueError(f"app: expected FILE.py:NAME or MODULE:NAME, got {where!r}.")
    from .base import App

    with take(source, name, "an application") as app:
        if not isinstance(app, App):
            got = type(app).__name__
            raise ValueError(f"{where}: expected an App (linearizer.apps.base), got {got}.")
        register(app)
        _origins[app.name] = where
        return app


def origin_of(name: str) -> str:
    """How to make an application known that is not of this package: its package or its file."""
    if name in _installed():
        return f"the package {_package(_installed()[name])}"
    return f"--app {_origins[name]}" if name in _origins else ""


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module


def find_app(name: str, where: str = "", origin: str = "") -> App[Any, Any, Any]:
    """The application of that name.

    Arguments:
        where: The run folder that names it, for the sentence where it is not known.
        origin: What the folder says of where it came from; nothing is imported for it.
    """
    name = FORMER.get(name, name)
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        return importlib.import_module(f".{name}.app", __package__).APP
    if name in _installed():
        app = register(_installed()[name].load())
        if app.name != name:
            raise ValueError(
                f"{origin_of(name)}: its entry point is called {name!r}, but the application "
                f"{app.name!r}. Give both one name."
            )
        return app
    known = did_you_mean(name, describe_apps())
    if where:
        trained = f" It was trained with {origin}." if origin else ""
        raise ValueError(
            f"{where}: its application {name!r} is not known here.{trained} Install its package, "
            f"or name its file: --app FILE.py:APP, in Python lz.apps.load_app. {known}"
        )
    raise ValueError(f"there is no app {name!r}. {known}")


def foreign_apps(say: Callable[[str], None]) -> list[App[Any, Any, Any]]:
    """The applications that are not of this package; one that cannot be imported is told of."""
    found = []
    for name in describe_apps():
        try:
            if name not in BUILT_IN:
                found.append(find_app(name))
        except Exception as problem:
            say(f"the application {name!r} of {origin_of(name)} cannot be used: {problem}")
    return found


def app_of(model: object) -> App[Any, Any, Any] | None:
    """The application that a model belongs to, or None for one that has no settings."""
    if getattr(model, "config", None) is None:
        return None
    if name := getattr(model, "app_name", ""):
        return find_app(name)
    for name in BUILT_IN:
        if type(model).__module__ == f"{__package__}.{name}.model":
            return find_app(name)
    return next((a for a in _registered.values() if a.build is type(model)), None)
