r"""What requests hold and answers give; OpenAPI shows these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from ..solvers import SOLVERS
from .images import FORM

__all__ = ["Certify", "Check", "Compared", "Dynamics", "Edit", "Edited", "Encode", "Encoded",
           "Facts", "Failure", "Generate", "Generated", "Health", "Interpolate", "Interpolated",
           "Listed", "Motion", "Project", "Projected", "Spectrum", "Stylize",
           "Stylized"]  # fmt: skip

#: A grey pixel, so that examples are images.
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR4nGNgGBzgPwMDAwACAwEA"
    "tzwHbQAAAABJRU5ErkJggg=="
)
Name = Annotated[str, Field(min_length=1, max_length=400, description="an id of /api/models",
                            examples=["mnist-flow"])]  # fmt: skip
Image = Annotated[
    str,
    Field(pattern=FORM, description="data URL of a PNG, JPEG or WebP", examples=[DOT]),
]
Picture = Annotated[str, Field(description="data URL of a PNG")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Number = float | None  #: null where it is not finite
Solver = Literal["euler", "midpoint", "rk4", "exponential"]
assert set(Solver.__args__) <= set(SOLVERS)  # type: ignore[attr-defined]


class Asked(BaseModel):
    """A request: nothing but these fields, of these very types, and finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """One error for all fields that are too many, not one for each."""
        return _at_most(given, len(cls.model_fields), "fields")


def _at_most(given: Any, most: int, what: str) -> Any:
    if isinstance(given, dict) and len(given) > most:
        raise ValueError(f"expected at most {most} {what}, got {len(given):,}")
    return given


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


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


# -- flows -------------------------------------------------------------------------------------


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


# -- projectors --------------------------------------------------------------------------------


class Project(Asked):
    model: Name
    image: Image
    rank: int | None = Field(None, ge=0, le=1_000_000)


class Projected(Given):
    input: Picture
    image: Picture
    again: Picture
    difference: Number
    score: Number
    usual: Number
    rank: int
    milliseconds: float


# -- styles ------------------------------------------------------------------------------------


class Photo(Given):
    image: Picture
    title: str


class Stylize(Asked):
    model: Name
    image: Image
    mix: Annotated[
        dict[Annotated[str, Field(max_length=100)], Annotated[float, Field(ge=-100, le=100)]],
        Field(min_length=1, max_length=100, examples=[{"candy": 0.6, "mosaic": 0.4}]),
        BeforeValidator(lambda given: _at_most(given, 100, "styles")),
    ]
    strength: float = Field(1.0, ge=-100, le=100)
    size: int = Field(256, ge=64, le=1024)
    undo: bool = False


class Stylized(Given):
    image: Picture
    photo: Picture
    undone: Picture | None
    undone_psnr: Number
    milliseconds: float


# -- dynamics ----------------------------------------------------------------------------------

Time = Annotated[float, Field(ge=-1e6, le=1e6)]


class Dynamics(Asked):
    model: Name
    start: Annotated[list[Annotated[float, Field(ge=-1e9, le=1e9)]], FailFast()] = Field(
        max_length=100_000
    )
    t0: Time = 0.0
    t1: Time
    points: int = Field(200, ge=2, le=2000)
    off: Annotated[list[int], FailFast()] = Field([], max_length=1000)


class Mode(Given):
    number: int
    rate: Number
    frequency: Number
    half_life: Number
    period: Number
    share: Number
    eigenvalue: tuple[Number, Number]


class Motion(Given):
    times: list[float]
    states: list[list[Number]]
    reference: list[list[Number]] | None
    modes: list[Mode]


# -- attributes --------------------------------------------------------------------------------


class Edit(Asked):
    model: Name
    image: Image | None = None
    seed: Seed = 0
    wish: str = Field(min_length=1, max_length=1000, examples=["Eyeglasses, -Smiling"])
    strength: float = Field(1.0, ge=-100, le=100)


class Edited(Given):
    image: Picture
    edited: Picture
    scores: dict[str, Number]
    edited_scores: dict[str, Number]
    score_error: Number


# -- algebra -----------------------------------------------------------------------------------


class Vector(Given):
    source: Picture | None
    target: Picture | None
    value: Number
    note: str


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
