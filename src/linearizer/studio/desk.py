r"""What answers work with: models by the names that requests may use, open ones, kept results."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..apps.base import Run
from ..apps.page import Limits, Refusal, number
from ..apps.registry import FORMER, describe_apps, find_app
from ..runs.listing import list_runs
from ..runs.store import SHIPPED, models, open_run
from ..training.checkpoint import CONFIG, HUB_WEIGHTS, METRICS, WEIGHTS, read_config
from .limits import check_wanted

__all__ = ["Catalogue", "Desk", "Kept", "OutsideError", "hide_paths", "shorten"]

V = TypeVar("V")

#: Bytes that open models and kept results may take, each.
OPEN_BYTES, KEPT_BYTES = 1 << 30, 512 << 20


class Kept(Generic[V]):
    """The values that were asked for last, up to a number of bytes; at least one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Hashable, tuple[Hashable, V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, stamp: Hashable, make: Callable[[], V], size: Callable[[V], int]
    ) -> V:
        """Return the value of a key, made where there is none of this very stamp."""
        with self._lock:
            if key in self._held and self._held[key][0] == stamp:
                self._held.move_to_end(key)
                return self._held[key][1]
        value = make()
        with self._lock:
            self._held[key] = stamp, value, size(value)
            self._held.move_to_end(key)
            while len(self._held) > 1 and self.bytes > self.most:
                self._held.popitem(last=False)
        return value

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self._held.values())

    def __len__(self) -> int:
        return len(self._held)


class OutsideError(ValueError):
    """A file of a run lies elsewhere."""


class Entry(NamedTuple):
    """A model that may be named."""

    id: str
    folder: Path
    shipped: bool


