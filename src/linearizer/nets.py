r"""Conditioners: the networks inside couplings. Any module will do that is the same function in
training and evaluation; these are the ones that the ready-made stacks use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "MLP",
    "Bottleneck",
    "Branches",
    "EigenImages",
    "FromVector",
    "ImageNorm",
    "Layers",
    "LocalConv",
    "Norm",
    "ResNet",
    "ResidualConv",
    "ToVector",
    "UNet",
    "WithEigenImages",
    "batch_statistics",
    "channels_last",
    "describe_layers",
    "refuse_mode_dependent",
]


class MLP(nn.Module):
    r"""Vectors to vectors: ``depth`` hidden layers of width ``hidden``, SiLU between them.

    The last layer starts at zero, so that a coupling starts as the identity. With a ``bound`` c the
    inputs go through c·tanh(x/c): far out the network is constant, and a coupling grows linearly.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int = 128,
        depth: int = 2,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        self.bound = bound
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(inputs if i == 0 else hidden, hidden), nn.SiLU()]
        self.layers = nn.Sequential(*layers, _zero(nn.Linear(hidden, outputs)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x if self.bound is None else self.bound * torch.tanh(x / self.bound))


class ResidualConv(nn.Module):
    r"""The paper's tiny conditioner: GroupNorm → 3×3 → SiLU, two residual blocks, 3×3.

    Paper: appendix G.4, the table of the affine-coupling conditioner; ``hidden=16`` is its
    ``model_channels``.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(1, inputs), nn.Conv2d(inputs, hidden, 3, padding=1), nn.SiLU()
        )
        self.blocks = nn.ModuleList(_residual(hidden) for _ in range(blocks))
        self.last = _zero(nn.Conv2d(hidden, outputs, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.last(h)


class ImageNorm(nn.Module):
    r"""Each channel of each image to mean 0 and variance 1, then scaled and shifted.

    These statistics are all that a pixel learns of the rest of its image. Parts of one image are
    treated alike, if ``held`` has its statistics; a pass with ``recording`` sets them from a batch.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.recording = False
        self.held: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.recording:
            mean = x.mean((0, -2, -1), keepdim=True)
            self.held = mean, (x - mean).square().mean((0, -2, -1), keepdim=True)
        if self.held is None:
            return torch.group_norm(x, len(self.weight), self.weight, self.bias)
        mean, variance = self.held
        scale = self.weight[:, None, None] * torch.rsqrt(variance + 1e-5)
        return torch.addcmul(self.bias[:, None, None] - mean * scale, x, scale)


class LocalConv(nn.Module):
    r"""3×3 → SiLU, ``blocks`` residual 3×3 behind an :class:`ImageNorm`, 3×3.

    A pixel sees its neighbourhood, and of the rest of its image mean and variance only: a large
    image can be taken in parts.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 48, blocks: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(ImageNorm(hidden), nn.Conv2d(hidden, hidden, 3, padding=1), nn.SiLU())
            for _ in range(blocks)
        )
        self.last = _zero(nn.Conv2d(hidden, outputs, 3, padding=1))

    @property
    def reach(self) -> int:
        """How many pixels away something may be seen, apart from those statistics."""
        return 2 + len(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.first(x))
        for block in self.blocks:
            h = h + block(h)
        return self.last(h)


class UNet(nn.Module):
    r"""A small U-Net: ``levels`` halvings of the image, residual blocks, skip connections.

    Sizes that do not halve evenly are padded on the way down and cropped on the way up.

    Arguments:
        inputs, outputs, hidden: Channels.
        levels: How often the image is halved.
        blocks: Residual blocks before each change of size.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: int = 16, levels: int = 1, blocks: int = 1
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.down = nn.ModuleList(_residuals(hidden, blocks) for _ in range(levels))
        self.halve = nn.ModuleList(
            nn.Conv2d(hidden, hidden, 3, stride=2, padding=1) for _ in range(levels)
        )
        self.middle = _residuals(hidden, blocks)
        self.merge = nn.ModuleList(nn.Conv2d(2 * hidden, hidden, 1) for _ in range(levels))
        self.up = nn.ModuleList(_residuals(hidden, blocks) for _ in range(levels))
        self.last = nn.Sequential(
            _norm(hidden), nn.SiLU(), _zero(nn.Conv2d(hidden, outputs, 3, padding=1))
        )

    def forward(self, x: Tensor) -> Tensor:
        h, skips = self.first(x), []
        for block, halve in zip(self.down, self.halve, strict=True):
            h = _add(block, h)
            skips.append(h)
            h = halve(h)
        h = _add(self.middle, h)
        for merge, block in zip(self.merge, self.up, strict=True):
            skip = skips.pop()
            h = F.interpolate(h, scale_factor=2.0, mode="nearest")
            h = merge(torch.cat([h[..., : skip.shape[-2], : skip.shape[-1]], skip], 1))
            h = _add(block, h)
        return self.last(h)


class ToVector(nn.Module):
    r"""Images to vectors: convolutions of stride 2 down to 4×4 or less, then one hidden layer.

    Channels double at each halving, up to four times ``hidden``. The last layer starts at zero.
    """

    def __init__(
        self, shape: tuple[int, int, int], outputs: int, hidden: int = 16, dense: int = 256
    ) -> None:
        super().__init__()
        widths, size = _pyramid(shape, hidden)
        layers: list[nn.Module] = []
        for inputs, width in zip([shape[0], *widths], widths, strict=False):
            layers += [nn.Conv2d(inputs, width, 4, stride=2, padding=1), nn.SiLU()]
        flat = (widths[-1] if widths else shape[0]) * size[0] * size[1]
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(flat, dense), nn.SiLU(),
            _zero(nn.Linear(dense, outputs)),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


#: Layers that a chain may have, with all arguments that build each; a bias is always there.
_KINDS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    kind.__name__: (kind, tuple(arguments.split()))
    for kind, arguments in (
        (nn.Conv2d, "in_channels out_channels kernel_size stride padding dilation groups "
                    "padding_mode"),
        (nn.Linear, "in_features out_features"),
        (nn.AvgPool2d, "kernel_size stride padding ceil_mode count_include_pad divisor_override"),
        (nn.MaxPool2d, "kernel_size stride padding dilation return_indices ceil_mode"),
        (nn.LeakyReLU, "negative_slope"),
        (nn.ELU, "alpha"),
        (nn.GELU, "approximate"),
        (nn.Softplus, "beta threshold"),
        (nn.Flatten, "start_dim end_dim"),
        *((kind, "") for kind in (nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid)),
    )
}  # fmt: skip


