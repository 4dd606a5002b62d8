"""Nonlinear networks on which linear algebra is exact: f(x) = g_y⁻¹(A g_x(x)).

Names are imported on first use, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import apps, bijections, data, nets, operators
    from .apps.distill.use import distill
    from .certificate import Certificate
    from .linearizer import Linearizer
    from .runs import parts
    from .runs.store import load, models, save
    from .spaces import Space
    from .training.loop import Training, fit

__version__ = "0.1.0.dev0"
__all__ = [
    "Certificate",
    "Linearizer",
    "Space",
    "Training",
    "apps",
    "bijections",
    "data",
    "distill",
    "families",
    "fit",
    "load",
    "models",
    "nets",
    "operators",
    "parts",
    "save",
    "solvers",
]

_HOMES = {
    "Certificate": "certificate",
    "Linearizer": "linearizer",
    "Space": "spaces",
    "Training": "training.loop",
    "distill": "apps.distill.use",
    "fit": "training.loop",
    "load": "runs.store",
    "models": "runs.store",
    "save": "runs.store",
}
_MODULES = {"parts": "runs.parts"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'linearizer' has no attribute {name!r}")
    home = _HOMES.get(name) or _MODULES.get(name, name)
    module = importlib.import_module(f".{home}", __name__)
    value = getattr(module, name) if name in _HOMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
