r"""Published networks that a model learns from: fast neural style and encoders of VAEs.

The layers are here, the weights come from files.
"""

from __future__ import annotations

import copy
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import channels_last

__all__ = ["ENCODERS", "Burgess", "StyleNet", "load_encoder", "load_style", "load_styles"]

#: Files that may hold weights.
SUFFIXES = (".pth", ".pt", ".model", ".safetensors")
#: Smaller images are padded to this side: the first layer reflects four pixels.
SMALLEST = 5
#: Statistics that instance norms of old stored, and never used.
OBSOLETE = re.compile(r"(^|\.)in\d+\.running_(mean|var)$")
#: name → folder of the encoder in ``disentangling_vae`` of the data folder
ENCODERS: dict[str, str] = {
    "vae": "VAE_dsprites",
    "factor": "factor_dsprites",
    "betah": "betaH_dsprites",
    "betab": "betaB_dsprites",
    "btcvae": "btcvae_dsprites",
}
#: What a file must be of, and what to do with any other one.
VAE = "a Burgess VAE of disentangling-vae"
INSTEAD = (
    "Bring the model.pt of one; export any other network to ONNX or with torch.export (.pt2), or "
    "name its code as file.py:attribute."
)


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
        """Stylise images x, (n, 3, H, W) in [0, 1], in the dtype of the weights."""
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
        h = self.in4(self.deconv1(_double(h))).relu()
        h = self.in5(self.deconv2(_double(h))).relu()
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


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class Burgess(nn.Module):
    r"""The encoder of a VAE, images (n, C, H, H) to means (n, latents).

    4×4 convolutions of stride 2 and 32 channels down to a side of 4 (four for 64×64, three for
    32×32), two linear layers of 256, all with ReLU, and a last one whose outputs go mean,
    log-variance, mean, log-variance, …; the means alone are given. The layers bear the names of
    YannDubs/disentangling-vae.

    Paper: Burgess et al., *Understanding disentangling in β-VAE*, 2018.

    Arguments:
        shape: (C, 64, 64) or (C, 32, 32).
        latents: How many means.

    Example:
        >>> net = Burgess((3, 32, 32), latents=6)
        >>> net(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 6])
    """

    def __init__(self, shape: tuple[int, int, int] = (1, 64, 64), latents: int = 10) -> None:
        super().__init__()
        if len(shape) != 3 or shape[0] < 1 or tuple(shape[1:]) not in ((32, 32), (64, 64)):
            raise ValueError(
                f"Burgess: expected images (C, 32, 32) or (C, 64, 64), got {tuple(shape)}."
            )
        if latents < 1:
            raise ValueError(f"Burgess: expected 1 or more latents, got {latents}.")
        self.shape, self.latents = tuple(shape), latents
        self.conv1 = _halve(shape[0])
        self.conv2 = _halve(32)
        self.conv3 = _halve(32)
        self.conv_64 = _halve(32) if shape[1] == 64 else None
        self.lin1, self.lin2 = nn.Linear(32 * 4 * 4, 256), nn.Linear(256, 256)
        self.mu_logvar_gen = nn.Linear(256, 2 * latents)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, latents={self.latents}"

    def forward(self, x: Tensor) -> Tensor:
        """Return means (n, latents) of images (n, \\*shape) in [0, 1], as the weights' dtype."""
        if tuple(x.shape[1:]) != self.shape or not x.is_floating_point():
            raise ValueError(
                f"Burgess: expected images (n, {', '.join(map(str, self.shape))}) as floats in "
                f"[0, 1], got {x.dtype} of shape {tuple(x.shape)}."
            )
        h = x.to(self.lin1.weight.dtype)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv_64):
            h = h if conv is None else conv(h).relu()
        h = self.lin2(self.lin1(h.flatten(1)).relu()).relu()
        return self.mu_logvar_gen(h).unflatten(1, (self.latents, 2))[..., 0]

    @torch.no_grad()
    def chain(self) -> nn.Sequential:
        """Copy the layers into a row; of the last one only the rows that give means."""
        convs = [self.conv1, self.conv2, self.conv3, self.conv_64]
        layers = [layer for conv in convs if conv is not None for layer in (conv, nn.ReLU())]
        means = nn.Linear(256, self.latents).to(self.lin1.weight)
        means.weight.copy_(self.mu_logvar_gen.weight[0::2])
        means.bias.copy_(self.mu_logvar_gen.bias[0::2])
        return copy.deepcopy(
            nn.Sequential(*layers, nn.Flatten(), self.lin1, nn.ReLU(), self.lin2, nn.ReLU(), means)
        )


def _halve(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, 32, 4, stride=2, padding=1)


# -- weights in files --------------------------------------------------------------------------


def load_style(path: str | Path) -> StyleNet:
    r"""Load a style network from a file, in evaluation mode and without gradients.

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
    bring = "Bring one trained by pytorch/examples, fast_neural_style."
    _check_tensors(path, expected, found, f"a style network of width {net.width}", bring)
    net.load_state_dict({k: v.to(torch.float32) for k, v in found.items()}, assign=True)
    return net.requires_grad_(False).eval()


def load_styles(folder: str | Path) -> dict[str, StyleNet]:
    r"""Load the style networks of a folder by name, that of the file without its ending.

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


