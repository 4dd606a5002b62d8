r"""Gradient boosting of small trees, as scikit-learn's ``GradientBoostingClassifier`` by default.

The same trees several times as fast: each code is sorted once for all trees, and the samples of a
node stay sorted when the node is split, where scikit-learn sorts them anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Boosted", "boost"]

#: Values of a code that are nearer are not told apart.
NEAR = 1e-7
EPSILON = float(np.finfo(np.float64).eps)


class Boosted(NamedTuple):
    """What boosted trees found."""

    importance: np.ndarray  #: share of each code in what all splits gained, (codes,); sums to one
    predicted: np.ndarray  #: class of each test sample, (m,)


class _Split(NamedTuple):
    """A node's parts: samples with ``code`` ≤ ``threshold``, and the others."""

    code: int
    threshold: float
    left: _Split | float  #: a number is the value of a leaf
    right: _Split | float


def boost(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    *,
    stages: int = 100,
    rate: float = 0.1,
    depth: int = 3,
    seed: int = 0,
) -> Boosted:
    r"""F ← F + rate·tree(y − p) for each class and stage, p = softmax(F), F at first log(shares).

    A tree splits where (n_l n_r/n)(mean_l − mean_r)² of the residuals is largest; that is the gain
    of the code it splits along. Its leaves are Newton's steps (K−1)/K·Σ(y − p)/Σp(1 − p). Of two
    classes there is one F, with the logistic function, and no factor (K−1)/K. Among codes that gain
    the same a split draws lots, so that of twins each has its share.

    Paper: Friedman, *Greedy Function Approximation: A Gradient Boosting Machine*, 2001.

    Arguments:
        x: Codes of the samples to fit, (n, codes).
        y: Their classes, (n,).
        x_test: Codes of others, (m, codes).
        stages, rate, depth: How many trees of each class, how much of each is added, how deep.
        seed: Of the lots.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 3))
        >>> found = boost(x, x[:, 1] > 0, x, stages=5)
        >>> found.importance.round(3).tolist(), (found.predicted == (x[:, 1] > 0)).mean().tolist()
        ([0.0, 1.0, 0.0], 1.0)
    """
    names, y = np.unique(y, return_inverse=True)
    if len(names) < 2:
        raise ValueError("boost: expected samples of two classes or more, got one class.")
    # Stored as scikit-learn stores them, so that thresholds lie where its do.
    with np.errstate(over="ignore"):
        x, x_test = x.astype(np.float32), x_test.astype(np.float32)
    if not (np.isfinite(x).all() and np.isfinite(x_test).all()):
        raise ValueError("boost: expected finite numbers of float32, got NaN or too large ones.")
    order = np.ascontiguousarray(x.argsort(0, kind="stable").T)
    shares = np.bincount(y) / len(y)
    binary = len(names) == 2
    truth = (y[:, None] == np.arange(len(names))[int(binary) :]).astype(np.float64)
    start = np.log(shares[1:] / shares[:1]) if binary else np.log(shares)
    shrink = 1.0 if binary else len(names) / (len(names) - 1)
    F, F_test = (np.repeat(start[None], len(part), 0) for part in (x, x_test))
    gained, lots = np.zeros(x.shape[1]), np.random.default_rng(seed)
    for _ in range(stages):
        p = 1 / (1 + np.exp(-F)) if binary else _softmax(F)
        residual = truth - p
        for k in range(F.shape[1]):
            curvature = shrink * p[:, k] * (1 - p[:, k])
            grow = _Tree(x, residual[:, k].copy(), curvature, depth, lots)
            tree = grow.node(order, 0)
            gained += grow.gained
            F[:, k] += rate * grow.value
            F_test[:, k] += rate * _apply(tree, x_test)
    best = (F_test[:, 0] >= 0).astype(int) if binary else F_test.argmax(1)
    return Boosted(gained / (gained.sum() or 1.0), names[best])


def _softmax(F: np.ndarray) -> np.ndarray:
    p = np.exp(F - F.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def _apply(tree: _Split | float, x: np.ndarray) -> np.ndarray:
    """Return the value of the leaf that each sample falls into."""
    if not isinstance(tree, _Split):
        return np.full(len(x), tree)
    left = x[:, tree.code] <= tree.threshold
    return np.where(left, _apply(tree.left, x), _apply(tree.right, x))


class _Tree:
    """Grows one tree: what each code ``gained``, and the ``value`` of each sample."""

    def __init__(
        self,
        x: np.ndarray,
        residual: np.ndarray,
        curvature: np.ndarray,
        depth: int,
        lots: np.random.Generator,
    ) -> None:
        self.x, self.residual, self.curvature = x, residual, curvature
        self.depth, self.lots = depth, lots
        self.gained, self.value = np.zeros(x.shape[1]), np.zeros(len(x))
        self.on_left = np.zeros(len(x), dtype=bool)

    def node(self, order: np.ndarray, level: int) -> _Split | float:
        """Grow the subtree of the samples ``order``, (codes, n), sorted by each code."""
        here, n = order[0], order.shape[1]
        if level == self.depth or n < 2 or self.residual[here].var() <= EPSILON:
            return self._leaf(here)
        found = self._best(order)
        if found is None:
            return self._leaf(here)
        code, at, gain = found
        self.gained[code] += gain
        low, high = self.x[order[code, at - 1 : at + 1], code].astype(np.float64)
        middle = low / 2 + high / 2
        threshold = float(low if middle in (high, np.inf, -np.inf) else middle)
        if level + 1 == self.depth:  # leaves need not be sorted
            left, right = order[code : code + 1, :at], order[code : code + 1, at:]
        else:
            self.on_left[order[code, :at]] = True
            goes = self.on_left[order]
            left, right = order[goes].reshape(-1, at), order[~goes].reshape(-1, n - at)
            self.on_left[order[code, :at]] = False
        return _Split(code, threshold, self.node(left, level + 1), self.node(right, level + 1))

    def _best(self, order: np.ndarray) -> tuple[int, int, float] | None:
        """Find the code to split along, how many samples go left, and the gain."""
        n = order.shape[1]
        sums = self.residual[order].cumsum(1)[:, :-1]
        count = np.arange(1.0, n)
        # mean_l − mean_r = (Σ_l − n_l mean)·n/(n_l n_r)
        sums -= (self.residual[order[0]].sum() / n) * count
        gains = np.square(sums, out=sums)
        gains *= n / (count * (n - count))
        code, at = self._largest(gains)
        if not self._apart(order[code, at : at + 2], code):
            values = np.take_along_axis(self.x.T, order, 1)
            gains[values[:, 1:] <= values[:, :-1] + np.float32(NEAR)] = -1
            code, at = self._largest(gains)
        gain = float(gains[code, at])
        return None if gain < 0 else (code, at + 1, gain)

    def _largest(self, gains: np.ndarray) -> tuple[int, int]:
        places = gains.argmax(1)
        of_code = gains[np.arange(len(gains)), places]
        codes = np.flatnonzero(of_code == of_code.max())
        code = int(codes[0] if len(codes) == 1 else self.lots.choice(codes))
        return code, int(places[code])

    def _apart(self, pair: np.ndarray, code: int) -> bool:
        low, high = self.x[pair, code]
        return bool(high > low + np.float32(NEAR))

    def _leaf(self, here: np.ndarray) -> float:
        below = float(self.curvature[here].sum())
        step = float(self.residual[here].sum()) / below if below > 1e-150 else 0.0
        self.value[here] = step
        return step
