r"""How different two images look: LPIPS, the distance of deep features, from weights in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LPIPS", "load_lpips"]

#: Images with a smaller side are enlarged to it, so that every layer sees something.
SMALLEST = 64
#: Mean and deviation of the colours of ImageNet, which the networks were trained with.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPSILON = 1e-10
TODO = "pass the folder that has it, or set LINEARIZER_DATA to the folder above lpips"


class LPIPS(nn.Module):
    r"""LPIPS v0.1: d(x, y) = Σₗ mean over places of Σ_c w_lc (φ̂ₗ(x) − φ̂ₗ(y))²_c.

    φₗ are the outputs of layers l of an ImageNet network after their ReLU, φ̂ₗ the same divided by
    their norm over channels at each place, and w_l ≥ 0 weights that were fitted to what people say.

    Images whose smaller side is below 64 pixels are first enlarged, both sides by one factor and
    bilinearly, until it is 64; distances of such images compare with each other only. Images are
    taken to the dtype of the weights, ``.double()`` makes that float64. The weights are frozen;
    gradients pass to the images.

    Paper: Zhang, Isola, Efros, Shechtman, Wang, *The Unreasonable Effectiveness of Deep Features as
    a Perceptual Metric*, 2018, section 3.

    Arguments:
        backbone: "alex" (AlexNet) or "squeeze" (SqueezeNet 1.1).
        features: Weights of its convolutions, by torchvision's names ("features.0.weight", …).
        heads: w_l of each layer, (channels,), none of them negative.

    Example:
        >>> features = {k: 0.1 * torch.randn(s) for k, s in shapes("squeeze").items()}
        >>> lpips = LPIPS("squeeze", features, [torch.rand(c) for c in CHANNELS["squeeze"]])
        >>> x, y = torch.rand(2, 4, 1, 32, 32)
        >>> lpips(x, y).shape, bool((lpips(x, x) == 0).all()), bool((lpips(x, y) > 0).all())
        (torch.Size([4]), True, True)
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, backbone: str, features: Mapping[str, Tensor], heads: Sequence[Tensor]
    ) -> None:
        super().__init__()
        expected, channels = shapes(backbone), CHANNELS[backbone]
        _check(f"LPIPS, features of {backbone}", expected, features, "give those of the backbone")
        found = [tuple(w.shape) for w in heads]
        if found != [(c,) for c in channels]:
            raise ValueError(
                f"LPIPS: expected heads of {', '.join(map(str, channels))} weights for {backbone}, "
                f"got shapes {found}."
            )
        if any(bool((w < 0).any()) for w in heads):
            raise ValueError("LPIPS: expected heads ≥ 0, as in v0.1, got negative weights.")
        self.backbone = backbone
        self.taps = BACKBONES[backbone].taps
        with torch.device("meta"):  # nothing is drawn: all weights are given
            self.features = nn.Sequential(*BACKBONES[backbone].layers())
        weights = {k.removeprefix("features."): v.detach().clone() for k, v in features.items()}
        self.features.load_state_dict(weights, assign=True)
        self.heads = nn.ParameterList(w.detach().clone() for w in heads)
        like = self.heads[0]
        self.register_buffer("mean", like.new_tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer(
            "deviation", like.new_tensor(DEVIATION)[:, None, None], persistent=False
        )
        self.requires_grad_(False)

    def extra_repr(self) -> str:
        return repr(self.backbone)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (n,) between images x and y, (n, 1 or 3, H, W) in [0, 1]."""
        for image in (x, y):
            good = image.ndim == 4 and image.shape[1] in (1, 3) and image.is_floating_point()
            if not good or 0 in image.shape[2:]:
                raise ValueError(
                    "LPIPS: expected images (n, 1 or 3, H, W) as floats in [0, 1], got "
                    f"{image.dtype} of shape {tuple(image.shape)}."
                )
        if x.shape != y.shape:
            raise ValueError(
                f"LPIPS: expected two batches of one shape, got {tuple(x.shape)} and "
                f"{tuple(y.shape)}."
            )
        # Each batch on its own, so that equal images give equal features and a distance of 0.
        total = self.mean.new_zeros(len(x))
        for w, a, b in zip(self.heads, self._directions(x), self._directions(y), strict=True):
            total = total + torch.einsum("c,nchw->nhw", w, (a - b).square()).mean((1, 2))
        return total

    def _directions(self, x: Tensor) -> list[Tensor]:
        """φ̂ₗ(x) of each layer, (n, channels, height, width)."""
        return [F.normalize(h, dim=1, eps=EPSILON) for h in self.activations(x)]

    def activations(self, x: Tensor) -> list[Tensor]:
        """φₗ(x) of each layer, (n, channels, height, width)."""
        h = x.to(self.mean.dtype).expand(-1, 3, -1, -1)
        height, width = h.shape[2:]
        if (side := min(height, width)) < SMALLEST:
            size = [round(s * SMALLEST / side) for s in (height, width)]
            h = F.interpolate(h, size, mode="bilinear", align_corners=False)
        h = (h - self.mean) / self.deviation
        found = []
        for i, layer in enumerate(self.features):
            h = layer(h)
            if i in self.taps:
                found.append(h)
        return found


def load_lpips(backbone: str, folder: str | Path) -> LPIPS:
    r"""LPIPS with the published weights, from two files of a folder.

    The files are alexnet_features.pth or squeezenet1_1_features.pth, the convolutions by
    torchvision's names, and lpips_v0.1_alex.pth or lpips_v0.1_squeeze.pth, as its authors publish.

    Arguments:
        backbone: "alex" or "squeeze".
        folder: Where the files are; ``data.root_folder() / "lpips"`` follows $LINEARIZER_DATA.
    """
    expected = shapes(backbone)
    folder = Path(folder).expanduser().absolute()
    path = folder / BACKBONES[backbone].file
    features = _read(path)
    _check(f"load_lpips, {path}", expected, features, TODO)
    path = folder / f"lpips_v0.1_{backbone}.pth"
    heads = {f"lin{i}.model.1.weight": (1, c, 1, 1) for i, c in enumerate(CHANNELS[backbone])}
    found = _read(path)
    _check(f"load_lpips, {path}", heads, found, TODO)
    return LPIPS(backbone, features, [found[name].flatten() for name in heads])


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        what = "is there" if path.parent.is_dir() else "is not there either"
        raise ValueError(
            f"load_lpips: expected the file {path}, which is absent (its folder {what}); {TODO}."
        )
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"load_lpips: expected tensors in {path}, but it cannot be read ({reason}); copy it "
            f"there again, or {TODO}."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"load_lpips: expected tensors by name in {path}, found {type(found).__name__}; copy "
            f"it there again, or {TODO}."
        )
    return found


def _check(
    where: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor], todo: str
) -> None:
    """Raise unless the names and shapes are the expected ones."""
    wrong = [k for k in expected if k not in found] or [k for k in found if k not in expected]
    if wrong:
        problem = "is absent" if wrong[0] in expected else "is unknown"
        others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{where}: expected the {len(expected)} tensors {next(iter(expected))}, …, but "
            f"{wrong[0]} {problem}{others}; {todo}."
        )
    for name, shape in expected.items():
        value: Any = found[name]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{where}: expected {name} of shape {shape}, got {got}; {todo}.")


# -- the two networks, numbered as torchvision numbers them ------------------------------------


class _Fire(nn.Module):
    """1×1 to a few channels, then 1×1 and 3×3 side by side, each with its ReLU."""

    def __init__(self, inputs: int, few: int, each: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, few, 1)
        self.expand1x1 = nn.Conv2d(few, each, 1)
        self.expand3x3 = nn.Conv2d(few, each, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(h), self.expand3x3(h)], 1).relu()


def _alex() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    ]


def _squeeze() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 64, 3, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _Fire(64, 16, 64),
        _Fire(128, 16, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _Fire(128, 32, 128),
        _Fire(256, 32, 128),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _Fire(256, 48, 192),
        _Fire(384, 48, 192),
        _Fire(384, 64, 256),
        _Fire(512, 64, 256),
    ]


class _Backbone(NamedTuple):
    layers: Callable[[], list[nn.Module]]
    taps: tuple[int, ...]  #: layers whose outputs are compared
    file: str


BACKBONES = {
    "alex": _Backbone(_alex, (1, 4, 7, 9, 11), "alexnet_features.pth"),
    "squeeze": _Backbone(_squeeze, (1, 4, 7, 9, 10, 11, 12), "squeezenet1_1_features.pth"),
}
#: Channels of the layers that are compared.
CHANNELS = {"alex": (64, 192, 384, 256, 256), "squeeze": (64, 128, 256, 384, 384, 512, 512)}


def shapes(backbone: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a backbone: torchvision's names and their shapes."""
    if backbone not in BACKBONES:
        raise ValueError(f"LPIPS: expected a backbone of {', '.join(BACKBONES)}, got {backbone!r}.")
    with torch.device("meta"):
        layers = nn.Sequential(*BACKBONES[backbone].layers())
    return {f"features.{k}": tuple(v.shape) for k, v in layers.state_dict().items()}
