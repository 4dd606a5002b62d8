r"""Networks of others that a model learns from: fast neural style, from weights in files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["StyleNet", "load_style", "load_styles"]

#: Files that may hold weights.
SUFFIXES = (".pth", ".pt", ".model", ".safetensors")
#: Smaller images are padded to this side: the first layer reflects four pixels.
SMALLEST = 5
#: Statistics that instance norms of old stored, and never used.
OBSOLETE = re.compile(r"(^|\.)in\d+\.running_(mean|var)$")


class StyleNet(nn.Module):
    r"""The feed-forward style network, images (n, 3, H, W) in [0, 1] to images of the same size.

    A 9×9 convolution, two 3×3 of stride 2, five residual blocks, two nearest ×2 upsamplings with a
    3×3 convolution each, and a 9×9 convolution; reflection padding, instance norm and ReLU. The
    layers bear the names of pytorch/examples, ``fast_neural_style``, and work on 0 … 255.

    Paper: Johnson, Alahi, Fei-Fei, *Perceptual Losses for Real-Time Style Transfer and
    Super-Resolution*, 2016, with the instance norm of Ulyanov, Vedaldi and Lempitsky.

    Arguments:
        width: Channels of the first layer; the inner ones have four times as many.

    Example:
        >>> net = StyleNet(width=4)
        >>> net(torch.rand(2, 3, 17, 30)).shape
        torch.Size([2, 3, 17, 30])
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"StyleNet: expected a width of 1 or more, got {width}.")
        self.width = width
        self.conv1, self.in1 = _Conv(3, width, 9), _norm(width)
        self.conv2, self.in2 = _Conv(width, 2 * width, 3, stride=2), _norm(2 * width)
        self.conv3, self.in3 = _Conv(2 * width, 4 * width, 3, stride=2), _norm(4 * width)
        self.res1 = _Residual(4 * width)
        self.res2 = _Residual(4 * width)
        self.res3 = _Residual(4 * width)
        self.res4 = _Residual(4 * width)
        self.res5 = _Residual(4 * width)
        self.deconv1, self.in4 = _Conv(4 * width, 2 * width, 3), _norm(2 * width)
        self.deconv2, self.in5 = _Conv(2 * width, width, 3), _norm(width)
        self.deconv3 = _Conv(width, 3, 9)

    def extra_repr(self) -> str:
        return f"width={self.width}"

    def forward(self, x: Tensor) -> Tensor:
        """Stylised images of x, (n, 3, H, W) in [0, 1], in the dtype of the weights."""
        if x.ndim != 4 or x.shape[1] != 3 or 0 in x.shape[2:] or not x.is_floating_point():
            raise ValueError(
                "StyleNet: expected images (n, 3, H, W) as floats in [0, 1], got "
                f"{x.dtype} of shape {tuple(x.shape)}."
            )
        height, width = x.shape[2:]
        h = 255 * x.to(self.deconv3.conv2d.weight.dtype)
        if min(height, width) < SMALLEST:
            right, below = max(0, SMALLEST - width), max(0, SMALLEST - height)
            h = F.pad(h, (0, right, 0, below), mode="replicate")
        h = self.in1(self.conv1(h)).relu()
        h = self.in2(self.conv2(h)).relu()
        h = self.in3(self.conv3(h)).relu()
        for block in (self.res1, self.res2, self.res3, self.res4, self.res5):
            h = block(h)
        h = self.in4(self.deconv1(_doubled(h))).relu()
        h = self.in5(self.deconv2(_doubled(h))).relu()
        h = self.deconv3(h) / 255
        # Halving rounds up, so that sides that do not divide by 4 come back too long.
        return h[..., :height, :width].clamp(0, 1)


class _Conv(nn.Module):
    """A convolution of a mirrored border."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.border = (size // 2,) * 4
        self.conv2d = nn.Conv2d(inputs, outputs, size, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2d(F.pad(x, self.border, mode="reflect"))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.in1 = _Conv(channels, channels, 3), _norm(channels)
        self.conv2, self.in2 = _Conv(channels, channels, 3), _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.in2(self.conv2(self.in1(self.conv1(x)).relu()))


def _norm(channels: int) -> nn.InstanceNorm2d:
    return nn.InstanceNorm2d(channels, affine=True)


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


# -- weights in files --------------------------------------------------------------------------


def load_style(path: str | Path) -> StyleNet:
    r"""A style network from a file, in evaluation mode and without gradients.

    Takes what pytorch/examples trains and publishes, of any width, in full or half precision; the
    network is in float32. Nothing but tensors is read: a file cannot run code.

    Arguments:
        path: A file of ``torch.save`` (.pth, .pt, .model), or .safetensors.
    """
    path = Path(path).expanduser().absolute()
    found = {k: v for k, v in _read(path).items() if not OBSOLETE.search(str(k))}
    first = found.get("conv1.conv2d.weight")
    width = len(first) if isinstance(first, Tensor) and first.ndim == 4 else 32
    with torch.device("meta"):  # nothing is drawn: all weights are given
        net = StyleNet(max(1, width))
    expected = {k: tuple(v.shape) for k, v in net.state_dict().items()}
    wrong = [k for k in expected if k not in found] or [k for k in found if k not in expected]
    if wrong:
        problem = "is absent" if wrong[0] in expected else "is unknown"
        others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{path}: expected the {len(expected)} tensors conv1.conv2d.weight, … of a style "
            f"network, but {wrong[0]} {problem}{others}. Bring one trained by pytorch/examples, "
            "fast_neural_style."
        )
    for name, shape in expected.items():
        value = found[name]
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != shape:
            raise ValueError(
                f"{path}: expected {name} of shape {shape} in a style network of width "
                f"{net.width}, got {got}. Bring another file."
            )
    net.load_state_dict({k: v.to(torch.float32) for k, v in found.items()}, assign=True)
    return net.requires_grad_(False).eval()


def load_styles(folder: str | Path) -> dict[str, StyleNet]:
    r"""The style networks of a folder by name, which is that of the file without its ending.

    Arguments:
        folder: Where the files are; ``data.root_folder() / "style_models"`` follows
            $LINEARIZER_DATA. Folders inside are left alone.
    """
    folder = Path(folder).expanduser().absolute()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise ValueError(f"{folder}: expected a folder of style networks, but it {what}.")
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != ".")
    if not files:
        raise ValueError(
            f"{folder}: expected style networks ({', '.join(SUFFIXES)}), found none. Put them "
            "there, or name another folder."
        )
    names = [p.stem for p in files]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise ValueError(f"{folder}: expected one file for each style, but {twice} has several.")
    return {p.stem: load_style(p) for p in files}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(
            f"{path}: expected the weights of a style network, but {what}. Name a file that has "
            "them."
        )
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"{path}: expected tensors, but it cannot be read ({reason}). Copy it here again."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: expected tensors by name, found {type(found).__name__}. Save the network's "
            "state_dict()."
        )
    return found