def describe_layers(chain: nn.Module) -> tuple[dict[str, Any], ...]:
    """The layers of an ``nn.Sequential`` as words and numbers, of which ``Layers`` builds it anew.

    Empty where it is anything else, or holds layers of other kinds.

    Example:
        >>> describe_layers(nn.Sequential(nn.Sequential(nn.Linear(4, 2), nn.Dropout()), nn.Tanh()))
        ({'kind': 'Linear', 'in_features': 4, 'out_features': 2}, {'kind': 'Tanh'})
    """
    found: list[dict[str, Any]] = []
    for layer in _flat(chain) if _is_chain(chain) else ():
        name = type(layer).__name__
        kind, arguments = _KINDS.get(name, (None, ()))
        if type(layer) is not kind:
            return ()
        found.append({"kind": name, **{key: _plain(getattr(layer, key)) for key in arguments}})
    return tuple(found)


def _is_chain(net: nn.Module) -> bool:
    return isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward


def _flat(chain: nn.Module) -> list[nn.Module]:
    """The layers of a chain of chains, without those that do nothing in evaluation mode."""
    if isinstance(chain, nn.Identity | nn.modules.dropout._DropoutNd):
        return []
    if not _is_chain(chain):
        return [chain]
    return [layer for part in cast(nn.Sequential, chain) for layer in _flat(part)]


def _plain(value: Any) -> Any:
    """Integers of Python, where they are NumPy's."""
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


