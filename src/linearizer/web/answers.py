r"""What each request is answered with: results of the library's functions, and their pictures."""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from .. import __version__, pictures, projecting, reading, runs, sampling, simulating, stylizing
from ..apps.attributes import Attributes
from ..apps.disentangle import Distillation
from ..apps.dynamics import Dynamics
from ..apps.flow import Flow
from ..apps.forecast import Forecast
from ..apps.projector import Projection
from ..apps.style import Style
from ..bijections import Flatten
from ..data.images import pixels_of_photo
from ..data.stylised import shrunk
from ..linearizer import Linearizer
from ..metrics import psnr
from ..operators import UnsupportedError
from ..runs import Opened
from ..sampling import Steps
from ..solvers import SOLVERS
from . import schemas as ask
from .catalogue import Catalogue, Kept, number
from .images import decoded, encoded
from .limits import Limits, Refusal

__all__ = ["Answers"]

F = TypeVar("F", bound=Callable[..., Any])
#: How many steps encode and interpolate take, and directions there are to steer along.
USUAL, DIRECTIONS = Steps("rk4", 100), 8
#: Longer side of the example photo.
EXAMPLE_SIDE = 640
#: Longer side of a picture whose style is undone at most: f† has a matrix for each frequency.
UNDONE_SIDE = 384
#: Coordinates of a map whose laws are measured in float64; larger ones in float32.
EXACT = 20_000
#: Singular values that are listed, of a small map and of a large one.
VALUES, FEW = 512, 64
#: Seconds for which a list of the runs is taken for the present one.
FRESH = 1.0


def plain(function: F) -> F:
    """Without a thought of gradients."""

    @wraps(function)
    def inner(*given: Any) -> Any:
        with torch.inference_mode():
            return function(*given)

    return cast(F, inner)


def numbers(values: Tensor) -> list[Any]:
    """A tensor as lists, with null for what is not finite."""
    if bool(values.isfinite().all()):
        return values.tolist()
    if values.ndim == 1:
        return [number(v) for v in values.tolist()]
    return [numbers(v) for v in values]


