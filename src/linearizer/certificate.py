r"""Measured errors of every law of a Linearizer on given points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .operators import UnsupportedError
from .spaces import Space

if TYPE_CHECKING:
    from .linearizer import Linearizer

__all__ = ["Certificate", "Law", "certify"]


@dataclass(frozen=True)
class Law:
    """One identity and how far it was missed, relative to the size of what it compares."""

    name: str
    formula: str
    error: float | None  #: None where it could not be measured; ``note`` says why
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class Certificate:
    """Every law with its measured error; ``print`` it for a table."""

    laws: tuple[Law, ...]
    tolerance: float
    points: int
    dtype: str

    @property
    def passed(self) -> bool:
        return all(law.passed for law in self.laws)

    @property
    def measured(self) -> int:
        """How many laws have an error: all, unless the core is too large or has a batch axis."""
        return sum(law.error is not None for law in self.laws)

    @property
    def worst(self) -> float:
        """The largest measured error; NaN if there is one."""
        errors = torch.tensor([law.error for law in self.laws if law.error is not None])
        return float(errors.max()) if len(errors) else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        width = max(len(law.name) for law in self.laws)
        formulas = max(len(law.formula) for law in self.laws)
        lines = []
        for law in self.laws:
            error = law.note if law.error is None else f"{law.error:.1e}"
            verdict = "FAIL" if not law.passed else "–" if law.error is None else "pass"
            lines.append(f"{law.name:<{width}}  {law.formula:<{formulas}}  {error:>8}  {verdict}")
        where = f"on {self.points} points, {self.dtype}, relative tolerance {self.tolerance:.0e}"
        failed = [law.name for law in self.laws if not law.passed]
        lines.append(
            f"FAIL: {len(failed)} of {len(self.laws)} laws ({', '.join(dict.fromkeys(failed))}), "
            f"worst error {self.worst:.1e}, {where}"
            if failed
            else f"pass: {self.measured} of {len(self.laws)} laws measured {where}"
        )
        if any(law.name.startswith("round trip") and not law.passed for law in self.laws):
            lines.append("The round trips fail, and the other laws with them: look at g⁻¹ first.")
        if not self.passed and self.dtype != "float64":
            lines.append("In float64 (f.double(), x.double()) rounding is out of the question.")
        return "\n".join(lines)


@torch.no_grad()
def certify(
    f: Linearizer,
    x: Tensor,
    y: Tensor | None = None,
    tolerance: float | None = None,
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """See :meth:`Linearizer.certify`; ``seen`` is told after each law how many are measured."""
    z = f.source.coordinates(x)
    if len(x) == 0 or not torch.isfinite(z).all():
        fault = "an empty batch" if len(x) == 0 else "NaN or infinite values, in x or in g(x)"
        raise ValueError(f"certify: expected finite points, got {fault}.")
    if y is None:
        y = x.roll(1, 0) if f.source is f.target else _spread(f, z)
    elif len(y) != len(x):
        raise ValueError(f"certify: expected as many y as x, got {len(x)} x and {len(y)} y.")
    if tolerance is None:
        tolerance = 1e-8 if z.dtype == torch.float64 else 1e-3
    elif not tolerance >= 0:
        raise ValueError(f"certify: expected tolerance ≥ 0, got {tolerance}.")
    laws: list[Law] = []
    rows = list(_laws(f, x, y))
    for name, formula, measure in rows:
        seen(len(laws), len(rows))
        try:
            error = measure()
        except UnsupportedError as problem:  # it would need a dense matrix above the limit, say
            laws.append(Law(name, formula, None, True, f"not measured: {problem}"))
            continue
        except (ValueError, RuntimeError) as problem:
            laws.append(Law(name, formula, None, False, f"raised: {problem}"))
            continue
        laws.append(Law(name, formula, error, error <= tolerance))
    return Certificate(tuple(laws), tolerance, len(x), str(z.dtype).removeprefix("torch."))


def _spread(f: Linearizer, z: Tensor) -> Tensor:
    """Target points off the range of f: Gaussian coordinates as large as those of f(x) or x."""
    w = f.operator(z)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(w.shape, dtype=torch.float64, generator=generator).to(w)
    size = next((s for s in (w.square().mean().sqrt(), z.square().mean().sqrt()) if s > 0), 1.0)
    return f.target.points(noise * size)


Row = tuple[str, str, Callable[[], float]]


def _laws(f: Linearizer, x: Tensor, y: Tensor) -> Iterator[Row]:
    X, Y = f.source, f.target
    a, b = 0.7, -1.3
    yield from _space_laws(X, x, "X")
    if Y is not X:
        yield from _space_laws(Y, y, "Y")
    u, v = x, x.roll(1, 0)

    yield (
        "linearity",
        "f(a⊙u ⊕ b⊙v) = a⊙f(u) ⊕ b⊙f(v)",
        lambda: _error(
            f(X.add(X.scale(a, u), X.scale(b, v))), Y.add(Y.scale(a, f(u)), Y.scale(b, f(v)))
        ),
    )
    yield "composition", "(fᵀ ∘ f)(x) = fᵀ(f(x))", lambda: _error((f.T @ f)(x), f.T(f(x)))
    yield (
        "adjoint",
        "⟨f(x), y⟩ = ⟨x, fᵀ(y)⟩",
        lambda: _inner_error(
            Y.inner(f(x), y), X.inner(x, f.T(y)), torch.maximum(X.norm(x), Y.norm(f(x))) * Y.norm(y)
        ),
    )

    # Each once, and an error as often as a law asks for it.
    svd, back = cache(lambda: f.svd(8)), cache(f.pinv)
    yield (
        "singular vectors",
        "f(vᵢ) = σᵢ ⊙ uᵢ",
        lambda: _error(f(svd().V), Y.scale(svd().S, svd().U)),
    )
    yield (
        "singular vectors",
        "fᵀ(uᵢ) = σᵢ ⊙ vᵢ",
        lambda: _error(f.T(svd().U), X.scale(svd().S, svd().V)),
    )
    yield "orthonormal", "⟨vᵢ, vⱼ⟩ = δᵢⱼ", lambda: _identity_error(X.gram(svd().V))
    yield "orthonormal", "⟨uᵢ, uⱼ⟩ = δᵢⱼ", lambda: _identity_error(Y.gram(svd().U))

    yield "Penrose 1", "f f† f = f", lambda: _error(f(back()(f(x))), f(x))
    yield "Penrose 2", "f† f f† = f†", lambda: _error(back()(f(back()(y))), back()(y))
    yield (
        "Penrose 3",
        "(f f†)ᵀ = f f†",
        lambda: _symmetry_error(Y, lambda p: f(back()(p)), y, y.roll(1, 0)),
    )
    yield "Penrose 4", "(f† f)ᵀ = f† f", lambda: _symmetry_error(X, lambda p: back()(f(p)), u, v)


def _space_laws(V: Space, x: Tensor, name: str) -> Iterator[Row]:
    u, v, w = x, x.roll(1, 0), x.roll(2, 0)
    a, b = 0.7, -1.3
    z = V.coordinates(x)

    yield f"round trip {name}", "g⁻¹(g(x)) = x", lambda: _error(V.points(z), x)
    yield f"round trip {name}", "g(g⁻¹(z)) = z", lambda: _error(V.coordinates(V.points(z)), z)
    yield (
        f"associative {name}",
        "(u ⊕ v) ⊕ w = u ⊕ (v ⊕ w)",
        lambda: _error(V.add(V.add(u, v), w), V.add(u, V.add(v, w))),
    )
    yield f"commutative {name}", "u ⊕ v = v ⊕ u", lambda: _error(V.add(u, v), V.add(v, u))
    yield f"zero {name}", "u ⊕ 0 = u", lambda: _error(V.add(u, V.zero()), u)
    yield (
        f"negative {name}",
        "u ⊕ (⊖u) = 0",
        lambda: _error(V.add(u, V.neg(u)), V.zero().expand_as(u), u),
    )
    yield (
        f"scaling {name}",
        "a ⊙ (b ⊙ u) = ab ⊙ u",
        lambda: _error(V.scale(a, V.scale(b, u)), V.scale(a * b, u)),
    )
    yield f"one {name}", "1 ⊙ u = u", lambda: _error(V.scale(1.0, u), u)
    yield (
        f"distributive {name}",
        "a ⊙ (u ⊕ v) = a⊙u ⊕ a⊙v",
        lambda: _error(V.scale(a, V.add(u, v)), V.add(V.scale(a, u), V.scale(a, v))),
    )
    yield (
        f"distributive {name}",
        "(a + b) ⊙ u = a⊙u ⊕ b⊙u",
        lambda: _error(V.scale(a + b, u), V.add(V.scale(a, u), V.scale(b, u))),
    )


def _error(left: Tensor, right: Tensor, *scale: Tensor) -> float:
    """Largest ‖left − right‖ of a sample, relative to the largest norm among all compared."""
    size = max(float(_norms(t).max()) for t in (left, right, *scale))
    return float(_norms(left - right).max()) / (size or 1.0)


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _inner_error(left: Tensor, right: Tensor, scale: Tensor) -> float:
    return float((left - right).abs().max()) / (float(scale.max()) or 1.0)


def _symmetry_error(V: Space, p: Callable[[Tensor], Tensor], u: Tensor, v: Tensor) -> float:
    return _inner_error(V.inner(p(u), v), V.inner(u, p(v)), V.norm(u) * V.norm(v))


def _identity_error(gram: Tensor) -> float:
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float((gram - eye).abs().max())
