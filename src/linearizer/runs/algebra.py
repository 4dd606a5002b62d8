r"""Laws, spectra and exports of the map in a folder: a run's, or a Linearizer that was saved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..apps.base import Run, Say
from ..certificate import Certificate, certify
from ..linearizer import Linearizer
from ..training.checkpoint import atomic, read_config
from ..training.settings import did_you_mean
from .pictures import draw_spectrum
from .store import find, is_shipped, load, open_run, test_points

__all__ = [
    "Map",
    "certify_map",
    "certify_run",
    "draw_points",
    "export_run",
    "largest_values",
    "open_map",
    "write_spectrum",
]


class Map(NamedTuple):
    """The map in a folder, and the run that it is of, or None where it was saved by itself."""

    folder: Path
    f: Linearizer
    run: Run | None


def open_map(folder: str | Path, dtype: str | None = None) -> Map:
    """Open the map of a run, or a Linearizer that ``lz.save`` wrote; no random number is drawn."""
    place = find(folder)
    kind = None if dtype is None else getattr(torch, dtype)
    with torch.random.fork_rng(devices=[]):
        if read_config(place)["app"] is not None:
            run = open_run(place)
            return Map(place, run.app.linearizer(run.model.to(kind)), run)
        f = load(place)
    if not isinstance(f, Linearizer):
        raise ValueError(
            f"{folder}: expected a model of an application or a Linearizer, got a "
            f"{type(f).__name__}. Open it in Python: lz.load(run)."
        )
    return Map(place, f.to(kind), None)


@torch.no_grad()
def draw_points(f: Linearizer, n: int, seed: int = 0, run: Run | None = None) -> Tensor:
    r"""Draw points g⁻¹(z) of the source with normal z, (n, \*shape); laws hold at any point.

    Where the application of a run knows what its map starts from, such as noise, draw that.
    """
    if run is not None and run.app.points is not None:
        return run.app.points(run.model, n, seed).to(f.operator.dtype)
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, f.source.dim, generator=generator, dtype=torch.float64)
    return f.source.points(z.to(f.operator.dtype))


def _points(found: Map, n: int, root: Path | None) -> tuple[Tensor, str]:
    """Return n points of the source, test samples where they are here, and what they are."""
    if found.run is None:
        return draw_points(found.f, n), f"{n} points g⁻¹(z) with normal z"
    if found.run.app.points is not None:
        return draw_points(found.f, n, run=found.run), f"{n} points of the model's own noise"
    try:
        x = test_points(found.run, n, root).to(found.f.operator.dtype)
        if x.shape[1:] == found.f.source.shape:
            return x, f"{len(x)} test samples"
    except (ValueError, OSError, RuntimeError):
        pass
    where = f"{n} points g⁻¹(z) with normal z, since the data are not here"
    return draw_points(found.f, n), where


@torch.no_grad()
def certify_map(
    found: Map,
    n: int,
    root: Path | None = None,
    tolerance: float | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Certificate, str]:
    """Measure every law of a map on n points, and say what the points are."""
    x, where = _points(found, n, root)
    return certify(found.f, x, None, tolerance, seen), where


def certify_run(
    run: str | Path,
    n: int | None,
    dtype: str,
    tolerance: float | None,
    root: Path | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
    say: Say = lambda text: None,
) -> Certificate:
    """Measure every law of a run's map on n of its test samples, or of the noise it starts from.

    Where the data are not here, points g⁻¹(z) are taken, and a note says so. Without n they are 64,
    and 8 where a sample has more than 4,096 numbers.
    """
    found = open_map(run, dtype)
    n = n or (64 if found.f.source.dim <= 4096 else 8)
    certificate, where = certify_map(found, n, root, tolerance, seen)
    if "g⁻¹" in where:
        say(f"measured on {where}")
    return certificate


@torch.no_grad()
def largest_values(f: Linearizer, k: int) -> list[float]:
    """Return the k largest singular values of a map, or all where it has fewer."""
    return f.operator.svd(min(k, *f.operator.shape)).S.flatten()[:k].tolist()


def _place(found: Map, name: str) -> Path:
    """Return where a result goes: into the run; for a shipped model, where the user is."""
    folder = found.folder
    return Path(f"{folder.name}-{name}") if is_shipped(folder) else folder / name


def write_spectrum(run: str | Path, k: int, out: Path | None = None) -> dict[str, Any]:
    """Write the spectrum and pictures of a run's map, into RUN/spectrum unless told.

    Where ``out`` is a PNG, the spectrum alone is drawn into it.
    """
    if out is not None and out.suffix.lower() == ".png":
        if out.is_dir():
            raise ValueError(f"{out}: expected a file to write, but it is a folder.")
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as aside:
            result = write_spectrum(run, k, Path(aside))
            (Path(aside) / "spectrum.png").replace(out)
        return {**result, "files": [str(out)]}
    found = open_map(run)
    folder = out or _place(found, "spectrum")
    if found.run is not None and found.run.app.spectrum is not None:
        result = found.run.app.spectrum(found.run.model, folder, k)
    else:
        names = () if found.run is None else getattr(found.run.model.config, "columns", ())
        result = draw_spectrum(found.f, folder, k, names=names)
    with atomic(folder / "spectrum.json") as part:
        part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return {**result, "files": [*result["files"], str(folder / "spectrum.json")]}


MAPS = {"f": lambda f: f, "pinv": lambda f: f.pinv(), "transpose": lambda f: f.T}
FORMATS = {"onnx": ".onnx", "torch-export": ".pt2", "hub": ""}


def export_run(
    run: str | Path,
    to: str,
    form: str,
    out: Path | None = None,
    root: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Write a run's map, its pseudo-inverse or its transpose as a file; or all of it for the hub.

    Where the run's data are not here, the file is checked on points g⁻¹(z), and a note says so.
    """
    for value, known, what in ((to, FORMATS, "format"), (form, MAPS, "map")):
        if value not in known:
            raise ValueError(f"export: there is no {what} {value!r}. {did_you_mean(value, known)}")
    if to == "hub" and form != "f":
        raise ValueError("export: hub takes the whole model, so --map does not go with it.")
    found = open_map(run)
    if to == "hub":
        from .hub import HubModel

        folder = out or _place(found, "hub")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"export: hub needs a new or empty folder, but {folder} is not.")
        HubModel.from_run(found.folder).save_pretrained(folder)
        return {"files": sorted(str(p) for p in folder.iterdir())}
    from .export import export

    x, where = _points(found, 8, root)
    if "g⁻¹" in where:
        say(f"checked on {where}")
    path = out or _place(found, f"{form}{FORMATS[to]}")
    with torch.no_grad():
        example = x if form == "f" else found.f(x)
    result = export(MAPS[form](found.f), path, to, example)._asdict()
    return {**result, "path": str(path), "files": [str(path)]}
