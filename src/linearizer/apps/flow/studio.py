r"""The pages of a flow: samples in one step, encoding, interpolation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import FailFast, Field

from ...linearizer import Linearizer
from ...metrics.images import psnr
from ...operators import SVD
from ...solvers import SOLVERS
from ..base import Run
from ..images import read_images_for
from ..page import (
    Asked,
    Desk,
    Given,
    Image,
    Name,
    Number,
    Page,
    Picture,
    Request,
    Seed,
    Tab,
    decode_image,
    encode_image,
    number,
    numbers,
)
from .model import Flow, describe_flow
from .use import Steps, compare, interpolate_between, steer

__all__ = ["PAGE"]

#: How many steps encode and interpolate take, and directions there are to steer along.
USUAL, DIRECTIONS = Steps("rk4", 100), 8
Solver = Literal["euler", "midpoint", "rk4", "exponential"]


class Generate(Asked):
    model: Name
    seed: Seed = 0
    n: int = Field(16, ge=1, le=64)
    steps: int = Field(100, ge=1, le=1000)
    solver: Solver = "rk4"
    directions: Annotated[list[Annotated[float, Field(ge=-20, le=20)]], FailFast()] = Field(
        [], max_length=8
    )
    temperature: float = Field(1.0, ge=0, le=10)


class Generated(Given):
    images: list[Picture]
    milliseconds: float
    collapse_milliseconds: float
    steps: int


class Check(Asked):
    model: Name
    seed: Seed = 0
    steps: int = Field(100, ge=1, le=1000)
    solver: Solver = "rk4"


class Compared(Given):
    one_step_milliseconds: float
    loop_milliseconds: float
    difference: Number
    mean_square: Number


class Encode(Asked):
    model: Name
    image: Image


class Encoded(Given):
    reconstruction: Picture
    input: Picture
    psnr: Number
    norm: Number
    notes: list[str]


class Interpolate(Asked):
    model: Name
    a: Image
    b: Image
    frames: int = Field(33, ge=2, le=65)


class Interpolated(Given):
    a: Picture
    b: Picture
    images: list[Picture]
    crossfade: list[Picture]
    milliseconds: float


class OneStep:
    """A collapsed flow with what follows from it, each computed once, when it is asked for."""

    def __init__(self, model: Flow, how: Steps) -> None:
        begun = time.perf_counter()
        self.f = model.collapse(*how)
        self.seconds = time.perf_counter() - begun
        # f†, U and V are about as large as f each.
        self.bytes = 4 * sum(t.nbytes for t in self.f.operator.state_dict().values())
        self._back: Linearizer | None = None
        self._svd: SVD | None = None

    @property
    def back(self) -> Linearizer:
        """The pseudo-inverse f†."""
        if self._back is None:
            self._back = self.f.pinv()
        return self._back

    def svd(self, k: int) -> SVD:
        """Return the factors of the core, to k or a few more."""
        if self._svd is None or len(self._svd.S) < min(k, *self.f.operator.shape):
            self._svd = self.f.operator.svd(max(k, 16))
        return self._svd


def one_step(desk: Desk, id: str, how: Steps) -> OneStep:
    """Return a flow with all its steps in one operator."""
    # Opened by what is kept: if the files change meanwhile, it is made again.
    return desk.keep(id, how, lambda: OneStep(desk.open(id, "flow").model, how))


def describe(desk: Desk, id: str, run: Run) -> dict[str, Any]:
    """Return the solvers, and the directions to steer along."""
    values = one_step(desk, id, USUAL).svd(12).S[:12]
    return {
        "kind": describe_flow(run.model.config),
        "solvers": list(SOLVERS),
        "singular_values": numbers(values),
        "directions": min(DIRECTIONS, len(values)),
    }


def generate(desk: Desk, a: Generate) -> dict[str, Any]:
    step = one_step(desk, a.model, Steps(a.solver, a.steps))
    run = desk.open(a.model, "flow")
    V = step.svd(DIRECTIONS).V if any(a.directions) else None
    noise = steer(run.model, a.n, a.seed, a.temperature, V, a.directions)
    begun = time.perf_counter()
    x = step.f(noise)
    elapsed = time.perf_counter() - begun
    return {
        "images": [encode_image(image) for image in x],
        "milliseconds": 1e3 * elapsed,
        "collapse_milliseconds": 1e3 * step.seconds,
        "steps": a.steps,
    }


def check(desk: Desk, a: Check) -> dict[str, Any]:
    how = Steps(a.solver, a.steps)
    f = one_step(desk, a.model, how).f
    run = desk.open(a.model, "flow")
    both = compare(run.model, f, how, a.seed)
    gap = both.one_step - both.loop
    return {
        "one_step_milliseconds": 1e3 * both.one_step_seconds,
        "loop_milliseconds": 1e3 * both.loop_seconds,
        "difference": number(gap.abs().max()),
        "mean_square": number(gap.square().mean()),
    }


def encode(desk: Desk, a: Encode) -> dict[str, Any]:
    picture = decode_image(a.image, desk.limits)
    run = desk.open(a.model, "flow")
    step = one_step(desk, a.model, USUAL)
    x, notes = read_images_for(run, [picture])
    code = step.back(x)
    back = step.f(code).clamp(0, 1)
    return {
        "input": encode_image(x[0]),
        "reconstruction": encode_image(back[0]),
        "psnr": number(psnr(back, x)[0]),
        "norm": number(step.f.source.norm(code)[0]),
        "notes": notes,
    }


def interpolate(desk: Desk, a: Interpolate) -> dict[str, Any]:
    ends = [decode_image(a.a, desk.limits, "a"), decode_image(a.b, desk.limits, "b")]
    run = desk.open(a.model, "flow")
    step = one_step(desk, a.model, USUAL)
    x, _ = read_images_for(run, ends)
    s = torch.linspace(0, 1, a.frames).to(x)
    begun = time.perf_counter()
    path = interpolate_between(step.f, step.back, x[:1], x[1:], s)
    elapsed = time.perf_counter() - begun
    return {
        "a": encode_image(x[0]),
        "b": encode_image(x[1]),
        "images": [encode_image(image) for image in path],
        "crossfade": [encode_image((1 - v) * x[0] + v * x[1]) for v in s],
        "milliseconds": 1e3 * elapsed,
    }


PAGE = Page(
    tabs=(
        Tab("generate", "Generate", "x = f(ε)"),
        Tab("interpolate", "Interpolate", "f(½f<sup>†</sup>a ⊕ ½f<sup>†</sup>b)"),
    ),
    folder=Path(__file__).parent,
    requests=(
        Request("generate", "Samples in one step", Generate, Generated, generate),
        Request(
            "generate/check", "One step against the loop that it equals", Check, Compared, check
        ),
        Request("encode", "An image to noise and back", Encode, Encoded, encode, "images"),
        Request(
            "interpolate",
            "From one image to another, through the noise and by pixels",
            Interpolate,
            Interpolated,
            interpolate,
            "images",
        ),
    ),
    describe=describe,
    reach=lambda run: 3.0,
)
