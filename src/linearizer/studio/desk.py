r"""Which models there are, by the names that requests may use, and those that are open."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..apps import APPS
from ..apps.flow import Flow
from ..checkpoint import CONFIG, HUB_WEIGHTS, METRICS, SHIPPED, WEIGHTS, models, read_config
from ..linearizer import Linearizer
from ..listing import listing
from ..operators import SVD
from ..runs import Opened, opened
from ..sampling import Steps
from .limits import Refusal

__all__ = ["Catalogue", "Kept", "OneStep", "OutsideError", "number", "shortened", "without_paths"]

V = TypeVar("V")

#: Bytes of tensors that open models and one-step operators may take, each.
OPEN_BYTES, STEP_BYTES = 1 << 30, 512 << 20


class Kept(Generic[V]):
    """The values that were asked for last, up to a number of bytes; at least one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Hashable, tuple[Hashable, V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, stamp: Hashable, make: Callable[[], V], size: Callable[[V], int]
    ) -> V:
        """The value of a key, made where there is none of this very stamp."""
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


class OneStep:
    """A collapsed flow with what follows from it, each computed once, when it is asked for."""

    def __init__(self, f: Linearizer, seconds: float) -> None:
        self.f, self.seconds = f, seconds
        self._back: Linearizer | None = None
        self._svd: SVD | None = None

    @property
    def back(self) -> Linearizer:
        """f†"""
        if self._back is None:
            self._back = self.f.pinv()
        return self._back

    def svd(self, k: int) -> SVD:
        """The factors of the core, to k or a few more."""
        if self._svd is None or len(self._svd.S) < min(k, *self.f.operator.shape):
            self._svd = self.f.operator.svd(max(k, 16))
        return self._svd


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
        self._open: Kept[Opened] = Kept(OPEN_BYTES)
        self._steps: Kept[OneStep] = Kept(STEP_BYTES)

    # -- names -----------------------------------------------------------------------------

    def find(self, id: str) -> Entry:
        """The model of that name; nothing but a shipped name or a run of the list is one."""
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
        raise Refusal(404, f"there is no model {shortened(id)}. /api/models lists those there are.")

    def _inside(self, folder: Path) -> None:
        """Refuse what a link leads out of the folder of runs to."""
        root = self.runs.resolve()
        for name in ("", CONFIG, WEIGHTS, METRICS):
            place = (folder / name).resolve()
            if place != root and root not in place.parents:
                raise OutsideError(
                    f"{name or 'the folder'} is a link out of the folder of runs, which the studio "
                    "does not follow"
                )

    def shipped(self) -> list[dict[str, Any]]:
        """The models that come with the package."""
        return [self._row(Entry(name, SHIPPED / name, True)) for name in models()]

    def rows(self) -> list[dict[str, Any]]:
        """Every model, the shipped ones first; a broken run has a problem."""
        found = self.shipped()
        if not self.runs.is_dir():
            return found
        for row in listing(self.runs):
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
                self._inside(entry.folder)
            config = read_config(entry.folder)
            app = config["app"] or "?"
            data = Path(str((config["data"] or {}).get("name", ""))).name
            shape = _shape(config["model"] or {})
            if app not in APPS and not problem:
                problem = "its model is none of the known applications"
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
            "problem": without_paths(problem, self.runs),
        }

    # -- open models -----------------------------------------------------------------------

    def open(self, id: str) -> Opened:
        """The model of that name, read again where its files have changed."""
        entry = self.find(id)
        if not entry.shipped:
            try:
                self._inside(entry.folder)
            except OutsideError as problem:
                raise Refusal(404, f"{id}: {problem}.") from None

        def make() -> Opened:
            with torch.inference_mode(False):  # weights like any others, whoever asks
                return opened(entry.folder)

        return self._open.get(id, self.stamp(id), make, _bytes_of)

    def stamp(self, id: str) -> Hashable:
        """What changes when the files of a model do."""
        files = [self.find(id).folder / name for name in (CONFIG, WEIGHTS)]
        return tuple((s.st_mtime_ns, s.st_size) for p in files if p.exists() for s in [p.stat()])

    def one_step(self, id: str, how: Steps) -> OneStep:
        """A flow with all its steps in one operator."""
        stamp = self.stamp(id)  # before it is opened: its files may change meanwhile
        one = self.open(id)
        if not isinstance(one.model, Flow):
            raise Refusal(422, f"{id}: expected a flow, but it holds {one.app.name}.")

        def make() -> OneStep:
            begun = time.perf_counter()
            f = one.model.collapse(*how)
            return OneStep(f, time.perf_counter() - begun)

        # f†, U and V are about as large as f each.
        return self._steps.get((id, how), stamp, make, lambda step: 4 * _bytes_of(step.f.operator))


def number(value: float | Tensor | None) -> float | None:
    """As JSON has it: null where it is not finite."""
    if value is None:
        return None
    try:
        value = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return value if math.isfinite(value) else None


def shortened(text: str, most: int = 80) -> str:
    """A word of the client as it may stand in a sentence."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def without_paths(sentence: str, runs: Path) -> str:
    """A sentence of the library that shows no folder of this machine but the runs'."""
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


def _bytes_of(value: Opened | nn.Module) -> int:
    """Of the tensors in a model or an operator."""
    module = value.model if isinstance(value, Opened) else value
    held: list[Tensor] = [*module.parameters(), *module.buffers()]
    held += [t for m in module.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    return sum({t.data_ptr(): t.nbytes for t in held}.values())
