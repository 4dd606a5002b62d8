"""Nonlinear networks on which linear algebra is exact: f(x) = g_y⁻¹(A g_x(x))."""

from . import bijections, nets, operators
from .certificate import Certificate
from .linearizer import Linearizer
from .spaces import Space

__version__ = "0.1.0.dev0"
__all__ = ["Certificate", "Linearizer", "Space", "bijections", "nets", "operators"]
