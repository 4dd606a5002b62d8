r"""Solvers of ż = A_t z, and their collapse into one operator.

Every step of a solver is linear in z, so N steps are one operator B = M_N ⋯ M₁: ``collapse`` finds
it, ``integrate`` is the loop that it equals.

Cores αI + UVᵀ are collapsed without anything dim × dim. All U(t) lie in the span of a few rows P,
and all V(t) in that of Q. Both are found once, to rounding, while the times pass through the family
in batches; then B = βI + Pᵀ X Q, and each step updates the small X.
"""

from __future__ import annotations

import difflib
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor

from .families import Family
from .operators import (
    DENSE_LIMIT,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    Operator,
    ScaledIdentityPlusLowRank,
    UnsupportedError,
)
from .operators.matrices import exp_quotient, matrix_svd, needs_gradient, peak, safe

__all__ = ["SOLVERS", "choose_steps", "collapse", "integrate"]

#: euler, midpoint and rk4 are Runge–Kutta of order 1, 2 and 4; exponential is the commutator-free
#: Magnus method of order 4, exact for a constant core.
SOLVERS = ("euler", "midpoint", "rk4", "exponential")

_ORDER = {"euler": 1, "midpoint": 2, "rk4": 4, "exponential": 4}
#: Where in a step the velocity is evaluated; the exponential's are the Gauss nodes.
_NODES: dict[str, tuple[float, ...]] = {
    "euler": (0.0,),
    "midpoint": (0.0, 0.5),
    "rk4": (0.0, 0.5, 1.0),
    "exponential": (0.5 - 3**0.5 / 6, 0.5 + 3**0.5 / 6),
}
_EARLY, _LATE = 0.25 + 3**0.5 / 6, 0.25 - 3**0.5 / 6
#: Entries of the factors that one batch of times may hold.
_CHUNK = 2**23
#: Entries that the modes of one factor may hold.
_MODES = 2**27
#: How much larger ‖U‖‖V‖ may be than with equal columns before a time is balanced for itself.
_UNEVEN = 2.0
#: What is dropped from a factor as rounding, in ε of its size: just above what an MLP leaves.
_ROUNDING = 32.0


def collapse(
    family: Family,
    solver: str = "rk4",
    steps: int = 1000,
    t0: float = 0.0,
    t1: float = 1.0,
    rtol: float = 0.0,
) -> Operator:
    r"""The operator B with B z = ``integrate(family, z, …)``.

    A family of αI + UVᵀ gives βI + UVᵀ (or LowRank where β = 0) of a rank never above dim. What is
    rounding is always dropped: of the factors at each time 32ε of their size, of the result ε; with
    ``rtol`` > 0 also what is ≤ rtol·(|β| + ‖UVᵀ‖) in the result. Any other family keeps to the
    algebra of its operators. Where gradients are recorded nothing is dropped and the result is
    Dense: call it under ``torch.no_grad()`` for all but a few steps of a small family.

    Paper: section 4.1 (sampling as a collapsed operator) and appendix F (RK4).

    Arguments:
        family: The velocity, t ↦ A_t.
        solver: One of ``SOLVERS``.
        steps: Number of equal steps from ``t0`` to ``t1``; t0 > t1 goes backwards.
        rtol: Relative size of what may be dropped from the result.

    Example:
        >>> class Constant(Family):
        ...     def forward(self, c):
        ...         return Dense(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        >>> collapse(Constant(), "exponential", steps=3, t1=torch.pi).dense().round()
        tensor([[-1., -0.],
                [ 0., -1.]])
    """
    if not rtol >= 0:
        raise ValueError(f"collapse: expected rtol ≥ 0, got {rtol}.")
    plan = _Plan.make(family, solver, steps, t0, t1)
    first = plan.first(family)
    eye = Identity(first.shape[0], first.dtype, first.device)
    if t0 == t1:
        return eye
    if (known := family.eigenbasis()) is not None:
        basis, rates = known
        b = _number_by_number(_Plan.make(rates, solver, steps, t0, t1), rates).to(first.dtype)
        return _trim(b[-1], basis * (b[:-1] - b[-1]), basis, rtol)
    if _parts(first, 1) is not None:
        if needs_gradient(*first.parameters(), *first.buffers()):
            return _collapse_with_gradient(plan, family, eye)
        with torch.no_grad():
            if (B := _collapse_structured(plan, family, first, rtol)) is not None:
                return B
    return plan.march(_stream(family, plan.times), eye, lambda A, B: A @ B)


