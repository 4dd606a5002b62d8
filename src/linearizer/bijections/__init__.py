"""Invertible networks g: the contract, its layers, ready-made stacks, and wrappers of peers'."""

from .adapters import from_freia, from_nflows, from_normflows, from_zuko
from .axes import FinestWaves, OnPart, PrincipalAxes
from .base import Bijection, Chain, Flatten, resize
from .coupling import AdditiveCoupling, AffineCoupling
from .mixing import ActNorm, Conv1x1, InvertibleLinear
from .reshape import PixelShuffle, SpatialSplit2x2, Squeeze
from .series import LevelAndWaves, Monotone, Swap
from .stacks import autoencoder, encoder, glow, mlp, patches, revnet, subspace
from .twist import Twist

__all__ = [
    "ActNorm",
    "AdditiveCoupling",
    "AffineCoupling",
    "Bijection",
    "Chain",
    "Conv1x1",
    "FinestWaves",
    "Flatten",
    "InvertibleLinear",
    "LevelAndWaves",
    "Monotone",
    "OnPart",
    "PixelShuffle",
    "PrincipalAxes",
    "SpatialSplit2x2",
    "Squeeze",
    "Swap",
    "Twist",
    "autoencoder",
    "encoder",
    "from_freia",
    "from_nflows",
    "from_normflows",
    "from_zuko",
    "glow",
    "mlp",
    "patches",
    "resize",
    "revnet",
    "subspace",
]
