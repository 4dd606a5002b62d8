r"""The core of a forecaster in closed form: ridge regressions between coordinates, by folds.

W = argmin E‖Wᵀφ − w‖² + Σ λᵢ‖Wᵢ − W⁰ᵢ‖² for each channel: φ are the coordinates of the past (and
these times the waves of the day), w those of the future, and W⁰ a plain forecast that W is drawn
to, or a regression of all channels together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

__all__ = ["Choice", "Moments", "average", "choose", "fit_core", "pick", "wanders"]

#: λ of the level, of other coordinates, and of waves of the day: where a search begins,
BEGIN = ((0.1, 0.1, 1.0), (30.0, 30.0, 30.0))
#: by which factor it goes, and between which bounds.
FACTOR, LEAST, MOST = 10**0.5, 1e-6, 1e6
#: Of the test of Dickey and Fuller with a constant, at 1% and for long series.
STILL_WANDERS = -3.43
#: Added to E[φφᵀ] where a plain forecast is found as W⁰.
TINY = 1e-9


class Moments(NamedTuple):
    """What ridge regressions take of windows, in float64, for each channel."""

    pp: Tensor  #: E[φφᵀ], (C, n, n)
    pw: Tensor  #: E[φwᵀ], (C, n, H)
    ww: Tensor  #: E‖w‖², (C,)
    ps: Tensor  #: E[φsᵀ] of each plain forecast s of the same windows, (k, C, n, H)


#: λ of the level, of other coordinates, and of waves of the day.
Ridges: TypeAlias = "tuple[float, ...]"
#: Moments, and the core that regressions of them are drawn to.
Drawn: TypeAlias = "tuple[Moments, Tensor]"


class Choice(NamedTuple):
    """A ridge regression: what it is drawn to, and how much."""

    plain: int  #: number of the plain forecast
    shared: Ridges | None  #: λ of a regression of all channels in between, if there is
    ridges: Ridges  #: λ of each channel; none where they take the shared one


def average(parts: Sequence[tuple[Moments, int]]) -> Moments:
    """Return the moments of several parts together, each with its number of windows."""
    count = sum(n for _, n in parts)
    sums = (sum(n * m[i] for m, n in parts) for i in range(4))
    return Moments(*(cast(Tensor, total) / count for total in sums))


def wanders(rows: Tensor, lags: int) -> Tensor:
    r"""Return which channels have no mean that they come back to, (n, C) ↦ (C,) of bool.

    By the test of Dickey and Fuller with a constant: in Δx_t = ρ x_{t−1} + Σ aᵢ Δx_{t−i} + b, by
    least squares, ρ is not below 0 by 3.43 of its standard errors, as 1% of wandering series are.
    """
    x = rows.double()
    step = x.diff(dim=0)
    n = len(step)
    lags = max(0, min(lags, n // 4))
    found = []
    for level, change in zip(x.mT, step.mT, strict=True):
        before = [change[lags - k : n - k] for k in range(1, lags + 1)]
        A = torch.stack([level[lags:-1], torch.ones_like(level[lags:-1]), *before], 1)
        y = change[lags:]
        inverse = torch.linalg.pinv(A.mT @ A, hermitian=True)
        fit = inverse @ (A.mT @ y)
        noise = (y - A @ fit).square().sum() / max(1, n - 2 * lags - 2)
        found.append(float(fit[0]) >= STILL_WANDERS * float((noise * inverse[0, 0]).sqrt()))
    return torch.tensor(found)


def choose(
    folds: Sequence[tuple[Moments, Moments]], scale: Tensor, look_back: int, hold: bool
) -> Choice:
    """Return the regression that foretells the later part of each fold from its known part best.

    Arguments:
        folds: (known, later).
        scale: The unit of each coordinate in each channel, (C, n): what channels share is in those
            of the data.
        look_back: How many numbers of φ are coordinates of the past; further ones are waves.
        hold: Whether the level must be what the plain forecast makes of it.
    """
    waves = scale.shape[1] > look_back
    later = [part for _, part in folds]

    def error(cores: Iterable[Tensor]) -> float:
        errors = [_error(W, part) for W, part in zip(cores, later, strict=True)]
        return float(torch.stack(errors).mean())

    found: list[tuple[float, Choice]] = []
    for plain, held in product(range(len(folds[0][0].ps)), (True,) if hold else (True, False)):
        drawn = [(known, _plain_core(known, plain)) for known, _ in folds]

        def together(ridges: Ridges, drawn: list[Drawn] = drawn) -> list[Tensor]:
            return [_share(known, W, ridges, scale, look_back) for known, W in drawn]

        def apart(ridges: Ridges, drawn: list[Drawn] = drawn) -> list[Tensor]:
            return [_part(known, W, ridges, look_back) for known, W in drawn]

        value, alone = _search(lambda r: error(apart(r)), waves, held)
        found.append((value, Choice(plain, None, alone)))
        value, shared = _search(lambda r: error(together(r)), waves, held)
        found.append((value, Choice(plain, shared, ())))
        known = [known for known, _ in drawn]
        nearer = list(zip(known, together(shared), strict=True))
        value, both = _search(lambda r: error(apart(r, nearer)), waves, held)  # noqa: B023
        found.append((value, Choice(plain, shared, both)))
    return min(found, key=lambda pair: pair[0])[1]


def pick(moments: Moments, channels: Tensor) -> Moments:
    """Return the moments of some channels."""
    pp, pw, ww, ps = moments
    return Moments(pp[channels], pw[channels], ww[channels], ps[:, channels])


def fit_core(known: Moments, choice: Choice, scale: Tensor, look_back: int) -> Tensor:
    """Return W of each channel, (C, n, H)."""
    W = _plain_core(known, choice.plain)
    if choice.shared is not None:
        W = _share(known, W, choice.shared, scale, look_back)
    return _part(known, W, choice.ridges, look_back) if choice.ridges else W


def _plain_core(known: Moments, plain: int) -> Tensor:
    """Return W⁰, which gives the plain forecast."""
    eye = torch.eye(known.pp.shape[-1], dtype=known.pp.dtype)
    return torch.linalg.solve(known.pp + TINY * eye, known.ps[plain])


def _share(known: Moments, W: Tensor, ridges: Ridges, scale: Tensor, look_back: int) -> Tensor:
    """Return one regression for all channels, drawn to the mean of W."""
    units = scale[:, :, None]
    pp = (units * known.pp * scale[:, None]).mean(0)
    pw, start = (units * known.pw).mean(0), (W / units).mean(0)
    return units * _solve(pp, pw, start, ridges, scale.square().mean(0), look_back)


def _part(known: Moments, W: Tensor, ridges: Ridges, look_back: int) -> Tensor:
    """Return a regression for each channel, drawn to its W."""
    size = torch.ones(known.pp.shape[-1], dtype=W.dtype)
    return _solve(known.pp, known.pw, W, ridges, size, look_back)


def _solve(
    pp: Tensor, pw: Tensor, W: Tensor, ridges: Ridges, size: Tensor, look_back: int
) -> Tensor:
    """Return (E[φφᵀ] + Λ)⁻¹ (E[φwᵀ] + ΛW⁰)."""
    weights = torch.full_like(size, ridges[1])
    weights[0] = ridges[0]
    weights[look_back:] = ridges[-1]
    weights = weights * size
    return torch.linalg.solve(pp + torch.diag(weights), pw + weights[:, None] * W)


def _error(W: Tensor, later: Moments) -> Tensor:
    """Return E‖Wᵀφ − w‖², a mean over channels."""
    return (later.ww + (W * (later.pp @ W - 2 * later.pw)).sum((-2, -1))).mean().clamp_min(0)


def _search(error: Callable[[Ridges], float], waves: bool, hold: bool) -> tuple[float, Ridges]:
    """Return the least error and its λ, found by going along each of them as long as it falls.

    With ``hold`` that of the level is so large that it is held.
    """
    found = []
    for begin in BEGIN:
        best = (MOST if hold else begin[0], *begin[1 : 3 if waves else 2])
        value, moved = error(best), True
        while moved:
            moved = False
            for i in range(int(hold), len(best)):
                for factor in (FACTOR, 1 / FACTOR):
                    while LEAST <= best[i] * factor <= MOST:
                        trial = (*best[:i], best[i] * factor, *best[i + 1 :])
                        now = error(trial)
                        if not value - now > 1e-3 * abs(value):
                            break
                        best, value, moved = trial, now, True
        found.append((value, best))
    return min(found)