def integrate(
    family: Family,
    z: Tensor,
    solver: str = "rk4",
    steps: int = 1000,
    t0: float = 0.0,
    t1: float = 1.0,
) -> Tensor:
    r"""z at time t1 from z at time t0, (batch, dim) → (batch, dim), by one step after the other.

    Example:
        >>> from linearizer.families import TimeLowRank
        >>> family, z = TimeLowRank(8, rank=2).double(), torch.randn(3, 8).double()
        >>> torch.allclose(collapse(family, steps=20)(z), integrate(family, z, steps=20))
        True
    """
    plan = _Plan.make(family, solver, steps, t0, t1)
    if t0 == t1:
        return _call(Identity(plan.first(family).shape[0], z.dtype, z.device), z)
    if solver == "exponential" and (known := family.eigenbasis()) is not None:
        # Numbers have exponentials at once; of matrices each would take longer than all else.
        Q, rates = Dense(known[0]), known[1]
        inside = _call(Q.T, z)
        numbers = F.pad(inside.double(), (0, 1), value=1.0)
        plan = _Plan.make(rates, solver, steps, t0, t1)
        numbers = plan.march(_stream(rates, plan.times), numbers, _call).to(z.dtype)
        return Q(numbers[:, :-1]) + numbers[:, -1:] * (z - Q(inside))
    return plan.march(_stream(family, plan.times), z, _call)


def choose_steps(
    family: Family,
    solver: str = "rk4",
    error: float = 1e-6,
    t0: float = 0.0,
    t1: float = 1.0,
    max_steps: int = 16_384,
    probes: int = 8,
) -> int:
    r"""A number of steps that reaches a relative error, by doubling.

    ``probes`` random vectors are integrated with 1, 2, 4, … steps. By Richardson the error of N
    steps is d_N·2ᵖ/(2ᵖ − 1), where d_N is the distance to 2N steps and p the smaller of the
    solver's order and the order just observed. The first N with that error ≤ ``error`` is the
    answer: a power of two, an estimate and no bound. With normal probes the relative error is that
    of B in the Frobenius norm, about.
    """
    if not error > 0:
        raise ValueError(f"choose_steps: expected error > 0, got {error}.")
    plan = _Plan.make(family, solver, 1, t0, t1)
    first = plan.first(family)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(probes, first.shape[1], dtype=torch.float64, generator=generator)
    z = z.to(first.dtype).to(first.device)
    steps, before, found = 1, None, float("inf")
    with torch.no_grad():
        coarse = integrate(family, z, solver, steps, t0, t1)
        while 2 * steps <= max_steps:
            fine = integrate(family, z, solver, 2 * steps, t0, t1)
            size = max(float(fine.norm()), torch.finfo(fine.dtype).tiny)
            gap = float((fine - coarse).norm()) / size
            if gap == 0.0:
                return steps
            if before is not None:  # the first gap alone says nothing of the order
                order = min(max(torch.tensor(before / gap).log2().item(), 0.5), _ORDER[solver])
                found = gap * 2**order / (2**order - 1)
                if found <= error:
                    return steps
                if gap < 100 * torch.finfo(fine.dtype).eps and gap > before / 1.5:
                    raise ValueError(
                        f"choose_steps: {solver} has reached the rounding of {fine.dtype} at about "
                        f"{found:.1e}, and {error:.1e} was asked. Take float64 (family.double())."
                    )
            coarse, before, steps = fine, gap, 2 * steps
    raise ValueError(
        f"choose_steps: {solver} with {steps} steps is still {found:.1e} off, and {error:.1e} was "
        "asked. Take a solver of higher order, float64, or a larger max_steps."
    )


# -- the steps ---------------------------------------------------------------------------------


class _Step(NamedTuple):
    h: float
    nodes: tuple[int, ...]  # which of the plan's times
    whole: Operator | None  # the family's own operator for this step


