r"""The Linearizer: a nonlinear map that is exactly linear between two induced spaces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import operators
from .certificate import Certificate, certify
from .operators import Dense, Operator
from .spaces import Space

__all__ = ["SVD", "Eig", "Linearizer"]


class _Triples(NamedTuple):
    U: Tensor  #: (k, *target shape), orthonormal in the target Space
    S: Tensor  #: (k,), descending
    V: Tensor  #: (k, *source shape), orthonormal in the source Space


class SVD(_Triples):
    r"""f(vᵢ) = σᵢ ⊙ uᵢ and fᵀ(uᵢ) = σᵢ ⊙ vᵢ, as points of the data spaces: ``U, S, V``."""

    operator: operators.SVD  #: the factors in coordinates

    def __new__(cls, U: Tensor, S: Tensor, V: Tensor, operator: operators.SVD) -> SVD:
        made = super().__new__(cls, U, S, V)
        made.operator = operator
        return made


class _Pairs(NamedTuple):
    values: Tensor  #: (k,), complex, by falling magnitude
    vectors: Tensor  #: (k, *shape), complex: the points g⁻¹(Re v) + i g⁻¹(Im v)


class Eig(_Pairs):
    r"""f(v) = λ ⊙ v: ``values, vectors``. A complex pair turns the plane of ``real`` and ``imag``.

    For λ = a + bi and v = r + i·s: f(r) = a⊙r ⊖ b⊙s and f(s) = b⊙r ⊕ a⊙s.
    """

    operator: operators.Eig  #: the pairs in coordinates

    def __new__(cls, values: Tensor, vectors: Tensor, operator: operators.Eig) -> Eig:
        made = super().__new__(cls, values, vectors)
        made.operator = operator
        return made

    @property
    def real(self) -> Tensor:
        """The points g⁻¹(Re v), (k, \\*shape)."""
        return self.vectors.real

    @property
    def imag(self) -> Tensor:
        """The points g⁻¹(Im v), the zero of the Space where λ is real."""
        return self.vectors.imag


class Linearizer(nn.Module):
    r"""f(x) = g_y⁻¹(A g_x(x)): linear from ``source`` to ``target``, whatever g_x and g_y are.

    Every method returns another Linearizer, or points in data space. Composition needs the *same
    Space object* between the two maps. What an operation returns shares the Spaces, but its core
    holds values of its own, as of now: inside a training step, ask again. Gradients pass through it
    to this core. Where such a map is moved to another dtype or device it takes copies of the
    Spaces along, so that this one stays as it is. NaN in a point makes NaN of its image, as in
    torch; ``certify`` and ``fit_core`` refuse it.

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

    #: Whether an operation on other maps made this one, whose Spaces it borrows.
    _derived = False

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

    @property
    def shape(self) -> tuple[int, int]:
        """(target.dim, source.dim), as of the core."""
        return self.operator.shape

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linearizer:
        like = self.operator._tensor
        moved = fn(like.new_empty(0))
        if self._derived and (moved.dtype != like.dtype or moved.device != like.device):
            self.source, self.target = copy.deepcopy((self.source, self.target))
            self._derived = False
        return super()._apply(fn, recurse)

    def forward(self, x: Tensor) -> Tensor:
        """g_y⁻¹(A g_x(x)), (batch, \\*source.shape) → (batch, \\*target.shape)."""
        return self.target.points(self.operator(self.source.coordinates(x)))

    # -- algebra ---------------------------------------------------------------------------

    def __matmul__(self, other: Linearizer) -> Linearizer:
        if isinstance(other, Tensor):
            raise TypeError("f @ x: expected another Linearizer, got a tensor. Call f(x).")
        if not isinstance(other, Linearizer):
            return NotImplemented
        if self.source is not other.target:
            raise ValueError(
                "f @ h: h ends in a different Space than f starts from. "
                "Pass the same Space object to both."
            )
        return _derive(other.source, self.operator @ other.operator, self.target)

    def __add__(self, other: Linearizer) -> Linearizer:
        if not isinstance(other, Linearizer):
            zero = isinstance(other, Real) and other == 0
            return self._with(self.operator + other) if zero else NotImplemented
        self._parallel(other, "+")
        return self._with(self.operator + other.operator)

    __radd__ = __add__  # so that sum([f, h]) starts from 0

    def __sub__(self, other: Linearizer) -> Linearizer:
        if not isinstance(other, Linearizer):
            return NotImplemented
        self._parallel(other, "-")
        return self._with(self.operator - other.operator)

    def __mul__(self, c: float | Tensor) -> Linearizer:
        if not isinstance(c, Real | Tensor):
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

    def log(self) -> Linearizer:
        r"""The generator g⁻¹(log A g(x)), whose exp(1) is f; an error where it is not real."""
        self._endomorphism("f.log")
        return self._with(self.operator.log())

    @property
    def T(self) -> Linearizer:
        r"""Adjoint in the induced inner products, g_x⁻¹(Aᵀ g_y(y)): ⟨f(x), y⟩ = ⟨x, fᵀ(y)⟩."""
        return _derive(self.target, self.operator.T, self.source)

    @property
    def H(self) -> Linearizer:
        """The adjoint, as ``T``: cores are real."""
        return self.T

    def inverse(self) -> Linearizer:
        """g_x⁻¹(A⁻¹ g_y(y)); an error where A is singular or rectangular."""
        return _derive(self.target, self.operator.inverse(), self.source)

    def solve(self, y: Tensor) -> Tensor:
        """x with f(x) = y, for a square non-singular core, without making its inverse."""
        return self.source.points(self.operator.solve(self.target.coordinates(y)))

    def pinv(self, rtol: float | None = None) -> Linearizer:
        r"""Moore–Penrose inverse g_x⁻¹(A† g_y(y)) in the induced inner products.

        Singular values ≤ rtol·σ_max count as zero.
        """
        return _derive(self.target, self.operator.pinv(rtol), self.source)

    def back_project(self, x: Tensor, y: Tensor, rtol: float | None = None) -> Tensor:
        r"""x ⊕ f†(y ⊖ f(x)): the point nearest to x that f takes to y, or as close as it can.

        Example:
            >>> pixels = Space(Flatten((4,)))
            >>> known = Linearizer(pixels, Diagonal(torch.tensor([1.0, 0.0, 1.0, 0.0])), pixels)
            >>> known.back_project(torch.zeros(1, 4), torch.ones(1, 4))
            tensor([[1., 0., 1., 0.]])
        """
        z, w = self.source.coordinates(x), self.target.coordinates(y)
        if len(z) != len(w) and 1 not in (len(z), len(w)):
            raise ValueError(
                f"Linearizer.back_project: expected as many y as x (or one of them), got {len(z)} "
                f"x and {len(w)} y."
            )
        return self.source.points(z + self.operator.pinv(rtol)(w - self.operator(z)))

    def _with(self, operator: Operator) -> Linearizer:
        return _derive(self.source, operator, self.target)

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
        return Eig(pairs.values, torch.complex(real, imag), pairs)

    def eigvals(self, k: int | None = None) -> Tensor:
        """The k eigenvalues of largest magnitude, or all of them, complex."""
        self._endomorphism("f.eigvals")
        return self.operator.eigvals(k)

    def rank(self, rtol: float | None = None) -> int:
        """How many singular values exceed rtol·σ_max."""
        self._single("rank")
        return int(self.operator.rank(rtol))

    def norm(self, kind: str | int = "fro") -> Tensor:
        r"""Of the core: Frobenius, "nuc", 2 (the largest ‖f(x)‖/‖x‖ in the induced norms) or −2."""
        return self.operator.norm(kind)

    def cond(self) -> Tensor:
        """σ_max/σ_min of the core, infinite where it is singular."""
        return self.operator.cond()

    def trace(self) -> Tensor:
        """The trace of the core, the sum of the eigenvalues."""
        self._endomorphism("f.trace")
        return self.operator.trace()

    def det(self) -> Tensor:
        """The determinant of the core, the product of the eigenvalues."""
        self._endomorphism("f.det")
        return self.operator.det()

    def slogdet(self) -> tuple[Tensor, Tensor]:
        """Sign and logarithm of |det A|."""
        self._endomorphism("f.slogdet")
        return self.operator.slogdet()

    def range_projector(self, rtol: float | None = None) -> Linearizer:
        """Orthogonal projector of the target onto the range, f f†."""
        return _derive(self.target, self.operator.range_projector(rtol), self.target)

    def null_projector(self, rtol: float | None = None) -> Linearizer:
        """Orthogonal projector of the source onto the null space, I − f† f."""
        return _derive(self.source, self.operator.null_projector(rtol), self.source)

    def null_space(self, rtol: float | None = None) -> Tensor:
        """Orthonormal points that f sends to zero, (dim − rank, \\*source.shape)."""
        self._single("null_space")
        n = self.source.dim
        if n * n > operators.DENSE_LIMIT:
            raise operators.UnsupportedError(
                f"Linearizer.null_space: a basis would be a dense matrix of up to {n} × {n}, above "
                f"the limit of {operators.DENSE_LIMIT:,} entries. Use null_projector()."
            )
        basis = self.operator.null_projector(rtol).svd().V
        return self.source.points(basis[:, : n - self.rank(rtol)].mT)

    # -- as a map of data ------------------------------------------------------------------

    def jacobian(self, x: Tensor) -> Tensor:
        r"""∂f/∂x of each sample in data space, (batch, \*target.shape, \*source.shape)."""
        if len(x) * self.target.dim * self.source.dim > operators.DENSE_LIMIT:
            raise operators.UnsupportedError(
                f"Linearizer.jacobian: would make {len(x)} matrices of {self.target.dim} × "
                f"{self.source.dim}, above the limit of {operators.DENSE_LIMIT:,} entries. Take "
                "fewer samples, or torch.func.jvp(f, (x,), (v,)) for a direction v."
            )
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self(x).flatten(1)
            rows = [
                torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)[0]
                for i in range(y.shape[1])
            ]
        return torch.stack(rows, 1).unflatten(1, self.target.shape)

    def log_det(self, x: Tensor) -> Tensor:
        r"""log |det ∂f/∂x| of each sample, (batch,), where both g give theirs and A is square."""
        z, first = self.source.g.with_log_det(x)
        y = self.target.points(self.operator(z))
        return first + self.operator.slogdet()[1] - self.target.g.with_log_det(y)[1]

    def log_prob(self, y: Tensor) -> Tensor:
        r"""log p(y) of y = f(x) where the coordinates of x are standard normal, (batch,).

        Those of y are then N(0, AAᵀ), and p(y) is that density times |det ∂g_y/∂y|. An error where
        A has not full row rank, since then the y fill no volume.
        """
        self._single("log_prob")
        m = self.target.dim
        S = self.operator.svd().S if self.shape[0] != self.shape[1] else None
        if self.rank() < m:
            raise ValueError(
                f"Linearizer.log_prob: expected a core of rank {m}, as the target has dimensions, "
                f"got rank {self.rank()}: its outputs have no density."
            )
        log_volume = self.operator.slogdet()[1] if S is None else S.log().sum()
        w, log_det = self.target.g.with_log_det(y)
        z = self.operator.solve(w) if S is None else self.operator.pinv()(w)
        gaussian = -0.5 * (z.square().sum(-1) + m * math.log(2 * math.pi))
        return gaussian - log_volume + log_det

    # -- from data -------------------------------------------------------------------------

    @torch.no_grad()
    def fit_core(
        self,
        x: Tensor | Iterable[tuple[Tensor, ...]],
        y: Tensor | None = None,
        ridge: float = 0.0,
        weights: Tensor | None = None,
    ) -> Linearizer:
        r"""The best core for pairs (x, y) with g_x and g_y as they are, in closed form.

        Minimises Σ wᵢ ‖A g_x(xᵢ) − g_y(yᵢ)‖² + ridge·‖A‖². Returns a new Linearizer with a Dense
        core (of least norm where the data leave it open); this one stays as it is.

        Arguments:
            x: Inputs (n, \*source.shape) with ``y``, or a loader of (x, y) batches, which is read
                once: memory stays at a few dim × dim matrices, whatever the data's size. A loader
                of (x, y, w) batches brings weights.
            y: Outputs (n, \*target.shape).
            ridge: Weight of ‖A‖², ≥ 0.
            weights: How much each pair counts, (n,) and ≥ 0; once by default.
        """
        if not (isinstance(ridge, int | float) and 0 <= ridge < float("inf")):
            raise ValueError(f"Linearizer.fit_core: expected ridge ≥ 0, got {ridge}.")
        n, m = self.source.dim, self.target.dim
        if n * (n + m) > 2 * operators.DENSE_LIMIT:
            raise operators.UnsupportedError(
                f"Linearizer.fit_core: needs a dense matrix of {n} × {n + m}, above twice the "
                f"limit of {operators.DENSE_LIMIT:,} entries. Fit between smaller Spaces."
            )
        triangle = _Triangle(n)
        for batch in _pair_batches(x, y, weights):
            triangle.add(self._rows_of(batch))
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

    def _rows_of(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Return (g_x(x), g_y(y)) of a batch side by side, times the roots of their weights."""
        if not (isinstance(batch, list | tuple) and len(batch) in (2, 3)):
            raise TypeError(
                "Linearizer.fit_core: expected a loader of (x, y) or (x, y, weights) batches, "
                f"but it gives a {type(batch).__name__}. Pass tensors as fit_core(x, y)."
            )
        one, two = batch[:2]
        if len(one) != len(two):
            raise ValueError(
                "Linearizer.fit_core: expected as many y as x in a batch, got "
                f"{len(one)} x and {len(two)} y."
            )
        rows = torch.cat([self.source.coordinates(one), self.target.coordinates(two)], 1)
        if len(batch) == 3:
            rows = _root_of_weights(batch[2], rows) * rows
        if not torch.isfinite(rows).all():
            raise ValueError("Linearizer.fit_core: the data or g of it holds NaN or infinity.")
        return rows

    def certify(
        self, x: Tensor, y: Tensor | None = None, tolerance: float | None = None
    ) -> Certificate:
        r"""Measure every law on these points, and how much of rounding each g makes around them.

        The laws are the axioms of both Spaces, linearity, composition, adjoint, sums, multiples,
        SVD, Penrose, inverse and, where source and target are one Space, powers, exponential and
        eigenvectors.

        Arguments:
            x: Points of the source, (batch, \*source.shape); three or more make all laws bite.
            y: Points of the target; by default x again where source and target are one Space, and
                else Gaussian coordinates as large as those of f(x).
            tolerance: Largest relative error that passes, for all laws. By default each law has its
                own, measured: what rounding in this dtype can do to its two sides, layer by layer.

        Example:
            >>> X = Space(mlp(4).double())
            >>> f = Linearizer(X, Dense(torch.eye(4).double()[:2]), Space(mlp(2).double()))
            >>> f.certify(torch.randn(8, 4).double()).passed
            True
        """
        return certify(self, x, y, tolerance)


def _derive(source: Space, operator: Operator, target: Space) -> Linearizer:
    """A map that an operation made of others: it borrows their Spaces."""
    made = Linearizer(source, operator, target)
    made._derived = True
    return made


def _pair_batches(
    x: Tensor | Iterable[tuple[Tensor, ...]], y: Tensor | None, weights: Tensor | None
) -> Iterable[tuple[Tensor, ...]]:
    """Return the batches of what ``fit_core`` was given."""
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
        return [(x, y)] if weights is None else [(x, y, weights)]
    if weights is not None:
        raise ValueError(
            "Linearizer.fit_core: weights go with tensors x and y; let the loader give "
            "(x, y, weights) batches."
        )
    return x


def _root_of_weights(weights: Any, rows: Tensor) -> Tensor:
    w = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
    if w.shape != rows.shape[:1] or not bool((w >= 0).all()):
        raise ValueError(
            f"Linearizer.fit_core: expected a weight ≥ 0 for each of {len(rows)} pairs, got "
            f"{'negative or undefined ones' if w.shape == rows.shape[:1] else tuple(w.shape)}."
        )
    return w.sqrt()[:, None]


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
