r"""What flows and projectors on a subspace share (see ``bijections.subspace``)."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ..bijections import Bijection
from ..spaces import Space
from ..training.draws import Draw
from .base import Terms

__all__ = ["Codes", "OnSubspace", "layers_of", "negative_log_density", "subspace_terms"]


class OnSubspace(Protocol):
    """A model whose g is a subspace, and whose settings weigh the terms of its loss."""

    config: Any
    target: Space
    log_noise: Tensor


def subspace_terms(model: OnSubspace, x: Tensor, draw: Draw) -> tuple[Terms, Tensor]:
    r"""Reconstruction and likelihood of a subspace (see ``bijections.subspace``), and z₁.

    With u and w before the last stack F, and learned noise σ: ‖x − x̂(u + σε)‖², where x̂ decodes
    from u alone (w = 0), and −log p(u + σε) − Σ log σ, where F carries p to a normal density. Their
    weighted sum is the bound of a variational autoencoder whose prior is F.
    """
    c = model.config
    axes, encode, decode, last, *_ = layers_of(model)
    r = len(model.log_noise)
    with torch.no_grad():
        start = axes(x)
    h = encode(start)
    u, w = h[:, :r], h[:, r:]
    noisy = u + model.log_noise.exp() * draw.normal(u)
    back = encode.inverse(decode.inverse(torch.cat([noisy, torch.zeros_like(w)], 1)))
    error = axes.lengths(back - start)
    bits, z = negative_log_density(last.g, noisy)
    terms = {
        "reconstruction": c.reconstruction * error.mean(),
        "-log p": c.likelihood * (bits - model.log_noise.sum()).mean(),
    }
    return terms, torch.cat([z, torch.zeros_like(w)], 1)


def negative_log_density(g: Bijection, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return ½‖z‖² − log|det ∂g|, (n,), and z = g(x).

    That is −log p(x) up to a constant, where g carries p to a standard normal density.
    """
    z, log_det = g.with_log_det(x)
    return 0.5 * z.square().sum(1) - log_det, z


def layers_of(model: OnSubspace) -> list[Any]:
    """Return the layers of a subspace."""
    return list(cast(Any, model.target.g))


class Codes:
    """Where images lie before the last stacks of a subspace, part by part, each (n, k)."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(part[index] for part in self.parts)