class _Plan(NamedTuple):
    """The distinct times that a solver evaluates, in order of first use, and its steps."""

    solver: str
    t0: float
    t1: float
    times: list[float]
    steps: list[_Step]

    @classmethod
    def make(cls, family: Family, solver: str, steps: int, t0: float, t1: float) -> _Plan:
        if solver not in SOLVERS:
            near = difflib.get_close_matches(str(solver).lower(), SOLVERS, 1)
            hint = f"did you mean {near[0]!r}? Known" if near else "known"
            raise ValueError(f"solver {solver!r} is not known: {hint}: {', '.join(SOLVERS)}.")
        steps = _whole_number(steps)
        t0, t1 = float(t0), float(t1)
        if not abs(t0 - t1) < float("inf"):
            raise ValueError(f"t0, t1: expected finite times, got {t0} and {t1}.")
        grid = [t0 + (t1 - t0) * (n / steps) for n in range(steps)] + [t1]
        index: dict[float, int] = {}
        made = []
        for start, end in itertools.pairwise(grid) if t0 != t1 else ():
            take = partial(_one_step, solver, start, end)
            whole, nodes = family.step(start, end, take), []
            for c in _NODES[solver] if whole is None else ():
                t = end if c == 1.0 else start + c * (end - start)
                nodes.append(index.setdefault(t, len(index)))
            made.append(_Step((t1 - t0) / steps, tuple(nodes), whole))
        return cls(solver, t0, t1, list(index), made)

    def first(self, family: Family) -> Operator:
        """One operator, to know size, dtype and kind."""
        if self.times:
            A = family(self.times[0])
        else:
            take = partial(_one_step, self.solver, self.t0, self.t1)
            whole = self.steps[0].whole if self.steps else family.step(self.t0, self.t1, take)
            A = family(self.t0) if whole is None else whole
        if A.batch is not None or A.shape[0] != A.shape[1]:
            raise ValueError(
                f"ż = A z: expected one square operator for one time, got {A}. "
                "A velocity keeps its space."
            )
        return A

    def march(self, operators: Callable[[int], Operator], state: Any, apply: Any) -> Any:
        for h, nodes, whole in self.steps:
            if whole is not None:
                state = apply(whole, state)
            else:
                state = _advance(self.solver, [operators(i) for i in nodes], h, state, apply)
        return state


def _one_step(solver: str, t0: float, t1: float, family: Family) -> Operator:
    """One step of a solver, for a family that is regular in it."""
    plan = _Plan.make(family, solver, 1, t0, t1)
    first = plan.first(family)
    eye = Identity(first.shape[0], first.dtype, first.device)
    return plan.march(lambda i: family(plan.times[i]), eye, operator.matmul)


def _whole_number(steps: SupportsIndex) -> int:
    """Return a number of steps of any integer type, numpy's too; refuse True and False."""
    try:
        count = 0 if isinstance(steps, bool) else operator.index(steps)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"steps: expected a whole number ≥ 1, got {steps!r}.")
    return count


def _advance(solver: str, A: list[Any], h: float, z: Any, apply: Any) -> Any:
    """One step. A state is whatever has + and multiples: rows of coordinates, or an operator."""
    if solver == "euler":
        return z + h * apply(A[0], z)
    if solver == "midpoint":
        return z + h * apply(A[1], z + h / 2 * apply(A[0], z))
    if solver == "rk4":
        k1 = apply(A[0], z)
        k2 = apply(A[1], z + h / 2 * k1)
        k3 = apply(A[1], z + h / 2 * k2)
        k4 = apply(A[2], z + h * k3)
        return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    A = [_balance(one) for one in A]
    first = A[0] * (h * _EARLY) + A[1] * (h * _LATE)
    second = A[0] * (h * _LATE) + A[1] * (h * _EARLY)
    return apply(second.exp(), apply(first.exp(), z))


def _call(A: Operator, z: Tensor) -> Tensor:
    return A(z)


