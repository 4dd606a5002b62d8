r"""Families: a condition (a time, or a style) ↦ a linear core."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .nets import MLP
from .operators import (
    BlockDiagonal,
    Convolution,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Operator,
    ScaledIdentityPlusLowRank,
)

__all__ = [
    "Family",
    "GaussianVelocity",
    "Leading",
    "Periodic",
    "Preconditioned",
    "Prediction",
    "StyleKernel",
    "TimeLowRank",
]


#: How a solver takes one step of a family.
Take: TypeAlias = "Callable[[Family], Operator]"


class Family(nn.Module, abc.ABC):
    r"""A condition c ↦ Operator.

    A subclass writes ``forward``. For one condition (a float or a 0-d tensor) it returns a single
    operator; for (batch,) conditions an operator with that batch axis. A family of time is read as
    a velocity, ż = A_t z, by :mod:`linearizer.solvers`.

    To add a family:

    1. Write ``__init__``, which checks its arguments, and ``forward``, for one condition and for
       (batch,) of them; return the most structured operator that there is.
    2. Override ``step`` and ``eigenbasis`` where it knows more than its velocity.
    3. Name it in ``__all__`` and in ``docs/api/families.md``.
    4. Add a test to ``tests/test_families.py``: a batch of conditions gives what single ones give,
       and, for a family of time, the collapsed steps equal the loop.
    """

    @abc.abstractmethod
    def forward(self, c: float | Tensor) -> Operator:
        """The operator for a condition, or one for each of (batch,) conditions."""

    def step(self, t0: float, t1: float, take: Take) -> Operator | None:
        r"""The operator of a whole step t0 → t1, where the family knows it; mostly None.

        A velocity that is singular at some time names its step into that time here. A solver asks
        before each step; where it gets an operator it applies that one and evaluates no velocity
        in that step. ``take(family)`` is the solver's own step t0 → t1 of another family: of what
        is not singular.
        """
        return None

    def eigenbasis(self) -> tuple[Tensor, Family] | None:
        r"""Q and diagonals d with A_t = Q diag(d₁ … d_k) Qᵀ + d_{k+1}(I − QQᵀ), or None.

        A family whose operators have all the same orthonormal eigenvectors names them here, (dim,
        k); it is then collapsed number by number.
        """
        return None


class TimeLowRank(Family):
    r"""A_t = U(t) V(t)ᵀ, each factor an MLP of a small embedding of t.

    The embedding is t, sin(πkt) and cos(πkt) for k = 1 … ``frequencies``. Fresh factors have
    independent normal entries and ‖A_t‖ ≈ ``scale``; neither is zero, so that gradients reach both.

    Paper: section 4.1 (implementation) and appendix G.3 (two MLPs, rank 16).

    Arguments:
        dim: Size of the coordinates.
        rank: Columns of U(t) and V(t).
        hidden, depth: Width and number of the hidden layers.
        frequencies: Number of sines and of cosines.
        scale: Norm of a fresh A_t, about.

    Example:
        >>> family = TimeLowRank(8, rank=2)
        >>> family(0.5).shape, family(torch.rand(5)).batch
        ((8, 8), 5)
    """

    def __init__(
        self,
        dim: int,
        rank: int = 16,
        hidden: int = 64,
        depth: int = 2,
        frequencies: int = 4,
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        if not 1 <= rank <= dim:
            raise ValueError(f"TimeLowRank: expected 1 ≤ rank ≤ dim = {dim}, got {rank}.")
        if min(hidden, depth) < 1 or frequencies < 0 or scale <= 0:
            raise ValueError(
                "TimeLowRank: expected hidden ≥ 1, depth ≥ 1, frequencies ≥ 0 and scale > 0, "
                f"got {hidden}, {depth}, {frequencies} and {scale}."
            )
        self.dim, self.rank, self.frequencies = dim, rank, frequencies
        self.left = MLP(1 + 2 * frequencies, rank * dim, hidden, depth)
        self.right = MLP(1 + 2 * frequencies, rank * dim, hidden, depth)
        size = (scale / (dim + rank)) ** 0.5  # ‖U‖ ≈ ‖V‖ ≈ size·√dim
        for net in (self.left, self.right):
            last = net.layers[-1]
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=size / hidden**0.5)
            nn.init.normal_(last.bias, std=size)

    def forward(self, c: float | Tensor) -> LowRank:
        t = _time(c, "TimeLowRank")
        k = torch.pi * torch.arange(1, self.frequencies + 1, dtype=t.dtype, device=t.device)
        angles = t[..., None] * k
        weight = next(self.parameters())
        inputs = torch.cat([t[..., None], angles.sin(), angles.cos()], -1).to(weight)
        # Each column of a factor lies contiguously in memory: (..., rank, dim).
        U, V = (
            net(inputs).to(weight.dtype).unflatten(-1, (self.rank, self.dim)).mT
            for net in (self.left, self.right)
        )
        return LowRank(U, V)


class Leading(Family):
    r"""A_t on the first coordinates, 0 on all others: U(t) and V(t) of a family, padded by zeros.

    Arguments:
        family: LowRank operators of the first coordinates.
        dim: Size of all coordinates.

    Example:
        >>> Leading(TimeLowRank(3, rank=2), 8)(0.5)(torch.ones(1, 8))[0, 3:]
        tensor([0., 0., 0., 0., 0.], grad_fn=<SliceBackward0>)
    """

    def __init__(self, family: Family, dim: int) -> None:
        super().__init__()
        self.family, self.dim = family, dim

    def forward(self, c: float | Tensor) -> LowRank:
        A = self.family(c)
        if not isinstance(A, LowRank) or max(A.shape) > self.dim:
            raise ValueError(
                f"Leading: expected LowRank operators of at most {self.dim} coordinates, got {A}."
            )
        U, V = (nn.functional.pad(X, (0, 0, 0, self.dim - X.shape[-2])) for X in (A.U, A.V))
        return LowRank(U, V)


class Periodic(Family):
    r"""A_t = A + Σ_k (cos(2πkt) C_k + sin(2πkt) S_k), the same again after t + 1.

    All are block diagonal. The waves C_k and S_k act on the first ``width`` coordinates of every
    block alone. ``carry`` applies one A_t to each sample without making any of them.

    Arguments:
        blocks: A, (channels, m, n).
        waves: C₁, S₁, C₂, S₂, … of shape (2·harmonics, channels, m, width).

    Example:
        >>> family = Periodic(torch.ones(1, 1, 1), torch.ones(2, 1, 1, 1))
        >>> family(0.25).dense()                    # 1 + cos(π/2) + sin(π/2)
        tensor([[2.]])
    """

    blocks: Tensor
    waves: Tensor

    def __init__(self, blocks: Tensor, waves: Tensor) -> None:
        super().__init__()
        channels, m, n = blocks.shape
        if waves.ndim != 4 or len(waves) % 2 or waves.shape[1:3] != (channels, m):
            raise ValueError(
                f"Periodic: expected waves (2·harmonics, {channels}, {m}, width), got "
                f"{tuple(waves.shape)}."
            )
        if waves.shape[3] > n:
            raise ValueError(f"Periodic: expected a width of at most {n}, got {waves.shape[3]}.")
        for name, tensor in (("blocks", blocks), ("waves", waves)):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def rhythm(self, t: Tensor) -> Tensor:
        """cos and sin of 2πkt for k = 1, 2, …, (..., 2·harmonics)."""
        k = torch.arange(1, len(self.waves) // 2 + 1, dtype=torch.float64, device=t.device)
        angles = 2 * torch.pi * t.double()[..., None] * k
        return torch.stack([angles.cos(), angles.sin()], -1).flatten(-2).to(self.waves)

    def forward(self, c: float | Tensor) -> BlockDiagonal:
        t = _time(c, "Periodic").to(self.blocks.device)
        moving = torch.einsum("...w,wcmn->...cmn", self.rhythm(t), self.waves)
        rest = self.blocks.shape[-1] - self.waves.shape[-1]
        return BlockDiagonal(self.blocks + nn.functional.pad(moving, (0, rest)))

    def carry(self, z: Tensor, t: Tensor) -> Tensor:
        """A_t z for each row and its own t: (batch, channels·n) and (batch,) → (batch, …·m)."""
        parts = z.unflatten(1, (self.blocks.shape[0], -1)).movedim(1, 0)  # (channels, batch, n)
        low = parts[..., : self.waves.shape[-1]]
        turning = (self.rhythm(t)[:, :, None] * low[:, :, None, :]).flatten(2)
        waves = self.waves.movedim(0, 2).flatten(2)  # (channels, m, 2·harmonics·width)
        w = parts @ self.blocks.mT + turning @ waves.mT
        return w.movedim(0, 1).flatten(1)


class Prediction(Family):
    r"""The velocity A_t = (D_t − I)/(1 − t) of a predictor D_t ≈ E[z₁ | z_t].

    It is singular at t = 1. The last step, from t to 1, is z ← D_t z: the Euler step of length
    1 − t, in which the singular factor cancels. So t = 1 is reached exactly and never evaluated.

    Arguments:
        family: The predictors D_t; any family of square operators.

    Example:
        >>> family = Prediction(TimeLowRank(8, rank=2))
        >>> family(0.5)                  # 2 (D − I)
        ScaledIdentityPlusLowRank(shape=(8, 8))
        >>> lz.solvers.collapse(family, "euler", steps=1, t0=0.9).rank()
        2
    """

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.family = family

    def forward(self, c: float | Tensor) -> Operator:
        t = _time(c, "Prediction")
        if bool((t >= 1).any()):
            raise _undefined("Prediction")
        D = self.family(c)
        return (D - Identity(D.shape[0], D.dtype, D.device)) * (1.0 / (1.0 - t))

    def step(self, t0: float, t1: float, take: Take) -> Operator | None:
        if max(t0, t1) < 1.0:
            return None
        if t1 != 1.0 or t0 > 1.0:
            raise _undefined("Prediction")
        D = self.family(t0)
        return Identity(D.shape[0], D.dtype, D.device) if t0 == 1.0 else D


class Preconditioned(Family):
    r"""A predictor D_t = (σ₁/r_t) M_θ whose time and size are scaled by moments of both ends.

    Where z₀ has deviations σ₀ (here their geometric mean) and z₁ the deviation σ₁, the size of
    z_t = (1−t)z₀ + t z₁ is r_t = √((1−t)²σ₀² + t²σ₁²), and θ = atan2(t σ₁, (1−t)σ₀) is an angle,
    counted from 0 to 1. If both are isotropic the best M_θ is sin(πθ/2)·I, a smooth function
    however small σ₀ is, and its input z_t/r_t and its output have variance 1.

    Arguments:
        family: M_θ, LowRank operators.
        start: Deviations σ₀ of the coordinates of the noise, (rank,); learned where they have a
            likelihood. M_θ takes no gradient to them.
        end: σ₁.

    Example:
        >>> family = Preconditioned(TimeLowRank(4, rank=4), torch.full((4,), 0.1))
        >>> family.times(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.0909, 1.0000])
    """

    def __init__(self, family: Family, start: Tensor, end: float = 1.0) -> None:
        super().__init__()
        if not (bool((start > 0).all()) and end > 0):
            raise ValueError("Preconditioned: expected deviations > 0, got one that is not.")
        self.family, self.end = family, float(end)
        self.log_start = nn.Parameter(start.log())

    @property
    def size(self) -> Tensor:
        """The geometric mean of σ₀, a number."""
        return self.log_start.detach().mean().exp()

    def times(self, share: Tensor) -> Tensor:
        """The times t of angles θ."""
        a = share * (torch.pi / 2)
        late = self.size.to(share) * a.sin()
        return late / (late + self.end * a.cos())

    def forward(self, c: float | Tensor) -> Operator:
        t = _time(c, "Preconditioned").to(self.log_start.device)
        early, late = (1 - t) * self.size.to(t), t * self.end
        share = torch.atan2(late, early) / (torch.pi / 2)
        return self.family(share) * (self.end / torch.hypot(early, late)).to(self.log_start)


class GaussianVelocity(Family):
    r"""The best linear velocity from noise of second moment I to data of second moment M.

    A_t = (tM − (1−t)I)((1−t)²I + t²M)⁻¹ minimises E‖z₁ − z₀ − A z_t‖² for independent z₀ and z₁ and
    z_t = (1−t)z₀ + t z₁. With M = Q diag(λ) Qᵀ + ε(I − QQᵀ) it is α(t)I + Q diag(a(t) − α(t)) Qᵀ,
    and its flow is known: from 0 to t it is ((1−t)²I + t²M)^½, so that from 0 to 1 it is M^½.
    A linear map has no bias, so the second moments are not centred.

    Where M is singular the velocity is singular at t = 1. Along its null space z_t is the straight
    line (1−t)z₀, which every solver follows exactly: a step into t = 1 is that line there, and the
    solver's own elsewhere.

    Arguments:
        basis: Q, orthonormal columns (dim, rank).
        values: λ, the second moments along them (rank,), not negative.
        rest: ε, the second moment in all other directions, not negative.
        dim: Size of the coordinates, if the basis is in the first ones and leaves out the zeros
            of all others.

    Example:
        >>> family = GaussianVelocity(torch.eye(3)[:, :1], torch.tensor([4.0]), 0.25)
        >>> family.flow(0.0, 1.0).dense().diagonal()
        tensor([2.0000, 0.5000, 0.5000])
    """

    basis: Tensor
    values: Tensor
    rest: Tensor

    def __init__(
        self,
        basis: Tensor,
        values: Tensor,
        rest: float | Tensor = 0.0,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        if basis.ndim != 2 or values.shape != basis.shape[1:]:
            raise ValueError(
                "GaussianVelocity: expected a basis (dim, rank) and values (rank,), got "
                f"{tuple(basis.shape)} and {tuple(values.shape)}."
            )
        n, k = basis.shape
        rest = torch.as_tensor(rest, dtype=basis.dtype, device=basis.device)
        if not bool((values >= 0).all() and rest >= 0):
            raise ValueError("GaussianVelocity: expected second moments ≥ 0, got a negative one.")
        off = basis.mT @ basis - torch.eye(k, dtype=basis.dtype, device=basis.device)
        if k and float(off.abs().max()) > 1e3 * torch.finfo(basis.dtype).eps:
            raise ValueError(
                "GaussianVelocity: expected orthonormal columns of the basis. "
                "Take Q of torch.linalg.qr, or build it with from_coordinates."
            )
        self.dim = n if dim is None else dim
        if self.dim < n:
            raise ValueError(f"GaussianVelocity: expected dim ≥ {n}, as the basis has, got {dim}.")
        if k == self.dim:
            rest = values.min()  # nothing is outside; keep its rate finite
        self.register_buffer("basis", basis)
        self.register_buffer("values", values)
        self.register_buffer("rest", rest)

    @property
    def singular(self) -> bool:
        """Return whether M is singular."""
        return bool((self.values == 0).any() or self.rest == 0)

    @classmethod
    def from_coordinates(
        cls, z: Tensor | Iterable[Tensor], rank: int, rest: float | None = None
    ) -> GaussianVelocity:
        r"""From samples z (n, dim), or from batches of them in one pass.

        A sketch of max(2·rank, rank + 64) rows is updated by an SVD with each batch: exact while
        that many rows hold the data's span, otherwise up to what the truncation drops. The trace
        of M is exact always; ``rest`` defaults to what the kept values leave of it, shared equally.
        """
        width, n, trace, sketch = max(2 * rank, rank + 64), 0, 0.0, None
        for batch in z.split(1024) if isinstance(z, Tensor) else z:
            if batch.ndim != 2 or not batch.is_floating_point():
                raise ValueError(
                    "GaussianVelocity.from_coordinates: expected samples (n, dim) of a floating "
                    f"type, got {tuple(batch.shape)} of {batch.dtype}."
                )
            batch = batch.detach()
            n, trace = n + len(batch), trace + float(batch.double().square().sum())
            rows = batch if sketch is None else torch.cat([sketch, batch])
            _, S, Vh = torch.linalg.svd(rows, full_matrices=False)
            sketch = S[:width, None] * Vh[:width]
        if sketch is None or not n:
            raise ValueError("GaussianVelocity.from_coordinates: expected samples, got none.")
        dim = sketch.shape[1]
        if not 1 <= rank <= dim:
            raise ValueError(
                f"GaussianVelocity.from_coordinates: expected 1 ≤ rank ≤ dim = {dim}, got {rank}."
            )
        _, S, Vh = torch.linalg.svd(sketch, full_matrices=False)
        values = S[:rank].square() / n  # fewer than rank where there are fewer samples
        dust = torch.finfo(values.dtype).eps * max(n, dim) * float(values[0])
        values = torch.where(values > dust, values, 0.0)
        if rest is None:
            left = trace / n - float(values.double().sum())
            rest = left / (dim - len(values)) if left > dust and dim > len(values) else 0.0
        return cls(Vh[:rank].mT.contiguous(), values, rest)

    @property
    def moment(self) -> ScaledIdentityPlusLowRank:
        """M."""
        return self._operator(self.values, self.rest)

    def forward(self, c: float | Tensor) -> ScaledIdentityPlusLowRank:
        t = _time(c, "GaussianVelocity")
        if self.singular and bool((t == 1).any()):
            raise _undefined("GaussianVelocity")
        t = t.to(self.basis.device)
        return self._operator(_rate(t[..., None], self.values), _rate(t, self.rest))

    def flow(self, t0: float, t1: float) -> ScaledIdentityPlusLowRank:
        r"""The exact flow from t0 to t1: the root of ((1−t₁)²I + t₁²M)((1−t₀)²I + t₀²M)⁻¹."""
        if self.singular and t0 == 1.0 != t1:
            raise _undefined("GaussianVelocity")

        def ratio(value: Tensor) -> Tensor:
            if t0 == t1:
                return torch.ones_like(value)
            return (_spread(t1, value) / _spread(t0, value)).sqrt()

        return self._operator(ratio(self.values), ratio(self.rest))

    def step(self, t0: float, t1: float, take: Take) -> Operator | None:
        if not self.singular:
            return None
        if (t0 - 1.0) * (t1 - 1.0) < 0 or t0 == 1.0 != t1:
            raise _undefined("GaussianVelocity")
        numbers = self._rates().step(t0, t1, take)
        return (
            None if numbers is None else self._operator(numbers.diagonal[:-1], numbers.diagonal[-1])
        )

    def _apply(self, fn: Any, recurse: bool = True) -> GaussianVelocity:
        super()._apply(fn, recurse)
        if not self.basis.is_meta:
            for _ in range(2):  # orthonormal to the rounding of the precision that it has now
                Q = self.basis
                eye = torch.eye(Q.shape[1], dtype=Q.dtype, device=Q.device)
                self.basis.copy_(Q @ (1.5 * eye - 0.5 * Q.mT @ Q))
        return self

    def eigenbasis(self) -> tuple[Tensor, Family]:
        return self._wide(), self._rates()

    def _rates(self) -> _Rates:
        return _Rates(torch.cat([self.values, self.rest[None]]).double())

    def _operator(self, inside: Tensor, outside: Tensor) -> ScaledIdentityPlusLowRank:
        inside, outside = inside.to(self.basis.dtype), outside.to(self.basis.dtype)
        Q = self._wide()
        U = Q * (inside - outside[..., None])[..., None, :]
        return ScaledIdentityPlusLowRank(outside, U, Q)

    def _wide(self) -> Tensor:
        """Q with all its rows."""
        return nn.functional.pad(self.basis, (0, 0, 0, self.dim - len(self.basis)))


class _Rates(Family):
    """The eigenvalues of a GaussianVelocity, for second moments (k,)."""

    moments: Tensor

    def __init__(self, moments: Tensor) -> None:
        super().__init__()
        self.register_buffer("moments", moments)

    def forward(self, c: float | Tensor) -> Diagonal:
        t = _time(c, "GaussianVelocity").to(self.moments.device)
        return Diagonal(_rate(t[..., None], self.moments))

    def step(self, t0: float, t1: float, take: Take) -> Diagonal | None:
        none = self.moments == 0
        if not bool(none.any()) or t1 != 1.0:
            return None
        if t0 == 1.0:
            return Diagonal(torch.ones_like(self.moments))
        taken = take(_Rates(self.moments.masked_fill(none, 1.0)))
        assert isinstance(taken, Diagonal)
        return Diagonal(taken.diagonal.masked_fill(none, 0.0))


class StyleKernel(Family):
    r"""The number of a style ↦ a convolution, its kernel from an MLP of the number.

    The MLP sees the number s scaled to [−1, 1], and sin and cos of πks/styles for k up to
    ``styles``. Between two whole numbers it gives *some* kernel, and between distant ones it passes
    the styles that lie between: to mix styles, mix their operators.

    Paper: section 4.2 and appendix G.3 (a 4 × 4 kernel from a hypernetwork of the style's index).

    Arguments:
        styles: How many.
        image: Coordinates as an image, (C, H, W).
        kernel: Side of the kernel.
        mixing: One filter for each pair of channels; otherwise one for each channel.
        hidden: Width of the hidden layer; at least ``styles``, so that each style is free.

    Example:
        >>> family = StyleKernel(3, (2, 8, 8), kernel=4)
        >>> family(1.0), family(torch.tensor([0.0, 2.0])).batch
        (Convolution(shape=(128, 128)), 2)
    """

    def __init__(
        self,
        styles: int,
        image: tuple[int, int, int],
        kernel: int = 4,
        mixing: bool = False,
        hidden: int = 16,
    ) -> None:
        super().__init__()
        if min(styles, kernel) < 1 or hidden < styles:
            raise ValueError(
                "StyleKernel: expected styles ≥ 1, kernel ≥ 1 and hidden ≥ styles, got "
                f"{styles}, {kernel} and {hidden}."
            )
        self.styles, self.image, self.mixing = styles, image, mixing
        C = image[0]
        self.kernel_shape = (C, C, kernel, kernel) if mixing else (C, kernel, kernel)
        self.net = MLP(1 + 2 * styles, math.prod(self.kernel_shape), hidden, 1)
        self.assign(torch.stack([self.neutral()] * styles))

    def neutral(self) -> Tensor:
        """The kernel of the identity."""
        at = (self.kernel_shape[-1] - 1) // 2
        kernel = torch.zeros(self.kernel_shape)
        kernel[..., at, at] = torch.eye(self.image[0]) if self.mixing else 1.0
        return kernel

    @torch.no_grad()
    def assign(self, kernels: Tensor) -> None:
        """Make the kernels of the styles 0, 1, … these, (styles, …): sets the last layer."""
        last = self.net.layers[-1]
        assert isinstance(last, nn.Linear)
        h = self.net.layers[:-1](self._embed(torch.arange(self.styles).double()))
        wanted = kernels.flatten(1).to(h)
        mean = wanted.mean(0)
        solved = torch.linalg.lstsq(h.double(), (wanted - mean).double(), driver="gelsd").solution
        last.weight.copy_(solved.mT)
        last.bias.copy_(mean)

    def kernels(self, c: float | Tensor) -> Tensor:
        """The kernel of a style, or one for each of (batch,) styles."""
        made = self.net(self._embed(_time(c, "StyleKernel")))
        return made.unflatten(-1, self.kernel_shape)

    def _embed(self, s: Tensor) -> Tensor:
        k = torch.pi / self.styles * torch.arange(1, self.styles + 1, device=s.device)
        angles = s[..., None] * k
        middle = max(self.styles - 1, 1) / 2
        inputs = torch.cat([s[..., None] / middle - 1, angles.sin(), angles.cos()], -1)
        return inputs.to(next(self.parameters()))

    def operator(self, kernel: Tensor, image: tuple[int, int, int] | None = None) -> Operator:
        """A kernel as an operator, on coordinates of any size."""
        kind = MixingConvolution if self.mixing else Convolution
        return kind(kernel, image or self.image)

    def forward(self, c: float | Tensor) -> Operator:
        return self.operator(self.kernels(c))


def _spread(t: Tensor | float, value: Tensor) -> Tensor:
    """The second moment of (1−t)z₀ + t z₁ along one direction."""
    return (1 - t) ** 2 + t**2 * value


def _rate(t: Tensor, value: Tensor) -> Tensor:
    return (t * value - (1 - t)) / _spread(t, value)


def _time(c: float | Tensor, where: str) -> Tensor:
    """A float, a 0-d or a (batch,) tensor as a floating tensor; floats in double precision."""
    t = c if isinstance(c, Tensor) else torch.tensor(c, dtype=torch.float64)
    if t.ndim > 1:
        raise ValueError(f"{where}: expected t a number or (batch,), got shape {tuple(t.shape)}.")
    return t if t.is_floating_point() else t.double()


def _undefined(where: str) -> ValueError:
    return ValueError(
        f"{where}: the velocity is singular at t = 1, which can be reached but not left or passed. "
        "Stay at t < 1, or go back from 1 by the pinv of the collapsed forward operator."
    )
