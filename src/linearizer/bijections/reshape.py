r"""Bijections that only move numbers: squeeze, pixel shuffle, the projector's 2×2 split."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Bijection

__all__ = ["PixelShuffle", "SpatialSplit2x2", "Squeeze"]


class _Move(Bijection):
    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), x.new_zeros(x.shape[0])


def _quartered(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
        raise ValueError(
            f"{name}: expected an image (C, H, W) with even H and W, got {tuple(shape)}. "
            "Pad it to even sides first."
        )
    return 4 * shape[0], shape[1] // 2, shape[2] // 2


class Squeeze(_Move):
    r"""(C, H, W) → (4C, H/2, W/2): each 2×2 patch becomes channels (pixel unshuffle)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, _quartered("Squeeze", shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, 2)

    def inverse(self, z: Tensor) -> Tensor:
        return F.pixel_shuffle(z, 2)


class PixelShuffle(_Move):
    r"""(4C, H, W) → (C, 2H, 2W), the inverse of :class:`Squeeze`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or shape[0] % 4:
            raise ValueError(
                f"PixelShuffle: expected (4C, H, W), got {tuple(shape)}: channels divide by 4."
            )
        super().__init__(shape, (shape[0] // 4, 2 * shape[1], 2 * shape[2]))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, 2)

    def inverse(self, z: Tensor) -> Tensor:
        return F.pixel_unshuffle(z, 2)


class SpatialSplit2x2(_Move):
    r"""(C, H, W) → (4C, H/2, W/2), the four positions of a 2×2 patch in a fixed order.

    The first half of the channels is one stream, the second half the other: the order says which
    pixels of each patch meet in a coupling. Paper: SpatialSplit2x2Rand, appendix G.1.

    Arguments:
        shape: (C, H, W) with even sides.
        order: A permutation of the positions 0 1 / 2 3.
    """

    order: Tensor

    def __init__(self, shape: tuple[int, ...], order: tuple[int, ...] = (0, 3, 1, 2)) -> None:
        super().__init__(shape, _quartered("SpatialSplit2x2", shape))
        if sorted(order) != [0, 1, 2, 3]:
            raise ValueError(f"SpatialSplit2x2: expected a permutation of 0, 1, 2, 3, got {order}.")
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(x, 2).unflatten(1, (-1, 4))  # (batch, C, 4, H/2, W/2)
        return patches.transpose(1, 2)[:, self.order].flatten(1, 2)

    def inverse(self, z: Tensor) -> Tensor:
        patches = z.unflatten(1, (4, -1))[:, self.order.argsort()].transpose(1, 2)
        return F.pixel_shuffle(patches.flatten(1, 2), 2)
