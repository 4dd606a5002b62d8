r"""Does a code keep the factors of the data apart? FactorVAE, SAP and DCI scores.

They take the codes of *every* combination of the factors, in lexicographic order of the factors
(the last changes fastest). A random sample is then a random row, and fixing a factor is arithmetic
on the row's number. Samples are independent and drawn with replacement; each score draws from its
own stream, so that it is the same alone and beside the others.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..training.draws import mix
from .boosting import boost

__all__ = ["DCI", "Scores", "concentration", "dci", "factor_vae", "sap", "scores"]

#: Votes counted at once, which bounds the memory.
VOTES = 1000


# -- FactorVAE ---------------------------------------------------------------------------------


def factor_vae(
    codes: Tensor,
    sizes: Sequence[int],
    seed: int = 0,
    *,
    votes: tuple[int, int] = (10_000, 5_000),
    batch: int = 64,
    samples: int = 10_000,
    smallest: float = 0.05,
) -> float:
    r"""Share of votes argmin_d Var_d[z | one factor fixed] / Var_d[z] that tell the factor.

    A vote draws a factor and a batch of samples that agree in it; d runs over the codes whose
    deviation is ``smallest`` or more. The first votes make a table that says for each d the factor
    that was fixed most often (the first of equals, and the first factor where d never won); the
    score is how often it is right on the others. Codes that say nothing score about 1 / factors;
    where no code varies enough the score is 0.

    Paper: Kim, Mnih, *Disentangling by Factorising*, 2018, section 4.

    Arguments:
        codes: The code of each combination of factors, (N, k).
        sizes: Values of each factor; N is their product.
        votes: How many make the table, and how many it is tried on.
        batch: Samples of a vote.
        samples: Samples that estimate Var_d[z]. All variances divide by n − 1.
        smallest: Deviation below which a code is left out; one that is constant always is.

    Example:
        >>> factors = torch.cartesian_prod(torch.arange(4), torch.arange(5), torch.arange(6))
        >>> factor_vae(factors, (4, 5, 6), votes=(100, 100))
        1.0
    """
    z, sizes = _check_codes("factor_vae", codes, sizes, seed)
    counts = (("votes to learn", votes[0], 1), ("votes to test", votes[1], 1))
    _check_counts("factor_vae", *counts, ("batch", batch, 2), ("samples", samples, 2))
    rng = np.random.default_rng(mix(seed, "FactorVAE"))
    some = z[rng.integers(len(z), size=samples)]
    variance = some.var(0, ddof=1)
    # The variance of a constant may be 1e-34 by rounding.
    kept = (np.sqrt(variance) >= smallest) & (np.ptp(some, 0) > 0)
    if not kept.any():
        return 0.0
    z, variance = z[:, kept], variance[kept]
    learned = _count_votes(z, sizes, variance, votes[0], batch, rng).argmax(1)
    tested = _count_votes(z, sizes, variance, votes[1], batch, rng)
    return float(np.take_along_axis(tested, learned[:, None], 1).sum() / votes[1])


def _count_votes(
    z: np.ndarray,
    sizes: tuple[int, ...],
    variance: np.ndarray,
    votes: int,
    batch: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Count how often each code won while each factor was fixed, (codes, factors)."""
    steps = np.array([math.prod(sizes[i + 1 :]) for i in range(len(sizes))])
    table = np.zeros((z.shape[1], len(sizes)), dtype=np.int64)
    for start in range(0, votes, VOTES):
        n = min(VOTES, votes - start)
        factor = rng.integers(len(sizes), size=n)
        index = rng.integers(len(z), size=(n, batch))
        step, size = steps[factor, None], np.array(sizes)[factor, None]
        value = index // step % size
        index += (value[:, :1] - value) * step  # all take the first one's value
        local = z[index].var(1, ddof=1)
        np.add.at(table, ((local / variance).argmin(1), factor), 1)
    return table


# -- SAP ---------------------------------------------------------------------------------------


