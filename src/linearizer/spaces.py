r"""Vector spaces induced by a bijection: Euclidean geometry in coordinates, curved in the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .bijections import Bijection, Chain, Flatten
from .operators import Dense

__all__ = ["PCA", "QR", "Space"]


class PCA(NamedTuple):
    r"""Principal components in the induced geometry.

    A point is recovered as mean ⊕ Σ scoreᵢ ⊙ componentᵢ.
    """

    mean: Tensor  #: (1, *shape)
    components: Tensor  #: (k, *shape), orthonormal, by falling variance
    variance: Tensor  #: (k,)
    scores: Tensor  #: (batch, k)


class QR(NamedTuple):
    r"""Points as combinations of orthonormal ones: point_j = ⊕ᵢ R[i, j] ⊙ Qᵢ."""

    Q: Tensor  #: (k, *shape)
    R: Tensor  #: (k, k), upper triangular with a positive diagonal


class Space(nn.Module):
    r"""Vector space induced by a bijection: u ⊕ v = g⁻¹(g(u) + g(v)), a ⊙ u = g⁻¹(a g(u)).

    With ⟨u, v⟩ = g(u)·g(v) it is a Hilbert space. Points are batch first, (batch, \*shape); a batch
    of one broadcasts. Two Spaces are the same only if they are the same object.

    Paper: definitions 2.2 (induced operations) and 2.6 (induced inner product).

    Arguments:
        g: The bijection onto coordinates, (batch, \*shape) → (batch, dim). One that ends in another
            shape is flattened.

    Example:
        >>> X = Space(mlp(3))
        >>> u, v = torch.randn(2, 5, 3)
        >>> torch.allclose(X.sub(X.add(u, v), v), u, atol=1e-4)
        True
    """

    def __init__(self, g: Bijection) -> None:
        super().__init__()
        if not isinstance(g, Bijection):
            raise TypeError(
                f"Space: expected a Bijection, got {type(g).__name__}. Subclass "
                "linearizer.bijections.Bijection, or wrap a peer's with from_zuko and the like."
            )
        self.g = g if g.out_shape == (g.dim,) else Chain(g, Flatten(g.out_shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.g.shape

    @property
    def dim(self) -> int:
        """How many coordinates a point has."""
        return self.g.dim

    # -- to coordinates and back -----------------------------------------------------------

    def coordinates(self, x: Tensor) -> Tensor:
        """z = g(x), (batch, dim)."""
        if not isinstance(x, Tensor) or x.shape[1:] != self.shape:
            self.g._check(x, self.shape, "points")
        z = self.g(x)
        if z.shape != (len(x), self.dim):
            raise ValueError(
                f"Space: {type(self.g).__name__}.forward gave {tuple(z.shape)} for {len(x)} "
                f"points, but a bijection of {self.shape} gives ({len(x)}, {self.dim})."
            )
        return z

    def points(self, z: Tensor) -> Tensor:
        """x = g⁻¹(z), (batch, \\*shape)."""
        self.g._check(z, (self.dim,), "coordinates")
        return self.g.inverse(z)

    def _pair(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of two batches of one length, or of which one is a single point."""
        a, b = self.coordinates(u), self.coordinates(v)
        if len(a) != len(b) and 1 not in (len(a), len(b)):
            raise ValueError(
                f"Space: expected two batches of one length (or a single point), "
                f"got {len(a)} and {len(b)} points."
            )
        return a, b

    # -- the vector space ------------------------------------------------------------------

    def add(self, u: Tensor, v: Tensor) -> Tensor:
        """u ⊕ v."""
        a, b = self._pair(u, v)
        return self.points(a + b)

    def sub(self, u: Tensor, v: Tensor) -> Tensor:
        """u ⊖ v."""
        a, b = self._pair(u, v)
        return self.points(a - b)

    def scale(self, a: float | Tensor, u: Tensor) -> Tensor:
        """a ⊙ u, for a number or one for each point, (batch,)."""
        z = self.coordinates(u)
        return self.points(_column(a, z) * z)

    def neg(self, u: Tensor) -> Tensor:
        """⊖u = g⁻¹(−g(u))."""
        return self.points(-self.coordinates(u))

    def zero(self) -> Tensor:
        """The origin g⁻¹(0), (1, \\*shape)."""
        held = chain(self.g.parameters(), self.g.buffers())
        like = next((t for t in held if t.is_floating_point()), torch.zeros(()))
        return self.points(like.new_zeros(1, self.dim))

    def combine(self, weights: Tensor | Sequence[float], points: Tensor) -> Tensor:
        r"""⊕ᵢ wᵢ ⊙ pointᵢ: weights (k,) or (n, k), points (k, \*shape) → (1 or n, \*shape)."""
        z = self.coordinates(points)
        w = torch.as_tensor(weights, dtype=z.dtype, device=z.device)
        w = w[None] if w.ndim == 1 else w
        if w.ndim != 2 or w.shape[1] != z.shape[0]:
            raise ValueError(
                f"Space.combine: expected one weight for each of {z.shape[0]} points, (k,) or "
                f"(n, k), got weights of shape {tuple(w.shape)}."
            )
        return self.points(w @ z)

    def mean(self, points: Tensor) -> Tensor:
        """The induced mean g⁻¹(mean g(xᵢ)), (1, \\*shape)."""
        return self.points(self._some(points, "mean").mean(0, keepdim=True))

    def geodesic(self, u: Tensor, v: Tensor, s: float | Sequence[float] | Tensor) -> Tensor:
        r"""g⁻¹((1−s) g(u) + s g(v)), the straight line of this geometry.

        A number s gives (batch, \*shape); several give (len(s), batch, \*shape).
        """
        a, b = self._pair(u, v)
        s = torch.as_tensor(s, dtype=a.dtype, device=a.device)
        if s.ndim == 0:
            return self.points(torch.lerp(a, b, s))
        if s.ndim != 1:
            raise ValueError(
                f"Space.geodesic: expected s a number or a list, got {tuple(s.shape)}."
            )
        line = torch.lerp(a, b, s[:, None, None])
        return self.points(line.flatten(0, 1)).unflatten(0, line.shape[:2])

    # -- the inner product -----------------------------------------------------------------

    def inner(self, u: Tensor, v: Tensor) -> Tensor:
        """⟨u, v⟩ = g(u)·g(v), (batch,)."""
        a, b = self._pair(u, v)
        return (a * b).sum(-1)

    def norm(self, u: Tensor) -> Tensor:
        """‖u‖, (batch,)."""
        return torch.linalg.vector_norm(self.coordinates(u), dim=-1)

    def distance(self, u: Tensor, v: Tensor) -> Tensor:
        """‖u ⊖ v‖, (batch,)."""
        a, b = self._pair(u, v)
        return torch.linalg.vector_norm(a - b, dim=-1)

    def angle(self, u: Tensor, v: Tensor) -> Tensor:
        """Angle between u and v in radians, (batch,); accurate for small angles too."""
        a, b = (nn.functional.normalize(z, dim=-1) for z in self._pair(u, v))
        apart, along = (torch.linalg.vector_norm(d, dim=-1) for d in (a - b, a + b))
        return 2 * torch.atan2(apart, along)

    def gram(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        """All inner products ⟨uᵢ, vⱼ⟩, (n, m)."""
        a = self.coordinates(u)
        return a @ (a if v is None else self.coordinates(v)).mT

    def qr(self, points: Tensor) -> QR:
        """Gram–Schmidt in the induced inner product; the points must be independent."""
        z = self._some(points, "qr")
        Q, R = torch.linalg.qr(z.mT)
        pivots = R.diagonal().abs()
        if z.shape[0] > self.dim or bool(
            (pivots <= self.dim * torch.finfo(z.dtype).eps * pivots.max()).any()
        ):
            raise ValueError(
                f"Space.qr: expected linearly independent points, but these {z.shape[0]} span "
                "fewer dimensions. Leave out some, or take pca(points, k), the leading directions."
            )
        sign = torch.where(R.diagonal() < 0, -1.0, 1.0).to(z)
        return QR(self.points((Q * sign).mT), R * sign[:, None])

    def orthonormalize(self, points: Tensor) -> Tensor:
        """Orthonormal points with the same span, (k, \\*shape)."""
        return self.qr(points).Q

    def lstsq(self, basis: Tensor, x: Tensor) -> Tensor:
        """Coefficients c, (batch, k), of least ‖x ⊖ ⊕ᵢ cᵢ ⊙ basisᵢ‖ (and least norm)."""
        z, w = self._some(basis, "lstsq"), self.coordinates(x)
        return w @ torch.linalg.pinv(z)

    def project(self, x: Tensor, basis: Tensor) -> Tensor:
        """The nearest point in the span of ``basis``, (batch, \\*shape)."""
        z, w = self._some(basis, "project"), self.coordinates(x)
        return self.points(Dense(z.mT).range_projector()(w))

    def log_prob(self, x: Tensor) -> Tensor:
        r"""log p(x) where coordinates are standard normal: log N(g(x); 0, I) + log |det ∂g/∂x|.

        (batch,), for a g that gives its log-determinant.
        """
        z, log_det = self.g.with_log_det(x)
        return log_det - 0.5 * (z.square().sum(-1) + self.dim * math.log(2 * math.pi))

    def pca(self, points: Tensor, k: int | None = None) -> PCA:
        """Principal components of the points in this geometry, the k leading ones."""
        z = self._some(points, "pca", at_least=2)
        mean = z.mean(0, keepdim=True)
        U, S, Vh = torch.linalg.svd(z - mean, full_matrices=False)
        k = len(S) if k is None else k
        if not 1 <= k <= len(S):
            raise ValueError(f"Space.pca: expected 1 ≤ k ≤ {len(S)}, got {k}.")
        pivot = Vh.abs().argmax(1, keepdim=True)
        sign = torch.where(Vh.gather(1, pivot) < 0, -1.0, 1.0).to(z)[:k]
        scores = (U[:, :k] * S[:k]) * sign.mT
        variance = S[:k].square() / (z.shape[0] - 1)
        return PCA(self.points(mean), self.points(Vh[:k] * sign), variance, scores)

    def _some(self, points: Tensor, what: str, at_least: int = 1) -> Tensor:
        """Coordinates of a set of points that must not be empty or broken."""
        z = self.coordinates(points)
        if z.shape[0] < at_least:
            raise ValueError(f"Space.{what}: expected {at_least} or more points, got {len(z)}.")
        if not torch.isfinite(z).all():
            raise ValueError(f"Space.{what}: the points have NaN or infinite coordinates.")
        return z

    def extra_repr(self) -> str:
        return f"shape={self.shape}, dim={self.dim}"


def _column(a: float | Tensor, z: Tensor) -> Tensor:
    a = torch.as_tensor(a, dtype=z.dtype, device=z.device)
    if a.ndim > 1 or (a.ndim and len(z) != 1 and len(a) not in (1, len(z))):
        raise ValueError(
            f"Space.scale: expected a number or one for each of {len(z)} points, got a tensor of "
            f"shape {tuple(a.shape)}."
        )
    return a[:, None] if a.ndim else a