class Answers:
    """One method for each request; each may run in any thread."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.catalogue, self.limits = catalogue, limits
        self._known: Kept[dict[str, Any]] = Kept(16 << 20)
        self._rows: list[dict[str, Any]] = []
        self._old, self._listing = -math.inf, threading.Lock()

    # -- models ----------------------------------------------------------------------------

    def models(self) -> dict[str, Any]:
        limits = self.limits
        with self._listing:  # one thread reads the folder, others take what it has found
            if time.monotonic() >= self._old:
                self._rows = self.catalogue.rows()
                self._old = time.monotonic() + FRESH
            rows = self._rows
        return {
            "version": __version__,
            "models": rows,
            "limits": {
                "upload_bytes": limits.upload_bytes,
                "image_side": limits.image_side,
                "samples": limits.samples,
            },
        }

    def _once(self, id: str, what: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer that depends on the model alone, kept as long as its files stay the same."""
        return self._known.get(
            (id, what), self.catalogue.stamp(id), make, lambda found: len(json.dumps(found))
        )

    def model(self, id: str) -> dict[str, Any]:
        """What ``/api/model`` answers."""
        return self._once(id, "facts", lambda: self._facts(id))

    def spectrum(self, id: str, k: int) -> dict[str, Any]:
        """What ``/api/spectrum`` answers."""
        return self._once(id, f"spectrum {k}", lambda: self._spectrum(id, k))

    def certify(self, id: str, n: int) -> dict[str, Any]:
        """What ``/api/certify`` answers."""
        return self._once(id, f"certificate {n}", lambda: self._certify(id, n))

    @plain
    def _facts(self, id: str) -> dict[str, Any]:
        one = self.catalogue.open(id)
        f = self._map(id, one)
        return {
            "id": id,
            "app": one.app.name,
            "config": one.model.config.model_dump(mode="json"),
            "parameters": sum(p.numel() for p in one.model.parameters()),
            "rank": None if f.source.dim > EXACT else self._rank(f),
            "dim": f.source.dim,
            **self._own(id, one),
        }

    def _map(self, id: str, one: Opened) -> Linearizer:
        """The Linearizer that certify and spectrum take."""
        if isinstance(one.model, Flow):
            return self.catalogue.one_step(id, USUAL).f
        return one.app.linearizer(one.model)

    def _own(self, id: str, one: Opened) -> dict[str, Any]:
        """What only models of this kind have."""
        model = one.model
        if isinstance(model, Flow):
            values = self.catalogue.one_step(id, USUAL).svd(12).S[:12]
            return {
                "solvers": list(SOLVERS),
                "singular_values": numbers(values),
                "directions": min(DIRECTIONS, len(values)),
            }
        if isinstance(model, Projection):
            usual, largest = model().rank(), model.largest
            powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
            return {"ranks": sorted({*powers, usual, largest}), "rank": usual}
        if isinstance(model, Style):
            return {"styles": [name for name in model.names if name != stylizing.PHOTO]}
        if isinstance(model, Dynamics):
            return {
                "names": list(model.config.names),
                "ranges": simulating.ranges(one),
                "horizon": model.config.horizon,
                "unit": model.config.unit,
                "modes": _modes(model),
            }
        if isinstance(model, Attributes):
            return {
                "names": list(model.config.names),
                "kind": model.config.kind,
                "generator": self._generator(one),
            }
        if isinstance(model, Distillation):
            return {"names": reading.names_of(model), "kind": "numbers"}
        if isinstance(model, Forecast):
            c = model.config
            return {"channels": list(c.columns), "look_back": c.look_back, "horizon": c.horizon}
        return {}

    def _one(self, id: str, kind: type, what: str) -> Opened:
        one = self.catalogue.open(id)
        if not isinstance(one.model, kind):
            raise Refusal(422, f"{id}: expected {what}, but it holds {one.app.name}.")
        return one

    # -- flows -----------------------------------------------------------------------------

    @plain
    def generate(self, a: ask.Generate) -> dict[str, Any]:
        step = self.catalogue.one_step(a.model, Steps(a.solver, a.steps))
        one = self._one(a.model, Flow, "a flow")
        V = step.svd(DIRECTIONS).V if any(a.directions) else None
        noise = sampling.steered(one.model, a.n, a.seed, a.temperature, V, a.directions)
        begun = time.perf_counter()
        x = step.f(noise)
        took = time.perf_counter() - begun
        return {
            "images": [encoded(image) for image in x],
            "milliseconds": 1e3 * took,
            "collapse_milliseconds": 1e3 * step.seconds,
            "steps": a.steps,
        }

    @plain
    def check(self, a: ask.Check) -> dict[str, Any]:
        how = Steps(a.solver, a.steps)
        f = self.catalogue.one_step(a.model, how).f
        one = self._one(a.model, Flow, "a flow")
        both = sampling.compared(one.model, f, how, a.seed)
        gap = both.one_step - both.loop
        return {
            "one_step_milliseconds": 1e3 * both.one_step_seconds,
            "loop_milliseconds": 1e3 * both.loop_seconds,
            "difference": number(gap.abs().max()),
            "mean_square": number(gap.square().mean()),
        }

    @plain
    def encode(self, a: ask.Encode) -> dict[str, Any]:
        picture = decoded(a.image, self.limits)
        one = self._one(a.model, Flow, "a flow")
        step = self.catalogue.one_step(a.model, USUAL)
        x, notes = sampling.read_for(one, [picture])
        code = step.back(x)
        back = step.f(code).clamp(0, 1)
        return {
            "input": encoded(x[0]),
            "reconstruction": encoded(back[0]),
            "psnr": number(psnr(back, x)[0]),
            "norm": number(step.f.source.norm(code)[0]),
            "notes": notes,
        }

    @plain
    def interpolate(self, a: ask.Interpolate) -> dict[str, Any]:
        ends = [decoded(a.a, self.limits, "a"), decoded(a.b, self.limits, "b")]
        one = self._one(a.model, Flow, "a flow")
        step = self.catalogue.one_step(a.model, USUAL)
        x, _ = sampling.read_for(one, ends)
        s = torch.linspace(0, 1, a.frames).to(x)
        begun = time.perf_counter()
        path = sampling.along(step.f, step.back, x[:1], x[1:], s)
        took = time.perf_counter() - begun
        return {
            "a": encoded(x[0]),
            "b": encoded(x[1]),
            "images": [encoded(image) for image in path],
            "crossfade": [encoded((1 - v) * x[0] + v * x[1]) for v in s],
            "milliseconds": 1e3 * took,
        }

    # -- projectors ------------------------------------------------------------------------

    @plain
    def project(self, a: ask.Project) -> dict[str, Any]:
        picture = decoded(a.image, self.limits)
        one = self._one(a.model, Projection, "a projector")
        model: Projection = one.model
        x, _ = sampling.read_for(one, [picture])
        usual = int((model.logits > 0).sum())
        rank = None if a.rank == usual else a.rank
        begun = time.perf_counter()
        made = projecting.projected(model, x, rank)
        took = time.perf_counter() - begun
        return {
            "input": encoded(x[0]),
            "image": encoded(made.once[0]),
            "again": encoded(made.twice[0]),
            "difference": number((made.twice - made.once).abs().max()),
            "score": number(made.score[0]),
            "usual": None if made.share is None else number(made.share[0]),
            "rank": usual if rank is None else rank,
            "milliseconds": 1e3 * took,
        }

    # -- styles ----------------------------------------------------------------------------

    def photo(self) -> dict[str, Any]:
        """What ``/api/photo`` answers, the same each time."""

        def make() -> dict[str, Any]:
            photo, title = stylizing.example_photo()
            return {"image": encoded(shrunk(photo.float() / 255, EXAMPLE_SIDE)), "title": title}

        return self._known.get("photo", "", make, lambda found: len(found["image"]))

    @plain
    def stylize(self, a: ask.Stylize) -> dict[str, Any]:
        picture = decoded(a.image, self.limits)
        if a.undo and a.size > UNDONE_SIDE:
            raise Refusal(
                422, f"stylize: to undo a style, expected a size up to {UNDONE_SIDE}, got {a.size}."
            )
        model: Style = self._one(a.model, Style, "styles").model
        photo = shrunk(pixels_of_photo(picture).to(model.plain) / 255, a.size)
        # Sides that divide: what is padded and cut off again could not be undone.
        H, W = (max(1, side // model.multiple) * model.multiple for side in photo.shape[1:])
        photo = photo[:, :H, :W]
        kernel = model.blend(a.mix, a.strength)
        begun = time.perf_counter()
        made = stylizing.render(model, kernel, photo)
        took = time.perf_counter() - begun
        undone = stylizing.render(model, kernel, made, undo=True) if a.undo else None
        close = None if undone is None else psnr(undone.clamp(0, 1)[None], photo[None])[0]
        return {
            "image": encoded(made),
            "photo": encoded(photo),
            "undone": None if undone is None else encoded(undone),
            "undone_psnr": number(close),
            "milliseconds": 1e3 * took,
        }

    # -- dynamics --------------------------------------------------------------------------

    @plain
    def dynamics(self, a: ask.Dynamics) -> dict[str, Any]:
        one = self._one(a.model, Dynamics, "dynamics")
        model: Dynamics = one.model
        if len(a.start) != model.config.size:
            raise Refusal(
                422,
                f"start: expected {model.config.size} numbers, as a state has, got {len(a.start)}.",
            )
        if a.points * model.config.size > simulating.MOST:
            raise Refusal(
                422,
                f"points: expected at most {simulating.MOST // model.config.size:,} states of "
                f"{model.config.size} numbers, got {a.points:,}.",
            )
        x0 = torch.tensor(a.start, dtype=torch.float64)
        times = torch.linspace(a.t0, a.t1, a.points, dtype=torch.float64)
        moving = model.without(a.off)
        states = moving.simulate(x0.to(model.scale).reshape(1, *model.config.shape), times)[0]
        true = simulating.reference(one, x0[None], times)
        return {
            "times": times.tolist(),
            "states": numbers(states.flatten(1)),
            "reference": None if true is None else numbers(true),
            "modes": _modes(model),
        }

    # -- attributes ------------------------------------------------------------------------

    @plain
    def edit(self, a: ask.Edit) -> dict[str, Any]:
        one = self._one(a.model, Attributes | Distillation, "attributes")  # type: ignore[arg-type]
        if a.image is not None:
            x, _ = reading.images_for(one, [decoded(a.image, self.limits)])
        else:
            x = self._sample_for(one, a.seed)
        made = reading.edited(one.model, x, a.wish, a.strength)
        names = reading.names_of(one.model)
        return {
            "image": encoded(x[0]),
            "edited": encoded(made.image[0]),
            "scores": dict(zip(names, numbers(made.scores[0]), strict=True)),
            "edited_scores": dict(zip(names, numbers(made.edited_scores[0]), strict=True)),
            "score_error": number(made.error),
        }

    def _sample_for(self, one: Opened, seed: int) -> Tensor:
        """An image that a shipped flow makes, of the kind and size that a readout takes."""
        id = self._generator(one)
        if id is None:
            shape = tuple(one.model.read.source.shape)
            raise Refusal(422, f"image: no shipped flow makes such images {shape}. Give an image.")
        f, flow = self.catalogue.one_step(id, USUAL).f, self.catalogue.open(id).model
        return f(flow.noise(1, seed)).clamp(0, 1).to(one.model.read.weight)

    def _generator(self, one: Opened) -> str | None:
        """The shipped flow of the data and size that a readout is for."""
        wanted = (one.config.get("data") or {}).get("name"), list(one.model.read.source.shape)
        flows = (row for row in self.catalogue.shipped() if row["app"] == "flow")
        return next((r["id"] for r in flows if (r["data"], r["shape"]) == wanted), None)

    # -- algebra ---------------------------------------------------------------------------

    @plain
    def _spectrum(self, id: str, k: int) -> dict[str, Any]:
        one = self.catalogue.open(id)
        f = self._map(id, one)
        limit = FEW if f.source.dim > EXACT else VALUES
        values, eigenvalues = pictures.values_of(f, limit)
        k = min(k, len(values))
        svd = f.svd(max(k, 1))
        reach = 3.0 if isinstance(one.model, Flow) or _encodes(one.model) else None
        # Of a list that is cut, what is left out is known only behind a zero.
        cut = limit <= len(values) < min(f.operator.shape) and float(values[-1]) > 0
        rank = None if cut else self._rank(f)
        rows = []
        for i in range(k):
            strips = [
                _strip(space, vectors[i : i + 1], reach)
                for space, vectors in ((f.source, svd.V), (f.target, svd.U))
            ]
            rows.append({"source": strips[0], "target": strips[1], "value": number(svd.S[i]),
                         "note": ""})  # fmt: skip
        return {
            "singular_values": numbers(values),
            "eigenvalues": None
            if eigenvalues is None
            else [[number(v.real), number(v.imag)] for v in eigenvalues.tolist()],
            "vectors": rows,
            "frames": len(pictures.amounts(f.source, reach)),
            "condition": number(values[0] / values[rank - 1]) if rank else None,
            "rank": rank,
        }

    def _rank(self, f: Linearizer) -> int | None:
        """By the operator's own tolerance."""
        try:
            return f.rank()
        except UnsupportedError:
            return None

    @torch.no_grad()
    def _certify(self, id: str, n: int) -> dict[str, Any]:
        one = self.catalogue.open(id)
        dim = one.app.linearizer(one.model).source.dim
        dtype = torch.float64 if dim <= EXACT else torch.float32
        f = one.app.linearizer(copy.deepcopy(one.model).to(dtype))
        found = f.certify(runs.drawn_points(f, n))
        return {
            "points": found.points,
            "dtype": found.dtype,
            "passed": found.passed,
            "complete": found.complete,
            "measured": found.measured,
            "condition": {name: number(value) for name, value in found.condition.items()},
            "digits": found.digits,
            "laws": [
                {"law": law.name, "formula": law.formula, "error": number(law.error),
                 "tolerance": number(law.tolerance), "verdict": law.verdict, "note": law.note}
                for law in found.laws
            ],
            "worst": number(found.worst),
        }  # fmt: skip


def _modes(model: Dynamics) -> list[dict[str, Any]]:
    rows = []
    for mode in model.spectrum():
        turn = 2 * math.pi * mode.frequency
        fields = {k: v if k == "number" else number(v) for k, v in mode._asdict().items()}
        rows.append({**fields, "eigenvalue": [number(mode.rate), number(turn)]})
    return rows


def _encodes(model: Any) -> bool:
    return bool(getattr(getattr(model, "read", None), "encodes", False))


def _strip(space: Any, vector: Tensor, reach: float | None) -> str | None:
    """c ⊙ v for a few c beside each other, where points are images."""
    if len(space.shape) != 3 or space.shape[0] not in (1, 3):
        return None
    steps = pictures.amounts(space, reach)
    row = [space.scale(c, vector)[0] for c in steps]
    if isinstance(space.g, Flatten):  # noise: grey is none, as its pixels are of both signs
        most = max(map(abs, steps)) * vector.abs().max()
        row = [0.5 + 0.5 * image / most for image in row]
    return encoded(torch.cat(row, 2))