def sap(
    codes: Tensor,
    sizes: Sequence[int],
    seed: int = 0,
    *,
    train: int = 10_000,
    test: int = 5_000,
) -> float:
    r"""Mean over factors of the gap S₍₁₎ − S₍₂₎ between the two codes that tell it best.

    S is the test accuracy of ``LinearSVC(C=0.01, class_weight="balanced")`` that sees one code, as
    it is. It compares one value of the factor with the rest, so that of a factor of many values
    even a perfect code tells little more than the ends.

    Paper: Kumar, Sattigeri, Balakrishnan, *Variational Inference of Disentangled Latent Concepts
    from Unlabeled Observations*, 2018, section 3.

    Arguments:
        codes: The code of each combination of factors, (N, k).
        sizes: Values of each factor; N is their product.
        train, test: Samples to fit on, and to measure on.

    Example:
        >>> factors = torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(2))
        >>> twice = torch.cat([factors, factors], 1)  # no code is alone
        >>> 0.4 < sap(factors, (2, 2, 2)) < 0.6, sap(twice, (2, 2, 2))
        (True, 0.0)
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    z, sizes = _check_codes("sap", codes, sizes, seed)
    (x, y), (x_test, y_test) = _draw_samples("sap", z, sizes, mix(seed, "SAP"), train, test)
    accuracy = np.zeros((z.shape[1], len(sizes)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for code in range(z.shape[1]):
            one = slice(code, code + 1)
            for factor in range(len(sizes)):
                # The primal is what "auto" takes here; it draws no random numbers.
                machine = LinearSVC(C=0.01, class_weight="balanced", dual=False)
                machine.fit(x[:, one], y[:, factor])
                right = machine.predict(x_test[:, one]) == y_test[:, factor]
                accuracy[code, factor] = right.mean()
    best = np.sort(accuracy, 0)
    return float((best[-1] - best[-2]).mean())


# -- DCI ---------------------------------------------------------------------------------------


class DCI(NamedTuple):
    r"""Disentanglement, completeness, informativeness, and what the first two come from."""

    disentanglement: float
    completeness: float
    informativeness: float
    importance: Tensor  #: (codes, factors) float64; the column of a factor sums to one, or is 0


def dci(
    codes: Tensor,
    sizes: Sequence[int],
    seed: int = 0,
    *,
    train: int = 10_000,
    test: int = 5_000,
    workers: int | None = None,
) -> DCI:
    r"""D = Σᵢ ρᵢ (1 − H(Rᵢ.)), C = Σⱼ ρⱼ (1 − H(R.ⱼ)), I = mean test accuracy over factors.

    R, codes × factors, has the importances of each code in boosted trees for each factor, those of
    scikit-learn's default ``GradientBoostingClassifier`` (see ``boosting.boost``);
    ``concentration`` says what ρ and H are. D is 1 if each code knows one factor only, C
    if one code alone knows each factor.

    Paper: Eastwood, Williams, *A Framework for the Quantitative Evaluation of Disentangled
    Representations*, 2018, section 2.

    Arguments:
        codes: The code of each combination of factors, (N, k).
        sizes: Values of each factor; N is their product.
        train, test: Samples to fit on, and to measure on.
        workers: Processes that share the factors, as many as there are cores if None; 1 stays in
            this process. The scores do not depend on it.

    Example:
        >>> factors = torch.cartesian_prod(torch.arange(2), torch.arange(3))
        >>> D, C, I, R = dci(factors, (2, 3), train=50, test=50, workers=1)
        >>> round(D, 6), round(C, 6), I
        (1.0, 1.0, 1.0)
    """
    from sklearn.utils.parallel import Parallel, delayed

    z, sizes = _check_codes("dci", codes, sizes, seed)
    workers = (os.cpu_count() or 1) if workers is None else workers
    _check_counts("dci", ("workers", workers, 1))
    (x, y), (x_test, y_test) = _draw_samples("dci", z, sizes, mix(seed, "DCI"), train, test)
    # There is one tree for each value and round: the largest factors take longest, so go first.
    order = sorted(range(len(sizes)), key=lambda j: -sizes[j])
    pool = Parallel(n_jobs=min(workers, len(sizes)), max_nbytes=None)
    found = pool(delayed(_boost_factor)(x, y[:, j], x_test, y_test[:, j], seed) for j in order)
    importance = torch.zeros(z.shape[1], len(sizes), dtype=torch.float64)
    for j, (shares, _) in zip(order, found, strict=True):
        importance[:, j] = torch.from_numpy(shares)
    accuracy = sum(right for _, right in found) / len(sizes)
    return DCI(concentration(importance), concentration(importance.T), accuracy, importance)


def _boost_factor(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, seed: int
) -> tuple[np.ndarray, float]:
    """Return the importance of each code for one factor, (codes,), and the test accuracy."""
    found = boost(x, y, x_test, seed=seed)
    return found.importance, float((found.predicted == y_test).mean())


def concentration(importance: Tensor) -> float:
    r"""Σᵢ ρᵢ (1 − H(Rᵢ)) of the rows of R ≥ 0, (m, n): 1 if each row has one entry, 0 if all equal.

    ρᵢ is the share of row i in the sum of R, H the entropy in base n of the row over its sum. The
    disentanglement is that of R, codes × factors, the completeness that of its transpose. A row of
    zeros has no weight; where all are, it is 0.

    Example:
        >>> round(concentration(torch.tensor([[3.0, 0.0], [0.5, 0.5]])), 6)
        0.75
    """
    if importance.ndim != 2 or importance.shape[1] < 2:
        raise ValueError(
            "concentration: expected importances (m, n) with n ≥ 2, got shape "
            f"{tuple(importance.shape)}."
        )
    if not bool((importance >= 0).all()):
        raise ValueError("concentration: expected importances ≥ 0, got negative ones or NaN.")
    R = importance.double()
    rows = R.sum(1)
    if not float(rows.sum()):
        return 0.0
    p = R / rows.clamp_min(torch.finfo(R.dtype).tiny)[:, None]
    entropy = torch.special.entr(p).sum(1) / math.log(R.shape[1])
    return float((rows * (1 - entropy)).sum() / rows.sum())


# -- all of them -------------------------------------------------------------------------------


class Scores(NamedTuple):
    r"""One row of the table; more is better, each from 0 to 1."""

    factor_vae: float
    sap: float
    disentanglement: float
    completeness: float
    informativeness: float


def scores(
    codes: Tensor,
    sizes: Sequence[int],
    seed: int = 0,
    *,
    votes: tuple[int, int] = (10_000, 5_000),
    train: int = 10_000,
    test: int = 5_000,
    workers: int | None = None,
) -> Scores:
    r"""``factor_vae``, ``sap`` and ``dci`` of one representation with one seed.

    Example:
        >>> factors = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        >>> found = scores(factors, (2, 2), votes=(50, 50), train=50, test=50, workers=1)
        >>> found.factor_vae, found.informativeness
        (1.0, 1.0)
    """
    return Scores(
        factor_vae(codes, sizes, seed, votes=votes),
        sap(codes, sizes, seed, train=train, test=test),
        *dci(codes, sizes, seed, train=train, test=test, workers=workers)[:3],
    )


# -- what they share ---------------------------------------------------------------------------


def _draw_samples(
    where: str, z: np.ndarray, sizes: tuple[int, ...], seed: int, train: int, test: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Draw codes (n, k) float64 and factors (n, f) of samples to fit on, and of others."""
    _check_counts(where, ("train", train, 2), ("test", test, 1))
    rng = np.random.default_rng(seed)
    index = rng.integers(len(z), size=train + test)
    x, y = z[index], np.stack(np.unravel_index(index, sizes), 1)
    for factor in range(len(sizes)):
        if (y[:train, factor] == y[0, factor]).all():
            raise ValueError(
                f"{where}: expected training samples of two values or more of each factor, got "
                f"one value of factor {factor} in {train} samples. Draw more of them."
            )
    return (x[:train], y[:train]), (x[train:], y[train:])


