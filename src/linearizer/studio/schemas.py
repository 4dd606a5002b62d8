r"""What the general answers give; OpenAPI shows these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..apps.page import Given, Number, Picture

__all__ = ["Applied", "Certify", "Facts", "Failure", "Health", "Listed", "Spectrum"]


class Failure(Given):
    """Why there is no other answer, in one sentence."""

    error: str


class Health(Given):
    status: str
    version: str
    waiting: int


class Metric(Given):
    name: str
    value: Number


class Model(Given):
    id: str
    app: str
    title: str
    shipped: bool
    shape: list[int]
    data: str
    metric: Metric | None
    problem: str


class Bounds(Given):
    upload_bytes: int
    image_side: int
    samples: int


class Listed(Given):
    version: str
    models: list[Model]
    limits: Bounds


class Facts(BaseModel):
    """A model; what else there is depends on its app."""

    model_config = ConfigDict(extra="allow")

    id: str
    app: str
    config: dict[str, Any]
    parameters: int
    rank: int | None
    dim: int


class Vector(Given):
    source: Picture | None
    target: Picture | None
    value: Number


class Spectrum(Given):
    singular_values: list[Number]
    eigenvalues: list[tuple[Number, Number]] | None
    vectors: list[Vector]
    frames: int
    condition: Number
    rank: int | None


class Law(Given):
    law: str
    formula: str
    error: Number
    tolerance: Number
    verdict: Literal["passed", "failed", "not measured"]
    note: str


class Certify(Given):
    points: int
    dtype: str
    passed: bool
    complete: bool
    measured: int
    condition: dict[str, Number]
    digits: dict[str, float]
    laws: list[Law]
    worst: Number


class Applied(Given):
    pictures: dict[str, Picture | None]
    values: dict[str, list[Number]]
    again: Number
