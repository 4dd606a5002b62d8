r"""Depthwise convolutions, exact in Fourier space where they wrap around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import SVD, Eig, Operator
from .matrices import (
    as_complex,
    batch_of,
    count,
    finite,
    fix_signs,
    hold,
    middle,
    no_log,
    nonsingular,
    peak,
    phases,
    reciprocal,
    require_axes,
    scalar,
    spectral_power,
)
from .rules import null_of, range_of, register


class Kernel(Protocol):
    """A convolution, with channels mixed or not."""

    kernel: Tensor
    image: tuple[int, int, int]
    origin: tuple[int, int]
    padding: str


class Convolution(Operator):
    r"""Depthwise convolution of an image: (Az)[c, i] = Σ_j k[c, j] z[c, i + j − origin].

    ``padding="circular"`` wraps around: A is then diagonal in Fourier space, and products, powers,
    pseudo-inverse, exponential, SVD and eigenvectors are exact there. ``padding="zero"`` is the
    usual 'same' convolution of neural networks; transpose and sums keep the structure, products do
    not (at the border they are no convolutions).

    Paper: appendix G.3 (the 4 × 4 kernel of a style).

    Arguments:
        kernel: (C, kh, kw), or (batch, C, kh, kw).
        shape: The image, (C, H, W); coordinates are (batch, C·H·W).
        padding: "circular" or "zero".
        origin: The tap that stands over the pixel itself; PyTorch's 'same' by default.

    Example:
        >>> A = Convolution(torch.tensor([[[0.0, 1.0]]]), (1, 1, 3))   # shift by one pixel
        >>> z = torch.tensor([[1.0, 2.0, 3.0]])
        >>> torch.allclose((A**3)(z), z, atol=1e-6)
        True
    """

    kernel: Tensor

    def __init__(
        self,
        kernel: Tensor,
        shape: tuple[int, int, int],
        padding: str = "circular",
        origin: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        require_axes(self, "kernel", kernel, 3)
        if padding not in ("circular", "zero"):
            raise ValueError(
                f'Convolution: expected padding "circular" or "zero", got {padding!r}.'
            )
        if len(shape) != 3 or kernel.shape[-3] != shape[0]:
            raise ValueError(
                f"Convolution: expected a kernel (C, kh, kw) for an image (C, H, W), got a kernel "
                f"{tuple(kernel.shape)} for {tuple(shape)}. It is depthwise: one filter a channel."
            )
        kh, kw = kernel.shape[-2:]
        self.image = (int(shape[0]), int(shape[1]), int(shape[2]))
        self.padding = padding
        self.origin = ((kh - 1) // 2, (kw - 1) // 2) if origin is None else origin
        if not (0 <= self.origin[0] < kh and 0 <= self.origin[1] < kw):
            raise ValueError(f"Convolution: origin {self.origin} is outside the {kh}×{kw} kernel.")
        hold(self, "kernel", kernel)

    @property
    def shape(self) -> tuple[int, int]:
        C, H, W = self.image
        return C * H * W, C * H * W

    @property
    def batch(self) -> int | None:
        return batch_of((self.kernel, 3))

    @property
    def T(self) -> Convolution:
        kh, kw = self.kernel.shape[-2:]
        origin = (kh - 1 - self.origin[0], kw - 1 - self.origin[1])
        return Convolution(self.kernel.flip(-2, -1), self.image, self.padding, origin)

    def forward(self, z: Tensor) -> Tensor:
        if not z.numel():  # the FFT refuses an empty batch
            return z.clone()
        image = z.unflatten(-1, self.image)
        if self.padding == "circular":
            multiplier = middle(self._multiplier(), image, 3)
            out = torch.fft.irfft2(multiplier * torch.fft.rfft2(image), s=self.image[1:])
        else:
            groups = self.image[0]
            out = correlate(image, self.kernel.unsqueeze(-3), self.origin, groups, "constant")
        return out.flatten(-3)

    def resize(self, image: tuple[int, int, int]) -> Convolution:
        """The very same kernel, learned with this one, on an image of another size."""
        check_resized(self, image)
        return Convolution(self.kernel, image, self.padding, self.origin)

    def _multiplier(self, half: bool = True) -> Tensor:
        return multiplier(self.kernel, self.origin, self.image[1:], half)

    def _from_multiplier(self, multiplier: Tensor) -> Convolution:
        kernel = torch.fft.irfft2(multiplier.conj(), s=self.image[1:])
        return Convolution(kernel, self.image, "circular", (0, 0))

    def _in_fourier(self, function: Callable[[Tensor], Tensor]) -> Convolution:
        return self._from_multiplier(function(self._multiplier()))

    def scale(self, c: float | Tensor) -> Convolution:
        kernel = scalar(c, self, 3) * self.kernel
        return Convolution(kernel, self.image, self.padding, self.origin)

    def _integer_power(self, p: int) -> Operator:
        if self.padding == "zero":
            return super()._integer_power(p)
        return self._in_fourier(lambda m: m**p)

    def _fractional_power(self, p: float) -> Operator:
        if self.padding == "zero":
            return super()._fractional_power(p)
        return self._from_multiplier(
            spectral_power(self._multiplier(half=False), p, self)[..., : self.image[2] // 2 + 1]
        )

    def exp(self, t: float | Tensor = 1.0) -> Operator:
        if self.padding == "zero":
            return super().exp(t)
        c = scalar(t, self, 3)
        return self._in_fourier(lambda m: torch.exp(c * m))

    def log(self) -> Operator:
        if self.padding == "zero":
            return super().log()
        return self._from_multiplier(_principal_log(self._multiplier(half=False), self))

    def inverse(self) -> Operator:
        if self.padding == "zero":
            return super().inverse()
        nonsingular(self._multiplier().flatten(-3), self)
        return self._in_fourier(torch.reciprocal)

    def pinv(self, rtol: float | None = None) -> Operator:
        if self.padding == "zero":
            return super().pinv(rtol)
        m = finite(self._multiplier(), "pinv")
        return self._from_multiplier(reciprocal(m.flatten(-3), self._rtol(rtol)).view_as(m))

    def _solve(self, w: Tensor) -> Tensor:
        if self.padding == "zero":
            return super()._solve(w)
        nonsingular(self._multiplier().flatten(-3), self)
        image = w.unflatten(-1, self.image)
        waves = torch.fft.rfft2(image) / middle(self._multiplier(), image, 3)
        return torch.fft.irfft2(waves, s=self.image[1:]).flatten(-3)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        if self.padding == "zero":
            return super()._singular_values()
        return self._eigenvalues()[0].abs(), None

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        if self.padding == "zero":
            return super()._eigenvalues()
        return finite(self._multiplier(half=False), "eigvals").flatten(-3), None

    def trace(self) -> Tensor:
        if self.padding == "zero":
            return super().trace()
        return self._eigenvalues()[0].real.sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        if self.padding == "zero":
            return super().slogdet()
        values = self._eigenvalues()[0]
        # Opposite frequencies have conjugate values: their product is positive.
        sign = (values / values.abs()).prod(-1).real
        return sign.nan_to_num(0.0).round(), values.abs().log().sum(-1)

    def svd(self, k: int | None = None) -> SVD:
        if self.padding == "zero" or self.batch is not None:
            return super().svd(k)
        m, order, phase, twin = self._modes(k, "svd")
        # A pair of opposite frequencies spans a plane: cos for the first, sin for its twin.
        alone, second = twin == order, twin < order
        m = torch.where(second, m.conj(), m)
        phase = torch.where(second, -phase, phase)
        turn = torch.where(alone, torch.where(m.real < 0, torch.pi, 0.0).to(phase), m.angle())
        height = torch.where(alone, 1.0, 2.0).to(phase).sqrt()
        U, V = (
            self._place(height * torch.where(second, torch.sin(angle), torch.cos(angle)), order)
            for angle in (phase + turn, phase)
        )
        return fix_signs(SVD(U, m.abs(), V))

    def eig(self, k: int | None = None) -> Eig:
        if self.padding == "zero" or self.batch is not None:
            return super().eig(k)
        m, order, phase, _ = self._modes(k, "eig")
        return Eig(m, self._place(torch.polar(torch.ones_like(phase), phase), order))

    def _modes(self, k: int | None, what: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Multipliers of the k largest modes, their flat indices, phases (H·W, k) and twins."""
        C, H, W = self.image
        k = min(count(k) or C * H * W, C * H * W)
        self._guard((C * H * W, k), what, hint=f"Ask for the leading ones: .{what}(k).")
        m = finite(self._multiplier(half=False), what).flatten()
        # Equal magnitudes differ by rounding; compare them to twelve digits so that twins stay.
        size = m.abs()
        order = (
            (size / peak(size))
            .nan_to_num()
            .round(decimals=12)
            .argsort(descending=True, stable=True)[:k]
        )
        channel, fh, fw = order // (H * W), order // W % H, order % W
        twin = channel * H * W + (-fh) % H * W + (-fw) % W
        return m[order], order, angles((H, W), fh, fw, self.kernel), twin

    def _place(self, waves: Tensor, order: Tensor) -> Tensor:
        """Waves (H·W, k) put into their own channel, unit length: (C·H·W, k)."""
        C, H, W = self.image
        own = F.one_hot(order // (H * W), C).to(waves.dtype).mT  # (C, k)
        return (own[:, None, :] * waves / (H * W) ** 0.5).flatten(0, 1)


def _principal_log(m: Tensor, A: Convolution) -> Tensor:
    """log of all multipliers, the half plane of it."""
    size = finite(m, "log").abs()
    scale, eps = size.amax((-3, -2, -1), keepdim=True), torch.finfo(A.dtype).eps
    on_axis = (m.real <= 0) & (m.imag.abs() <= 1e3 * eps * scale)
    if (on_axis | (size <= eps * max(A.shape) * scale)).any():
        raise no_log()
    return m.log()[..., : A.image[2] // 2 + 1]


def _kept(A: Convolution, rtol: float, null: bool) -> Operator:
    if A.padding == "zero":
        return NotImplemented
    size = finite(A._multiplier(), "projector").detach().abs()
    kept = rtol * size.amax((-3, -2, -1), keepdim=True) < size
    return A._from_multiplier(as_complex((~kept if null else kept).to(size)))


@register(range_of, Convolution)
def _range_of_convolution(A: Convolution, rtol: float) -> Operator:
    return _kept(A, rtol, null=False)


@register(null_of, Convolution)
def _null_of_convolution(A: Convolution, rtol: float) -> Operator:
    return _kept(A, rtol, null=True)


def multiplier(
    kernel: Tensor, origin: tuple[int, int], size: tuple[int, int], half: bool = True
) -> Tensor:
    r"""k̂(f) = Σ_j k[j] e^{2πi f·(j − origin)/N}, (..., H, W//2 + 1) or all frequencies."""
    H, W = size
    if kernel.dtype in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"convolution: expected float32 or float64 for Fourier space, got {kernel.dtype}. Take "
            "A.float()."
        )
    if kernel.shape[-2:] == size:
        fft = torch.fft.rfft2 if half else torch.fft.fft2
        return fft(kernel.roll((-origin[0], -origin[1]), (-2, -1))).conj()
    rows = phases(H, H, kernel.shape[-2], origin[0], kernel)
    columns = phases(W // 2 + 1 if half else W, W, kernel.shape[-1], origin[1], kernel)
    return rows @ as_complex(kernel) @ columns.mT


def angles(size: tuple[int, int], fh: Tensor, fw: Tensor, like: Tensor) -> Tensor:
    """2π f·i/N at every pixel i for frequencies f = (fh, fw), (H·W, k)."""
    H, W = size
    at = torch.arange(H * W, device=like.device)[:, None]
    turns = (at // W * fh % H).to(like.dtype) / H + (at % W * fw % W).to(like.dtype) / W
    return 2 * torch.pi * turns


def correlate(
    image: Tensor, kernel: Tensor, origin: tuple[int, int], groups: int, mode: str
) -> Tensor:
    """``conv2d`` of (..., C, H, W), padded to its own size, with one kernel or one each sample."""
    (kh, kw), (oh, ow) = kernel.shape[-2:], origin
    own = kernel.ndim == 5
    if own:  # samples become groups of channels
        image, groups = image.movedim(0, -4), groups * len(kernel)
    lead, size = image.shape[:-3], image.shape[-2:]
    stack = image.flatten(-4, -3) if own else image
    stack = F.pad(stack.reshape(-1, *stack.shape[-3:]), (ow, kw - 1 - ow, oh, kh - 1 - oh), mode)
    out = F.conv2d(stack, kernel.reshape(-1, *kernel.shape[-3:]), groups=groups)
    out = out.reshape(*lead, kernel.shape[-4], *size)
    return out.movedim(-4, 0) if own else out


def check_resized(A: Kernel, image: tuple[int, int, int]) -> None:
    """Refuse an image that the kernel does not fit, and a kernel that fits one image only."""
    (kh, kw), name = A.kernel.shape[-2:], type(A).__name__
    if len(image) != 3 or kh > image[1] or kw > image[2]:
        raise ValueError(
            f"{name}.resize: expected an image (C, H, W) of at least {kh} × {kw} pixels, the size "
            f"of the kernel, got {tuple(image)}. Pad the image."
        )
    corner = A.origin in ((0, 0), (kh - 1, kw - 1))  # of such a result, and of its transpose
    wrapped = A.padding == "circular" and corner and (kh, kw) == A.image[1:]
    if wrapped and kh * kw > 1 and tuple(image) != A.image:
        raise ValueError(
            f"{name}.resize: expected a kernel smaller than its image, got one that fills it, as "
            "that of a product, a power or an inverse does: it wraps around this size. Resize the "
            "small kernels first, then compute."
        )
