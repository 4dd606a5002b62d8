r"""Linear cores A: matrices that know their own structure.

Columns in the mathematics, batch first in memory: an operator of shape (m, n) takes coordinates
``z`` of shape (batch, n) to (batch, m). Structure is kept wherever the mathematics allows it. What
has no structured result becomes :class:`Dense` up to :data:`DENSE_LIMIT` entries, and is an error
beyond it.

Pass an ``nn.Parameter`` to have it learned; any other tensor is kept as a buffer.
"""

from .base import DENSE_LIMIT, SVD, Dense, Eig, Operator, UnsupportedError
from .blocks import BlockDiagonal
from .convolution import Convolution
from .diagonal import Diagonal, Projector
from .lowrank import Identity, LowRank, ScaledIdentityPlusLowRank
from .mixing import MixingConvolution
from .spirals import Spirals

__all__ = [
    "DENSE_LIMIT",
    "SVD",
    "BlockDiagonal",
    "Convolution",
    "Dense",
    "Diagonal",
    "Eig",
    "Identity",
    "LowRank",
    "MixingConvolution",
    "Operator",
    "Projector",
    "ScaledIdentityPlusLowRank",
    "Spirals",
    "UnsupportedError",
]