def _number_by_number(plan: _Plan, rates: Family) -> Tensor:
    """The diagonal of what a family of diagonals collapses to: a loop over plain numbers."""

    def numbers(A: Operator | Tensor) -> Tensor:
        if isinstance(A, Tensor):
            return A
        assert isinstance(A, Diagonal)
        return A.diagonal

    first = numbers(plan.first(rates))
    if len(plan.times) * len(first) <= _CHUNK:
        at: Any = numbers(rates(torch.tensor(plan.times, dtype=torch.float64))).__getitem__
    else:
        at = lambda i: numbers(rates(plan.times[i]))  # noqa: E731
    return plan.march(at, torch.ones_like(first), lambda A, z: numbers(A) * z)


# -- times in batches --------------------------------------------------------------------------


class _Parts(NamedTuple):
    """αI + UVᵀ for each time: (T,), (T, r, dim) and (T, r, dim), the columns as rows."""

    alpha: Tensor
    U: Tensor
    V: Tensor


def _parts(A: Operator, count: int) -> _Parts | None:
    if isinstance(A, Identity):
        A = A.scale(1.0)
    if not isinstance(A, LowRank | ScaledIdentityPlusLowRank):
        return None
    alpha = A.alpha if isinstance(A, ScaledIdentityPlusLowRank) else A.U.new_zeros(())
    return _Parts(
        alpha.expand(count),
        A.U.mT.expand(count, *A.U.mT.shape[-2:]),
        A.V.mT.expand(count, *A.V.mT.shape[-2:]),
    )


def _batch(family: Family, times: list[float]) -> _Parts | None:
    return _parts(family(torch.tensor(times, dtype=torch.float64)), len(times))