def load_encoder(path: str | Path) -> Burgess:
    r"""Load the encoder of a VAE from a file, in evaluation mode and without gradients.

    Takes what YannDubs/disentangling-vae trains and publishes; the network is in float32. Nothing
    but tensors is read: a file cannot run code.

    Arguments:
        path: A folder with model.pt, and specs.json if it is there; or the .pt file.
    """
    path = Path(path).expanduser().absolute()
    specs: dict[str, Any] = {}
    if path.is_dir():
        specs, path = _read_specs(path / "specs.json"), path / "model.pt"
    everything = _read(path, VAE, INSTEAD)
    found = {str(k): v for k, v in everything.items() if not str(k).startswith("decoder.")}
    with torch.device("meta"):  # nothing is drawn: all weights are given
        net = Burgess(*_find_sizes(found, specs))
    expected = {f"encoder.{k}": tuple(v.shape) for k, v in net.state_dict().items()}
    what = f"{VAE} for images {net.shape} with {net.latents} latents"
    _check_tensors(path, expected, found, what, INSTEAD)
    weights = {k.removeprefix("encoder."): found[k].to(torch.float32) for k in expected}
    net.load_state_dict(weights, assign=True)
    channels_last(net)  # 1.7 times as fast
    return net.requires_grad_(False).eval()


def _check_tensors(
    path: Path,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, Any],
    what: str,
    instead: str,
) -> None:
    """Raise unless a file holds the tensors of a network by these names and shapes, all finite."""
    wrong = [k for k in expected if k not in found] or [k for k in found if k not in expected]
    if wrong:
        problem = "is absent" if wrong[0] in expected else "is unknown"
        others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{path}: expected the {len(expected)} tensors {next(iter(expected))}, … of {what}, "
            f"but {wrong[0]} {problem}{others}. {instead}"
        )
    for name, shape in expected.items():
        value = found[name]
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != shape:
            raise ValueError(
                f"{path}: expected {name} of shape {shape} in {what}, got {got}. {instead}"
            )
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            problem = "NaN or infinite ones" if value.is_floating_point() else value.dtype
            raise ValueError(
                f"{path}: expected finite floats in {name}, found {problem}. Copy the file here "
                "again, or bring another one."
            )


def _read_specs(path: Path) -> dict[str, Any]:
    """Read the sizes that stand beside the weights; none where there is no such file."""
    if not path.is_file():
        return {}
    try:
        specs = json.loads(path.read_text(encoding="utf-8"))
        size, latents = specs["img_size"], specs["latent_dim"]
        whole = all(type(n) is int and n > 0 for n in (*size, latents)) and len(size) == 3
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected img_size and latent_dim, but it cannot be read "
            f"({type(error).__name__}: {_reason(error)}). Mend it, or take it away: the weights "
            "tell the sizes too."
        ) from error
    if not whole or size[1:] not in ([32, 32], [64, 64]):
        raise ValueError(
            f"{path}: expected img_size [C, 64, 64] or [C, 32, 32] and a latent_dim of 1 or more, "
            f"got {size} and {latents}. Mend it, or take it away: the weights tell the sizes too."
        )
    return specs


def _find_sizes(found: dict[str, Any], specs: dict[str, Any]) -> tuple[tuple[int, int, int], int]:
    """Find the shape of an image and the latents, from the specs or else from the weights."""
    if specs:
        channels, height, width = specs["img_size"]
        return (channels, height, width), specs["latent_dim"]
    first, last = (found.get(f"encoder.{k}") for k in ("conv1.weight", "mu_logvar_gen.bias"))
    channels = first.shape[1] if isinstance(first, Tensor) and first.ndim == 4 else 1
    latents = len(last) // 2 if isinstance(last, Tensor) and last.ndim == 1 else 10
    side = 64 if "encoder.conv_64.weight" in found else 32
    return (max(1, channels), side, side), max(1, latents)


def _read(path: Path, what: str = "a style network", instead: str = "") -> dict[str, Any]:
    """Read tensors by name; ``instead`` says what to do about files that may hold code."""
    if not path.is_file():
        state = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(
            f"{path}: expected the weights of {what}, but {state}. Name a file that has them."
        )
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load

            return load(path.read_bytes())  # not mapped: the file may change while it is used
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TorchScript, which is an error below
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        named = re.search(r"GLOBAL (\S+)|(TorchScript)", str(error))
        if instead and (named or isinstance(error, pickle.UnpicklingError)):
            other = (named[1] or named[2]) if named else "something else"
            raise ValueError(
                f"{path}: expected the weights of {what} as plain tensors, but it holds {other}: "
                f"such a file may hold code, which is not run. {instead}"
            ) from error
        raise ValueError(
            f"{path}: expected tensors, but it cannot be read ({_reason(error)}). Copy it here "
            "again."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: expected tensors by name, found {type(found).__name__}. Save the network's "
            "state_dict()."
        )
    return found


def _reason(error: Exception) -> str:
    """Return the first line of an error, without advice to run what the file holds."""
    if isinstance(error, pickle.UnpicklingError):  # torch's words say how to run what it holds
        return "it holds something else than tensors"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
