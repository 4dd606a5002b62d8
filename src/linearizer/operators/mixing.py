r"""Convolutions that mix channels: one small matrix for each frequency."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import SVD, Eig, Operator
from .convolution import angles, check_resized, correlate, multiplier
from .matrices import (
    as_complex,
    batch_of,
    count,
    finite,
    fix_signs,
    hold,
    matrix_eig,
    matrix_exp,
    matrix_inverse,
    matrix_log,
    matrix_pinv,
    matrix_power,
    matrix_projector,
    matrix_solve,
    peak,
    precise,
    require_axes,
    scalar,
)
from .rules import null_of, range_of, register

#: A kernel with more taps than this goes through Fourier space.
DIRECT_TAPS = 64


class MixingConvolution(Operator):
    r"""Circular convolution across channels: (Az)[o, i] = Σ_{c,j} k[o, c, j] z[c, i + j − origin].

    In Fourier space A is block-diagonal, one C_out × C_in matrix for each frequency. Products
    (with circular :class:`Convolution`, too), powers, inverse, pseudo-inverse and exponential are
    exact there, and have kernels as large as the image; SVD and eigenvectors are those of blocks.

    Arguments:
        kernel: (C_out, C_in, kh, kw), or (batch, C_out, C_in, kh, kw).
        image: What comes in, (C_in, H, W): coordinates are (batch, C_in·H·W) → (batch, C_out·H·W).
        origin: The tap that stands over the pixel itself; PyTorch's 'same' by default.

    Example:
        >>> kernel = 0.05 * torch.ones(3, 3, 2, 2)
        >>> kernel[..., 0, 0] += torch.eye(3)
        >>> A = MixingConvolution(kernel, (3, 8, 8)).resize((3, 64, 48))
        >>> z = torch.randn(1, A.shape[1])
        >>> A.rank(), torch.allclose(A.inverse()(A(z)), z, atol=1e-4)
        (9216, True)
    """

    kernel: Tensor
    padding = "circular"

    def __init__(
        self, kernel: Tensor, image: tuple[int, int, int], origin: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        require_axes(self, "kernel", kernel, 4)
        if len(image) != 3 or kernel.shape[-3] != image[0]:
            raise ValueError(
                "MixingConvolution: expected a kernel (C_out, C_in, kh, kw) for an image "
                f"(C_in, H, W), got a kernel {tuple(kernel.shape)} for {tuple(image)}. "
                "For one filter a channel take Convolution."
            )
        kh, kw = kernel.shape[-2:]
        self.image = (int(image[0]), int(image[1]), int(image[2]))
        self.origin = ((kh - 1) // 2, (kw - 1) // 2) if origin is None else origin
        if not (0 <= self.origin[0] < kh and 0 <= self.origin[1] < kw):
            raise ValueError(
                f"MixingConvolution: origin {self.origin} is outside the {kh}×{kw} kernel."
            )
        hold(self, "kernel", kernel)

    @property
    def shape(self) -> tuple[int, int]:
        C, H, W = self.image
        return self.kernel.shape[-4] * H * W, C * H * W

    @property
    def batch(self) -> int | None:
        return batch_of((self.kernel, 4))

    @property
    def T(self) -> MixingConvolution:
        (kh, kw), (oh, ow) = self.kernel.shape[-2:], self.origin
        kernel = self.kernel.flip(-2, -1).transpose(-4, -3)  # flip copies
        image = (self.kernel.shape[-4], *self.image[1:])
        return MixingConvolution(kernel, image, (kh - 1 - oh, kw - 1 - ow))

    def forward(self, z: Tensor) -> Tensor:
        if not z.numel():  # the FFT refuses an empty batch
            return z.new_zeros(*z.shape[:-1], self.shape[0])
        image = z.unflatten(-1, self.image)
        (kh, kw), (_, H, W) = self.kernel.shape[-2:], self.image
        if kh * kw <= DIRECT_TAPS and kh <= H and kw <= W:
            return correlate(image, self.kernel, self.origin, 1, "circular").flatten(-3)
        own = "" if self.batch is None else "b"
        waves = torch.einsum(
            f"{own}oihk,{own}...ihk->{own}...ohk", self._multiplier(), torch.fft.rfft2(image)
        )
        return torch.fft.irfft2(waves, s=(H, W)).flatten(-3)

    def resize(self, image: tuple[int, int, int]) -> MixingConvolution:
        """The very same kernel, learned with this one, on an image of another size."""
        check_resized(self, image)
        return MixingConvolution(self.kernel, image, self.origin)

    def _multiplier(self) -> Tensor:
        """(..., C_out, C_in, H, W//2 + 1)."""
        return multiplier(self.kernel, self.origin, self.image[1:])

    def _blocks(self) -> Tensor:
        """The matrices of all frequencies of a half plane, (..., H·(W//2 + 1), C_out, C_in)."""
        return self._multiplier().flatten(-2).movedim(-1, -3).contiguous()  # for matrix_exp

    def _from_blocks(self, blocks: Tensor) -> MixingConvolution:
        _, H, W = self.image
        waves = blocks.conj().movedim(-3, -1).unflatten(-1, (H, W // 2 + 1))
        kernel = torch.fft.irfft2(waves, s=(H, W))
        return MixingConvolution(kernel, (blocks.shape[-1], H, W), (0, 0))

    def scale(self, c: float | Tensor) -> MixingConvolution:
        return MixingConvolution(scalar(c, self, 4) * self.kernel, self.image, self.origin)

    def _integer_power(self, p: int) -> MixingConvolution:
        return self._from_blocks(torch.linalg.matrix_power(self._blocks(), p))

    def _fractional_power(self, p: float) -> MixingConvolution:
        return self._from_blocks(matrix_power(self._blocks(), p, blocks=True))

    def exp(self, t: float | Tensor = 1.0) -> MixingConvolution:
        self._square("exp")
        return self._from_blocks(matrix_exp(scalar(t, self, 3) * self._blocks()))

    def log(self) -> MixingConvolution:
        self._square("log")
        return self._from_blocks(matrix_log(self._blocks(), blocks=True))

    def inverse(self) -> MixingConvolution:
        self._square("inverse")
        return self._from_blocks(matrix_inverse(self._blocks(), self, blocks=True))

    def pinv(self, rtol: float | None = None) -> MixingConvolution:
        return self._from_blocks(matrix_pinv(self._blocks(), self._rtol(rtol), blocks=True))

    def _solve(self, w: Tensor) -> Tensor:
        precise(self.kernel, "solve")
        if not w.numel():
            return w.clone()
        (_, H, W), C = self.image, self.image[0]
        lead = () if self.batch is None else (self.batch,)
        waves = torch.fft.rfft2(w.reshape(*lead, -1, C, H, W)).flatten(-2)
        columns = waves.movedim(-3, -1).transpose(-3, -2)  # (…, frequencies, C, samples)
        z = matrix_solve(self._blocks(), columns, self, blocks=True)
        z = z.transpose(-3, -2).movedim(-1, -3).unflatten(-1, (H, W // 2 + 1))
        return torch.fft.irfft2(z, s=(H, W)).reshape(w.shape)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        M, _, alone = self._pairs("svd")
        S = torch.linalg.svdvals(M)
        times = torch.where(alone, 1, 2)[:, None].expand(S.shape[-2:]).flatten()
        return S.flatten(-2), times

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        M, _, alone = self._pairs("eigvals")
        values = torch.linalg.eigvals(M)
        return torch.cat([values.flatten(-2), values[..., ~alone, :].conj().flatten(-2)], -1), None

    def trace(self) -> Tensor:
        self._square("trace")
        M, _, alone = self._pairs("trace")
        own_trace = M.diagonal(dim1=-2, dim2=-1).sum(-1).real
        return (own_trace * torch.where(alone, 1, 2)).sum(-1)

    def slogdet(self) -> tuple[Tensor, Tensor]:
        self._square("slogdet")
        M, _, alone = self._pairs("slogdet")
        sign, log = torch.linalg.slogdet(M)
        log = (log * torch.where(alone, 1, 2)).sum(-1)
        # Opposite frequencies have conjugate determinants; those that are alone are real.
        signs = torch.where(alone, sign.real.sign(), torch.where(sign == 0, 0.0, 1.0))
        return signs.prod(-1).to(log), log

    def svd(self, k: int | None = None) -> SVD:
        if self.batch is not None:
            return super().svd(k)
        M, frequency, alone = self._pairs("svd")
        sizes = torch.linalg.svdvals(M.detach())
        f, column, second = self._leading(sizes, alone, k, "svd")
        kept, place = f.unique(return_inverse=True)
        U, S, Vh = torch.linalg.svd(M[kept], full_matrices=False)
        u, v = U[place, :, column], Vh.mH[place, :, column]  # (k, C)
        # A complex pair is free up to a common phase: make the leading entry of v real.
        size = v.detach().abs()
        index = (size >= 0.999 * peak(size)).to(torch.uint8).argmax(-1, keepdim=True)
        turn = v.gather(-1, index).conj() / v.gather(-1, index).abs()
        # f and −f span a plane: the real part for the first of them, the imaginary for its twin.
        height = torch.where(alone[f], 1.0, 2.0).to(self.dtype).sqrt()
        real_U, real_V = (
            height * torch.where(second, X.imag, X.real)
            for X in (self._waves(x * turn, frequency[f]) for x in (u, v))
        )
        return fix_signs(SVD(real_U, S[place, column], real_V))

    def eig(self, k: int | None = None) -> Eig:
        self._square("eig")
        if self.batch is not None:
            return super().eig(k)
        M, frequency, alone = self._pairs("eig")
        sizes = torch.linalg.eigvals(M.detach()).abs().sort(-1, descending=True).values
        f, column, second = self._leading(sizes, alone, k, "eig")
        kept, place = f.unique(return_inverse=True)
        values, X = matrix_eig(M[kept])
        values, vectors = values[place, column], self._waves(X[place, :, column], frequency[f])
        return Eig(*(torch.where(second, x.conj(), x) for x in (values, vectors)))

    def _pairs(self, what: str) -> tuple[Tensor, Tensor, Tensor]:
        """One block of each pair of opposite frequencies, (..., F, C_out, C_in).

        Also its place in the half plane, and whether it is its own twin (so real), (F,).
        """
        precise(self.kernel, what)
        _, H, W = self.image
        K = W // 2 + 1
        frequency = torch.arange(H * K, device=self.device)
        fh, fw = frequency // K, frequency % K
        edge, twin = 2 * fw % W == 0, -fh % H
        once = ~edge | (fh <= twin)
        alone = (edge & (fh == twin))[once]
        M = finite(self._blocks(), what)[..., once, :, :]
        # Exactly real, so that their vectors are: rounding would decide in a null space.
        M = torch.where(alone[:, None, None], as_complex(M.real), M)
        return M, frequency[once], alone

    def _leading(
        self, sizes: Tensor, alone: Tensor, k: int | None, what: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pair of frequencies, column in its block, and which of the pair, of the k largest."""
        r = sizes.shape[-1]
        n = r * self.image[1] * self.image[2]
        k = min(count(k) or n, n)
        self._guard((max(self.shape), k), what, hint=f"Ask for the leading ones: .{what}(k).")
        twins = torch.where(alone[:, None], -1.0, sizes)  # no twin: behind all others
        order = torch.stack([sizes, twins], -1).flatten().argsort(descending=True, stable=True)[:k]
        return order // (2 * r), order // 2 % r, order % 2 == 1

    def _waves(self, x: Tensor, frequency: Tensor) -> Tensor:
        """x (k, C) on each pixel times the wave of its frequency, as columns (C·H·W, k)."""
        _, H, W = self.image
        K = W // 2 + 1
        phase = angles((H, W), frequency // K, frequency % K, self.kernel)
        waves = torch.polar(torch.full_like(phase, (H * W) ** -0.5), phase)
        return (x.mT[:, None, :] * waves).flatten(0, 1)


@register(range_of, MixingConvolution)
def _range_of_mixing(A: MixingConvolution, rtol: float) -> MixingConvolution:
    return A._from_blocks(matrix_projector(A._blocks(), rtol))


@register(null_of, MixingConvolution)
def _null_of_mixing(A: MixingConvolution, rtol: float) -> MixingConvolution:
    return A._from_blocks(matrix_projector(A._blocks(), rtol, null=True))
