"""The applications: each a model whose methods return Linearizers, with its losses."""

from __future__ import annotations

import importlib
from typing import Any

from ..settings import did_you_mean

__all__ = ["APPS", "app_of", "get"]

#: Name and one line for the command line; the module of that name defines ``APP``.
APPS = {
    "flow": "noise to images in one step, and back by the pseudo-inverse",
    "projector": "any image to the nearest one of the data; f(f(x)) = f(x) by architecture",
    "style": "photos to pictures; a style is an operator to blend, weaken, undo or add",
    "forecast": "rows of a table to the rows that follow, with intervals",
    "dynamics": "states to states at any time, before or after, by one generator",
    "attributes": "images to class scores or attributes, with a rectangular core",
    "disentangle": "what a network of yours (or an encoder of a VAE) gives, as a Linearizer",
}


def get(name: str) -> Any:
    """The :class:`apps.base.App` of that name."""
    if name not in APPS:
        raise ValueError(f"there is no app {name!r}. {did_you_mean(name, APPS)}")
    return importlib.import_module(f".{name}", __name__).APP


def app_of(model: Any) -> Any:
    """The App that a model belongs to, or None."""
    module = type(model).__module__
    name = module.removeprefix(f"{__name__}.")
    return get(name) if name != module and name in APPS else None
