r"""Planes turned by angles that depend on how far out a point is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..nets import refuse_mode_dependent
from .base import Bijection

__all__ = ["Twist"]


class Twist(Bijection):
    r"""Each plane of two coordinates turns by an angle of all radii and of the single coordinates.

    (x, y) ↦ R(θ)(x, y) with θ = net(r₁², …, c₁, …). Radii and singles stay, so the inverse turns
    back by the same angles, and volume is kept. A swing whose frequency depends on its amplitude
    becomes one whose frequency does not, by the right θ.

    Arguments:
        dim: Length of the vectors.
        planes: How many planes; the other dim − 2·planes coordinates are single.
        net: From (planes + singles) numbers, bounded by 1, to one angle for each plane.

    Example:
        >>> g = Twist(3, 1, nn.Linear(2, 1))
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(g(x)[:, :2].norm(dim=1), x[:, :2].norm(dim=1), atol=1e-6)
        True
    """

    def __init__(self, dim: int, planes: int, net: nn.Module) -> None:
        super().__init__((dim,))
        if not 1 <= planes <= dim // 2:
            raise ValueError(f"Twist: expected 1 to {dim // 2} planes in {dim}, got {planes}.")
        refuse_mode_dependent(net, "Twist")
        self.planes, self.net = planes, net

    def _turn(self, x: Tensor, sign: float) -> Tensor:
        k = 2 * self.planes
        a, b, rest = x[:, 0:k:2], x[:, 1:k:2], x[:, k:]
        square = a.square() + b.square()
        seen = torch.cat([square / (1 + square), rest / (1 + rest.square()).sqrt()], 1)
        angle = sign * self.net(seen).to(x.dtype)
        cos, sin = angle.cos(), angle.sin()
        planes = torch.stack([cos * a - sin * b, sin * a + cos * b], -1).flatten(1)
        return torch.cat([planes, rest], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self._turn(x, 1.0)

    def inverse(self, z: Tensor) -> Tensor:
        return self._turn(z, -1.0)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), x.new_zeros(x.shape[0])

    def extra_repr(self) -> str:
        return f"{self.shape}, planes={self.planes}"