class Catalogue:
    """Shipped models by name, and the runs below one folder as ``runs/NAME``."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.name = runs.resolve().name or "runs"
        self._open: Kept[Run] = Kept(OPEN_BYTES)

    # -- names -----------------------------------------------------------------------------

    def find(self, id: str) -> Entry:
        """Return the model of that name; nothing but a shipped name or a run of the list is one."""
        if id in models():
            return Entry(id, SHIPPED / id, True)
        head, _, rest = id.partition("/")
        parts = rest.split("/") if rest else []
        unsafe = any(p in ("", ".", "..", "state") or "\\" in p or "\0" in p for p in parts)
        if head == self.name and not unsafe:
            folder = self.runs.joinpath(*parts)
            try:
                there = (folder / CONFIG).is_file() and not (folder / HUB_WEIGHTS).exists()
            except (OSError, ValueError):  # a name that is too long
                there = False
            if there:
                return Entry(id, folder, False)
        raise Refusal(404, f"there is no model {shorten(id)}. /api/models lists those there are.")

    def _refuse_links(self, folder: Path) -> None:
        """Refuse a run of which a link leads out of the folder of runs."""
        root = Path(os.path.realpath(self.runs))
        for name in ("", CONFIG, WEIGHTS, METRICS):
            place = Path(os.path.realpath(folder / name))  # resolve() fails at a link to itself
            if place != root and root not in place.parents:
                raise OutsideError(
                    f"{name or 'the folder'} is a link out of the folder of runs, which the studio "
                    "does not follow"
                )

    def shipped(self) -> list[dict[str, Any]]:
        """Return the models that come with the package."""
        return [self._row(Entry(name, SHIPPED / name, True)) for name in models()]

    def rows(self) -> list[dict[str, Any]]:
        """Return every model, the shipped ones first; a broken run has a problem."""
        found = self.shipped()
        if not self.runs.is_dir():
            return found
        for row in list_runs(self.runs):
            folder = Path(row.run)
            inner = folder.relative_to(self.runs).as_posix()
            id = self.name if inner == "." else f"{self.name}/{inner}"
            metric = None
            if row.value is not None:
                metric = {"name": row.metric, "value": number(row.value)}
            found.append(self._row(Entry(id, folder, False), metric, row.problem))
        return found

    def _row(
        self, entry: Entry, metric: dict[str, Any] | None = None, problem: str = ""
    ) -> dict[str, Any]:
        app, data, shape = "?", "", []
        try:
            if not entry.shipped:
                self._refuse_links(entry.folder)
            config = read_config(entry.folder)
            app = FORMER.get(config["app"], config["app"]) or "?"
            data = Path(str((config["data"] or {}).get("name", ""))).name
            shape = _shape(config["model"] or {})
            if config["app"] is None and not problem:
                problem = "it was put together by hand: open it in Python, lz.load(run)"
            elif app not in describe_apps() and not problem:
                problem = (
                    f"its application {app!r} is not known here; serve it with --app FILE.py:APP"
                )
        except (OSError, ValueError) as error:
            problem = str(error)
        return {
            "id": entry.id,
            "app": app,
            "title": f"{entry.id} · {app}" + (f" on {data}" if data else ""),
            "shipped": entry.shipped,
            "shape": shape,
            "data": data,
            "metric": metric,
            "problem": hide_paths(problem, self.runs),
        }

    # -- open models -----------------------------------------------------------------------

    def open(self, id: str) -> Run:
        """Return the model of that name, read again where its files have changed."""
        entry = self.find(id)
        if not entry.shipped:
            try:
                self._refuse_links(entry.folder)
            except OutsideError as problem:
                raise Refusal(404, f"{id}: {problem}.") from None

        def make() -> Run:
            with torch.inference_mode(False):  # weights like any others, whoever asks
                run = open_run(entry.folder)
            for module in run.model.modules():  # so that long work ends soon after its client
                module.register_forward_pre_hook(check_wanted)
            return run

        return self._open.get(id, self.stamp(id), make, _bytes_of)

    def stamp(self, id: str) -> Hashable:
        """Return what changes when the files of a model do: which they are, their times, sizes."""
        folder, found = self.find(id).folder, []
        for name in (CONFIG, WEIGHTS):
            with suppress(OSError):  # it may go at any moment
                s = (folder / name).stat()
                found.append((name, s.st_ino, s.st_mtime_ns, s.st_size))
        return tuple(found)


class Desk:
    """What answers use of the studio; each may run in any thread."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.catalogue, self.limits = catalogue, limits
        self._kept: Kept[Any] = Kept(KEPT_BYTES)

    def open(self, id: str, app: str = "") -> Run:
        """Return the model of that id; refuse one of another application."""
        run = self.catalogue.open(id)
        if app and run.app.name not in app.split(","):
            kind = app.replace(",", " or ")
            raise Refusal(422, f"{id}: expected a model of {kind}, but it holds {run.app.name}.")
        return run

    def keep(self, id: str, what: Hashable, make: Callable[[], V]) -> V:
        """Return what ``make`` gives, kept as long as the files of the model stay the same."""
        stamp = self.catalogue.stamp(id) if id else ""
        return self._kept.get((id, what), stamp, make, _size)

    def sampler(self, data: str, shape: tuple[int, ...]) -> str | None:
        """Return the id of a shipped model that makes samples of such data, or None."""
        for row in self.catalogue.shipped():
            alike = (row["data"], tuple(row["shape"])) == (data, shape)
            if alike and find_app(row["app"]).sample is not None:
                return str(row["id"])
        return None

    def sample(self, id: str, n: int, seed: int) -> Tensor:
        """Return samples that a model makes."""
        run = self.open(id)
        if run.app.sample is None:
            raise Refusal(422, f"{id}: models of {run.app.name} make no samples.")
        return run.app.sample(run.model, n, seed)


def _size(value: object) -> int:
    """Return about how many bytes a kept result takes."""
    if isinstance(value, nn.Module):
        return _bytes_of(value)
    if isinstance(value, dict):
        return len(json.dumps(value, default=str))
    return int(getattr(value, "bytes", 1024))


def shorten(text: str, most: int = 80) -> str:
    """Quote a word of the client, cut where it is long."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def hide_paths(sentence: str, runs: Path) -> str:
    """Take the folders of this machine out of a sentence, but for the runs' own."""
    name = runs.resolve().name
    for folder in sorted({str(runs.resolve()), str(runs.absolute())}, key=len, reverse=True):
        sentence = sentence.replace(folder, name)
    sentence = sentence.replace(f"{SHIPPED}/", "")
    return re.sub(
        r"(?<![\w./:)\]])(?:[A-Za-z]:)?/(?:[^\s/:,'\"()]+/)*([^\s/:,'\"()]+)", r"\1", sentence
    )


def _shape(model: dict[str, Any]) -> list[int]:
    shape = model.get("shape")
    if shape is None and "look_back" in model and isinstance(model.get("columns"), list):
        shape = [model["look_back"], len(model["columns"])]
    if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
        return []
    return shape


def _bytes_of(value: Run | nn.Module) -> int:
    """Return the bytes of the tensors in a model or an operator."""
    module = value.model if isinstance(value, Run) else value
    held: list[Tensor] = [*module.parameters(), *module.buffers()]
    held += [t for m in module.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    return sum({t.data_ptr(): t.nbytes for t in held}.values())
