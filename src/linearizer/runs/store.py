r"""Models in folders: saved, found, loaded and opened.

A model of an application is rebuilt from its settings; anything else that is made of known parts,
such as a Linearizer put together by hand, from a description of them (:mod:`linearizer.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..apps.registry import app_of, current_name, find_app, origin_of
from ..training.checkpoint import (
    CONFIG,
    HUB_WEIGHTS,
    WEIGHTS,
    fill,
    model_settings,
    read_config,
    read_tensors,
    tensors_of,
    weights_facts,
    write_config,
    write_weights,
)
from ..training.settings import did_you_mean, resolve

if TYPE_CHECKING:  # torch is loaded where it is needed: listing models is quick without it
    import torch
    from torch import nn

    from ..apps.base import Run
    from ..data.kinds import Data

__all__ = [
    "SHIPPED",
    "find",
    "is_shipped",
    "load",
    "load_data",
    "models",
    "open_run",
    "place",
    "save",
    "test_points",
]

SHIPPED = Path(__file__).parents[1] / "models"


def save(
    model: nn.Module,
    run: str | Path,
    config: Mapping[str, Any] | None = None,
    weights_only: bool = False,
) -> Path:
    """Write a model into a run folder, from which :func:`load` gives it back.

    Arguments:
        model: A model of an app, which its settings rebuild; or a Linearizer, Space, Bijection,
            Operator or Family that is made of known parts (see :mod:`linearizer.parts`). What is
            used twice is stored once, and is one object again after loading.
        run: The folder; made where there is none.
        config: The whole resolved configuration; by default the app's name and its settings.
        weights_only: Describe no parts: the weights can be loaded into a module like this one,
            ``load(run, into=model)``, whatever it is made of.
    """
    run = Path(run)
    if run.exists() and not run.is_dir():
        raise ValueError(f"save: expected a folder, but {run} is a file.")
    tensors = None
    if config is None:
        app = app_of(model)
        settings = None if app is None else cast(Any, model).config.model_dump(mode="json")
        config = {"app": app and app.name, "model": settings}
        if app is not None and (origin := origin_of(app.name)):
            config["origin"] = origin
        if app is None and not weights_only:
            from . import parts

            config["parts"], tensors = parts.describe(model)
    run.mkdir(parents=True, exist_ok=True)
    write_config(run, config)
    write_weights(run, tensors_of(model) if tensors is None else tensors, config)
    return run


def models() -> list[str]:
    """Names of the trained models that come with the package; :func:`load` takes them."""
    return sorted(p.parent.name for p in SHIPPED.glob(f"*/{CONFIG}"))


def is_shipped(folder: Path) -> bool:
    """Whether a run folder is part of the package, which stays as it is."""
    return SHIPPED.resolve() in folder.resolve().parents


def find(run: str | Path) -> Path:
    """The folder of a run, or of a shipped model by its name."""
    path = Path(run)
    if path.is_dir() and ((path / CONFIG).is_file() or str(run) not in models()):
        return path
    if path.is_file() and path.name in (CONFIG, WEIGHTS):
        return path.parent
    if str(run) in models():
        return SHIPPED / str(run)
    if path.is_file():
        raise ValueError(f"{path}: expected a run folder, got a file.")
    folders = {path.parent, Path("runs")} if len(path.parts) == 1 else {path.parent}
    around = [str(p.parent) for folder in folders for p in folder.glob(f"*/{CONFIG}")]
    raise FileNotFoundError(
        f"{run}: there is no such run folder or shipped model. "
        f"{did_you_mean(str(run), [*sorted(around), *models()])}"
    )


def load(run: str | Path, into: nn.Module | None = None, check: bool = True) -> Any:
    """What :func:`save` or training wrote, or a shipped model by name; in evaluation mode.

    Arguments:
        run: A folder that a training run or :func:`save` wrote, or one of :func:`models`.
        into: A model of the same architecture to fill, for what has neither app nor known parts.
        check: Refuse weights that are NaN or infinite.
    """
    folder = find(run)
    config = read_config(folder)
    weights = folder / WEIGHTS
    if not weights.exists() and (folder / HUB_WEIGHTS).exists():
        weights = folder / HUB_WEIGHTS
    if not weights.exists():
        raise FileNotFoundError(
            f"{folder}: the run has no {WEIGHTS} yet. Train it, or resume it to its first "
            "checkpoint."
        )
    settings = None
    if into is None and config["app"] is not None:
        app = find_app(config["app"], str(folder), str(config.get("origin") or ""))
        settings = resolve(app.Config, str(folder / CONFIG), model_settings(config) or {})
    elif into is None and config.get("parts") is None:
        raise ValueError(
            f"{folder}: these weights are of a model that was saved without its parts. Build one "
            "like it and pass load(run, into=model)."
        )
    tensors, about = read_tensors(weights)
    facts = weights_facts(config)
    same_app = current_name(about.get("app")) == current_name(facts["app"])
    if not same_app or any(about.get(key) != facts.get(key) for key in ("model", "parts")):
        raise ValueError(
            f"{folder}: {CONFIG} and {weights.name} do not belong together (the model's settings "
            "differ). Restore the file that was changed."
        )
    if check:
        _require_finite(tensors, weights)
    if into is not None:
        from .parts import DERIVED

        saved = {name: t for name, t in tensors.items() if not name.startswith(DERIVED)}
        return fill(into, saved, str(weights)).eval()
    if settings is None:
        from . import parts

        return parts.restore(config["parts"], tensors, str(folder / CONFIG)).eval()
    # In the precision that was saved, whatever torch's default is now; half is for storage.
    import torch

    from .bounds import build_within

    double = any(t.dtype == torch.float64 for t in tensors.values())
    dtype = torch.float64 if double else torch.float32
    model = build_within(lambda: app.make(settings), tensors, str(folder / CONFIG))
    model = fill(model.to(dtype), tensors, str(weights)).eval()
    # What follows from rounded weights is derived from them anew.
    return model.to(dtype) if any(t.dtype == torch.float16 for t in tensors.values()) else model


def _require_finite(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    for name, t in tensors.items():
        if (t.is_floating_point() or t.is_complex()) and t.itemsize > 1 and not t.isfinite().all():
            raise ValueError(
                f"{path}: expected finite weights, but {name} has NaN or infinite values. Resume "
                "an earlier checkpoint, or take them as they are: load(run, check=False)."
            )


# -- runs --------------------------------------------------------------------------------------


def open_run(run: str | Path) -> Run:
    """The model of a run or of a shipped name, with its application."""
    from ..apps.base import Run

    folder = find(run)
    config, model = read_config(folder), load(folder)
    if config["app"] is None:
        raise ValueError(
            f"{run}: expected a model of an app, got one that was put together by hand. Open it in "
            "Python: lz.load(run)."
        )
    return Run(folder, config, find_app(config["app"]), model)


def _data_settings(run: Run) -> Any:
    if not run.config.get("data"):
        raise ValueError(f"{run.folder}: its {CONFIG} does not say what it was trained on.")
    return resolve(run.app.kind.Settings, str(run.folder / CONFIG), run.config["data"])


def load_data(run: Run, root: Path | None = None) -> Data:
    """The data that a run was trained on."""
    settings = _data_settings(run)
    if why := run.app.kind.refuse(settings):
        raise ValueError(f"{run.folder}: {why}")
    return run.app.kind.load(settings, root, None)


def test_points(run: Run, n: int, root: Path | None = None) -> torch.Tensor:
    """The first n test samples of the data that a run was trained on."""
    import torch

    if run.app.kind.samples is not None:
        x = run.app.kind.samples(_data_settings(run), root, n)
    else:
        test = load_data(run, root).test
        x = test.batch(torch.arange(min(n, len(test)))).x
    return run.model.pad(x) if hasattr(run.model, "pad") else x


def place(run: Run, name: str) -> Path:
    """Where a result goes unless told: into the run; for a shipped model, where the user is."""
    return Path(f"{run.folder.name}-{name}") if is_shipped(run.folder) else run.folder / name
