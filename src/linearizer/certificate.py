r"""Measured errors of every law of a Linearizer on given points, beside what rounding can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from .bijections import Bijection, Chain
from .operators import LowRank, Operator, UnsupportedError
from .spaces import Space

if TYPE_CHECKING:
    from .linearizer import Linearizer

__all__ = ["Certificate", "Law", "certify"]

#: A tolerance is this many plus √dim times what rounding does by the model of :func:`certify`. So
#: far off, √dim, is a sum of dim rounded products, and so is an orthogonal basis that is stored.
ROOM = 16.0

#: Numbers are shaken by this many times the room, in ε. A fault that jumps, as rounding to float16
#: does, moves shaken results too; it widens its tolerance by 1/REACH of what it moves, no more.
REACH = 8.0

#: A tolerance above this leaves less than one digit, so that a pass or a failure says nothing.
COARSE = 0.1

#: Largest core of which all eigenvalues are asked for.
EIGENVALUES = 1024

#: Laws that must be measured for a pass. Not among them: those at the origin g⁻¹(0), which may be
#: far from the points, and those of a decomposition that the core may be too large for.
CORE = (
    "round trip",
    "associative",
    "commutative",
    "scaling",
    "one",
    "distributive",
    "linearity",
    "composition",
    "adjoint",
)


@dataclass(frozen=True)
class Law:
    """One identity and how far it was missed, relative to the size of what it compares."""

    name: str
    formula: str
    error: float | None  #: None where it could not be measured; ``note`` says why
    tolerance: float | None  #: the largest error that passes; None where there is none
    verdict: Literal["passed", "failed", "not measured"]
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was measured and holds."""
        return self.verdict == "passed"

    @property
    def failed(self) -> bool:
        """Whether it was measured and does not hold, or raised an error."""
        return self.verdict == "failed"

    @property
    def core(self) -> bool:
        """Whether a certificate passes only if this law was measured."""
        return self.name.removesuffix(" X").removesuffix(" Y") in CORE


