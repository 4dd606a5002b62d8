r"""Bijections that only move numbers: squeeze, pixel shuffle, the projector's 2×2 split."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Bijection

__all__ = ["PixelShuffle", "SpatialSplit2x2", "Squeeze"]


class _Move(Bijection):
    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), x.new_zeros(x.shape[0])


def _quarter(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
        raise ValueError(
            f"{name}: expected an image (C, H, W) with even H and W, got {tuple(shape)}. "
            "Pad it to even sides first."
        )
    return 4 * shape[0], shape[1] // 2, shape[2] // 2


# torch's pixel_shuffle and pixel_unshuffle give an empty batch back with its shape unchanged.
def _unshuffle(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    patches = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4)
    return patches.reshape(b, 4 * c, h // 2, w // 2)


def _shuffle(z: Tensor) -> Tensor:
    b, c, h, w = z.shape
    patches = z.reshape(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
    return patches.reshape(b, c // 4, 2 * h, 2 * w)


class Squeeze(_Move):
    r"""(C, H, W) → (4C, H/2, W/2): each 2×2 patch becomes channels (pixel unshuffle)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, _quarter("Squeeze", shape))

    def forward(self, x: Tensor) -> Tensor:
        return _unshuffle(x)

    def inverse(self, z: Tensor) -> Tensor:
        return _shuffle(z)

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return Squeeze(shape)


class PixelShuffle(_Move):
    r"""(4C, H, W) → (C, 2H, 2W), the inverse of :class:`Squeeze`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or shape[0] % 4:
            raise ValueError(
                f"PixelShuffle: expected (4C, H, W), got {tuple(shape)}: channels divide by 4."
            )
        super().__init__(shape, (shape[0] // 4, 2 * shape[1], 2 * shape[2]))

    def forward(self, x: Tensor) -> Tensor:
        return _shuffle(x)

    def inverse(self, z: Tensor) -> Tensor:
        return _unshuffle(z)

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return PixelShuffle(shape)


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
        super().__init__(shape, _quarter("SpatialSplit2x2", shape))
        if sorted(order) != [0, 1, 2, 3]:
            raise ValueError(f"SpatialSplit2x2: expected a permutation of 0, 1, 2, 3, got {order}.")
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x: Tensor) -> Tensor:
        patches = _unshuffle(x).unflatten(1, (self.shape[0], 4))  # (batch, C, 4, H/2, W/2)
        return patches.transpose(1, 2)[:, self.order].flatten(1, 2)

    def inverse(self, z: Tensor) -> Tensor:
        patches = z.unflatten(1, (4, self.shape[0]))[:, self.order.argsort()].transpose(1, 2)
        return _shuffle(patches.flatten(1, 2))

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return self._twin(shape, _quarter("SpatialSplit2x2", shape))
