r"""How well numbers can be predicted: R², and ridge regression as a plain yardstick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Affine", "fit_linearly", "fit_ridge", "r_squared"]

#: Of inputs with variance 1; the one that does best on validation samples is taken.
RIDGES = (1e-3, 1e-1, 1e1, 1e3)


def r_squared(predicted: Tensor, y: Tensor) -> Tensor:
    r"""1 − mean squared error/variance of each column of y (n, k), as (k,) float64.

    Example:
        >>> y = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        >>> r_squared(torch.tensor([[0.0, 2.0], [2.0, 2.0]]), y).tolist()
        [1.0, 0.0]
    """
    if predicted.shape != y.shape or y.ndim != 2:
        raise ValueError(
            f"r_squared: expected two tensors (n, k), got {tuple(predicted.shape)} and "
            f"{tuple(y.shape)}."
        )
    y = y.double()
    return 1 - (predicted.double() - y).square().mean(0) / y.var(0, correction=0)


class Affine(NamedTuple):
    """The map x ↦ (x − centre) weight + level of flattened x, in float64."""

    centre: Tensor  #: (d,)
    weight: Tensor  #: (d, k)
    level: Tensor  #: (k,)

    def __call__(self, x: Tensor) -> Tensor:
        return (x.flatten(1).double() - self.centre) @ self.weight + self.level


def fit_ridge(x: Tensor, y: Tensor, ridges: Sequence[float]) -> list[Affine]:
    r"""argmin ‖Xw + b − y‖²/n + ridge·‖w‖² for each ridge, by the smaller of XᵀX and XXᵀ.

    Arguments:
        x: (n, d).
        y: (n, k).
        ridges: Each > 0.
    """
    centre, level = x.double().mean(0), y.double().mean(0)
    X, Y = x.double() - centre, y.double() - level
    wide = X.shape[0] < X.shape[1]
    gram, right = (X @ X.mT, Y) if wide else (X.mT @ X, X.mT @ Y)
    found = []
    for ridge in ridges:
        K = gram.clone()
        K.diagonal().add_(len(X) * ridge)
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(K))
        found.append(Affine(centre, X.mT @ solved if wide else solved, level))
    return found


def fit_linearly(x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor) -> Affine:
    r"""Fit y by ridge regression on inputs of any shape, their numbers scaled to variance 1.

    Arguments:
        x, y: Samples to fit, (n, \*shape) and (n, k).
        x_val, y_val: Samples that choose the ridge.

    Example:
        >>> x = torch.randn(200, 2, 3)
        >>> found = fit_linearly(x, 5 * x[:, 0], x, 5 * x[:, 0])
        >>> bool((r_squared(found(x), 5 * x[:, 0]) > 0.999).all())
        True
    """
    scale = x.flatten(1).double().std(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    fits = fit_ridge(x.flatten(1) / scale, y, RIDGES)
    errors = [(fit(x_val.flatten(1) / scale) - y_val).square().mean() for fit in fits]
    centre, weight, level = fits[int(torch.stack(errors).argmin())]
    return Affine(centre * scale, weight / scale[:, None], level)