@dataclass(frozen=True)
class Certificate:
    """Every law with its measured error; ``print`` it for a table."""

    laws: tuple[Law, ...]
    points: int
    dtype: str
    #: how much more than a rounding error of its own each g, of X and of Y, makes of one on its
    #: way there and back, around these points; NaN where this could not be measured
    condition: dict[str, float]
    tolerance: float | None = None  #: the one that was given for all laws, if any

    @property
    def passed(self) -> bool:
        """Whether no law failed and all core laws (round trips, axioms around the points,
        linearity, composition, adjoint) were measured."""
        return not self.failed and not any(law.core for law in self.unmeasured)

    @property
    def complete(self) -> bool:
        """Whether every law was measured."""
        return not self.unmeasured

    @property
    def failed(self) -> tuple[Law, ...]:
        """The laws that do not hold."""
        return tuple(law for law in self.laws if law.failed)

    @property
    def unmeasured(self) -> tuple[Law, ...]:
        """The laws that could not be measured: each says why in its note."""
        return tuple(law for law in self.laws if law.verdict == "not measured")

    @property
    def measured(self) -> int:
        """How many laws have a verdict: all, unless the core is too large or has a batch axis, or
        rounding leaves no digit."""
        return len(self.laws) - len(self.unmeasured)

    @property
    def worst(self) -> float:
        """The largest error of a law that has a verdict; NaN if there is one."""
        errors = [law.error for law in self.laws if law.verdict != "not measured"]
        found = torch.tensor([e for e in errors if e is not None], dtype=torch.float64)
        return float(found.max()) if len(found) else 0.0

    @property
    def digits(self) -> dict[str, float]:
        """How many decimal digits a way through each g and back keeps in this dtype."""
        eps = torch.finfo(getattr(torch, self.dtype)).eps
        return {name: max(0.0, -math.log10(eps * k)) for name, k in self.condition.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "condition": {k: v if math.isfinite(v) else None for k, v in self.condition.items()},
            "digits": self.digits,
            "passed": self.passed,
            "complete": self.complete,
            "measured": self.measured,
        }

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("law", "", "error", "tolerance", "")]
        for law in self.laws:
            numbers = ("–" if v is None else f"{v:.1e}" for v in (law.error, law.tolerance))
            verdict = {"passed": "pass", "failed": "FAIL"}.get(law.verdict, law.verdict)
            note = f": {law.note}" if law.note else ""
            rows.append((law.name, law.formula, *numbers, verdict + note))
        a, b = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [
            f"{name:<{a}}  {formula:<{b}}  {error:>7}  {tolerance:>9}  {verdict}".rstrip()
            for name, formula, error, tolerance, verdict in rows
        ]
        return "\n".join([*lines, *self._summary()])

    def _summary(self) -> Iterator[str]:
        """The verdict, the condition of each g, and what to do."""
        where = f"on {self.points} points, {self.dtype}, " + (
            "each within what rounding can do to it"
            if self.tolerance is None
            else f"relative tolerance {self.tolerance:.0e}"
        )
        count = f"{self.measured} of {len(self.laws)} laws measured"
        if self.failed:
            where = where.replace("each within", "tolerance")
            yield (
                f"FAIL: {len(self.failed)} of {len(self.laws)} laws ({_names(self.failed)}), "
                f"worst error {self.worst:.1e}, {where}"
            )
        elif self.passed:
            yield f"pass: {count} {where}"
        else:
            yield f"not passed: no law failed, but core laws are not measured; {count} {where}"
        if self.unmeasured:
            yield f"not measured: {_names(self.unmeasured)}"
        for name, factor in self.condition.items():
            if math.isfinite(factor):
                yield (
                    f"g of {name} makes {factor:.1e} times as much of rounding around these "
                    f"points: {self.dtype} keeps about {self.digits[name]:.1f} digits"
                )
        if any(law.name.startswith("round trip") for law in self.failed):
            yield "The round trips fail, and the other laws with them: look at g⁻¹ first."
        if self.dtype == "float64":
            return
        if self.failed and self.tolerance is not None:
            yield "In float64 (f.double(), x.double()) rounding is out of the question."
        elif any(law.error is not None for law in self.unmeasured) or any(
            not d >= 2 for d in self.digits.values()
        ):
            yield f"{self.dtype} is not enough here: take f.double() and x.double()."


def _names(laws: tuple[Law, ...]) -> str:
    return ", ".join(dict.fromkeys(law.name for law in laws))


@torch.no_grad()
def certify(
    f: Linearizer,
    x: Tensor,
    y: Tensor | None = None,
    tolerance: float | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    r"""See :meth:`Linearizer.certify`; ``seen`` is told after each law how many are measured.

    The tolerance of a law is measured, in the place where the law is. Its two sides are computed
    once more with every number that enters g or leaves a layer of it (or of g⁻¹) shaken by a
    relative δ, and A z by δ‖A‖‖z‖: that is what rounding does, with δ in place of ε. What the sides
    move, over δ, is the law's condition κ, and the tolerance is room·ε·κ with κ ≥ 1 and
    room = 16 + √dim. Over the catalogue of bijections and the shipped models, in both dtypes,
    true errors are 0 to 10 times ε·κ, and 21 times for a stored orthogonal basis of 768 dimensions.

    No derivative is asked of g, and δ = 8·room·ε is far above rounding. So a fault that jumps with
    its argument cannot hide behind the condition that it feigns: if it changes results by e, it
    widens the tolerance by e/8 for each side, or e/4 where a law that would fail is shaken again by
    δ/2. A smooth fault does not widen it.
    """
    z = f.source.coordinates(x)
    if len(x) == 0:
        raise ValueError("certify: expected finite points, got an empty batch.")
    for name, w in (("x", z), ("y", None if y is None else f.target.coordinates(y))):
        if w is not None and not torch.isfinite(w).all():
            bad = int((~w.isfinite().all(1)).nonzero()[0, 0])
            raise ValueError(
                f"certify: expected finite points, got NaN or infinite values, in {name} or in "
                f"g({name}) (first in point {bad}). Leave such points out."
            )
    if y is None:
        y = x.roll(1, 0) if f.source is f.target else _spread(f, z)
    elif len(y) != len(x):
        raise ValueError(f"certify: expected as many y as x, got {len(x)} x and {len(y)} y.")
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"certify: expected tolerance ≥ 0, got {tolerance}.")
    laws: list[Law] = []
    condition: dict[str, float] = {}
    rows = list(_laws(f, x, y))
    room = ROOM + math.sqrt(max(f.operator.shape))
    for row in rows:
        seen(len(laws), len(rows))
        law, factor = _measure(f, row, room, tolerance)
        laws.append(law)
        if law.name.startswith("round trip"):
            both = (factor, condition.get(law.name[-1], 1.0))
            condition[law.name[-1]] = math.nan if any(map(math.isnan, both)) else max(both)
    dtype = str(z.dtype).removeprefix("torch.")
    return Certificate(tuple(laws), len(x), dtype, condition, tolerance)


