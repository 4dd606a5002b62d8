r"""The Linearizer: a nonlinear map that is exactly linear between two induced spaces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import operators
from .certificate import Certificate, certify
from .operators import Dense, Identity, Operator
from .spaces import Space

__all__ = ["SVD", "Eig", "Linearizer"]


class SVD(NamedTuple):
    r"""f(vᵢ) = σᵢ ⊙ uᵢ and fᵀ(uᵢ) = σᵢ ⊙ vᵢ, as points of the data spaces."""

    U: Tensor  #: (k, *target shape), orthonormal in the target Space
    S: Tensor  #: (k,), descending
    V: Tensor  #: (k, *source shape), orthonormal in the source Space
    operator: operators.SVD  #: the factors in coordinates


class Eig(NamedTuple):
    r"""f(v) = λ ⊙ v. A complex pair turns the plane of ``real`` and ``imag`` by arg λ.

    For λ = a + bi and v = r + i·s: f(r) = a⊙r ⊖ b⊙s and f(s) = b⊙r ⊕ a⊙s.
    """

    values: Tensor  #: (k,), complex, by falling magnitude
    real: Tensor  #: (k, *shape), the points g⁻¹(Re v)
    imag: Tensor  #: (k, *shape), the points g⁻¹(Im v), the zero of the Space where λ is real
    operator: operators.Eig  #: the pairs in coordinates


class Linearizer(nn.Module):
    r"""f(x) = g_y⁻¹(A g_x(x)): linear from ``source`` to ``target``, whatever g_x and g_y are.

    Every method returns another Linearizer, or points in data space. Composition needs the *same
    Space object* between the two maps. What an operation returns shares the Spaces, but its core is
    its own and as of now: inside a training step, ask again.

    Paper: definition 2.1, propositions 2.4 to 2.9, lemma 4.1.

    Arguments:
        source: The Space of inputs, (batch, \*source.shape).
        operator: The core A, of shape (target.dim, source.dim).
        target: The Space of outputs, (batch, \*target.shape).

    Example:
        >>> X, Y = Space(mlp(4)), Space(mlp(3))
        >>> f = Linearizer(X, Dense(torch.randn(3, 4)), Y)
        >>> u, v = torch.randn(2, 5, 4)
        >>> torch.allclose(f(X.add(u, v)), Y.add(f(u), f(v)), atol=1e-3)
        True
    """

    def __init__(self, source: Space, operator: Operator, target: Space) -> None:
        super().__init__()
        for name, value, kind in (
            ("source", source, Space),
            ("operator", operator, Operator),
            ("target", target, Space),
        ):
            if not isinstance(value, kind):
                wrap = "Space(g)" if kind is Space else "operators.Dense(matrix)"
                raise TypeError(
                    f"Linearizer: expected {name} as {kind.__name__}, got {type(value).__name__}. "
                    f"Wrap it, as in {wrap}."
                )
        if operator.shape != (target.dim, source.dim):
            m, n = operator.shape
            raise ValueError(
                f"Linearizer: operator has shape ({m}, {n}), but source and target need "
                f"({target.dim}, {source.dim}) (target dim, source dim). "
                "Build it with those sizes, or transpose it."
            )
        self.source = source
        self.operator = operator
        self.target = target

    def forward(self, x: Tensor) -> Tensor:
        """g_y⁻¹(A g_x(x)), (batch, \\*source.shape) → (batch, \\*target.shape)."""
        return self.target.points(self.operator(self.source.coordinates(x)))

    # -- algebra ---------------------------------------------------------------------------

    def __matmul__(self, other: Linearizer) -> Linearizer:
        if not isinstance(other, Linearizer):
            return NotImplemented
        if self.source is not other.target:
            raise ValueError(
                "f @ h: h ends in a different Space than f starts from. "
                "Pass the same Space object to both."
            )
        return Linearizer(other.source, self.operator @ other.operator, self.target)

    def __add__(self, other: Linearizer) -> Linearizer:
        if not isinstance(other, Linearizer):
            return NotImplemented
        self._parallel(other, "+")
        return self._with(self.operator + other.operator)

    def __sub__(self, other: Linearizer) -> Linearizer:
        if not isinstance(other, Linearizer):
            return NotImplemented
        self._parallel(other, "-")
        return self._with(self.operator - other.operator)

    def __mul__(self, c: float | Tensor) -> Linearizer:
        if not isinstance(c, int | float | Tensor):
            return NotImplemented
        return self._with(self.operator * c)

    __rmul__ = __mul__

    def __truediv__(self, c: float | Tensor) -> Linearizer:
        return self._with(self.operator / c)

    def __neg__(self) -> Linearizer:
        return self._with(-self.operator)

    def __pow__(self, p: float) -> Linearizer:
        r"""f applied p times, g⁻¹(Aᵖ g(x)); negative inverts, fractional is the principal root."""
        self._endomorphism("f ** p")
        return self._with(self.operator**p)

    def exp(self, t: float | Tensor = 1.0) -> Linearizer:
        r"""g⁻¹(e^{tA} g(x)), the flow of ẋ = f(x) in the induced space after time t."""
        self._endomorphism("f.exp")
        return self._with(self.operator.exp(t))

    @property
    def T(self) -> Linearizer:
        r"""Adjoint in the induced inner products, g_x⁻¹(Aᵀ g_y(y)): ⟨f(x), y⟩ = ⟨x, fᵀ(y)⟩."""
        return Linearizer(self.target, self.operator.T, self.source)

    def inverse(self) -> Linearizer:
        """g_x⁻¹(A⁻¹ g_y(y)); an error where A is singular or rectangular."""
        return Linearizer(self.target, self.operator.inverse(), self.source)

    def pinv(self, rtol: float | None = None) -> Linearizer:
        r"""Moore–Penrose inverse g_x⁻¹(A† g_y(y)) in the induced inner products.

        Singular values ≤ rtol·σ_max count as zero.
        """
        return Linearizer(self.target, self.operator.pinv(rtol), self.source)

    def back_project(self, x: Tensor, y: Tensor, rtol: float | None = None) -> Tensor:
        r"""x ⊕ f†(y ⊖ f(x)): the point nearest to x that f takes to y, or as close as it can.

        Example:
            >>> pixels = Space(Flatten((4,)))
            >>> known = Linearizer(pixels, Diagonal(torch.tensor([1.0, 0.0, 1.0, 0.0])), pixels)
            >>> known.back_project(torch.zeros(1, 4), torch.ones(1, 4))
            tensor([[1., 0., 1., 0.]])
        """
        missing = self.pinv(rtol)(self.target.sub(y, self(x)))
        return self.source.add(x, missing)

    def _with(self, operator: Operator) -> Linearizer:
        return Linearizer(self.source, operator, self.target)

    def _parallel(self, other: Linearizer, sign: str) -> None:
        if self.source is not other.source or self.target is not other.target:
            raise ValueError(
                f"f {sign} h: the two go between different Spaces. "
                "Pass the same Space objects to both."
            )

    def _endomorphism(self, what: str) -> None:
        if self.source is not self.target:
            raise ValueError(
                f"{what}: f must end in the Space it starts from, but source and target differ. "
                "Pass one Space object as both."
            )

    def _single(self, what: str) -> None:
        if self.operator.batch is not None:
            raise operators.UnsupportedError(
                f"Linearizer.{what}: the operator holds one A for each of {self.operator.batch} "
                "samples. Build a Linearizer with the one you want."
            )

    # -- what the core says ----------------------------------------------------------------

    def svd(self, k: int | None = None) -> SVD:
        """The k leading singular triples (all where k is None), as points of the data spaces."""
        self._single("svd")
        factors = self.operator.svd(k)
        U, V = self.target.points(factors.U.mT), self.source.points(factors.V.mT)
        return SVD(U, factors.S, V, factors)

    def eig(self, k: int | None = None) -> Eig:
        """The k eigenpairs of largest magnitude, as points of the data space."""
        self._single("eig")
        self._endomorphism("f.eig")
        pairs = self.operator.eig(k)
        real, imag = (
            self.source.points(part.mT) for part in (pairs.vectors.real, pairs.vectors.imag)
        )
        return Eig(pairs.values, real, imag, pairs)

    def rank(self, rtol: float | None = None) -> int:
        """How many singular values exceed rtol·σ_max."""
        self._single("rank")
        return int(self.operator.rank(rtol))

    def range_projector(self, rtol: float | None = None) -> Linearizer:
        """Orthogonal projector of the target onto the range, f f†."""
        return self @ self.pinv(rtol)

    def null_projector(self, rtol: float | None = None) -> Linearizer:
        """Orthogonal projector of the source onto the null space, I − f† f."""
        core = self.operator.pinv(rtol) @ self.operator
        one = Identity(self.source.dim, dtype=core.dtype, device=core.device)
        return Linearizer(self.source, one - core, self.source)

    def null_space(self, rtol: float | None = None) -> Tensor:
        """Orthonormal points that f sends to zero, (dim − rank, \\*source.shape)."""
        self._single("null_space")
        n = self.source.dim
        if n * n > operators.DENSE_LIMIT:
            raise operators.UnsupportedError(
                f"Linearizer.null_space: a basis would be a dense matrix of up to {n} × {n}, above "
                f"the limit of {operators.DENSE_LIMIT:,} entries. Use null_projector()."
            )
        basis = self.null_projector(rtol).operator.svd().V
        return self.source.points(basis[:, : n - self.rank(rtol)].mT)

    # -- from data -------------------------------------------------------------------------

    @torch.no_grad()
    def fit_core(
        self,
        x: Tensor | Iterable[tuple[Tensor, Tensor]],
        y: Tensor | None = None,
        ridge: float = 0.0,
    ) -> Linearizer:
        r"""The best core for pairs (x, y) with g_x and g_y as they are, in closed form.

        Minimises Σ ‖A g_x(xᵢ) − g_y(yᵢ)‖² + ridge·‖A‖². Returns a new Linearizer with a Dense core
        (of least norm where the data leave it open); this one stays as it is.

        Arguments:
            x: Inputs (n, \*source.shape) with ``y``, or a loader of (x, y) batches, which is read
                once: memory stays at a few dim × dim matrices, whatever the data's size.
            y: Outputs (n, \*target.shape).
            ridge: Weight of ‖A‖², ≥ 0.
        """
        if not (isinstance(ridge, int | float) and 0 <= ridge < float("inf")):
            raise ValueError(f"Linearizer.fit_core: expected ridge ≥ 0, got {ridge}.")
        if y is not None and not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise TypeError(
                "Linearizer.fit_core: expected two tensors x and y, or one loader of (x, y) "
                f"batches, got {type(x).__name__} and {type(y).__name__}."
            )
        if isinstance(x, Tensor):
            if y is None or len(x) != len(y):
                raise ValueError(
                    "Linearizer.fit_core: expected as many y as x, got "
                    f"{len(x)} x and {'no y' if y is None else f'{len(y)} y'}."
                )
            x = [(x, y)]
        n, m = self.source.dim, self.target.dim
        if n * (n + m) > 2 * operators.DENSE_LIMIT:
            raise operators.UnsupportedError(
                f"Linearizer.fit_core: needs a dense matrix of {n} × {n + m}, above twice the "
                f"limit of {operators.DENSE_LIMIT:,} entries. Fit between smaller Spaces."
            )
        triangle = _Triangle(n)
        for batch in x:
            if not (isinstance(batch, list | tuple) and len(batch) == 2):
                raise TypeError(
                    "Linearizer.fit_core: expected a loader of (x, y) batches, but it gives a "
                    f"{type(batch).__name__}. Pass tensors as fit_core(x, y)."
                )
            one, two = batch
            if len(one) != len(two):
                raise ValueError(
                    "Linearizer.fit_core: expected as many y as x in a batch, got "
                    f"{len(one)} x and {len(two)} y."
                )
            rows = torch.cat([self.source.coordinates(one), self.target.coordinates(two)], 1)
            if not torch.isfinite(rows).all():
                raise ValueError("Linearizer.fit_core: the data or g of it holds NaN or infinity.")
            triangle.add(rows)
        if not triangle.count:
            raise ValueError("Linearizer.fit_core: expected data, got none.")
        R = triangle.get()
        if ridge > 0:
            penalty = torch.zeros(n, n + m, dtype=R.dtype, device=R.device)
            penalty.diagonal().fill_(ridge**0.5)
            triangle.add(penalty)
            R = triangle.get()
        core = _solve_triangle(R[:, :n], R[:, n:]).mT
        return self._with(Dense(core.to(self.operator.dtype)))

    def certify(
        self, x: Tensor, y: Tensor | None = None, tolerance: float | None = None
    ) -> Certificate:
        r"""Measure every law on these points: axioms, linearity, adjoint, SVD, Penrose, round trip.

        Arguments:
            x: Points of the source, (batch, \*source.shape); three or more make all laws bite.
            y: Points of the target; by default x again where source and target are one Space, and
                else Gaussian coordinates as large as those of f(x).
            tolerance: Largest relative error that passes; 1e-8 in float64, 1e-3 in float32.

        Example:
            >>> X = Space(mlp(4).double())
            >>> f = Linearizer(X, Dense(torch.eye(4).double()[:2]), Space(mlp(2).double()))
            >>> f.certify(torch.randn(8, 4).double()).passed
            True
        """
        return certify(self, x, y, tolerance)


class _Triangle:
    """The first n rows of R in the QR of all rows [z w] so far, in float64.

    They hold the least-squares problem for w given z; the rows below have no part in z.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = 0
        self.R: Tensor | None = None
        self.waiting: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        self.count += len(rows)
        self.waiting.append(rows.double())
        # Factor only once a full block waits, so that small batches cost no more than large ones.
        if sum(map(len, self.waiting)) >= 2 * self.n:
            self.get()

    def get(self) -> Tensor:
        if self.waiting or self.R is None:
            stack = torch.cat(([] if self.R is None else [self.R]) + self.waiting)
            # Reflect by the QR of the z columns alone: w goes along, however wide it is.
            Q, R = torch.linalg.qr(stack[:, : self.n])
            self.R = torch.cat([R, Q.mT @ stack[:, self.n :]], 1)
            self.waiting = []
        return self.R


def _solve_triangle(R: Tensor, B: Tensor) -> Tensor:
    """Least-squares X of R X = B, R upper triangular (maybe wide); least norm if it is singular."""
    n = R.shape[1]
    if R.shape[0] >= n:
        R, B = R[:n], B[:n]
        pivots = R.diagonal().abs()
        if pivots.min() > n * torch.finfo(R.dtype).eps * pivots.max():
            X = torch.linalg.solve_triangular(R, B, upper=True)
            inverse = torch.linalg.solve_triangular(R, torch.eye(n).to(R), upper=True)
            if torch.linalg.matrix_norm(R, 1) * torch.linalg.matrix_norm(inverse, 1) < 1e13:
                return X
    return torch.linalg.pinv(R, rtol=n * torch.finfo(R.dtype).eps) @ B
