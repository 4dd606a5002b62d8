r"""Layers that scale and mix channels: ActNorm and invertible matrices."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Bijection, full_precision, say

__all__ = ["ActNorm", "Conv1x1", "InvertibleLinear"]


class ActNorm(Bijection):
    r"""z = (x − μ) · s for each channel, μ and s set from data once so that z has mean 0, std 1.

    Initialisation is explicit (``initialize``), never a side effect of a pass; until then the
    layer is the identity. Whether it has happened is a buffer and travels with checkpoints.

    Example:
        >>> g = ActNorm((3,)).initialize(torch.randn(500, 3) * 7 + 1)
        >>> bool(g.initialized)
        True
    """

    initialized: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        channels = (self.shape[0], *(1,) * (len(self.shape) - 1))
        self.mean = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.log_scale.exp()  # subtract first: no digits lost to a mean

    def inverse(self, z: Tensor) -> Tensor:
        return torch.addcmul(self.mean, z, torch.exp(-self.log_scale))

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = self.log_scale.sum() * (self.dim // self.shape[0])
        return self.forward(x), log_det.expand(x.shape[0])

    def extra_repr(self) -> str:
        return f"{self.shape}, initialized={say(self.initialized)}"

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return self._twin(shape)

    def _initialize(self, x: Tensor) -> Tensor:
        if not self.initialized:
            axes = [0, *range(2, x.ndim)]
            mean = x.mean(axes, keepdim=True)
            std = (x - mean).square().mean(axes, keepdim=True).sqrt()
            noise = 1e2 * torch.finfo(x.dtype).eps * mean.abs()  # what rounding alone would give
            flat = ((std <= noise) | (std == 0)).flatten()
            if flat.any():
                dead = flat.nonzero().flatten().tolist()
                raise ValueError(
                    f"ActNorm.initialize: channel {', '.join(map(str, dead[:8]))}"
                    f"{' …' if len(dead) > 8 else ''} of {self.shape[0]} has zero variance in the "
                    "data, so it cannot be scaled to 1. Give a larger batch, drop the channel, or "
                    "add a little noise."
                )
            self.mean.copy_(mean[0])
            self.log_scale.copy_(-std[0].log())
            self.initialized.fill_(True)
        return self.forward(x)


class InvertibleLinear(Bijection):
    r"""z = W x along the channels, W = P L (U + diag(s)): unit L, |s| = e^{c·tanh(raw/c)}.

    s stays away from 0 and finite by construction, so W cannot become singular. W starts as a
    random rotation. On images it is the invertible 1×1 convolution (``Conv1x1``).

    Arguments:
        shape: (dim,) or (C, H, W).
    """

    max_log_scale = 10.0
    permutation: Tensor
    sign: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        n = self.shape[0]
        # Factors are found in float64: a rotation has pivots near 0 only by rounding.
        rotation = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0]
        P, L, U = torch.linalg.lu(rotation)
        s, c, dtype = U.diagonal(), self.max_log_scale, torch.get_default_dtype()
        self.lower = nn.Parameter(L.tril(-1).to(dtype))
        self.upper = nn.Parameter(U.triu(1).to(dtype))
        self.raw = nn.Parameter((c * torch.atanh(s.abs().log() / c)).to(dtype))
        self.register_buffer("sign", s.sign().to(dtype))
        # (P v)[i] = v[permutation[i]]
        self.register_buffer("permutation", P.argmax(1))

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        log_scale = self.max_log_scale * torch.tanh(self.raw / self.max_log_scale)
        lower = self.lower.tril(-1) + torch.eye(
            len(self.raw), dtype=self.raw.dtype, device=self.raw.device
        )
        upper = self.upper.triu(1) + torch.diag(self.sign * log_scale.exp())
        return lower, upper, log_scale

    def weight(self) -> Tensor:
        """W, (channels, channels)."""
        lower, upper, _ = self._factors()
        return (lower @ upper)[self.permutation]

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(x):
            return _mix(self.weight(), x)

    def inverse(self, z: Tensor) -> Tensor:
        with full_precision(z):
            lower, upper, _ = self._factors()
            dtype = torch.float32 if z.dtype.itemsize < 4 else z.dtype  # which torch can solve in
            lower, upper = lower.to(dtype), upper.to(dtype)
            # W x = z: undo P, then two triangular solves.
            columns = (
                z.movedim(1, 0).flatten(1).to(dtype)
                if len(self.shape) == 1
                else torch.eye(len(lower), dtype=dtype, device=z.device)
            )
            columns = columns[self.permutation.argsort()]
            columns = torch.linalg.solve_triangular(lower, columns, upper=False, unitriangular=True)
            columns = torch.linalg.solve_triangular(upper, columns, upper=True)
            columns = columns.to(z.dtype)
            return columns.mT if len(self.shape) == 1 else _mix(columns, z)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale = self.max_log_scale * torch.tanh(self.raw / self.max_log_scale)
        log_det = log_scale.sum() * math.prod(self.shape[1:])
        return self.forward(x), log_det.expand(x.shape[0])

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return self._twin(shape)


#: The invertible 1×1 convolution of Glow: :class:`InvertibleLinear` on (C, H, W).
Conv1x1 = InvertibleLinear


def _mix(W: Tensor, x: Tensor) -> Tensor:
    if x.ndim == 4:
        return F.conv2d(x, W[:, :, None, None])
    return torch.tensordot(x, W, dims=([1], [1])).movedim(-1, 1)
