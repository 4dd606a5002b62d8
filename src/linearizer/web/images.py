r"""Images as data URLs, and back: nothing is decoded before its size is known to be allowed."""

from __future__ import annotations

import base64
import binascii
import io
import re

import torch
from torch import Tensor

from ..data.images import Picture
from .limits import Limits, Refusal

__all__ = ["FORM", "decoded", "encoded"]

#: What an image looks like in JSON.
FORM = r"^data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}$"
#: What Pillow may take its bytes for.
FORMATS = ("PNG", "JPEG", "WEBP")
_START = re.compile(r"data:image/(png|jpeg|webp);base64,")


def decoded(url: str, limits: Limits, label: str = "image") -> Picture:
    """The picture in a data URL, refused if it has too many bytes or pixels, or is not one."""
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
    return Picture(label, lambda: raw, FORMATS)


def encoded(x: Tensor) -> str:
    """An image (C, H, W), floats in [0, 1] or bytes, as the data URL of a PNG."""
    from PIL import Image

    if x.dtype != torch.uint8:
        x = x.nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels = x[0] if x.shape[0] == 1 else x.permute(1, 2, 0).contiguous()
    file = io.BytesIO()
    # Little compression: half of the time of an answer would go into more.
    Image.fromarray(pixels.numpy()).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