class Layers(nn.Module):
    r"""x ↦ W chain(x + μ) + b, the chain of layers as ``described``.

    Until ``initialize`` μ and b are zero and W is the identity.

    Arguments:
        layers: One or more.
        shape: (C, H, W) of x.
        outputs: How many numbers the chain gives.

    Example:
        >>> chain = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
        >>> net = Layers(describe_layers(chain), (1, 2, 2), outputs=3).take(chain)
        >>> x = torch.rand(5, 1, 2, 2)
        >>> torch.equal(net(x), chain(x))
        True
    """

    mean: Tensor

    def __init__(
        self, layers: Sequence[Mapping[str, Any]], shape: tuple[int, ...], outputs: int
    ) -> None:
        super().__init__()
        kinds = []
        for one in layers:
            arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
            kind, known = _KINDS.get(str(arguments.pop("kind", None)), (None, ()))
            if kind is None or set(arguments) - set(known):
                raise ValueError(f"Layers: expected one of {', '.join(_KINDS)}, got {dict(one)}.")
            kinds.append((kind, arguments))
        try:  # without memory, which a wrong number could ask for too much of
            with torch.device("meta"):
                chain = nn.Sequential(*(kind(**arguments) for kind, arguments in kinds))
                found = chain(torch.empty(1, *shape)).flatten(1).shape[1]
        except Exception as problem:
            raise ValueError(
                f"Layers: expected layers that take x of shape {tuple(shape)}, but "
                f"{' '.join(str(problem).split())[:200]}."
            ) from None
        if not kinds or found != outputs:
            raise ValueError(f"Layers: expected layers that give {outputs} numbers, got {found}.")
        self.layers = nn.Sequential(*(kind(**arguments) for kind, arguments in kinds))
        self.last = nn.Linear(outputs, outputs)
        nn.init.eye_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("mean", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x + self.mean).flatten(1))

    @torch.no_grad()
    def take(self, chain: nn.Module) -> Layers:
        """Take the weights of the chain that was described."""
        for mine, theirs in zip(self.layers, _flat(chain), strict=True):
            if isinstance(mine, nn.Conv2d | nn.Linear):
                assert isinstance(theirs, nn.Conv2d | nn.Linear) and mine.bias is not None
                mine.weight.copy_(theirs.weight)
                if theirs.bias is None:
                    mine.bias.zero_()
                else:
                    mine.bias.copy_(theirs.bias)
        return self

    @torch.no_grad()
    def initialize(self, mean: Tensor, turn: Callable[[Tensor], Tensor]) -> None:
        """Take x without their mean, and give what an affine map makes of the outputs.

        Arguments:
            mean: μ, as many numbers as x has.
            turn: Outputs (n, m) to outputs (n, m).
        """
        self.mean.copy_(mean.reshape(self.mean.shape))
        eye = torch.eye(len(self.last.bias)).to(self.last.bias)
        shift = turn(0 * eye[:1])
        M = (turn(eye) - shift).mT
        self.last.bias.copy_(M @ self.last.bias + shift[0])
        self.last.weight.copy_(M @ self.last.weight)


class FromVector(nn.Module):
    r"""Vectors to images: one hidden layer, then transposed convolutions, as ToVector upside down.

    The last layer starts at zero.
    """

    def __init__(
        self, inputs: int, shape: tuple[int, int, int], hidden: int = 16, dense: int = 256
    ) -> None:
        super().__init__()
        widths, size = _pyramid(shape, hidden)
        first = widths[-1] if widths else int(hidden)
        self.dense = nn.Sequential(
            nn.Linear(inputs, dense), nn.SiLU(),
            nn.Linear(dense, first * size[0] * size[1]), nn.SiLU(),
            nn.Unflatten(1, (first, *size)),
        )  # fmt: skip
        layers: list[nn.Module] = []
        for i, width in reversed(list(enumerate(widths))):
            out = widths[i - 1] if i else hidden
            layers += [nn.ConvTranspose2d(width, out, 4, stride=2, padding=1), nn.SiLU()]
        self.layers = nn.Sequential(*layers, _zero(nn.Conv2d(hidden, shape[0], 3, padding=1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.dense(x))


class Norm(nn.Module):
    r"""x ↦ γ (x − μ)/σ + β for each channel, with the mean and deviation that are stored.

    So it is one function of x, in training as in evaluation. Inside :func:`batch_statistics` they
    are those of the batch, as in batch norm, and the stored ones follow: a loss may look at a
    network that way while it learns.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.follows = False

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x, self.mean, self.variance, self.weight, self.bias, training=self.follows
        )


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[None]:
    """Within it every :class:`Norm` of a network takes the mean and deviation of the batch."""
    norms = [m for m in net.modules() if isinstance(m, Norm)]
    for norm in norms:
        norm.follows = True
    try:
        yield
    finally:
        for norm in norms:
            norm.follows = False


class ResNet(nn.Module):
    r"""Images to vectors by residual blocks of two 3×3 convolutions, and a mean at the end.

    The first layer halves the image, and those of 64×64 or more are halved once again; channels
    double with each of the next two halvings. Its norms are fixed (:class:`Norm`) but for a loss
    that looks through :func:`batch_statistics`. The last layer starts at zero.

    Arguments:
        shape: (C, H, W), at least 16×16.
        outputs: Length of the vector.
        hidden: Channels after the first layer.
        blocks: For each of four sizes.
        gain: Factor on the images, for centred ones to be of order 1.
        mirror: The mean of an image's vector and its mirror image's. While statistics follow the
            batch it is of the image alone, which takes half the time: mirror some of the images.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        hidden: int = 32,
        blocks: int = 2,
        gain: float = 4.0,
        mirror: bool = False,
    ) -> None:
        super().__init__()
        if min(shape[1:]) < 16:
            raise ValueError(
                f"ResNet: expected images of 16×16 or more, got {shape[1]}×{shape[2]}."
            )
        self.gain, self.mirror = gain, mirror
        layers: list[nn.Module] = [
            nn.Conv2d(shape[0], hidden, 7, stride=2, padding=3, bias=False),
            Norm(hidden), nn.ReLU(),
        ]  # fmt: skip
        if min(shape[1:]) >= 64:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        inputs = hidden
        for level, width in enumerate((hidden, 2 * hidden, 4 * hidden, 4 * hidden)):
            for i in range(blocks):
                layers.append(_Residual(inputs, width, halve=level > 0 and i == 0))
                inputs = width
        self.layers = nn.Sequential(*layers)
        self.last = _zero(nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not torch._C._are_functorch_transforms_active():
            x = x.contiguous(memory_format=torch.channels_last)  # which vmap does not know
        h = self._features(x)
        if self.mirror and not self.layers[1].follows:
            h = 0.5 * (h + self._features(x.flip(3)))
        return self.last(h)

    def _features(self, x: Tensor) -> Tensor:
        return self.layers(self.gain * x).mean((2, 3))


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, halve: bool) -> None:
        super().__init__()
        stride = 2 if halve else 1
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            Norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), Norm(outputs),
        )  # fmt: skip
        self.match: nn.Module = nn.Identity()
        if halve or inputs != outputs:
            self.match = nn.Sequential(
                nn.AvgPool2d(2, ceil_mode=True) if halve else nn.Identity(),
                nn.Conv2d(inputs, outputs, 1, bias=False), Norm(outputs),
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.match(x)).relu()


