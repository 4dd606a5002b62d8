r"""Adam for all weights, or Muon for those that are matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "Optimizers", "orthogonalize"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


def orthogonalize(M: Tensor, iterations: int = 5) -> Tensor:
    r"""Nearly U Vᵀ for M = U S Vᵀ (m, n): singular values become about 1, between 0.5 and 1.5.

    Iterations of X ← aX + (bXXᵀ + c(XXᵀ)²)X, which need products only.

    Example:
        >>> M = torch.diag(torch.tensor([3.0, 1.0, 0.3])) @ torch.randn(3, 50)
        >>> S = torch.linalg.svdvals(orthogonalize(M))
        >>> bool((S > 0.5).all() and (S < 1.5).all())
        True
    """
    wide = M.shape[0] <= M.shape[1]
    X = M if wide else M.mT
    X = X / (X.norm() + 1e-12)
    for _ in range(iterations):
        G = X @ X.mT
        X = 3.4445 * X + (-4.7750 * G + 2.0315 * G @ G) @ X
    return X if wide else X.mT


class Muon(torch.optim.Optimizer):
    r"""W ← W − rate·0.2·√max(m, n)·UVᵀ, with U S Vᵀ the momentum of W's gradient.

    So every direction of a matrix learns as fast as every other, where Adam follows the few strong
    ones. With that factor the entries change by as much as Adam's, so that one rate serves both.
    Kernels of convolutions are matrices of shape (outputs, inputs·places).

    Arguments:
        parameters: Tensors of two or more axes.
        rate: Of learning.
        momentum: Share of the past in the momentum, which is looked ahead with (Nesterov).
        weight_decay: Decoupled.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            parameters, {"lr": rate, "momentum": momentum, "weight_decay": weight_decay}
        )
        for p in self._all():
            if p.ndim < 2:
                raise ValueError(f"Muon: expected matrices or kernels, got shape {tuple(p.shape)}.")

    def _all(self) -> list[Tensor]:
        return [p for part in self.param_groups for p in part["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for part in self.param_groups:
            rate, mu = part["lr"], part["momentum"]
            for p in part["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - mu)
                M = p.grad.lerp(state["momentum"], mu).flatten(1)
                change = orthogonalize(M).reshape(p.shape)
                p.mul_(1 - rate * part["weight_decay"])
                p.add_(change, alpha=-0.2 * max(M.shape) ** 0.5 * rate)


class Optimizers:
    """The optimiser, or two of them, of a model's parameters.

    Arguments:
        kind: "adam" for all, or "muon" for matrices and kernels, and Adam for the rest.
        parameters: By name.
        rate: Of learning, at first.
        beta2: Memory of Adam for squared gradients.
        weight_decay: Decoupled.
        fused: Adam in one kernel.
    """

    def __init__(
        self,
        kind: str,
        parameters: Mapping[str, nn.Parameter],
        rate: float,
        beta2: float,
        weight_decay: float,
        fused: bool,
    ) -> None:
        self.fused = fused
        matrices = [p for p in parameters.values() if kind == "muon" and _is_matrix(p)]
        rest = [p for p in parameters.values() if not any(p is m for m in matrices)]
        self.each: list[torch.optim.Optimizer] = []
        if matrices:
            self.each.append(Muon(matrices, rate, weight_decay=weight_decay))
        if rest or not matrices:
            self.each.append(
                torch.optim.AdamW(
                    rest, rate, (0.9, beta2), weight_decay=weight_decay, fused=fused or None
                )
            )
        self._of = {
            p: one for one in self.each for part in one.param_groups for p in part["params"]
        }

    def step(self, rate: float) -> None:
        """One step, after which there are no gradients."""
        for one in self.each:
            for part in one.param_groups:
                part["lr"] = rate
            one.step()
            one.zero_grad()

    def state(self, p: nn.Parameter) -> dict[str, Tensor]:
        """What is remembered of a parameter; nothing before its first gradient."""
        return self._of[p].state.get(p, {})

    def remember(self, p: nn.Parameter) -> dict[str, Tensor]:
        """A state of zeros for a parameter, to be filled with what was saved."""
        one = self._of[p]
        if isinstance(one, Muon):
            one.state[p] = {"momentum": torch.zeros_like(p)}
        else:
            step = torch.zeros((), dtype=torch.float32, device=p.device if self.fused else "cpu")
            one.state[p] = {"step": step, **{k: torch.zeros_like(p) for k in _MOMENTS}}
        return one.state[p]


def _is_matrix(p: Tensor) -> bool:
    return p.ndim >= 2 and min(p.shape[0], p[0].numel()) > 1