def _check_codes(
    where: str, codes: Tensor, sizes: Sequence[int], seed: int
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the codes as a float64 array, or raise an error that says what is wrong with them."""
    sizes = tuple(int(size) for size in sizes)
    if len(sizes) < 2 or min(sizes) < 2:
        raise ValueError(
            f"{where}: expected two factors or more of two values or more each, got sizes {sizes}. "
            "Leave out factors that never change."
        )
    if not 0 <= seed < 2**32:
        raise ValueError(f"{where}: expected a seed from 0 to 2³² − 1, got {seed}.")
    if codes.ndim != 2 or codes.shape[1] < 2:
        raise ValueError(
            f"{where}: expected codes (N, k) with k ≥ 2, got shape {tuple(codes.shape)}. Flatten "
            "each code to one row."
        )
    if len(codes) != math.prod(sizes):
        raise ValueError(
            f"{where}: expected {math.prod(sizes):,} codes, one for each combination of factors of "
            f"sizes {sizes}, got {len(codes):,}. Encode all of the data, in order."
        )
    bad = int((~codes.isfinite()).any(1).sum())
    if bad:
        raise ValueError(
            f"{where}: expected finite codes, got NaN or infinity in {bad:,} of {len(codes):,} "
            "rows. Look at what the encoder gives for them."
        )
    return codes.detach().cpu().double().numpy(), sizes


def _check_counts(where: str, *counts: tuple[str, int, int]) -> None:
    """Raise unless each (name, count, least) has count ≥ least."""
    for name, count, least in counts:
        if count < least:
            raise ValueError(f"{where}: expected {name} ≥ {least}, got {count}.")
