r"""Ready-made g: the paper's two image stacks, and one for vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral

import torch
from torch import Tensor, nn

from ..nets import (
    MLP,
    Bottleneck,
    Branches,
    EigenImages,
    FromVector,
    LocalConv,
    ResidualConv,
    ResNet,
    ToVector,
    WithEigenImages,
    channels_last,
)
from .axes import FinestWaves, OnPart, PrincipalAxes
from .base import Bijection, Chain, Flatten
from .coupling import AdditiveCoupling, AffineCoupling
from .mixing import ActNorm, InvertibleLinear
from .reshape import PixelShuffle, SpatialSplit2x2, Squeeze

__all__ = ["autoencoder", "encoder", "glow", "mlp", "patches", "revnet", "subspace"]

#: (input channels, output channels) ↦ network
Conditioner = Callable[[int, int], nn.Module]

#: Deviation, as a share of the largest, of coordinates of an encoder that are scaled up to 1; twice
#: what f† in float32 does not yet take for zero.
LEAST = 6e-3


def glow(
    shape: tuple[int, int, int],
    blocks: int = 6,
    hidden: int = 16,
    conditioner: Conditioner | None = None,
    max_log_scale: float = 1.0,
    save_memory: bool = False,
    clamp: str = "soft",
) -> Chain:
    r"""The paper's diffusion and style stack on images.

    Each block: ActNorm → affine coupling (x₁ | x₂) → affine coupling (x₂ | y₁) → invertible 1×1.
    An odd number of channels is squeezed to 4C first, and unsqueezed at the end, so that
    coordinates keep the order of pixels. Conditioners start at zero, so a fresh g is linear: it
    bends by training.

    Paper: appendix G.1.

    Arguments:
        shape: (C, H, W); even H and W where C is odd.
        blocks: How many.
        hidden: Channels of the default conditioner, ``nets.ResidualConv``.
        conditioner: Builds another one from (input channels, output channels).
        max_log_scale: Bound of the couplings' log-scales.
        save_memory: Activation memory constant in depth (see :class:`Chain`).
        clamp: How they are bounded, "soft" or "hard" (see :class:`AffineCoupling`).

    Example:
        >>> g = glow((1, 8, 8), blocks=2)
        >>> x = torch.rand(4, 1, 8, 8)
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-5)
        True
    """
    _positive("glow", blocks=blocks, hidden=hidden)
    net = conditioner or (lambda inputs, outputs: ResidualConv(inputs, outputs, hidden))
    _image("glow", shape)
    start: list[Bijection] = [Squeeze(shape)] if shape[0] % 2 else []
    inside = start[0].out_shape if start else tuple(shape)
    half = inside[0] // 2

    def coupling(which: str) -> AffineCoupling:
        return AffineCoupling(inside, net(half, 2 * half), which, max_log_scale, clamp=clamp)

    body = [
        Chain(ActNorm(inside), coupling("first"), coupling("second"), InvertibleLinear(inside))
        for _ in range(blocks)
    ]
    end: list[Bijection] = [PixelShuffle(inside)] if start else []
    return Chain(*start, *body, *end, Flatten(shape), save_memory=save_memory)


def patches(
    shape: tuple[int, int, int],
    squeezes: int = 2,
    blocks: int = 4,
    hidden: int = 48,
    depth: int = 1,
    max_log_scale: float = 1.0,
    save_memory: bool = False,
) -> Chain:
    r"""A stack on images whose coordinates are images again, (4ˢC, H/2ˢ, W/2ˢ), flattened.

    s squeezes make channels of each patch; then each block is as in :func:`glow`, with
    conditioners that see a neighbourhood and statistics of the image; a last ActNorm sets the
    zero. Conditioners start at zero, so a fresh g is linear: it bends by training.

    Arguments:
        shape: (C, H, W), with sides that divide by 2ˢ.
        squeezes: s.
        blocks: How many.
        hidden, depth: Channels and residual layers of each conditioner, ``nets.LocalConv``.
        max_log_scale: Bound of the couplings' log-scales.
        save_memory: Activation memory constant in depth (see :class:`Chain`).

    Example:
        >>> g = patches((3, 16, 8), blocks=1)
        >>> x = torch.rand(4, 3, 16, 8)
        >>> g(x).shape, torch.allclose(g.inverse(g(x)), x, atol=1e-5)
        (torch.Size([4, 384]), True)
    """
    _positive("patches", squeezes=squeezes, blocks=blocks, hidden=hidden)
    _image("patches", shape)
    start: list[Bijection] = []
    inside: tuple[int, ...] = tuple(shape)
    for _ in range(squeezes):
        start.append(Squeeze(inside))
        inside = start[-1].out_shape
    half = inside[0] // 2
    body: list[Bijection] = [
        Chain(
            ActNorm(inside),
            *(
                AffineCoupling(inside, LocalConv(half, 2 * half, hidden, depth), side,
                               max_log_scale)
                for side in ("first", "second")
            ),
            InvertibleLinear(inside),
        )
        for _ in range(blocks)
    ]  # fmt: skip
    return Chain(*start, *body, ActNorm(inside), Flatten(inside), save_memory=save_memory)


def revnet(
    shape: tuple[int, int, int],
    blocks: int = 6,
    conditioner: Conditioner | None = None,
    save_memory: bool = False,
) -> Chain:
    r"""The paper's projector stack on images: volume preserving, exactly invertible.

    Each block: SpatialSplit2x2 → additive couplings with F and G → concat → PixelShuffle. Blocks
    take different orders of the four positions in turn, so that all pixels meet.

    Paper: appendix G.1 and G.4 (IGN).

    Arguments:
        shape: (C, H, W) with sides that divide by 4.
        blocks: How many.
        conditioner: Builds F and G; the paper's ``nets.Bottleneck`` by default.
        save_memory: Activation memory constant in depth (see :class:`Chain`).
    """
    _positive("revnet", blocks=blocks)
    _image("revnet", shape)
    size = (shape[1] // 2, shape[2] // 2)
    net = conditioner or (lambda inputs, outputs: Bottleneck(inputs, size))
    orders = [(0, 3, 1, 2), (0, 1, 2, 3), (0, 2, 1, 3)]
    body = []
    for i in range(blocks):
        split = SpatialSplit2x2(shape, orders[i % len(orders)])
        inside, half = split.out_shape, split.out_shape[0] // 2
        body.append(
            Chain(
                split,
                AdditiveCoupling(inside, net(half, half), "first"),
                AdditiveCoupling(inside, net(half, half), "second"),
                PixelShuffle(inside),
            )
        )
    return Chain(*body, Flatten(shape), save_memory=save_memory)


def mlp(
    dim: int,
    blocks: int = 6,
    hidden: int = 128,
    conditioner: Conditioner | None = None,
    max_log_scale: float = 1.0,
    save_memory: bool = False,
) -> Chain:
    r"""The stack for vectors: ActNorm → coupling (x₁ | x₂) → coupling (x₂ | y₁) → mixing.

    Conditioners start at zero, so a fresh g is linear: it bends by training.

    Arguments:
        dim: Length of the vectors, at least 2.
        blocks: How many.
        hidden: Width of the default conditioner, ``nets.MLP``.
        conditioner: Builds another one from (inputs, outputs).
        max_log_scale: Bound of the couplings' log-scales.
        save_memory: Activation memory constant in depth (see :class:`Chain`).

    Example:
        >>> g = mlp(3, blocks=2)
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-5)
        True
    """
    _positive("mlp", dim=dim, blocks=blocks, hidden=hidden)
    if dim < 2:
        raise ValueError(
            f"mlp: expected dim ≥ 2, got {dim}: a coupling needs two halves. "
            "For single numbers use Flatten((1,)) or ActNorm((1,))."
        )
    net = conditioner or (lambda inputs, outputs: MLP(inputs, outputs, hidden))
    one, two = dim // 2, dim - dim // 2
    body = [
        Chain(
            ActNorm((dim,)),
            AffineCoupling((dim,), net(two, 2 * one), "first", max_log_scale),
            AffineCoupling((dim,), net(one, 2 * two), "second", max_log_scale),
            InvertibleLinear((dim,)),
        )
        for _ in range(blocks)
    ]
    return Chain(*body, save_memory=save_memory)


def autoencoder(
    encoder: nn.Module,
    decoder: nn.Module,
    shape: tuple[int, ...],
    code: int | tuple[int, int, int],
    split: str = "waves",
    reach: float | None = None,
    spread: float = 0.01,
    centred: bool = False,
) -> Chain:
    r"""Any encoder E and decoder D as a bijection of all of x, that starts with the code.

    x is split into few numbers u that hold almost nothing of it, as many as the code has, and the
    rest w. Then u ← u + E(w) and w ← w − P⊥D(u), P⊥ taking what D says of u away. Exact, whatever
    E and D are: g and its inverse, and so every law. Approximate: the code is E of x without u,
    plus u, and an image decoded with w = 0 is D(code) but for its u.

    - "waves": the finest cosine waves of images, scaled to the ``spread``. With a map as code,
      those of each block.
    - "axes": the leading principal axes, scaled to variance 1. The code then is these plus E, as
      in a residual network: E and D may start at 0.
    - "pixels": pixels that never change, where there are enough, otherwise waves. u is 0 on such
      data, and the code is E, exactly.

    With a ``reach`` κ, points far from the data lie no farther in u than others: with
    s = 1/√(1 + ‖w‖²/κ) the first step is u ← s·u + E(s·w).

    Set the split from data by ``initialize``. The chain holds the layers in this order: the split,
    E, D. What makes the code Gaussian can come last, as in :func:`subspace`.

    Arguments:
        encoder: E, from (n, *shape) to (n, *code).
        decoder: D, from (n, *code) to (n, *shape).
        shape: Of x; images (C, H, W), or vectors (dim,) with "axes".
        code: Length of the code, or the shape (C′, h, w) of a map whose sides divide the image's.
        split: "waves", "axes" or "pixels".
        reach: The squared length of w from which on it counts as far.
        spread: Standard deviation of the waves that E adds to.
        centred: Whether E sees x − μ, and D gives it, with the mean μ of the data.

    Example:
        >>> encoder = nn.Conv2d(3, 4, 4, stride=4)
        >>> decoder = nn.ConvTranspose2d(4, 3, 4, stride=4)
        >>> x = torch.rand(50, 3, 16, 16)
        >>> g = autoencoder(encoder, decoder, (3, 16, 16), (4, 4, 4)).initialize(x)
        >>> code = g(x)[:, :64].unflatten(1, (4, 4, 4))
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-4)
        True
    """
    if split not in ("waves", "axes", "pixels"):
        raise ValueError(f'autoencoder: expected split "waves", "axes" or "pixels", got {split!r}.')
    if not (reach is None or reach > 0):
        raise ValueError(f"autoencoder: expected a reach > 0, got {reach}.")
    size = (int(code),) if isinstance(code, Integral) else tuple(code)  # type: ignore[arg-type]
    dim, rank = math.prod(shape), math.prod(size)
    if not 1 <= rank < dim:
        raise ValueError(
            f"autoencoder: expected a code of 1 to {dim - 1} numbers, fewer than the {dim} of x, "
            f"got {code}."
        )
    axes: PrincipalAxes | FinestWaves
    if split == "axes":
        axes = PrincipalAxes(shape, rank)
    else:
        C, H, W = _image("autoencoder", shape)
        cells = rank if len(size) == 1 else (size[0], size[1], size[2])
        axes = FinestWaves((C, H, W), cells, spread, split == "pixels")
    _try_pair(encoder, decoder, tuple(shape), size)
    first: Bijection
    if reach is None:
        first = AdditiveCoupling((dim,), _OfRest(axes, encoder, centred), "first", cut=rank)
    else:
        near = _Nearer(axes, encoder, centred, reach)
        first = AffineCoupling((dim,), near, "first", max_log_scale=20.0, cut=rank)
    rest = _ToRest(axes, decoder, centred, size)
    return Chain(axes, first, AdditiveCoupling((dim,), rest, "second", cut=rank))


def _try_pair(
    encoder: nn.Module, decoder: nn.Module, shape: tuple[int, ...], code: tuple[int, ...]
) -> None:
    """Refuse an encoder or a decoder that does not go between these shapes."""
    for name, net, start, end in (
        ("encoder", encoder, shape, code),
        ("decoder", decoder, code, shape),
    ):
        like = next(net.parameters(), torch.zeros(()))
        try:
            with torch.no_grad():
                got = tuple(net(like.new_zeros(2, *start)).shape[1:])
            problem = "" if math.prod(got) == math.prod(end) else f"gives (n, {_say(got)})"
        except (RuntimeError, ValueError, TypeError) as error:
            problem = f"fails: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        if problem:
            raise ValueError(
                f"autoencoder: expected the {name} to go from (n, {_say(start)}) to "
                f"(n, {_say(end)}), but it {problem}."
            )


def _say(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def subspace(
    shape: tuple[int, ...],
    rank: int = 32,
    hidden: int | None = None,
    nets: str = "auto",
    blocks: int = 5,
    flow_hidden: int = 256,
    max_log_scale: float = 1.0,
    detail: int = 0,
    reach: float | None = None,
) -> Chain:
    r"""Data in a few coordinates: x ↦ (u, w), with u (the first ``rank``) almost all of x.

    PrincipalAxes splits x into its leading whitened axes u and the complement w. Then
    u ← u + E(w) and w ← w − D(u): any encoder E and decoder D, and an exact bijection of all of x.
    Trained to leave w ≈ 0, it is an autoencoder that loses nothing. A stack ``mlp`` on u comes
    last, for u to become Gaussian.

    What w still has can be kept along its own ``detail`` leading axes: they come right after u, of
    unit variance, and then scaled and shifted by a network of u.

    With a ``reach`` κ, points far from the data lie no farther in u than others: with
    s = 1/√(1 + ‖w‖²/κ) the first step is u ← s·u + E(s·w).

    Set the axes from data by ``initialize``. The chain holds the layers in this order: axes, E, D,
    the stack on u, and the two of the detail.

    Arguments:
        shape: Of x; images (C, H, W) or vectors (dim,).
        rank: Length of u, at least 2.
        hidden: Width of E and D; 512 for mlp, 16 channels for conv.
        nets: "mlp", "conv" (images only), or "auto": conv from 32×32 pixels on.
        blocks, flow_hidden, max_log_scale: Of the stack on u.
        detail: How many axes of w.
        reach: The squared length of w from which on it counts as far.

    Example:
        >>> g = subspace((1, 8, 8), rank=6, blocks=1).initialize(torch.rand(50, 1, 8, 8))
        >>> x = torch.rand(4, 1, 8, 8)
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-5)
        True
    """
    dim = math.prod(shape)
    if nets not in ("auto", "mlp", "conv"):
        raise ValueError(f'subspace: expected nets "auto", "mlp" or "conv", got {nets!r}.')
    if nets == "auto":
        nets = "conv" if len(shape) == 3 and min(shape[1:]) >= 32 else "mlp"
    if nets == "conv":
        C, H, W = _image("subspace", shape)
        width = hidden or 16
        dense = max(256, 8 * width)
        encode: nn.Module = ToVector((C, H, W), rank, width, dense)
        decode: nn.Module = FromVector(rank, (C, H, W), width, dense)
    else:
        encode = nn.Sequential(nn.Flatten(), MLP(dim, rank, hidden or 512))
        decode = MLP(rank, dim, hidden or 512)

    def bounded(inputs: int, outputs: int) -> nn.Module:
        return MLP(inputs, outputs, flow_hidden, bound=3.0)  # images far from data come back, too

    layers: list[Bijection] = [
        *autoencoder(encode, decode, shape, rank, "axes", reach, centred=True),
        OnPart(mlp(rank, blocks, conditioner=bounded, max_log_scale=max_log_scale), dim),
    ]
    if detail:
        kept = (rank + detail,)
        fine = AffineCoupling(
            kept, MLP(rank, 2 * detail, 128, bound=3.0), "second", max_log_scale, rank
        )
        layers += [
            OnPart(PrincipalAxes((dim - rank,), detail), dim, start=rank),
            OnPart(fine, dim),
        ]
    return Chain(*layers)


def encoder(
    shape: tuple[int, int, int],
    outputs: int,
    extra: int = 0,
    net: str | nn.Module = "conv",
    hidden: int = 32,
    decoder_hidden: int = 16,
    spread: float = 0.01,
    mirror: bool = False,
    pixels: bool = False,
) -> Chain:
    r"""An image as (u, w): u what networks say of it, w what a decoder cannot tell from u.

    FinestWaves sets as many of the finest waves apart as u is long, and then u ← u + E(w) and
    w ← w − D(u). So the first ``outputs`` coordinates are any network of almost all of the image,
    the next ``extra`` its coefficients along principal axes, and with w = 0 the inverse is the
    decoder D: an exact bijection of all of x. A last layer turns and scales u to uncorrelated
    coordinates of variance 1 (see ``PrincipalAxes.initialize``); until then it is the identity.

    The chain holds the layers in this order: waves, E, D, the last one.

    Arguments:
        shape: (C, H, W).
        outputs: Coordinates of the first network.
        extra: How many principal axes, of which D starts (``nets.EigenImages``).
        net: The first network: "conv" (``nets.ToVector``), "residual" (``nets.ResNet``), or any
            module that gives (n, outputs) of images (n, C, H, W).
        hidden: Its channels, of "conv" and "residual".
        decoder_hidden: Channels of D.
        spread: Standard deviation of the waves that E adds to. The less, the closer u is to E; the
            more, the less of those waves is in the images that D makes.
        mirror: Whether "residual" takes the mean over an image and its mirror image.
        pixels: Take pixels that the data never change in place of waves, if there are enough: u is
            then E itself, exactly (see ``FinestWaves``).

    Example:
        >>> g = encoder((1, 16, 16), outputs=3, hidden=8).initialize(torch.rand(20, 1, 16, 16))
        >>> x = torch.rand(4, 1, 16, 16)
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-4)
        True
    """
    _positive("encoder", outputs=outputs, hidden=hidden, decoder_hidden=decoder_hidden)
    _image("encoder", shape)
    if not isinstance(net, nn.Module) and net not in ("conv", "residual"):
        raise ValueError(f'encoder: expected net "conv", "residual" or a module, got {net!r}.')
    if not isinstance(extra, Integral) or extra < 0:
        raise ValueError(f"encoder: expected extra to be a whole number ≥ 0, got {extra!r}.")
    rank = outputs + extra
    dense = max(256, 8 * decoder_hidden)
    if isinstance(net, nn.Module):
        first = net
    elif net == "residual":
        first = ResNet(shape, outputs, hidden, mirror=mirror)
    else:
        first = ToVector(shape, outputs, hidden, max(256, 8 * hidden))
    encode = Branches(channels_last(first))
    decode: nn.Module = channels_last(FromVector(rank, shape, decoder_hidden, dense))
    if extra:
        eigen = EigenImages(shape, extra)
        encode, decode = Branches(*encode.nets, eigen), WithEigenImages(decode, eigen)
    split = "pixels" if pixels else "waves"
    return Chain(
        *autoencoder(encode, decode, shape, rank, split, spread=spread, centred=True),
        OnPart(PrincipalAxes((rank,), rank, LEAST), math.prod(shape)),
    )


class _OfRest(nn.Module):
    """w ↦ net(x), x the image that has no part along the leading axes."""

    def __init__(self, axes: PrincipalAxes | FinestWaves, net: nn.Module, centred: bool) -> None:
        super().__init__()
        self.axes, self.net, self.centred = axes, net, centred

    def image(self, w: Tensor) -> Tensor:
        """x, (n, *shape)."""
        x = self.axes.turn_back(w.new_zeros(w.shape[0], self.axes.rank), w)
        return (x if self.centred else x + self.axes.centre()).reshape(-1, *self.axes.shape)

    def forward(self, w: Tensor) -> Tensor:
        return self.net(self.image(w)).flatten(1)


class _Nearer(nn.Module):
    """w ↦ (net(s·x), log s), s = 1/√(1 + ‖w‖²/κ)."""

    def __init__(
        self, axes: PrincipalAxes | FinestWaves, net: nn.Module, centred: bool, reach: float
    ) -> None:
        super().__init__()
        self.rest, self.reach = _OfRest(axes, net, centred), reach

    def forward(self, w: Tensor) -> Tensor:
        log_scale = -0.5 * torch.log1p(w.square().sum(1, keepdim=True) / self.reach)
        shift = self.rest(w * log_scale.exp())
        return torch.cat([shift, log_scale.expand_as(shift)], 1)


class _ToRest(nn.Module):
    """u ↦ −P⊥ net(u), the part of an image that is not along the leading axes."""

    def __init__(
        self,
        axes: PrincipalAxes | FinestWaves,
        net: nn.Module,
        centred: bool,
        code: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.axes, self.net, self.centred, self.code = axes, net, centred, code

    def forward(self, u: Tensor) -> Tensor:
        made = self.net(u.reshape(len(u), *self.code)).flatten(1).to(u.dtype)
        made = made if self.centred else made - self.axes.centre()
        return -self.axes.turn(made)[:, self.axes.rank :]


def _image(where: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if not isinstance(shape, tuple | list) or len(shape) != 3:
        raise ValueError(f"{where}: expected an image shape (C, H, W), got {shape}.")
    return shape[0], shape[1], shape[2]


def _positive(where: str, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: expected {name} to be a whole number ≥ 1, got {value!r}.")
