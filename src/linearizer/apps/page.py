r"""The contract of a page in the studio: its tabs, its requests, and what answers them.

To add a page: write ``page.html`` (a ``<section role="tabpanel" id="TAB" hidden>`` for each tab)
and ``page.js`` in the folder of the application, and a ``studio.py`` with a :class:`Page` as
``PAGE``, which ``app.py`` names: its tabs, a :class:`Request` for each address of its own, and a
function that answers it. The studio adds the tab, the routes, the limits and the documentation.

To add a tab to a page: one more :class:`Tab`, one more section, one more function (flow has two).

``page.js`` exports a function named like each tab, so that ids are JavaScript names. It takes the
studio (``offer``, ``facts``, ``changed``, … in ``studio/static/studio.js``) and returns
``{open(settings), settings()}``. ``/api/spectrum``, ``/api/certify`` and ``/api/apply`` answer for
any model; their names are taken.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from ..data.images import Picture as PictureFile
from .base import Run

__all__ = [
    "Asked",
    "Desk",
    "Given",
    "Image",
    "Limits",
    "Name",
    "Number",
    "Page",
    "Picture",
    "Refusal",
    "Request",
    "Seed",
    "Tab",
    "at_most",
    "decode_image",
    "encode_image",
    "number",
    "numbers",
]

V = TypeVar("V")


# -- limits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and how many may ask."""

    upload_bytes: int = 8 << 20  #: of an image
    image_side: int = 4096  #: pixels
    samples: int = 64  #: of one answer
    body_bytes: int = 24 << 20  #: two images in base64, and words around them
    state_bytes: int = 4 << 20  #: of a request with a state, 100,000 numbers
    small_bytes: int = 64 << 10  #: of a request with neither
    body_seconds: float = 30.0  #: for a request to arrive
    large: int = 16  #: requests with more than small_bytes, from their first byte to their answer
    waiting: int = 16  #: requests that wait for a model, or are at one
    per_client: int = 8  #: requests of one address at a time
    seconds: float = 30.0  #: for an answer
    workers: int = 2  #: models at work at a time


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """An answer other than the one that was asked for: a status and one sentence."""

    def __init__(self, status: int, sentence: str, retry: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry = status, sentence, retry


# -- what requests hold and answers give ---------------------------------------------------------

#: What an image looks like in JSON.
FORM = r"^data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}$"
#: What Pillow may take its bytes for.
FORMATS = ("PNG", "JPEG", "WEBP")
_START = re.compile(r"data:image/(png|jpeg|webp);base64,")

#: A grey pixel, so that examples are images.
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR4nGNgGBzgPwMDAwACAwEA"
    "tzwHbQAAAABJRU5ErkJggg=="
)
Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        description="an id of /api/models",
        examples=["mnist-flow"],
    ),
]
Image = Annotated[
    str,
    Field(pattern=FORM, description="data URL of a PNG, JPEG or WebP", examples=[DOT]),
]
Picture = Annotated[str, Field(description="data URL of a PNG")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Number = float | None  #: null where it is not finite


class Asked(BaseModel):
    """A request: nothing but these fields, of these very types, and finite numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, given: Any) -> Any:
        """Give one error for all fields that are too many, not one for each."""
        return at_most(given, len(cls.model_fields), "fields")


def at_most(given: V, most: int, what: str) -> V:
    """Refuse a table with too many entries before each of them is looked at."""
    if isinstance(given, dict) and len(given) > most:
        raise ValueError(f"expected at most {most} {what}, got {len(given):,}")
    return given


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


# -- pages ---------------------------------------------------------------------------------------


class Tab(NamedTuple):
    """A tab: the id of its section in page.html, its title, and its formula as HTML."""

    id: str
    title: str
    formula: str


class Desk(Protocol):
    """What an answer may use of the studio."""

    limits: Limits

    def open(self, id: str, app: str = "") -> Run:
        """Return the model of that id; refuse one of another application."""

    def keep(self, id: str, what: Hashable, make: Callable[[], V]) -> V:
        """Return what ``make`` gives, kept as long as the files of the model stay the same."""

    def sampler(self, data: str, shape: tuple[int, ...]) -> str | None:
        """Return the id of a shipped model that makes samples of such data, or None."""

    def sample(self, id: str, n: int, seed: int) -> Tensor:
        """Return samples that a model makes."""


class Request(NamedTuple):
    """One address, ``POST /api/PATH``; ``answer`` runs in a thread, without gradients."""

    path: str
    summary: str
    Asked: type[Asked]
    Given: type[Given]
    answer: Callable[[Desk, Any], dict[str, Any]]
    #: What makes it large: an image or two, a state of many numbers, or nothing.
    holds: Literal["images", "state", "little"] = "little"


@dataclass(frozen=True)
class Page:
    """A page of the studio, for the models of one or more applications."""

    tabs: tuple[Tab, ...]
    #: With page.html and page.js.
    folder: Path
    requests: tuple[Request, ...] = ()
    #: (desk, id, run) ↦ what the page knows of a model besides the general facts
    describe: Callable[[Desk, str, Run], dict[str, Any]] = lambda desk, id, run: {}
    #: run ↦ how far to go along a singular vector to see it; √dim where it is None
    reach: Callable[[Run], float | None] = lambda run: None


# -- images and numbers as JSON ------------------------------------------------------------------


def decode_image(url: str, limits: Limits, label: str = "image") -> PictureFile:
    """Return the picture in a data URL; refuse too many bytes or pixels, or what is no picture."""
    from PIL import Image

    start = _START.match(url)
    if start is None:
        raise Refusal(
            422, f"{label}: expected a data URL of a PNG, JPEG or WebP, data:image/png;base64,…"
        )
    if (len(url) - start.end()) * 3 // 4 > limits.upload_bytes + 2:
        raise Refusal(
            413,
            f"{label}: expected at most {limits.upload_bytes:,} bytes. Make the image smaller.",
        )
    try:
        raw = base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(422, f"{label}: its base64 cannot be read.") from None
    try:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
        sides = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        sides = (limits.image_side + 1, 0)
    except Exception:
        raise Refusal(
            422, f"{label}: expected a PNG, JPEG or WebP, but its {len(raw):,} bytes are not one."
        ) from None
    if max(sides) > limits.image_side:
        raise Refusal(
            413,
            f"{label}: expected at most {limits.image_side:,} pixels a side, but it claims more. "
            "Make the image smaller.",
        )
    return PictureFile(label, lambda: raw, FORMATS)


def encode_image(x: Tensor) -> str:
    """Return an image (C, H, W), floats in [0, 1] or bytes, as the data URL of a PNG."""
    from PIL import Image

    if x.dtype != torch.uint8:
        x = x.nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels = x[0] if x.shape[0] == 1 else x.permute(1, 2, 0).contiguous()
    file = io.BytesIO()
    # Little compression: half of the time of an answer would go into more.
    Image.fromarray(pixels.numpy()).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def number(value: float | Tensor | None) -> float | None:
    """Return a number as JSON has it: None, which is null, where it is not finite."""
    if value is None:
        return None
    try:
        value = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return value if math.isfinite(value) else None


def numbers(values: Tensor) -> list[Any]:
    """Return a tensor as lists, with None for what is not finite."""
    if bool(values.isfinite().all()):
        return values.tolist()
    if values.ndim == 1:
        return [number(v) for v in values.tolist()]
    return [numbers(v) for v in values]