def _spread(f: Linearizer, z: Tensor) -> Tensor:
    """Target points off the range of f: Gaussian coordinates as large as those of f(x) or x."""
    w = f.operator(z)
    noise = _normal(w, torch.Generator().manual_seed(0))
    size = next((s for s in (w.square().mean().sqrt(), z.square().mean().sqrt()) if s > 0), 1.0)
    return f.target.points(noise * size)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers, the same ones in every dtype and on every device."""
    return torch.randn(like.shape, dtype=torch.float64, generator=generator).to(like)


# -- one law -------------------------------------------------------------------------------


class Row(NamedTuple):
    """A law: its two sides, and whatever else says how large an error of them is."""

    name: str
    formula: str
    sides: Callable[[Setting], tuple[Tensor, ...]]


class Setting:
    """Where sides are computed: as they are, or with everything shaken by a relative ``step``."""

    def __init__(self, f: Linearizer, step: float = 0.0, seed: int = 0) -> None:
        self.step = step
        self.generator = torch.Generator().manual_seed(seed)
        self._spaces: dict[Space, Space] = {}
        self.X, self.Y = self.space(f.source), self.space(f.target)
        self.f = self(f)

    def space(self, V: Space) -> Space:
        if not self.step:
            return V
        if V not in self._spaces:
            self._spaces[V] = Space(_ShakenBijection(V.g, self))
        return self._spaces[V]

    def __call__(self, h: Linearizer) -> Linearizer:
        """The map h in this setting."""
        if not self.step:
            return h
        core = _ShakenOperator(h.operator, self)
        return type(h)(self.space(h.source), core, self.space(h.target))

    def points(self, V: Space, points: Tensor, z: Tensor) -> Tensor:
        """Points that a method of f gave, which have the coordinates z."""
        return self.space(V).points(z) if self.step else points

    def shake(self, x: Tensor, size: Tensor | float) -> Tensor:
        return x + self.step * size * _normal(x, self.generator)


class _ShakenBijection(Bijection):
    """g with all numbers shaken that enter it or leave one of its layers."""

    def __init__(self, g: Bijection, setting: Setting) -> None:
        super().__init__(g.shape, g.out_shape)
        self.g, self.setting = g, setting
        # A layer with layers inside rounds as often as it has them.
        self.steps = [
            (layer, math.sqrt(sum(isinstance(m, Bijection) for m in layer.modules())))
            for layer in _leaves(g)
        ]

    def forward(self, x: Tensor) -> Tensor:
        x = self.setting.shake(x, x.abs())
        for layer, often in self.steps:
            x = layer.forward(x)
            x = self.setting.shake(x, often * x.abs())
        return x

    def inverse(self, z: Tensor) -> Tensor:
        z = self.setting.shake(z, z.abs())
        for layer, often in reversed(self.steps):
            z = layer.inverse(z)
            z = self.setting.shake(z, often * z.abs())
        return z


def _leaves(g: Bijection) -> list[Bijection]:
    return [leaf for layer in g for leaf in _leaves(layer)] if isinstance(g, Chain) else [g]


class _ShakenOperator(Operator):
    """A z off by ‖A‖‖z‖ times a relative step, as a product in floating point is."""

    def __init__(self, core: Operator, setting: Setting) -> None:
        super().__init__()
        self.core, self.setting, self.gain = core, setting, _gain(core)

    @property
    def shape(self) -> tuple[int, int]:
        return self.core.shape

    @property
    def batch(self) -> int | None:
        return self.core.batch

    @property
    def T(self) -> Operator:
        return _ShakenOperator(self.core.T, self.setting)

    def forward(self, z: Tensor) -> Tensor:
        size = self.gain * torch.linalg.vector_norm(z, dim=-1) / math.sqrt(self.shape[0])
        return self.setting.shake(self.core(z), size[:, None])


def _gain(A: Operator) -> Tensor:
    """‖A‖ by a few steps of power iteration, one for all or one for each sample."""
    rows, n = A.batch or 2, A.shape[1]
    start = torch.empty(rows, n, dtype=A.dtype, device=A.device)
    z, back = _normal(start, torch.Generator().manual_seed(1)), A.T
    gain = z.new_zeros(rows)
    for _ in range(6):
        w = A(z / _norms(z).clamp_min(torch.finfo(z.dtype).tiny)[:, None])
        gain, z = torch.maximum(gain, _norms(w)), back(w)
    return gain if A.batch else gain.max()


def _measure(f: Linearizer, row: Row, room: float, tolerance: float | None) -> tuple[Law, float]:
    """The law, and its condition: NaN where it was not asked for or could not be measured."""

    def law(verdict: Any, note: str = "", within: float | None = None) -> Law:
        return Law(row.name, row.formula, error, within, verdict, note)

    error: float | None = None
    factor = math.nan
    try:
        left, right, *sizes = row.sides(Setting(f))
        eps = torch.finfo(left.dtype).eps
        size = max(float(_norms(t).max()) for t in (left, right, *sizes)) or 1.0
        error = float(_norms(left - right).max()) / size

        def condition(step: float, seed: int) -> float:
            a, b, *_ = row.sides(Setting(f, step, seed))
            moved = float(_norms(a - left).max()) + float(_norms(b - right).max())
            return max(1.0, moved / size / step) if math.isfinite(moved) else math.nan

        if math.isfinite(error) and (tolerance is None or row.name.startswith("round trip")):
            factor = condition(REACH * room * eps, 0)
            if tolerance is None and not error <= room * eps * factor:
                # One draw may have missed how bad this place is: look closer before it fails.
                steps = (REACH / 2 * room * eps, REACH * room * eps, REACH / 2 * room * eps)
                found = [factor, *(condition(step, 1 + i) for i, step in enumerate(steps))]
                factor = math.nan if any(map(math.isnan, found)) else max(found)
    except UnsupportedError as problem:  # it would need a dense matrix above the limit, say
        return law("not measured", str(problem)), factor
    except (ValueError, RuntimeError) as problem:
        return law("failed", f"raised: {problem}"), factor
    if not math.isfinite(error):
        return law("failed", "NaN or infinite numbers"), factor
    if tolerance is not None:
        return law("passed" if error <= tolerance else "failed", "", tolerance), factor
    if math.isnan(factor):
        return law("not measured", "NaN or infinite numbers beside these points"), factor
    within = room * eps * factor
    if within > COARSE:
        kind = str(left.dtype).removeprefix("torch.")
        return law("not measured", f"{kind} leaves no digit here", within), factor
    return law("passed" if error <= within else "failed", "", within), factor


def _norms(x: Tensor) -> Tensor:
    """Of each sample, (batch,)."""
    return torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1)


# -- the laws ------------------------------------------------------------------------------


def _laws(f: Linearizer, x: Tensor, y: Tensor) -> Iterator[Row]:
    a, b = 0.7, -1.3
    yield from _space_laws(f.source, x, "X")
    if f.target is not f.source:
        yield from _space_laws(f.target, y, "Y")
    u, v = x, x.roll(1, 0)
    # Each once, and an error as often as a law asks for it.
    back = cache(lambda: f.T)
    yield Row(
        "linearity",
        "f(a⊙u ⊕ b⊙v) = a⊙f(u) ⊕ b⊙f(v)",
        lambda s: (
            s.f(s.X.add(s.X.scale(a, u), s.X.scale(b, v))),
            s.Y.add(s.Y.scale(a, s.f(u)), s.Y.scale(b, s.f(v))),
        ),
    )
    yield from _compositions(f, x, y)
    yield Row(
        "adjoint",
        "⟨f(x), y⟩ = ⟨x, fᵀ(y)⟩",
        lambda s: (
            s.Y.inner(s.f(x), y),
            s.X.inner(x, s(back())(y)),
            torch.maximum(s.X.norm(x), s.Y.norm(s.f(x))) * s.Y.norm(y),
        ),
    )
    yield Row("transpose", "(fᵀ)ᵀ(x) = f(x)", lambda s: (s(back().T)(x), s.f(x)))
    yield Row("sum", "(f + f)(x) = f(x) ⊕ f(x)", lambda s: (s(f + f)(x), s.Y.add(s.f(x), s.f(x))))
    yield Row("multiple", "(a f)(x) = a ⊙ f(x)", lambda s: (s(f * a)(x), s.Y.scale(a, s.f(x))))
    yield from _singular_laws(f)
    yield from _penrose_laws(f, x, y)
    yield from _inverse_laws(f, x, y)
    if f.source is f.target:
        yield from _power_laws(f, x)
        yield from _flow_laws(f, x)
        yield from _eigen_laws(f)


def _space_laws(V: Space, x: Tensor, name: str) -> Iterator[Row]:
    u, v, w = x, x.roll(1, 0), x.roll(2, 0)
    a, b = 0.7, -1.3
    z = V.coordinates(x)

    def row(law: str, formula: str, sides: Callable[[Space], tuple[Tensor, ...]]) -> Row:
        return Row(f"{law} {name}", formula, lambda s: sides(s.space(V)))

    def zero(V: Space) -> Tensor:
        return V.points(z.new_zeros(1, V.dim)).expand_as(x)

    yield row("round trip", "g⁻¹(g(x)) = x", lambda V: (V.points(V.coordinates(x)), x))
    yield row("round trip", "g(g⁻¹(z)) = z", lambda V: (V.coordinates(V.points(z)), z))
    yield row(
        "associative",
        "(u ⊕ v) ⊕ w = u ⊕ (v ⊕ w)",
        lambda V: (V.add(V.add(u, v), w), V.add(u, V.add(v, w))),
    )
    yield row("commutative", "u ⊕ v = v ⊕ u", lambda V: (V.add(u, v), V.add(v, u)))
    yield row("zero", "u ⊕ 0 = u", lambda V: (V.add(u, zero(V)), u))
    yield row("negative", "u ⊕ (⊖u) = 0", lambda V: (V.add(u, V.neg(u)), zero(V), u))
    yield row(
        "scaling",
        "a ⊙ (b ⊙ u) = ab ⊙ u",
        lambda V: (V.scale(a, V.scale(b, u)), V.scale(a * b, u)),
    )
    yield row("one", "1 ⊙ u = u", lambda V: (V.scale(1.0, u), u))
    yield row(
        "distributive",
        "a ⊙ (u ⊕ v) = a⊙u ⊕ a⊙v",
        lambda V: (V.scale(a, V.add(u, v)), V.add(V.scale(a, u), V.scale(a, v))),
    )
    yield row(
        "distributive",
        "(a + b) ⊙ u = a⊙u ⊕ b⊙u",
        lambda V: (V.scale(a + b, u), V.add(V.scale(a, u), V.scale(b, u))),
    )


def _compositions(f: Linearizer, x: Tensor, y: Tensor) -> Iterator[Row]:
    try:
        _ = f.T @ f, f @ f.T
    except UnsupportedError:
        # A product of two such cores would be too large; one with a core of rank one never is.
        p, q = (
            _normal(x.new_empty(f.source.dim, 1), torch.Generator().manual_seed(seed))
            for seed in (2, 3)
        )
        one = type(f)(f.source, LowRank(p, q / f.source.dim), f.source)
        yield Row(
            "composition",
            "(f ∘ h)(x) = f(h(x)), h of rank 1",
            lambda s: (s(f @ one)(x), s.f(s(one)(x))),
        )
        return
    except (ValueError, RuntimeError):
        pass  # the law raises it again and fails
    yield Row("composition", "(fᵀ ∘ f)(x) = fᵀ(f(x))", lambda s: (s(f.T @ f)(x), s(f.T)(s.f(x))))
    yield Row("composition", "(f ∘ fᵀ)(y) = f(fᵀ(y))", lambda s: (s(f @ f.T)(y), s.f(s(f.T)(y))))


def _singular_laws(f: Linearizer) -> Iterator[Row]:
    svd = cache(lambda: f.svd(8))

    def U(s: Setting) -> Tensor:
        return s.points(f.target, svd().U, svd().operator.U.mT)

    def V(s: Setting) -> Tensor:
        return s.points(f.source, svd().V, svd().operator.V.mT)

    yield Row(
        "singular vectors", "f(vᵢ) = σᵢ ⊙ uᵢ", lambda s: (s.f(V(s)), s.Y.scale(svd().S, U(s)))
    )
    yield Row(
        "singular vectors", "fᵀ(uᵢ) = σᵢ ⊙ vᵢ", lambda s: (s(f.T)(U(s)), s.X.scale(svd().S, V(s)))
    )
    yield Row("orthonormal", "⟨vᵢ, vⱼ⟩ = δᵢⱼ", lambda s: _beside_identity(s.X.gram(V(s))))
    yield Row("orthonormal", "⟨uᵢ, uⱼ⟩ = δᵢⱼ", lambda s: _beside_identity(s.Y.gram(U(s))))


def _beside_identity(gram: Tensor) -> tuple[Tensor, Tensor]:
    return gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device)


def _penrose_laws(f: Linearizer, x: Tensor, y: Tensor) -> Iterator[Row]:
    pinv = cache(f.pinv)

    def symmetry(V: Space, p: Callable[[Tensor], Tensor], u: Tensor) -> tuple[Tensor, ...]:
        v = u.roll(1, 0)
        return V.inner(p(u), v), V.inner(u, p(v)), V.norm(u) * V.norm(v)

    yield Row("Penrose 1", "f f† f = f", lambda s: (s.f(s(pinv())(s.f(x))), s.f(x)))
    yield Row("Penrose 2", "f† f f† = f†", lambda s: (s(pinv())(s.f(s(pinv())(y))), s(pinv())(y)))
    yield Row(
        "Penrose 3", "(f f†)ᵀ = f f†", lambda s: symmetry(s.Y, lambda p: s.f(s(pinv())(p)), y)
    )
    yield Row(
        "Penrose 4", "(f† f)ᵀ = f† f", lambda s: symmetry(s.X, lambda p: s(pinv())(s.f(p)), x)
    )


def _inverse_laws(f: Linearizer, x: Tensor, y: Tensor) -> Iterator[Row]:
    """Where A is square and not singular."""
    if f.source.dim != f.target.dim:
        return
    inverse = cache(f.inverse)
    try:
        inverse()
    except UnsupportedError:
        pass
    except (ValueError, RuntimeError):
        try:
            if bool(torch.as_tensor(f.operator.rank() < f.source.dim).any()):
                return  # it is singular, as the error says
        except (ValueError, RuntimeError):
            pass
    yield Row("inverse", "f⁻¹(f(x)) = x", lambda s: (s(inverse())(s.f(x)), x))
    yield Row("inverse", "f(f⁻¹(y)) = y", lambda s: (s.f(s(inverse())(y)), y))


def _power_laws(f: Linearizer, x: Tensor) -> Iterator[Row]:
    """From points so small that the powers of f take them to where f takes x."""
    gain = max(1.0, float(_gain(f.operator).max()))
    z = f.source.coordinates(x)
    near, nearer = f.source.points(z / gain), f.source.points(z / gain**2)
    yield Row("power", "f²(x) = f(f(x))", lambda s: (s(f**2)(near), s.f(s.f(near))))
    yield Row("power", "f³(x) = f(f(f(x)))", lambda s: (s(f**3)(nearer), s.f(s.f(s.f(nearer)))))


def _flow_laws(f: Linearizer, x: Tensor) -> Iterator[Row]:
    """For times t‖A‖ ≤ 1, where the series ends soon and nothing grows much."""
    t = 1.0 / (float(_gain(f.operator).max()) or 1.0)
    exp = cache(f.exp)

    def series(s: Setting) -> Tensor:
        term = total = s.X.coordinates(x)
        for k in range(1, 33):
            term = s.f.operator(term) * (t / k)
            total = total + term
        return s.X.points(total)

    yield Row(
        "exponential",
        "e^{sf}(e^{tf}(x)) = e^{(s+t)f}(x)",
        lambda s: (s(exp(0.6 * t))(s(exp(0.3 * t))(x)), s(exp(0.9 * t))(x)),
    )
    yield Row("exponential", "e^{tf}(x) = ⊕ₖ tᵏ/k! ⊙ fᵏ(x)", lambda s: (s(exp(t))(x), series(s)))


def _eigen_laws(f: Linearizer) -> Iterator[Row]:
    eig = cache(lambda: f.eig(8))

    def sides(s: Setting, second: bool) -> tuple[Tensor, Tensor]:
        vectors, values = eig().operator.vectors, eig().values
        p = s.points(f.source, eig().real, vectors.real.mT)
        q = s.points(f.source, eig().imag, vectors.imag.mT)
        a, b, V = values.real, values.imag, s.X
        if second:
            return s.f(q), V.add(V.scale(b, p), V.scale(a, q))
        return s.f(p), V.sub(V.scale(a, p), V.scale(b, q))

    def sums(s: Setting) -> tuple[Tensor, ...]:
        n = f.source.dim
        if n > EIGENVALUES:
            raise UnsupportedError(f"all eigenvalues of {n} × {n}, above {EIGENVALUES}.")
        values, leading = f.operator.eig().values, eig().values.abs()
        eye = torch.eye(n, dtype=f.operator.dtype, device=f.operator.device)
        A = s.f.operator(eye).mT
        norm = torch.linalg.matrix_norm(A)
        size = values.abs()
        # Eigenvalues of a defective A are rough; that others are larger must show beyond that.
        behind = (0.9 * size[: len(leading)] - leading).clamp_min(0).max()
        unordered = (size[1:] - size[:-1]).clamp_min(0).sum()
        found = [values.sum().real, values.sum().imag, behind, unordered]
        right = torch.stack([A.trace(), *A.new_zeros(3)])
        return torch.stack(found)[None], right[None], (math.sqrt(n) * norm).reshape(1)

    yield Row("eigenvectors", "f(r) = a⊙r ⊖ b⊙s", lambda s: sides(s, False))
    yield Row("eigenvectors", "f(s) = b⊙r ⊕ a⊙s", lambda s: sides(s, True))
    yield Row("eigenvalues", "Σλᵢ = tr A, |λ₁| ≥ |λ₂| ≥ …", sums)
