r"""Linear cores A: matrices that know their own structure.

Columns in the mathematics, batch first in memory: an operator of shape (m, n) takes coordinates
``z`` of shape (batch, n) to (batch, m). Structure is kept wherever the mathematics allows it. What
has no structured result becomes :class:`Dense` up to :data:`DENSE_LIMIT` entries, and is an error
beyond it.

Pass an ``nn.Parameter`` to have it learned; any other tensor is kept as a buffer.
"""

from . import algebra as _rules  # noqa: F401  it fills the tables of products and sums
from .base import DENSE_LIMIT, SVD, Dense, Eig, Operator, UnsupportedError
from .blocks import BlockDiagonal
from .convolution import Convolution
from .diagonal import Diagonal, Projector
from .free import MatrixFree, from_callable, from_scipy
from .lowrank import Identity, LowRank, ScaledIdentityPlusLowRank
from .mixing import MixingConvolution
from .rules import add, product, register
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
    "MatrixFree",
    "MixingConvolution",
    "Operator",
    "Projector",
    "ScaledIdentityPlusLowRank",
    "Spirals",
    "UnsupportedError",
    "add",
    "from_callable",
    "from_scipy",
    "product",
    "register",
]
