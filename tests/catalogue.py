"""Every concrete operator and bijection: one line here buys every law."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linearizer import operators
from linearizer.bijections import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Chain,
    FinestWaves,
    Flatten,
    InvertibleLinear,
    LevelAndWaves,
    Monotone,
    OnPart,
    PixelShuffle,
    PrincipalAxes,
    SpatialSplit2x2,
    Squeeze,
    Swap,
    Twist,
    autoencoder,
    encoder,
    glow,
    mlp,
    patches,
    revnet,
    subspace,
)
from linearizer.nets import MLP, ResidualConv, UNet
from linearizer.operators import (
    BlockDiagonal,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MatrixFree,
    MixingConvolution,
    Operator,
    Projector,
    ScaledIdentityPlusLowRank,
    Spirals,
)

randn = torch.randn


def positive(n):
    """A matrix with no eigenvalue on the negative axis, so that fractional powers exist."""
    M = randn(n, n)
    return M @ M.mT + 0.3 * (M - M.mT) + torch.eye(n)


def delta_plus(size, shape, amount=0.1):
    kernel = amount * randn(shape[0], size, size)
    kernel[:, (size - 1) // 2, (size - 1) // 2] += 1.0
    return kernel


def framed():
    """Images (40, 2, 4, 6) whose border is all ones."""
    return torch.nn.functional.pad(randn(40, 2, 2, 4), (1, 1, 1, 1), value=1.0)


def mixing_plus(size, channels, amount):
    """A kernel across channels near the identity, so that fractional powers exist."""
    kernel = amount * randn(channels, channels, size, size)
    kernel[..., (size - 1) // 2, (size - 1) // 2] += torch.eye(channels)
    return kernel


def flat(kernel):
    """The same kernel with mean 0: it forgets the mean of every channel."""
    return kernel - kernel.mean((-2, -1), keepdim=True)


OPERATORS = {
    "identity": lambda: Identity(5),
    "identity, scaled": lambda: Identity(5) * -0.5,
    "dense, square": lambda: Dense(randn(5, 5)),
    "dense, powers exist": lambda: Dense(positive(4)),
    "dense, tall": lambda: Dense(randn(6, 4)),
    "dense, wide": lambda: Dense(randn(3, 5)),
    "dense, singular": lambda: Dense(randn(5, 2) @ randn(2, 5)),
    "dense, zero": lambda: Dense(torch.zeros(3, 4)),
    "dense, batch": lambda: Dense(randn(7, 4, 5)),
    "diagonal": lambda: Diagonal(torch.tensor([1.0, 0.5, 3.0])),
    "diagonal, singular": lambda: Diagonal(torch.tensor([1.0, 0.0, -3.0])),
    "diagonal, batch": lambda: Diagonal(randn(7, 4)),
    "projector": lambda: Projector(torch.tensor([2.0, -1.0, 0.0, 0.3])),
    "projector, batch": lambda: Projector(randn(7, 4)),
    "low rank": lambda: LowRank(randn(6, 2), randn(6, 2)),
    "low rank, tall": lambda: LowRank(randn(7, 2), randn(4, 2)),
    "low rank, wide": lambda: LowRank(randn(3, 2), randn(6, 2)),
    "low rank, dependent": lambda: LowRank(randn(6, 1).expand(6, 3), randn(5, 3)),
    "low rank, too many columns": lambda: LowRank(randn(4, 9), randn(6, 9)),
    "low rank, zero": lambda: LowRank(torch.zeros(4, 2), randn(3, 2)),
    "low rank, batch": lambda: LowRank(randn(7, 5, 2), randn(4, 2)),
    "scaled identity + low rank": lambda: ScaledIdentityPlusLowRank(1.5, randn(9, 2), randn(9, 2)),
    "scaled identity + low rank, powers exist": lambda: (
        lambda U: ScaledIdentityPlusLowRank(1.5, U, U)
    )(randn(9, 2)),
    "scaled identity + low rank, negative": lambda: ScaledIdentityPlusLowRank(
        -0.7, randn(5, 3), randn(5, 3)
    ),
    "scaled identity + low rank, alpha 0": lambda: ScaledIdentityPlusLowRank(
        0.0, randn(6, 2), randn(6, 2)
    ),
    "scaled identity + low rank, full": lambda: ScaledIdentityPlusLowRank(
        0.0, randn(4, 4), randn(4, 4)
    ),
    "scaled identity + low rank, singular": lambda: ScaledIdentityPlusLowRank(
        1.0, -torch.eye(6)[:, :1], torch.eye(6)[:, :1]
    ),
    "scaled identity + low rank, batch": lambda: ScaledIdentityPlusLowRank(
        randn(7), randn(7, 6, 2), randn(6, 2)
    ),
    "scaled identity + low rank, one alpha": lambda: ScaledIdentityPlusLowRank(
        2.0, randn(7, 6, 2), randn(7, 6, 2)
    ),
    "block diagonal": lambda: BlockDiagonal(randn(3, 2, 2)),
    "block diagonal, powers exist": lambda: BlockDiagonal(
        torch.stack([positive(3), positive(3) / 9])
    ),
    "block diagonal, tall": lambda: BlockDiagonal(randn(2, 4, 3)),
    "block diagonal, wide": lambda: BlockDiagonal(randn(3, 2, 4)),
    "block diagonal, singular": lambda: BlockDiagonal(
        torch.stack([randn(3, 1) @ randn(1, 3), torch.zeros(3, 3)])
    ),
    "block diagonal, one block": lambda: BlockDiagonal(randn(1, 3, 2)),
    "block diagonal, batch": lambda: BlockDiagonal(randn(7, 2, 2, 3)),
    "spirals": lambda: Spirals(randn(2), randn(2), randn(3)),
    "spirals, powers exist": lambda: Spirals(1 + randn(2).abs(), randn(2), 1 + randn(2).abs()),
    "spirals, singular": lambda: Spirals(
        torch.tensor([0.0, -2.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, -3.0, 0.5])
    ),
    "spirals, planes alone": lambda: Spirals(randn(2), randn(2)),
    "spirals, batch": lambda: Spirals(randn(7, 2), randn(7, 2), randn(1)),
    "convolution, circular": lambda: Convolution(randn(2, 3, 3), (2, 4, 5)),
    "convolution, circular, even": lambda: Convolution(randn(2, 4, 4), (2, 4, 6)),
    "convolution, circular, powers exist": lambda: Convolution(
        delta_plus(3, (2, 5, 4), 0.05), (2, 5, 4)
    ),
    "convolution, circular, larger than the image": lambda: Convolution(randn(1, 5, 4), (1, 3, 3)),
    "convolution, circular, singular": lambda: Convolution(torch.ones(1, 1, 2) / 2, (1, 3, 4)),
    "convolution, circular, batch": lambda: Convolution(randn(7, 2, 3, 2), (2, 3, 4)),
    "convolution, zero-padded": lambda: Convolution(randn(2, 3, 3), (2, 4, 3), "zero"),
    "convolution, zero-padded, even": lambda: Convolution(randn(2, 4, 2), (2, 4, 5), "zero"),
    "convolution, zero-padded, batch": lambda: Convolution(randn(7, 2, 3, 2), (2, 3, 4), "zero"),
    "mixing convolution": lambda: MixingConvolution(randn(2, 2, 3, 3), (2, 4, 5)),
    "mixing convolution, even": lambda: MixingConvolution(randn(3, 3, 4, 2), (3, 4, 6)),
    "mixing convolution, powers exist": lambda: MixingConvolution(
        mixing_plus(3, 2, 0.05), (2, 5, 4)
    ),
    "mixing convolution, tall": lambda: MixingConvolution(randn(3, 2, 2, 3), (2, 3, 4)),
    "mixing convolution, wide": lambda: MixingConvolution(randn(1, 3, 3, 3), (3, 5, 3)),
    "mixing convolution, singular": lambda: MixingConvolution(flat(randn(2, 2, 3, 2)), (2, 3, 4)),
    "mixing convolution, rank one, one column": lambda: MixingConvolution(
        randn(2, 1, 2, 1) * randn(1, 2, 1, 1), (2, 5, 1)
    ),
    "mixing convolution, one row": lambda: MixingConvolution(randn(2, 3, 1, 2), (3, 1, 4)),
    "mixing convolution, one pixel": lambda: MixingConvolution(randn(2, 2, 1, 1), (2, 1, 1)),
    "mixing convolution, larger than the image": lambda: MixingConvolution(
        randn(2, 2, 5, 4), (2, 3, 3), (4, 0)
    ),
    "mixing convolution, through Fourier space": lambda: MixingConvolution(
        randn(2, 1, 9, 8), (1, 9, 8)
    ),
    "matrix free, wide": lambda: free(3, 5),
    "mixing convolution, batch": lambda: MixingConvolution(randn(7, 2, 2, 3, 2), (2, 3, 4)),
}


def concrete(module, base):
    """Every class of a module that can be built."""
    found = (c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, base))
    return {c for c in found if not inspect.isabstract(c)}


#: Every class of operators.
CLASSES = sorted(concrete(operators, Operator), key=lambda c: c.__name__)


@dataclass(frozen=True)
class Generic:
    """An operator as a function of its tensors, well conditioned, so that each kind fits each.

    ``tensors`` draws each of them, given the axes before its own: none, or a batch. Those of
    ``shared`` never have a batch axis.
    """

    kind: type[Operator]
    build: Callable[..., Operator]
    tensors: dict[str, Callable[..., Tensor]]
    shared: tuple[str, ...] = ()

    def draw(self, batch: int | None = None) -> dict[str, Tensor]:
        lead = () if batch is None else (batch,)
        return {k: f(*(() if k in self.shared else lead)) for k, f in self.tensors.items()}

    def make(self, batch: int | None = None) -> Operator:
        return self.build(**self.draw(batch))


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def near(centre: Tensor, amount: float = 0.15) -> Callable[..., Tensor]:
    return lambda *lead: centre + amount * randn(*lead, *centre.shape)


def above(low: float, *shape: int) -> Callable[..., Tensor]:
    return lambda *lead: low + torch.rand((*lead, *shape))


def tap(channels: tuple[int, ...], size: tuple[int, int]) -> Tensor:
    """A kernel (*channels, *size) whose tap over the pixel is 1 within a channel."""
    kernel = torch.zeros(*channels, *size, dtype=torch.float64)
    one = torch.eye(*channels) if len(channels) == 2 else torch.ones(*channels)
    kernel[..., (size[0] - 1) // 2, (size[1] - 1) // 2] = one.double()
    return kernel


IMAGE = (3, 2, 2)  # 12 coordinates, as all square operators below have


def factor(rows: int = 12) -> Callable[..., Tensor]:
    return lambda *lead: eye(3).repeat(rows // 3, 1) + 0.3 * randn(*lead, rows, 3)


def free(m, n):
    M = randn(m, n) + 6 * torch.eye(m, n)
    return MatrixFree(lambda z: z @ M.to(z).mT, lambda w: w @ M.to(w), (m, n))


GENERIC = {
    "identity": Generic(Identity, lambda: Identity(12), {}),
    "dense": Generic(Dense, Dense, {"matrix": near(eye(12))}),
    "dense, tall": Generic(Dense, Dense, {"matrix": lambda *lead: randn(*lead, 24, 12)}),
    "dense, wide": Generic(Dense, Dense, {"matrix": lambda *lead: randn(*lead, 12, 24)}),
    "diagonal": Generic(Diagonal, Diagonal, {"diagonal": above(0.5, 12)}),
    "projector": Generic(Projector, Projector, {"logits": lambda *lead: randn(*lead, 12)}),
    "low rank": Generic(LowRank, LowRank, {"U": factor(), "V": factor()}),
    "low rank, one batch": Generic(LowRank, LowRank, {"U": factor(), "V": factor()}, ("V",)),
    "low rank, tall": Generic(LowRank, LowRank, {"U": factor(24), "V": factor()}),
    "low rank, wide": Generic(LowRank, LowRank, {"U": factor(), "V": factor(24)}),
    "scaled identity + low rank": Generic(
        ScaledIdentityPlusLowRank,
        ScaledIdentityPlusLowRank,
        {"alpha": above(1.0), "U": factor(), "V": factor()},
    ),
    "scaled identity + low rank, batch of alpha": Generic(
        ScaledIdentityPlusLowRank,
        ScaledIdentityPlusLowRank,
        {"alpha": above(1.0), "U": factor(), "V": factor()},
        ("U", "V"),
    ),
    "block diagonal": Generic(
        BlockDiagonal, BlockDiagonal, {"blocks": near(eye(4).repeat(3, 1, 1))}
    ),
    "block diagonal, tall": Generic(
        BlockDiagonal, BlockDiagonal, {"blocks": lambda *lead: randn(*lead, 3, 8, 4)}
    ),
    "block diagonal, wide": Generic(
        BlockDiagonal, BlockDiagonal, {"blocks": lambda *lead: randn(*lead, 6, 2, 4)}
    ),
    "spirals": Generic(
        Spirals,
        Spirals,
        {"real": above(0.5, 4), "imag": lambda *lead: randn(*lead, 4), "single": above(0.5, 4)},
    ),
    "spirals, one batch": Generic(
        Spirals,
        Spirals,
        {"real": above(0.5, 4), "imag": lambda *lead: randn(*lead, 4), "single": above(0.5, 4)},
        ("single",),
    ),
    "convolution": Generic(
        Convolution,
        lambda kernel: Convolution(kernel, IMAGE),
        {"kernel": near(tap((3,), (2, 2)), 0.1)},
    ),
    "convolution, zero-padded": Generic(
        Convolution,
        lambda kernel: Convolution(kernel, (1, 3, 4), "zero"),
        {"kernel": near(tap((1,), (3, 2)), 0.1)},
    ),
    "mixing convolution": Generic(
        MixingConvolution,
        lambda kernel: MixingConvolution(kernel, IMAGE),
        {"kernel": near(tap((3, 3), (1, 2)), 0.1)},
    ),
    "mixing convolution, tall": Generic(
        MixingConvolution,
        lambda kernel: MixingConvolution(kernel, IMAGE),
        {"kernel": lambda *lead: randn(*lead, 6, 3, 2, 1)},
    ),
    "mixing convolution, wide": Generic(
        MixingConvolution,
        lambda kernel: MixingConvolution(kernel, (6, 2, 2)),
        {"kernel": lambda *lead: randn(*lead, 3, 6, 2, 2)},
    ),
    "matrix free": Generic(MatrixFree, lambda: free(12, 12), {}),
}
SQUARE = [name for name in GENERIC if not name.endswith(("tall", "wide"))]


def shaken(g):
    """Fresh layers are near the identity: move every parameter, so that a wrong inverse shows."""
    with torch.no_grad():
        for p in g.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return g


def conv(inputs, outputs):
    return ResidualConv(inputs, outputs, hidden=8)


BIJECTIONS = {
    "twist": lambda: Twist(7, 2, MLP(5, 2, 8)),
    "twist, planes alone": lambda: Twist(4, 2, MLP(2, 2, 8)),
    "flatten": lambda: Flatten((2, 3)),
    "actnorm, vectors": lambda: ActNorm((5,)),
    "actnorm, images": lambda: ActNorm((3, 4, 4)),
    "invertible linear": lambda: InvertibleLinear((7,)),
    "invertible linear, one": lambda: InvertibleLinear((1,)),
    "invertible 1×1": lambda: InvertibleLinear((4, 3, 5)),
    "invertible on sequences": lambda: InvertibleLinear((4, 6)),
    "squeeze": lambda: Squeeze((3, 4, 6)),
    "pixel shuffle": lambda: PixelShuffle((8, 3, 2)),
    "spatial split": lambda: SpatialSplit2x2((3, 4, 6)),
    "affine coupling, odd vector": lambda: AffineCoupling((5,), MLP(3, 4, 16)),
    "affine coupling, second half": lambda: AffineCoupling((5,), MLP(2, 6, 16), "second"),
    "affine coupling, images": lambda: AffineCoupling((4, 4, 4), conv(2, 4)),
    "affine coupling, u-net": lambda: AffineCoupling((4, 6, 5), UNet(2, 4, 8, levels=2)),
    "affine coupling, deep u-net": lambda: AffineCoupling((4, 4, 4), UNet(2, 4, 4, blocks=2)),
    "affine coupling, hard clamp": lambda: AffineCoupling((5,), MLP(3, 4, 16), clamp="hard"),
    "additive coupling": lambda: AdditiveCoupling((6,), MLP(3, 3, 16), "second"),
    "additive coupling, cut": lambda: AdditiveCoupling((7,), MLP(5, 2, 16), cut=2),
    "affine coupling, cut": lambda: AffineCoupling((5,), MLP(1, 8, 16), "second", cut=1),
    "principal axes": lambda: PrincipalAxes((2, 3), 2).initialize(randn(40, 2, 3) * 2 + 1),
    "principal axes, all": lambda: PrincipalAxes((4,), 4).initialize(randn(40, 4)),
    "principal axes, few samples": lambda: PrincipalAxes((9,), 2).initialize(randn(5, 9)),
    "subspace": lambda: subspace((1, 4, 4), 3, 8, blocks=1, flow_hidden=8).initialize(
        randn(30, 1, 4, 4)
    ),
    "subspace, detail": lambda: subspace(
        (1, 4, 4), 3, 8, blocks=1, flow_hidden=8, detail=4
    ).initialize(randn(30, 1, 4, 4)),
    "subspace, convolutions": lambda: subspace(
        (2, 8, 8), 4, 4, "conv", blocks=1, flow_hidden=8
    ).initialize(randn(30, 2, 8, 8)),
    "finest waves": lambda: FinestWaves((2, 4, 6), 5).initialize(randn(40, 2, 4, 6) * 2 + 1),
    "finest waves, fresh": lambda: FinestWaves((1, 3, 5), 15),
    "finest waves, pixels": lambda: FinestWaves((2, 4, 6), 5, pixels=True).initialize(framed()),
    "finest waves, no such pixels": lambda: FinestWaves((2, 4, 6), 5, pixels=True).initialize(
        randn(40, 2, 4, 6)
    ),
    "principal axes, of little": lambda: PrincipalAxes((4,), 4, least=0.1).initialize(
        randn(9, 4) * torch.tensor([1.0, 1.0, 0.01, 0.0])
    ),
    "encoder, pixels": lambda: encoder(
        (2, 4, 6), 3, hidden=4, decoder_hidden=4, pixels=True
    ).initialize(framed()),
    "encoder": lambda: encoder((1, 8, 8), 3, 2, hidden=4, decoder_hidden=4).initialize(
        randn(40, 1, 8, 8)
    ),
    "encoder, residual": lambda: encoder((3, 16, 16), 2, net="residual", hidden=8).initialize(
        randn(40, 3, 16, 16)
    ),
    "autoencoder, vector": lambda: autoencoder(
        nn.Linear(7, 3), MLP(3, 7, 8), (7,), 3, "axes", reach=2.0
    ).initialize(randn(40, 7)),
    "autoencoder, waves": lambda: autoencoder(
        nn.Sequential(nn.Flatten(), MLP(32, 5, 8)), MLP(5, 32, 8), (2, 4, 4), 5
    ).initialize(randn(40, 2, 4, 4)),
    "autoencoder, map": lambda: autoencoder(
        nn.Conv2d(3, 4, 4, 4), nn.ConvTranspose2d(4, 3, 4, 4), (3, 8, 4), (4, 2, 1), reach=9.0
    ).initialize(randn(40, 3, 8, 4)),
    "on part, first": lambda: OnPart(mlp(3, blocks=2, hidden=16), 7),
    "on part, middle": lambda: OnPart(mlp(3, blocks=2, hidden=16), 7, start=2),
    "additive coupling, no parameters": lambda: AdditiveCoupling((4, 2, 2), nn.Tanh()),
    "level and waves": lambda: LevelAndWaves((6, 2)).initialize(randn(40, 6, 2) * 2 + 1),
    "level and waves, constant": lambda: LevelAndWaves((5, 3), constant=True).initialize(
        randn(40, 5, 3).cumsum(1)
    ),
    "level and waves, two steps": lambda: LevelAndWaves((2, 1)),
    "monotone": lambda: Monotone((4, 3)),
    "monotone, few knots": lambda: Monotone((3, 1), knots=2, low=-0.5, high=0.5),
    "swap": lambda: Swap((4, 3)),
    "chain": lambda: Chain(Squeeze((1, 4, 4)), ActNorm((4, 2, 2)), Flatten((4, 2, 2))),
    "patches": lambda: patches((3, 8, 12), squeezes=1, blocks=2, hidden=6),
    "glow, grey": lambda: glow((1, 8, 8)),
    "glow, colour": lambda: glow((3, 4, 6), blocks=2),
    "glow, even channels": lambda: glow((2, 5, 3), blocks=2),
    "glow, saving memory": lambda: glow((1, 8, 8), blocks=3, save_memory=True),
    "glow, u-net": lambda: glow((1, 8, 8), blocks=2, conditioner=lambda i, o: UNet(i, o, 8)),
    "revnet": lambda: revnet((1, 8, 8)),
    "revnet, colour": lambda: revnet((3, 16, 8), blocks=3),
    "mlp": lambda: mlp(8, hidden=32),
    "mlp, two": lambda: mlp(2, hidden=32),
    "mlp, odd, saving memory": lambda: mlp(5, blocks=3, hidden=32, save_memory=True),
}
