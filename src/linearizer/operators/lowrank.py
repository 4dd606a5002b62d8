r"""Identity, low rank, and their sum: cores that never make an n × n matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import DENSE_LIMIT, SVD, Eig, Operator
from .derivatives import first_order, move_vectors, needs_gradient
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
    matrix_log,
    matrix_pinv,
    matrix_power,
    matrix_solve,
    matrix_svd,
    middle,
    own,
    peak,
    pick,
    precise,
    real_log,
    real_power,
    require_axes,
    rows,
    safe,
    safe_qr,
    scalar,
    singular,
    top,
)
from .rules import identity, null_of, range_of, register


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
        self.n = int(n)
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

    def log(self) -> LowRank:
        none = self.like.new_zeros(self.n, 0)
        return LowRank(none, none)

    def _solve(self, w: Tensor) -> Tensor:
        return w

    def inverse(self) -> Identity:
        return self

    def pinv(self, rtol: float | None = None) -> Identity:
        return self

    def svd(self, k: int | None = None) -> SVD:
        return self.scale(1.0).svd(k)

    def eig(self, k: int | None = None) -> Eig:
        return self.scale(1.0).eig(k)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        times = torch.tensor([self.n], device=precise(self.like, "Identity").device)
        return self.like.new_ones(1), times

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        S, times = self._singular_values()
        return as_complex(S), times

    def trace(self) -> Tensor:
        return self.like.new_tensor(float(self.n))

    def slogdet(self) -> tuple[Tensor, Tensor]:
        return self.like.new_ones(()), self.like.new_zeros(())


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
        return LowRank(own(self.V), own(self.U))

    def forward(self, z: Tensor) -> Tensor:
        return rows(rows(z, self.V), self.U.mT)

    def _back(self, M: Tensor) -> Tensor:
        return self.V @ (self.U.mT @ M)

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        self._guard(self.shape, "dense", limit)
        return self.U @ self.V.mT

    def scale(self, c: float | Tensor) -> LowRank:
        return LowRank(scalar(c, self, 2) * self.U, own(self.V))

    def compress(self, rtol: float | None = None) -> LowRank:
        """The same operator with the singular values ≤ rtol·σ_max dropped."""
        return LowRank(*compress_factors(self.U, self.V, self._rtol(rtol)))

    def _reduce(self) -> tuple[Tensor, Tensor, Tensor]:
        """P, M, Q with A = P M Qᵀ, P and Q orthonormal columns, M small."""
        P, R = safe_qr(finite(self.U, "LowRank"))
        Q, L = safe_qr(finite(self.V, "LowRank"))
        return P, R @ L.mT, Q

    def _loses_gradient(self, P: Tensor, Q: Tensor) -> bool:
        """Return whether the QR of dependent columns has cut one of the factors from its graph."""
        return any(needs_gradient(X) and not Y.requires_grad for X, Y in ((self.U, P), (self.V, Q)))

    def _with_zero(self) -> ScaledIdentityPlusLowRank:
        return ScaledIdentityPlusLowRank(self.U.new_zeros(()), own(self.U), own(self.V))

    def _integer_power(self, p: int) -> LowRank:
        return LowRank(self.U @ torch.linalg.matrix_power(self.V.mT @ self.U, p - 1), own(self.V))

    def _fractional_power(self, p: float) -> LowRank:
        A = self._with_zero()._fractional_power(p)
        return LowRank(A.U, A.V)

    def exp(self, t: float | Tensor = 1.0) -> ScaledIdentityPlusLowRank:
        self._square("exp")
        return self._with_zero().exp(t)

    def log(self) -> Operator:
        self._full("log")
        return super().log()

    def pinv(self, rtol: float | None = None) -> Operator:
        P, M, Q = self._reduce()
        if not self._loses_gradient(P, Q):
            return LowRank(Q @ matrix_pinv(M, self._rtol(rtol)), own(P))
        with torch.no_grad():
            result = LowRank(Q @ matrix_pinv(M, self._rtol(rtol)), P)
            self._refuse_cut(torch.linalg.svdvals(M), rtol, "pinv")
        return _with_pinv_gradient(self, result)

    def _refuse_cut(self, S: Tensor, rtol: float | None, what: str) -> None:
        """Refuse to cut values that are not zero where dependent factors have no gradient."""
        rounding = 8 * max(self.shape) * torch.finfo(S.dtype).eps * peak(S)
        if bool(((self._rtol(rtol) * peak(S) >= S) & (rounding < S)).any()):
            raise ValueError(
                f"LowRank.{what}: rtol cuts singular values that are not zero, and the columns of "
                "U or V are dependent: then no gradient is known. Call it under torch.no_grad(), "
                "or on Dense(A.dense())."
            )

    def inverse(self) -> Operator:
        self._full("inverse")
        return super().inverse()

    def _solve(self, w: Tensor) -> Tensor:
        self._full("solve")
        return super()._solve(w)

    def _full(self, what: str) -> None:
        if self.U.shape[-1] < self._square(what):
            raise singular(self, what)

    def svd(self, k: int | None = None) -> SVD:
        P, M, Q = self._reduce()
        lost = self._loses_gradient(P, Q)
        U, S, V = matrix_svd(M.detach() if lost else M)
        whole = fix_signs(SVD(P @ U, S, Q @ V))
        return top(_with_svd_gradient(self, whole) if lost else whole, count(k))

    def eig(self, k: int | None = None) -> Eig:
        self._square("eig")
        return self._with_zero().eig(k)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        P, M, Q = self._reduce()
        S = self.svd().S if self._loses_gradient(P, Q) else torch.linalg.svdvals(M)
        return _append(S, S.new_zeros(()), min(self.shape) - S.shape[-1])

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        # Those of VᵀU, and zeros.
        values = torch.linalg.eigvals(finite(self.V.mT @ self.U, "eigvals"))
        return _append(values, values.new_zeros(()), self.shape[0] - values.shape[-1])

    def trace(self) -> Tensor:
        self._square("trace")
        return (self.U * self.V).sum((-2, -1))

    def slogdet(self) -> tuple[Tensor, Tensor]:
        if self.U.shape[-1] >= self._square("slogdet"):
            return super().slogdet()
        zero = (self.U * self.V).sum((-2, -1)).detach() * 0.0
        return zero, zero - torch.inf


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
        require_axes(self, "alpha", alpha, 0)
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
        return ScaledIdentityPlusLowRank(own(self.alpha), own(self.V), own(self.U))

    @property
    def _a(self) -> Tensor:
        return self.alpha[..., None, None]

    def forward(self, z: Tensor) -> Tensor:
        return middle(self.alpha, z, 0) * z + rows(rows(z, self.V), self.U.mT)

    def _back(self, M: Tensor) -> Tensor:
        return self._a * M + self.V @ (self.U.mT @ M)

    def scale(self, c: float | Tensor) -> ScaledIdentityPlusLowRank:
        alpha = scalar(c, self, 0) * self.alpha
        return ScaledIdentityPlusLowRank(alpha, scalar(c, self, 2) * self.U, own(self.V))

    def compress(self, rtol: float | None = None) -> ScaledIdentityPlusLowRank:
        """The same operator with what is ≤ rtol·‖A‖ dropped from U Vᵀ."""
        U, V = compress_factors(self.U, self.V, self._rtol(rtol), self.alpha.abs())
        return ScaledIdentityPlusLowRank(own(self.alpha), U, V)

    def _reduce(self) -> tuple[Tensor, Tensor]:
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
        return ScaledIdentityPlusLowRank(power[0][..., 0, 0], self.U @ power[1], own(self.V))

    def _fractional_power(self, p: float) -> ScaledIdentityPlusLowRank:
        Q, M = self._reduce()
        outside = Q.shape[-1] < self.shape[0]
        if self._loses_gradient(Q):
            return self._power_by_quotient(p)
        alpha = real_power(self.alpha, p) if outside else torch.zeros_like(self.alpha)
        return self._lift(alpha, Q, matrix_power(M, p))

    def _power_by_quotient(self, p: float) -> ScaledIdentityPlusLowRank:
        """αᵖI + U φ(VᵀU) Vᵀ with φ(G) = ((αI + G)ᵖ − αᵖI)/G: needs no basis of [U V]."""
        G = self.V.mT @ self.U
        power, eye = real_power(self.alpha, p), eye_like(G)
        if bool((self.alpha > 0).all()):
            # φ(G) is the upper right block of [[αI + G, I], [0, αI]]ᵖ, for singular G too.
            r = G.shape[-1]
            block = F.pad(torch.cat([G, eye.expand_as(G)], -1), (0, 0, 0, r))
            small = matrix_power(block + eye_like(block) * self._a, p)[..., :r, r:]
        elif float(torch.linalg.cond(G.detach()).max()) <= 1e6:
            change = matrix_power(eye * self._a + G, p) - eye * power[..., None, None]
            small = torch.linalg.solve(G, change, left=False)
        else:
            raise self._no_gradient("power")
        return ScaledIdentityPlusLowRank(power, self.U @ small, own(self.V))

    def log(self) -> ScaledIdentityPlusLowRank:
        Q, M = self._reduce()
        if self._loses_gradient(Q):
            raise self._no_gradient("log")
        inside = Q.shape[-1] == self.shape[0]
        alpha = torch.zeros_like(self.alpha) if inside else real_log(self.alpha)
        return self._lift(alpha, Q, matrix_log(M))

    def exp(self, t: float | Tensor = 1.0) -> ScaledIdentityPlusLowRank:
        r"""e^{tA} = e^{tα}(I + t U φ₁(t VᵀU) Vᵀ), φ₁(M) = (e^M − I)/M."""
        c, growth = scalar(t, self, 2), torch.exp(scalar(t, self, 0) * self.alpha)
        small = exp_quotient(c * (self.V.mT @ self.U), c * self._a)
        return ScaledIdentityPlusLowRank(growth, c * (self.U @ small), own(self.V))

    def inverse(self) -> Operator:
        r"""Woodbury: (αI + UVᵀ)⁻¹ = (I − U (αI + VᵀU)⁻¹ Vᵀ)/α."""
        if self.U.shape[-1] >= self.shape[0]:  # no smaller than A, and Woodbury divides by α
            return super().inverse()
        finite(self.alpha, "inverse")
        small = self.V.mT @ self.U
        small = eye_like(small) * self._a + small
        tiny = self.alpha.abs() <= torch.finfo(self.dtype).eps * peak(small.abs().flatten(-2))
        if tiny.any():
            raise singular(self)
        U = self.U @ matrix_inverse(small, self) / self._a
        return ScaledIdentityPlusLowRank(1.0 / self.alpha, -U, own(self.V))

    def _solve(self, w: Tensor) -> Tensor:
        r"""(w − QQᵀw)/α + Q M⁻¹ Qᵀw, with orthonormal Q: as stable as LU of the whole."""
        if self.U.shape[-1] >= self.shape[0]:
            return super()._solve(w)
        with torch.no_grad():
            Q, M = self._reduce()
            if Q.shape[-1] < self.shape[0]:
                size = peak(M.abs().flatten(-2)).squeeze(-1)
                if (self.alpha.abs() <= torch.finfo(self.dtype).eps * size).any():
                    raise singular(self, "solve")
        z = self._solve_with(Q, M, w.detach())
        parents = (self.alpha, self.U, self.V, w)
        if not needs_gradient(*parents):
            return z
        # One step of Newton's method has the derivative A⁻¹(dw − dA z), and is 0 in value.
        step = self._solve_with(Q, M, w - self.forward(z))
        return first_order(z, step, "ScaledIdentityPlusLowRank.solve", *parents)

    def _solve_with(self, Q: Tensor, M: Tensor, w: Tensor) -> Tensor:
        inside = rows(w, Q)
        columns = inside.mT if M.ndim == 2 or inside.ndim > 2 else inside.unsqueeze(-1)
        small = matrix_solve(M, columns, self)
        small = small.mT if M.ndim == 2 or inside.ndim > 2 else small.squeeze(-1)
        beside = w - rows(inside, Q.mT)
        if Q.shape[-1] < self.shape[0]:
            beside = beside / middle(self.alpha.detach(), w, 0)
        return beside + rows(small, Q.mT)

    def pinv(self, rtol: float | None = None) -> Operator:
        with torch.no_grad():
            Q, M = self._reduce()
            S = torch.linalg.svdvals(M)
            outside = self._outside(Q, S)
            cut = self._rtol(rtol) * torch.maximum(peak(S), outside)
            kept_outside = outside > cut
            inside = Q.shape[-1] == self.shape[0]
            regular = bool((cut < S).all() and (inside or kept_outside.all()))
        if regular and needs_gradient(self.alpha, self.U, self.V):
            return self.inverse()
        if not self._loses_gradient((graph := self._reduce())[0]):
            return self._pinv_with(*graph, kept_outside, cut)
        with torch.no_grad():
            result = self._pinv_with(Q, M, kept_outside, cut)
        sizes = torch.cat([S, outside], -1)
        rounding = 8 * self.shape[0] * torch.finfo(S.dtype).eps * peak(sizes)
        if bool(((cut >= sizes) & (rounding < sizes)).any()):
            raise self._no_gradient("pinv")
        return _with_pinv_gradient(self, result)

    def _pinv_with(
        self, Q: Tensor, M: Tensor, kept: Tensor, cut: Tensor
    ) -> ScaledIdentityPlusLowRank:
        alpha = torch.where(kept.squeeze(-1), 1.0 / safe(self.alpha), 0.0)
        return self._lift(alpha, Q, matrix_pinv(M, cut=cut))

    def _outside(self, Q: Tensor, S: Tensor) -> Tensor:
        """|α| where the complement of span Q is not empty, else 0; shaped like S[..., :1]."""
        outside = self.alpha.abs() * float(Q.shape[-1] < self.shape[0])
        return outside.unsqueeze(-1).expand(*S.shape[:-1], 1)

    def _singular_values(self) -> tuple[Tensor, Tensor | None]:
        Q, M = self._reduce()
        S = self._inner_svd(Q, M).S if self._loses_gradient(Q) else torch.linalg.svdvals(M)
        return _append(S, self.alpha.abs(), self.shape[0] - S.shape[-1])

    def _eigenvalues(self) -> tuple[Tensor, Tensor | None]:
        # Those of αI + VᵀU, and α.
        small = self.V.mT @ self.U
        small = eye_like(small) * self._a + small
        values = torch.linalg.eigvals(finite(small, "eigvals"))
        return _append(values, as_complex(self.alpha), self.shape[0] - values.shape[-1])

    def trace(self) -> Tensor:
        return self.shape[0] * self.alpha + (self.U * self.V).sum((-2, -1))

    def slogdet(self) -> tuple[Tensor, Tensor]:
        small = self.V.mT @ self.U
        sign, log = torch.linalg.slogdet(finite(eye_like(small) * self._a + small, "slogdet"))
        n = self.shape[0] - small.shape[-1]
        if not n:
            return sign, log
        return sign * self.alpha.sign() ** n, log + n * self.alpha.abs().log()

    def _inner_svd(self, Q: Tensor, M: Tensor) -> SVD:
        """All triples inside span Q, with their gradient."""
        if not self._loses_gradient(Q):
            U, S, V = matrix_svd(M)
            return SVD(Q @ U, S, Q @ V)
        U, S, V = matrix_svd(M.detach())
        return _with_svd_gradient(self, SVD(Q @ U, S, Q @ V), self._a)

    def svd(self, k: int | None = None) -> SVD:
        Q, M = self._reduce()
        U, S, V = self._inner_svd(Q, M)
        S, order, outer = self._merge(S, self.alpha.abs(), k, Q, "svd")
        sign = torch.where(self.alpha < 0, -1.0, 1.0).to(Q)[..., None, None]
        U = pick(torch.cat([U, sign * outer], -1), order)
        V = pick(torch.cat([V, outer], -1), order)
        return fix_signs(SVD(U, S, V))

    def eig(self, k: int | None = None) -> Eig:
        Q, M = self._reduce()
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


def _append(values: Tensor, value: Tensor, times: int) -> tuple[Tensor, Tensor | None]:
    """The values, and one more that counts several times."""
    if not times:
        return values, None
    value = value.unsqueeze(-1).expand(*values.shape[:-1], 1)
    each = torch.ones(values.shape[-1] + 1, dtype=torch.long, device=values.device)
    each[-1] = times
    return torch.cat([values, value], -1), each


def _with_svd_gradient(A: Operator, svd: SVD, alpha: Tensor | float = 0.0) -> SVD:
    """Triples found without a graph, given their derivative: σᵢ = uᵢᵀ A vᵢ, vectors as they turn.

    Beside them A is α.
    """
    U, S, V = (factor.detach() for factor in svd)
    AV, AtU = A._columns(V), A._back(U)
    what, parents = f"{type(A).__name__}.svd", (*A.parameters(), *A.buffers())
    dU, dV = move_vectors(U, S, V, AV, AtU, alpha=alpha)
    return SVD(
        first_order(U, dU, what, *parents),
        first_order(S, (U * AV).sum(-2), what, *parents),
        first_order(V, dV, what, *parents),
    )


def _with_pinv_gradient(A: Operator, P: Operator) -> Operator:
    """P = A† found without a graph, given the derivative of a pseudo-inverse of constant rank.

    dP = −P dA P + P Pᵀ dAᵀ (I − A P) + (I − P A) dAᵀ Pᵀ P: below, only A has a graph, and the terms
    beside P vanish in value.
    """
    what, parents = f"{type(A).__name__}.pinv", (*A.parameters(), *A.buffers())
    with torch.no_grad():
        A0 = A._now()
        left = Identity(A.shape[1], A.dtype, A.device) - P @ A0
        right = Identity(A.shape[0], A.dtype, A.device) - A0 @ P
        PPt, PtP = P @ P.T, P.T @ P
    once = A._now()
    for name, tensor in once._buffers.items():
        if tensor is not None:
            once._buffers[name] = first_order(tensor, tensor, what, *parents)
    return P * 2.0 - P @ once @ P + PPt @ once.T @ right + left @ once.T @ PtP


# -- projectors ------------------------------------------------------------------------------------


def _leading(A: Operator, rtol: float, right: bool) -> Tensor:
    """Orthonormal columns that span what A keeps: of its range, or of the complement of its null
    space. With a batch axis columns that are cut are zero. They follow A as their span does."""
    with torch.no_grad():
        svd = A.svd()
        kept = rtol * peak(svd.S) < svd.S
        k = int(kept.reshape(-1, kept.shape[-1]).sum(-1).max()) if kept.numel() else 0
    columns = svd.V if right else svd.U
    tensors = (*A.parameters(), *A.buffers())
    if needs_gradient(*tensors):
        AV, AtU = A._columns(svd.V), A._back(svd.U)
        dU, dV = move_vectors(*svd, AV, AtU, group=kept)
        what = f"{type(A).__name__}.{'null' if right else 'range'}_projector"
        columns = first_order(columns, dV if right else dU, what, *tensors)
    return (columns * kept.unsqueeze(-2))[..., :k]


@register(range_of, Operator)
def _range_by_svd(A: Operator, rtol: float) -> Operator:
    U = _leading(A, rtol, right=False)
    if U.shape[-1] == A.shape[0] and A.batch is None:
        return Identity(A.shape[0], A.dtype, A.device)
    return LowRank(U, own(U))


@register(null_of, Operator)
def _null_by_svd(A: Operator, rtol: float) -> Operator:
    V = _leading(A, rtol, right=True)
    if V.shape[-1] == A.shape[1] and A.batch is None:
        return Identity(A.shape[1], A.dtype, A.device).log()
    return ScaledIdentityPlusLowRank(V.new_ones(()), -V, own(V))


def _split(A: ScaledIdentityPlusLowRank, rtol: float, right: bool) -> Operator:
    """Onto what A keeps, on the right or on the left: I less what it cuts, where α is kept."""
    with torch.no_grad():
        Q, M = A._reduce()
        U, S, V = matrix_svd(M)
        outside = A._outside(Q, S)
        cut = rtol * torch.maximum(peak(S), outside)
        kept, beside = cut < S, (outside > cut).squeeze(-1)
        U, V = Q @ U, Q @ V
    columns = V if right else U
    tensors = (A.alpha, A.U, A.V)
    if needs_gradient(*tensors):
        AV, AtU = A._columns(V), A._back(U)
        dU, dV = move_vectors(U, S, V, AV, AtU, kept, A._a)
        columns = first_order(columns, dV if right else dU, "range_projector", *tensors)
    inside = Q.shape[-1] == A.shape[0]
    if A.batch is None:  # a projector of the smaller of the two spans
        keep = kept if inside or not bool(beside) else ~kept
        columns = columns[..., keep]
        if inside or not bool(beside):
            return LowRank(columns, own(columns))
        return ScaledIdentityPlusLowRank(columns.new_ones(()), -columns, own(columns))
    on = beside.to(columns) * float(not inside)
    sign = kept.to(columns) - on.unsqueeze(-1)
    return ScaledIdentityPlusLowRank(on, columns * sign.unsqueeze(-2), own(columns))


@register(range_of, ScaledIdentityPlusLowRank)
def _range_of_sum(A: ScaledIdentityPlusLowRank, rtol: float) -> Operator:
    return _split(A, rtol, right=False)


@register(null_of, ScaledIdentityPlusLowRank)
def _null_of_sum(A: ScaledIdentityPlusLowRank, rtol: float) -> Operator:
    P = _split(A, rtol, right=True)
    return Identity(A.shape[0], A.dtype, A.device) - P


@register(range_of, Identity)
def _range_of_identity(A: Identity, rtol: float) -> Operator:
    return A


@register(null_of, Identity)
def _null_of_identity(A: Identity, rtol: float) -> Operator:
    return A.log()


@register(identity, Operator)
def _identity(A: Operator) -> Identity:
    like = A._tensor
    return Identity(A.shape[0], like.dtype, like.device)
