r"""Identity, low rank, and their sum: cores that never make an n × n matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .matrices import (
    as_complex,
    batch_of,
    cat,
    compress_factors,
    count,
    exp_quotient,
    eye_like,
    finite,
    fix_signs,
    hold,
    hold_factors,
    matrix_eig,
    matrix_inverse,
    matrix_pinv,
    matrix_power,
    matrix_svd,
    middle,
    needs_gradient,
    peak,
    pick,
    real_power,
    rows,
    safe,
    safe_qr,
    scalar,
    shaped,
    singular,
    top,
)


class Identity(Operator):
    r"""I z = z.

    Example:
        >>> A = Identity(3) * 2.0
        >>> A(torch.ones(1, 3))
        tensor([[2., 2., 2.]])
    """

    like: Tensor

    def __init__(
        self, n: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.n = n
        # An empty tensor remembers dtype and device through .to().
        self.register_buffer("like", torch.empty(0, dtype=dtype, device=device), persistent=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.n

    @property
    def T(self) -> Identity:
        return self

    def forward(self, z: Tensor) -> Tensor:
        return z

    def scale(self, c: float | Tensor) -> ScaledIdentityPlusLowRank:
        none = self.like.new_zeros(self.n, 0)
        return ScaledIdentityPlusLowRank(scalar(c, self, 0), none, none)

    def __pow__(self, p: float) -> Identity:
        return self

    def exp(self, t: float | Tensor = 1.0) -> Operator:
        return self.scale(torch.exp(scalar(t, self, 0)))

    def inverse(self) -> Identity:
        return self

    def pinv(self, rtol: float | None = None) -> Identity:
        return self

    def svd(self, k: int | None = None) -> SVD:
        return self.scale(1.0).svd(k)

    def eig(self, k: int | None = None) -> Eig:
        return self.scale(1.0).eig(k)

    def rank(self, rtol: float | None = None) -> int:
        return self.n


class LowRank(Operator):
    r"""A = U Vᵀ with U (m, r) and V (n, r): never anything m × n.

    Paper: appendix G.3 (the core of the flow, rank 16).

    Example:
        >>> A = LowRank(torch.ones(4, 1), torch.ones(3, 1))
        >>> A.rank(), round(float(A.svd().S) ** 2, 3)
        (1, 12.0)
    """

    U: Tensor
    V: Tensor

    def __init__(self, U: Tensor, V: Tensor) -> None:
        super().__init__()
        hold_factors(self, U, V)

    @property
    def shape(self) -> tuple[int, int]:
        return self.U.shape[-2], self.V.shape[-2]

    @property
    def batch(self) -> int | None:
        return batch_of((self.U, 2), (self.V, 2))

    @property
    def T(self) -> LowRank:
        return LowRank(self.V, self.U)

    def forward(self, z: Tensor) -> Tensor:
        return rows(rows(z, self.V), self.U.mT)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        self._guard(self.shape, "dense", limit)
        return self.U @ self.V.mT

    def scale(self, c: float | Tensor) -> LowRank:
        return LowRank(scalar(c, self, 2) * self.U, self.V)

    def compress(self, rtol: float | None = None) -> LowRank:
        """The same operator with the singular values ≤ rtol·σ_max dropped."""
        return LowRank(*compress_factors(self.U, self.V, self._rtol(rtol)))

    def _reduced(self) -> tuple[Tensor, Tensor, Tensor]:
        """P, M, Q with A = P M Qᵀ, P and Q orthonormal columns, M small."""
        P, R = safe_qr(finite(self.U, "LowRank"))
        Q, L = safe_qr(finite(self.V, "LowRank"))
        return P, R @ L.mT, Q

    def _with_zero(self) -> ScaledIdentityPlusLowRank:
        return ScaledIdentityPlusLowRank(self.U.new_zeros(()), self.U, self.V)

    def _integer_power(self, p: int) -> LowRank:
        return LowRank(self.U @ torch.linalg.matrix_power(self.V.mT @ self.U, p - 1), self.V)

    def _fractional_power(self, p: float) -> LowRank:
        A = self._with_zero()._fractional_power(p)
        return LowRank(A.U, A.V)

    def exp(self, t: float | Tensor = 1.0) -> ScaledIdentityPlusLowRank:
        self._square("exp")
        return self._with_zero().exp(t)

    def pinv(self, rtol: float | None = None) -> Operator:
        with torch.no_grad():
            P, M, Q = self._reduced()
            result = LowRank(Q @ matrix_pinv(M, self._rtol(rtol)), P)
        return _with_pinv_gradient(self, result) if needs_gradient(self.U, self.V) else result

    def inverse(self) -> Operator:
        n = self._square("inverse")
        if self.U.shape[-1] < n:
            raise singular(self)
        return super().inverse()

    def svd(self, k: int | None = None) -> SVD:
        P, M, Q = self._reduced()
        U, S, V = matrix_svd(M)
        return _with_value_gradient(self, top(fix_signs(SVD(P @ U, S, Q @ V)), count(k)))

    def eig(self, k: int | None = None) -> Eig:
        self._square("eig")
        return self._with_zero().eig(k)

    def rank(self, rtol: float | None = None) -> int | Tensor:
        S = torch.linalg.svdvals(self._reduced()[1].detach())
        return self._number((self._rtol(rtol) * peak(S) < S).sum(-1))


class ScaledIdentityPlusLowRank(Operator):
    r"""A = αI + U Vᵀ, closed under product, sum, transpose, inverse, power and exponential.

    On the span of [U V], of dimension at most 2r, A is a small matrix M; on its complement A is α.
    So every function of A is α-part plus a small one: nothing n × n is ever made.

    Arguments:
        alpha: The scale, a number or (batch,).
        U, V: The factors, (n, r) or (batch, n, r).

    Example:
        >>> U, V = torch.randn(2, 100_000, 3).double()
        >>> A = ScaledIdentityPlusLowRank(2.0, U, V)
        >>> z = torch.randn(1, 100_000).double()
        >>> torch.allclose((A @ A.inverse())(z), z)
        True
    """

    alpha: Tensor
    U: Tensor
    V: Tensor

    def __init__(self, alpha: float | Tensor, U: Tensor, V: Tensor) -> None:
        super().__init__()
        if not isinstance(alpha, Tensor):
            alpha = U.new_tensor(alpha)
        shaped(self, "alpha", alpha, 0)
        hold_factors(self, U, V)
        if alpha.dtype != U.dtype or alpha.device != U.device:
            raise ValueError(
                f"ScaledIdentityPlusLowRank: alpha is {alpha.dtype} on {alpha.device}, the factors "
                f"are {U.dtype} on {U.device}. Move one of them with .to()."
            )
        own = batch_of((U, 2), (V, 2))
        if alpha.ndim and own not in (None, len(alpha)):
            raise ValueError(
                f"ScaledIdentityPlusLowRank: expected one alpha for each of {own} samples, "
                f"got {len(alpha)}."
            )
        hold(self, "alpha", alpha)
        self._square("αI + UVᵀ")

    @property
    def shape(self) -> tuple[int, int]:
        return self.U.shape[-2], self.V.shape[-2]

    @property
    def batch(self) -> int | None:
        return batch_of((self.alpha, 0), (self.U, 2), (self.V, 2))

    @property
    def T(self) -> ScaledIdentityPlusLowRank:
        return ScaledIdentityPlusLowRank(self.alpha, self.V, self.U)

    @property
    def _a(self) -> Tensor:
        return self.alpha[..., None, None]

    def forward(self, z: Tensor) -> Tensor:
        return middle(self.alpha, z, 0) * z + rows(rows(z, self.V), self.U.mT)

    def scale(self, c: float | Tensor) -> ScaledIdentityPlusLowRank:
        alpha = scalar(c, self, 0) * self.alpha
        return ScaledIdentityPlusLowRank(alpha, scalar(c, self, 2) * self.U, self.V)

    def compress(self, rtol: float | None = None) -> ScaledIdentityPlusLowRank:
        """The same operator with what is ≤ rtol·‖A‖ dropped from U Vᵀ."""
        U, V = compress_factors(self.U, self.V, self._rtol(rtol), self.alpha.abs())
        return ScaledIdentityPlusLowRank(self.alpha, U, V)

    def _reduced(self) -> tuple[Tensor, Tensor]:
        """Q, M with A = α(I − QQᵀ) + Q M Qᵀ, Q orthonormal columns spanning [U V]."""
        finite(self.alpha, "αI + UVᵀ")
        Q, _ = safe_qr(finite(cat(self.U, self.V), "αI + UVᵀ"))
        small = (Q.mT @ self.U) @ (Q.mT @ self.V).mT
        M = eye_like(small) * self._a + small
        return Q.expand(*M.shape[:-2], *Q.shape[-2:]), M

    def _loses_gradient(self, Q: Tensor) -> bool:
        """Whether Q was cut from the graph and leaves something out (a square Q does not)."""
        cut = needs_gradient(self.U, self.V) and not Q.requires_grad
        return cut and Q.shape[-1] < Q.shape[-2]

    def _no_gradient(self, what: str) -> ValueError:
        return ValueError(
            f"ScaledIdentityPlusLowRank.{what}: the columns of [U V] are dependent, and then no "
            "gradient passes through their QR. Call it under torch.no_grad(), or on "
            "Dense(A.dense())."
        )

    def _lift(self, alpha: Tensor, Q: Tensor, M: Tensor) -> ScaledIdentityPlusLowRank:
        """α'(I − QQᵀ) + Q M' Qᵀ."""
        small = M - eye_like(M) * alpha[..., None, None]
        return ScaledIdentityPlusLowRank(alpha, Q @ small, Q)

    def _integer_power(self, p: int) -> ScaledIdentityPlusLowRank:
        # Every power is aI + U X Vᵀ; products of two such pairs stay in r × r.
        G = self.V.mT @ self.U

        def times(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Any:
            (a, X), (b, Y) = left, right
            return a * b, a * Y + b * X + X @ G @ Y

        square, power = (self._a, eye_like(G)), None
        while p:
            if p & 1:
                power = square if power is None else times(power, square)
            square, p = times(square, square), p >> 1
        assert power is not None
        return ScaledIdentityPlusLowRank(power[0][..., 0, 0], self.U @ power[1], self.V)

    def _fractional_power(self, p: float) -> ScaledIdentityPlusLowRank:
        Q, M = self._reduced()
        outside = Q.shape[-1] < self.shape[0]
        if self._loses_gradient(Q):
            # Aᵖ = αᵖI + U (Kᵖ − αᵖI) G⁻¹ Vᵀ with G = VᵀU, K = αI + G, if G can be inverted.
            G = self.V.mT @ self.U
            if float(torch.linalg.cond(G.detach()).max()) > 1e6:
                raise self._no_gradient("power")
            power = real_power(self.alpha, p)
            small = (
                matrix_power(eye_like(G) * self._a + G, p) - eye_like(G) * power[..., None, None]
            )
            U = self.U @ torch.linalg.solve(G, small, left=False)
            return ScaledIdentityPlusLowRank(power, U, self.V)
        alpha = real_power(self.alpha, p) if outside else torch.zeros_like(self.alpha)
        return self._lift(alpha, Q, matrix_power(M, p))

    def exp(self, t: float | Tensor = 1.0) -> ScaledIdentityPlusLowRank:
        r"""e^{tA} = e^{tα}(I + t U φ₁(t VᵀU) Vᵀ), φ₁(M) = (e^M − I)/M."""
        c, growth = scalar(t, self, 2), torch.exp(scalar(t, self, 0) * self.alpha)
        small = exp_quotient(c * (self.V.mT @ self.U), c * self._a)
        return ScaledIdentityPlusLowRank(growth, c * (self.U @ small), self.V)

    def inverse(self) -> Operator:
        r"""Woodbury: (αI + UVᵀ)⁻¹ = (I − U (αI + VᵀU)⁻¹ Vᵀ)/α."""
        if self.U.shape[-1] >= self.shape[0]:  # no smaller than A, and Woodbury divides by α
            return super().inverse()
        small = self.V.mT @ self.U
        small = eye_like(small) * self._a + small
        tiny = self.alpha.abs() <= torch.finfo(self.dtype).eps * peak(small.abs().flatten(-2))
        if tiny.any():
            raise singular(self)
        U = self.U @ matrix_inverse(small, self) / self._a
        return ScaledIdentityPlusLowRank(1.0 / self.alpha, -U, self.V)

    def pinv(self, rtol: float | None = None) -> Operator:
        with torch.no_grad():
            Q, M = self._reduced()
            U, S, V = matrix_svd(M)
            outside = self._outside(Q, S).squeeze(-1)
            cut = self._rtol(rtol) * torch.maximum(peak(S).squeeze(-1), outside)
            inv_alpha = torch.where(outside > cut, 1.0 / safe(self.alpha), 0.0)
            inv_S = torch.where(cut[..., None] < S, 1.0 / safe(S), 0.0)
            result = self._lift(inv_alpha, Q, (V * inv_S.unsqueeze(-2)) @ U.mT)
        if not needs_gradient(self.alpha, self.U, self.V):
            return result
        regular = (inv_S > 0).all() and (Q.shape[-1] == self.shape[0] or (inv_alpha != 0).all())
        return self.inverse() if regular else _with_pinv_gradient(self, result)

    def _outside(self, Q: Tensor, S: Tensor) -> Tensor:
        """|α| where the complement of span Q is not empty, else 0; shaped like S[..., :1]."""
        outside = self.alpha.abs() * float(Q.shape[-1] < self.shape[0])
        return outside.unsqueeze(-1).expand(*S.shape[:-1], 1)

    def rank(self, rtol: float | None = None) -> int | Tensor:
        Q, M = self._reduced()
        S = torch.linalg.svdvals(M.detach())
        outside = self._outside(Q, S)
        cut = self._rtol(rtol) * torch.maximum(peak(S), outside)
        beyond = (self.shape[0] - Q.shape[-1]) * (outside > cut).sum(-1)
        return self._number((cut < S).sum(-1) + beyond)

    def svd(self, k: int | None = None) -> SVD:
        Q, M = self._reduced()
        U, S, V = matrix_svd(M)
        S, order, outer = self._merge(S, self.alpha.abs(), k, Q, "svd")
        sign = torch.where(self.alpha < 0, -1.0, 1.0).to(Q)[..., None, None]
        U = pick(torch.cat([Q @ U, sign * outer], -1), order)
        V = pick(torch.cat([Q @ V, outer], -1), order)
        return _with_value_gradient(self, fix_signs(SVD(U, S, V)))

    def eig(self, k: int | None = None) -> Eig:
        Q, M = self._reduced()
        if self._loses_gradient(Q):
            raise self._no_gradient("eig")
        values, vectors = matrix_eig(M)
        values, order, outer = self._merge(values, as_complex(self.alpha), k, Q, "eig")
        vectors = torch.cat([as_complex(Q) @ vectors, as_complex(outer)], -1)
        return Eig(values, pick(vectors, order))

    def _merge(
        self, inner: Tensor, alpha: Tensor, k: int | None, Q: Tensor, what: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The k leading values among those inside span Q and the copies of α outside it.

        Also their order, and orthonormal columns outside the span for the copies.
        """
        n, q = Q.shape[-2:]
        k = min(count(k) or n, n)
        self._guard((n, k), what, hint=f"Ask for the leading ones: .{what}(k).")
        copies = min(n - q, k)
        values = torch.cat([inner, alpha.unsqueeze(-1).expand(*inner.shape[:-1], copies)], -1)
        order = values.abs().argsort(dim=-1, descending=True, stable=True)[..., :k]
        outer = Q.new_zeros(*Q.shape[:-1], copies)
        if copies and bool((order >= q).any()):
            generator = torch.Generator().manual_seed(0)
            outer = torch.randn(n, copies, dtype=torch.float64, generator=generator).to(Q)
            for _ in range(2):
                outer = torch.linalg.qr(outer - Q @ (Q.mT @ outer))[0]
        return values.gather(-1, order), order, outer


def _with_value_gradient(A: Operator, svd: SVD) -> SVD:
    """The same triples; σᵢ = uᵢᵀ A vᵢ has its exact gradient even where the factors have none."""
    U, V = svd.U.detach(), svd.V.detach()
    S = svd.S.detach()
    through = (U * A._columns(V)).sum(-2)
    return SVD(svd.U, S + (through - through.detach()), svd.V)


def _with_pinv_gradient(A: Operator, P: Operator) -> Operator:
    """P = A† found without a graph, given the derivative of a pseudo-inverse of constant rank.

    dP = −P dA P + P Pᵀ dAᵀ (I − A P) + (I − P A) dAᵀ Pᵀ P: below, only A has a graph, and the terms
    beside P vanish in value.
    """
    with torch.no_grad():
        A0 = A * 1.0
        left = Identity(A.shape[1], A.dtype, A.device) - P @ A0
        right = Identity(A.shape[0], A.dtype, A.device) - A0 @ P
        PPt, PtP = P @ P.T, P.T @ P
    return P * 2.0 - P @ A @ P + PPt @ A.T @ right + left @ A.T @ PtP