class EigenImages(nn.Module):
    r"""Images to their coefficients along principal axes, u = S⁻¹ Vᵀ x, and back by :meth:`draw`.

    The axes are of images halved in size where that is even and large, and are set from data once
    (:meth:`initialize`). Coefficients have deviation 1.

    Arguments:
        shape: (C, H, W) of centred images.
        rank: How many axes.
    """

    axes: Tensor
    scale: Tensor
    initialized: Tensor

    def __init__(self, shape: tuple[int, int, int], rank: int) -> None:
        super().__init__()
        C, H, W = shape
        self.factor = 2 if H % 2 == 0 and W % 2 == 0 and min(H, W) >= 48 else 1
        self.small = (C, H // self.factor, W // self.factor)
        self.register_buffer("axes", torch.zeros(rank, C * H * W // self.factor**2))
        self.register_buffer("scale", torch.ones(rank))
        self.register_buffer("initialized", torch.tensor(False))

    def _halve(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.factor).flatten(1) if self.factor > 1 else x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self._halve(x) @ self.axes.mT / self.scale

    def draw(self, u: Tensor) -> Tensor:
        """The images of these coefficients, (n, C, H, W)."""
        x = ((u * self.scale) @ self.axes).reshape(-1, *self.small)
        if self.factor == 1:
            return x
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """The leading axes of centred images."""
        if self.initialized:
            return
        y = self._halve(x)
        rank = len(self.axes)
        if len(y) <= rank or y.shape[1] < rank:
            raise ValueError(
                f"EigenImages: expected more than {rank} images of {rank} numbers or more, got "
                f"{len(y)} of {y.shape[1]}. Ask for fewer axes, or give more images."
            )
        # The smaller Gram matrix has the same leading directions.
        wide = y.double()
        if len(y) < y.shape[1]:
            values, U = torch.linalg.eigh(wide @ wide.mT)
            Q = wide.mT @ U[:, -rank:].flip(1)
        else:
            values, Q = torch.linalg.eigh(wide.mT @ wide)
            Q = Q[:, -rank:].flip(1)
        deviation = (values[-rank:].flip(0).clamp_min(0) / len(y)).sqrt()
        self.axes.copy_(torch.linalg.qr(Q)[0].mT)
        self.scale.copy_(deviation.clamp_min(1e-3 * float(deviation[0]) + 1e-12))
        self.initialized.fill_(True)


class WithEigenImages(nn.Module):
    """(v, u) ↦ net(v, u) + the images of the coefficients u, which come last."""

    def __init__(self, net: nn.Module, eigen: EigenImages) -> None:
        super().__init__()
        self.net, self.eigen = net, eigen

    def forward(self, u: Tensor) -> Tensor:
        return self.net(u) + self.eigen.draw(u[:, -len(self.eigen.scale) :])


class Branches(nn.Module):
    """x ↦ (a(x), b(x), …), the vectors of several networks one after the other."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([net(x) for net in self.nets], 1)


def _pyramid(shape: tuple[int, int, int], hidden: int) -> tuple[list[int], tuple[int, int]]:
    """Channels after each halving, and the size that is left, as integers of Python."""
    _, H, W = map(int, shape)
    hidden = int(hidden)
    widths: list[int] = []
    while H % 2 == 0 and W % 2 == 0 and min(H, W) > 4:
        H, W = H // 2, W // 2
        widths.append(hidden * min(2 ** len(widths), 4))
    return widths, (H, W)


class Bottleneck(nn.Module):
    r"""The paper's F and G of the projector: 4×4 convolutions of stride 2 down to 1×1 and back.

    Channels grow fourfold at each halving (2 → 8 → 32 → 128 → 512 on a 16×16 stream) and shrink on
    the way back; SiLU between layers, tanh at the end. On a 2×2 map a 4×4 convolution of stride 2
    and padding 1 touches only its inner 2×2 taps, which is a Linear layer: it is written as one.

    Paper: appendix G.4, the table of the additive-coupling CNN.

    Arguments:
        channels: Channels in and out.
        size: Height and width of the map.
        halvings: At most this many; fewer where the size is odd before.
        growth: Factor on the channels at each halving.
    """

    def __init__(
        self, channels: int, size: tuple[int, int], halvings: int = 4, growth: int = 4
    ) -> None:
        super().__init__()
        sizes, widths = [size], [channels]
        while len(widths) <= halvings and sizes[-1][0] % 2 == 0 and sizes[-1][1] % 2 == 0:
            sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
            widths.append(widths[-1] * growth)
        if len(widths) == 1:
            raise ValueError(
                f"Bottleneck: expected an even map to halve, got {size[0]}×{size[1]}. "
                "Pad the image so that its sides divide by 4."
            )
        layers: list[nn.Module] = []
        pairs = list(zip(widths, widths[1:], sizes, strict=False))
        for small, large, here in pairs:
            layers += [_halve(small, large, here), nn.SiLU()]
        for small, large, here in reversed(pairs):
            layers += [_double(large, small, here), nn.SiLU()]
        layers[-1] = nn.Tanh()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _halve(inputs: int, outputs: int, size: tuple[int, int]) -> nn.Module:
    if size == (2, 2):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(4 * inputs, outputs), nn.Unflatten(1, (outputs, 1, 1))
        )
    return nn.Conv2d(inputs, outputs, 4, stride=2, padding=1)


def _double(inputs: int, outputs: int, size: tuple[int, int]) -> nn.Module:
    if size == (2, 2):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 4 * outputs), nn.Unflatten(1, (outputs, 2, 2))
        )
    return nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4 if channels % 4 == 0 else 1, channels)


def _residual(channels: int) -> nn.Sequential:
    return nn.Sequential(_norm(channels), nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU())


def _residuals(channels: int, blocks: int) -> nn.Module:
    """One residual block, or a list of several."""
    if blocks == 1:
        return _residual(channels)
    return nn.ModuleList(_residual(channels) for _ in range(blocks))


def _add(block: nn.Module, h: Tensor) -> Tensor:
    """h after one residual block, or after each of a list."""
    for part in block if isinstance(block, nn.ModuleList) else [block]:
        h = h + part(h)
    return h


def _zero(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


_MODE_DEPENDENT = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
)


N = TypeVar("N", bound=nn.Module)


def channels_last(net: N) -> N:
    """The network itself, its weights laid out so that convolutions are faster on CPUs."""
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def refuse_mode_dependent(net: nn.Module, where: str) -> None:
    """Raise if a network differs between training and evaluation, or from call to call.

    g and g⁻¹ must meet the same function, so dropout, batch norm and running statistics are out.
    """
    for name, module in net.named_modules():
        running = isinstance(module, nn.modules.instancenorm._InstanceNorm)
        inner = getattr(module, "dropout", 0.0)  # of recurrent and attention layers
        drops = isinstance(inner, float) and inner > 0
        harmless = isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0
        if (
            (isinstance(module, _MODE_DEPENDENT) and not harmless)
            or (running and module.track_running_stats)
            or drops
        ):
            raise ValueError(
                f"{where}: the network holds {type(module).__name__} at {name or 'its root'!r}, "
                "which is not one fixed function, so g and its inverse would disagree. "
                "Use GroupNorm or LayerNorm, and no dropout."
            )