def _per_batch(A: Operator) -> int:
    """How many times go through the family at once."""
    return max(1, _CHUNK // max(1, sum(t.numel() for t in (*A.parameters(), *A.buffers()))))


def _stream(family: Family, times: list[float]) -> Callable[[int], Operator]:
    """Operators by index, for indices that do not fall by more than one step."""
    held: dict[int, Operator] = {}

    def load(i: int) -> Iterator[tuple[int, Operator]]:
        A = family(times[i])
        yield i, A
        if _parts(A, 1) is None:
            return
        ahead = times[i + 1 : i + _per_batch(A)]
        if not ahead or (parts := _batch(family, ahead)) is None:
            return
        for j, (alpha, U, V) in enumerate(zip(*parts, strict=True), i + 1):
            if isinstance(A, LowRank):
                yield j, LowRank(U.mT, V.mT)
            else:
                yield j, ScaledIdentityPlusLowRank(alpha, U.mT, V.mT)

    def fetch(i: int) -> Operator:
        if i not in held:
            for old in [j for j in held if j < i - 2]:
                del held[old]
            held.update(load(i))
        return held[i]

    return fetch


# -- structured collapse -----------------------------------------------------------------------


def _collapse_with_gradient(plan: _Plan, family: Family, eye: Identity) -> Operator:
    n = eye.shape[0]
    if n * n * len(plan.steps) > DENSE_LIMIT:
        raise UnsupportedError(
            f"collapse: gradients are recorded, which keeps {len(plan.steps)} dense {n} × {n} "
            "matrices and more. Call it under torch.no_grad(), or integrate z instead."
        )
    return Dense(plan.march(_stream(family, plan.times), eye.dense(), _call).mT)


def _collapse_structured(
    plan: _Plan, family: Family, first: Operator, rtol: float
) -> Operator | None:
    """βI + Pᵀ X Q, or None where an operator on the way has another structure."""
    parts = _parts(first, 1)
    assert parts is not None
    # Each batch of times is spread over the whole interval, so that the first one finds almost all
    # of the span and the others have little to add.
    count = len(plan.times)
    left, right = _Curve(parts.U, count), _Curve(parts.V, count)
    usual = None
    batches = -(-count // max(1, _CHUNK // max(1, parts.U.numel() + parts.V.numel())))
    alpha = torch.zeros(count, dtype=torch.float64, device=first.device)
    for b in range(batches):
        if (parts := _batch(family, plan.times[b::batches])) is None:
            return None
        alpha[b::batches] = parts.alpha.double()
        even = _even(parts, usual)
        usual = even.usual
        left.take(parts.U, even.left, even.size, slice(b, count, batches))
        right.take(parts.V, even.right, even.size, slice(b, count, batches))
    P, Q = left.span(), right.span()
    wholes: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for s, step in enumerate(plan.steps):
        if step.whole is not None:
            if (parts := _parts(step.whole, 1)) is None:
                return None
            even = _even(parts, None)
            L, R = P.take((parts.U * even.left)[0]), Q.take((parts.V * even.right)[0])
            wholes[s] = (parts.alpha, even.size[0] * L.double(), even.size[0] * R.double())
    if len(P.rows) * len(Q.rows) > DENSE_LIMIT:
        raise UnsupportedError(
            f"collapse: the factors of {count} times span {len(P.rows)} and {len(Q.rows)} "
            "directions, too many for a small core. Take fewer steps, or a family that changes "
            "smoothly in time."
        )

    # B = βI + Pᵀ X Q, in double precision from here on; with G = Q Pᵀ a step is
    # (mI + Lᵀ W R) B = mβI + Pᵀ [m X + Lᵀ W (β R + R G X)] Q, where L and R hold coordinates.
    G = _inner(Q.rows, P.rows)
    beta, X = G.new_ones(()), G.new_zeros(len(P.rows), len(Q.rows))
    for m, L, W, R in _cores(plan, alpha, left, right, G, wholes):
        X = m * X + L.mT @ (W @ (beta * R + (R @ G) @ X))
        beta = m * beta
    U, S, V = matrix_svd(X)
    limit = max(rtol, torch.finfo(first.dtype).eps)
    keep = int((limit * (beta.abs() + peak(S)) < S).sum())
    U = P.rows.mT @ (U[:, :keep] * S[:keep]).to(first.dtype)
    V = Q.rows.mT @ V[:, :keep].to(first.dtype)
    beta = beta.to(first.dtype)
    return LowRank(U, V) if beta == 0 else ScaledIdentityPlusLowRank(beta, U, V)


def _trim(beta: Tensor, U: Tensor, V: Tensor, rtol: float) -> Operator:
    """βI + UVᵀ without the columns that are rounding or ≤ rtol·(|β| + ‖UVᵀ‖); V is orthonormal."""
    size = U.norm(dim=0)
    keep = size > max(rtol, torch.finfo(U.dtype).eps) * (beta.abs() + peak(size))
    U, V = U[:, keep], V[:, keep]
    return LowRank(U, V) if beta == 0 else ScaledIdentityPlusLowRank(beta, U, V)


class _Basis:
    """Orthonormal rows, extended by whatever new rows of size about 1 hold beyond rounding."""

    def __init__(self, like: Tensor) -> None:
        self.rows = self.store = like.new_zeros(0, like.shape[-1])
        self.tolerance = _ROUNDING * torch.finfo(like.dtype).eps

    def take(self, vectors: Tensor) -> Tensor:
        """Coordinates of vectors (m, n), each of which may lose the tolerance."""
        coordinates = vectors @ self.rows.mT
        rest = torch.addmm(vectors, coordinates, self.rows, alpha=-1.0)
        rest = rest[rest.norm(dim=-1) > self.tolerance]
        if not len(rest):
            return coordinates
        if len(rest) > rest.shape[1]:
            rest = torch.linalg.qr(rest, mode="r").R  # the same span in fewer rows
        new, R = torch.linalg.qr(rest.mT)
        U, S, _ = matrix_svd(R)
        new = (new @ U[:, : int((self.tolerance < S).sum())]).mT
        if len(self.rows):
            new = new[: self.rows.shape[1] - len(self.rows)]
            for _ in range(2):  # twice is enough to be orthogonal to rounding
                new = new - new @ self.rows.mT @ self.rows
            new = torch.linalg.qr(new.mT)[0].mT
        self._append(new)
        return torch.cat([coordinates, vectors @ new.mT], -1)

    def _append(self, new: Tensor) -> None:
        k = len(self.rows)
        if k + len(new) > len(self.store):
            # Room grows by half, since blocks that grow a little each time fragment the heap.
            room = min(k + len(new) + k // 2, self.store.shape[1])
            self.store = torch.cat([self.rows, self.rows.new_empty(room - k, new.shape[1])])
        self.store[k : k + len(new)] = new
        self.rows = self.store[: k + len(new)]


class _Curve:
    """One factor as a function of time, its columns as rows: size(t) Σⱼ cⱼ(t) modeⱼ (r, dim).

    A factor that an MLP makes moves in no more modes than its last hidden layer is wide.
    """

    def __init__(self, like: Tensor, count: int) -> None:
        self.shape = like.shape[-2:]
        self.modes = _Basis(like.flatten(-2))
        # All that stays is allocated at once: small blocks that stay between large ones that go
        # would keep the heap from shrinking.
        self.sizes = like.new_zeros(count, 1, dtype=torch.float64)
        self.rows = like.new_zeros(count, 64)

    def take(self, factors: Tensor, scale: Tensor, size: Tensor, where: slice) -> None:
        """Factors (T, r, dim) that the scale (T, r, 1) brings to norm 1, and their size (T, 1)."""
        rows = (factors * scale).flatten(-2)
        found = self.modes.take(rows)
        if (more := found.shape[-1] - self.rows.shape[-1]) > 0:
            self.rows = F.pad(self.rows, (0, max(more, self.rows.shape[-1])))
        self.sizes[where] = size
        self.rows[where, : found.shape[-1]] = found
        if self.modes.rows.numel() > _MODES:
            raise UnsupportedError(
                f"collapse: {len(self.modes.rows)} times already have nothing in common. "
                "Take fewer steps, or a family that changes smoothly in time."
            )

    def span(self) -> _Basis:
        """The basis of all columns; the curve keeps coordinates in it."""
        m = len(self.modes.rows)
        rows = self.rows[:, :m]
        weight = rows.abs().amax(0) if len(rows) else rows.new_zeros(m)
        modes = (weight[:, None] * self.modes.rows).unflatten(-1, self.shape)
        basis = _Basis(self.modes.rows.new_zeros(self.shape))
        found = basis.take(modes.flatten(0, 1)).unflatten(0, (m, self.shape[0]))
        self.coefficients = self.sizes * (rows / safe(weight)).double()
        self.modes_in_span = found.double()
        return basis

    def at(self, nodes: Tensor, width: int) -> Tensor:
        """Coordinates of the columns at (n, stages) times, (n, stages·r, width)."""
        found = torch.tensordot(self.coefficients[nodes], self.modes_in_span, 1)
        return F.pad(found.flatten(1, 2), (0, width - found.shape[-1]))


@dataclass(frozen=True)
class _Core:
    """aI + Lᵀ X R of many steps at once, with R Lᵀ = G: (n,), (n, q, q) and (n, q, q)."""

    a: Tensor
    X: Tensor
    G: Tensor

    def __add__(self, other: _Core) -> _Core:
        return _Core(self.a + other.a, self.X + other.X, self.G)

    def __mul__(self, c: float) -> _Core:
        return _Core(c * self.a, c * self.X, self.G)

    __rmul__ = __mul__

    def __matmul__(self, other: _Core) -> _Core:
        a, b = self.a[:, None, None], other.a[:, None, None]
        X = a * other.X + b * self.X + self.X @ self.G @ other.X
        return _Core(self.a * other.a, X, self.G)

    def exp(self) -> _Core:
        small = exp_quotient(self.G @ self.X, self.a[:, None, None])
        return _Core(self.a.exp(), self.X @ small, self.G)


def _cores(
    plan: _Plan, alpha: Tensor, left: _Curve, right: _Curve, G: Tensor, wholes: dict[int, Any]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """m, L, W, R of each step, mI + Lᵀ W R; many are worked out at once."""
    for start in range(0, len(plan.steps), 64):
        block = range(start, min(start + 64, len(plan.steps)))
        regular = [s for s in block if s not in wholes]
        if regular:
            nodes = torch.tensor([plan.steps[s].nodes for s in regular], device=G.device)
            L, R = left.at(nodes, G.shape[1]), right.at(nodes, G.shape[0])
            inner = R @ G @ L.mT
            nothing, r = torch.zeros_like(inner), left.shape[0]
            A = []
            for j in range(nodes.shape[1]):
                X = nothing.clone()
                X[:, j * r : (j + 1) * r, j * r : (j + 1) * r] = torch.eye(r).to(X)
                A.append(_Core(alpha[nodes[:, j]], X, inner))
            one = _Core(torch.ones_like(A[0].a), nothing, inner)
            step = _advance(plan.solver, A, plan.steps[regular[0]].h, one, _Core.__matmul__)
        for s in block:
            if s in wholes:
                a, U, V = (x.double() for x in wholes[s])
                U, V = (F.pad(X, (0, n - X.shape[1])) for X, n in ((U, G.shape[1]), (V, len(G))))
                yield a[0], U, torch.eye(len(U)).to(U), V
            else:
                i = regular.index(s)
                yield step.a[i], L[i], step.X[i], R[i]


class _Even(NamedTuple):
    """UVᵀ as size² times two factors of norm 1, U·left and V·right, for each time."""

    left: Tensor  # (T, r, 1)
    right: Tensor  # (T, r, 1)
    size: Tensor  # (T, 1)
    usual: Tensor  # (r,)


def _even(parts: _Parts, usual: Tensor | None) -> _Even:
    """Share the columns' norms between U and V, so that neither loses what the other needs.

    What is dropped is small next to ‖U‖‖V‖, which is least where every column is as long in U as
    in V. Shares that move with time cost modes, so all times take the ``usual`` ones of the first
    times, but for those where ‖U‖‖V‖ would be ``_UNEVEN`` times as large.
    """
    u, v = _lengths(parts.U), _lengths(parts.V)
    both = u.sqrt() * v.sqrt()
    if usual is None:
        mean = [(x / safe(x.norm(dim=-1, keepdim=True))).mean(0) for x in (u, v)]
        usual = torch.where(mean[0] * mean[1] > 0, (mean[1] / safe(mean[0])).sqrt(), 1.0)
    U, V, least = (x.norm(dim=-1, keepdim=True) for x in (u * usual, v / usual, both))
    uneven = U.sqrt() * V.sqrt() > _UNEVEN**0.5 * least
    left = torch.where(uneven, both / safe(u), usual)
    right = torch.where(uneven, both / safe(v), 1.0 / usual)
    size_left, size_right = ((x * c).norm(dim=-1, keepdim=True) for x, c in ((u, left), (v, right)))
    return _Even(
        (left / safe(size_left)).to(parts.U.dtype)[..., None],
        (right / safe(size_right)).to(parts.V.dtype)[..., None],
        size_left.sqrt() * size_right.sqrt(),
        usual,
    )


def _lengths(X: Tensor) -> Tensor:
    """Norms of rows in double precision, (T, r, n) → (T, r), however large or small they are."""
    length = torch.linalg.vector_norm(X, dim=-1)
    info = torch.finfo(X.dtype)
    if bool(((length < 1e3 * info.tiny**0.5) | (length > info.max**0.5)).any()):
        largest = safe(torch.linalg.vector_norm(X, torch.inf, dim=-1))
        length = torch.linalg.vector_norm(X / largest[..., None], dim=-1)
        return length.double() * largest.double()
    return length.double()


def _balance(A: Operator) -> Operator:
    """Return αI + UVᵀ with each column as long in U as in V; leave all other operators alone."""
    if not isinstance(A, LowRank | ScaledIdentityPlusLowRank):
        return A
    with torch.no_grad():
        u, v = (_lengths(X.mT) for X in (A.U, A.V))
        left = v.sqrt() / safe(u).sqrt()
        # A column that is 0 in one factor has a gradient from the other, which must not stand out.
        usual = safe(peak(u.sqrt() * v.sqrt()))
        left = torch.where(u == 0, safe(v) / usual, torch.where(v == 0, usual / safe(u), left))
        if not left.numel() or bool(torch.maximum(left, 1.0 / left).amax() <= 16.0):
            return A
        U, V = (c.to(A.dtype).unsqueeze(-2) for c in (left, 1.0 / left))
    if isinstance(A, LowRank):
        return LowRank(A.U * U, A.V * V)
    return ScaledIdentityPlusLowRank(A.alpha, A.U * U, A.V * V)


def _inner(X: Tensor, Y: Tensor) -> Tensor:
    """X Yᵀ in double precision, by blocks of the long axis."""
    total = X.new_zeros(len(X), len(Y), dtype=torch.float64)
    for x, y in zip(X.split(4096, -1), Y.split(4096, -1), strict=True):
        total += x.double() @ y.double().mT
    return total
