r"""Backpropagation through invertible layers with activation memory constant in depth.

The forward pass keeps its input and its result alone. The backward pass walks the layers in
reverse: each layer recovers its input from its output and pulls the gradient back
(``Bijection._pull_back``), and whatever it computed is freed before the next one's turn. Works for
g, for g⁻¹ and for g with its log-determinant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["Pull", "apply_layer", "is_ordinary", "run_reversibly"]

#: Gradients of parameters, summed over the layers that have them.
Sums = dict[Tensor, Tensor]


def run_reversibly(chain: Any, x: Tensor, call: str) -> tuple[Tensor, Tensor]:
    """Apply ``call`` ("forward", "inverse" or "with_log_det") of a chain to x.

    Returns the result and the log-determinant, which is zero unless asked for.
    """
    return _Reversible.apply(x, chain, call, *_learned(chain))


def is_ordinary(x: Tensor) -> bool:
    """Return whether x is a tensor as such, which a backward pass of ours can serve.

    Transforms of ``torch.func`` and forward-mode derivatives take the plain path.
    """
    return not (
        torch._C._are_functorch_transforms_active() or forward_ad.unpack_dual(x).tangent is not None
    )


def apply_layer(layer: Any, x: Tensor, call: str) -> tuple[Tensor, Tensor | None]:
    """The result of a call, and its log-determinant if the call gives one."""
    if call == "with_log_det":
        return layer.with_log_det(x)
    return (layer.inverse(x) if call == "inverse" else layer.forward(x)), None


class Pull:
    """One backward pass: which call is undone, and the gradients that it collects.

    Arguments:
        call: What was called, "forward", "inverse" or "with_log_det".
        log_det: Gradient of the log-determinants, (batch,).
    """

    def __init__(self, call: str, log_det: Tensor) -> None:
        self.call, self.log_det = call, log_det
        self.undo = "forward" if call == "inverse" else "inverse"
        self.sums: Sums = {}

    def through(
        self,
        outputs: tuple[Tensor, Tensor | None],
        grad: Tensor,
        inputs: list[Tensor],
        parameters: Iterable[Tensor],
    ) -> list[Tensor]:
        """Gradients of the inputs, from those of a result and its log-determinant.

        Those of the parameters go to ``sums``.
        """
        pairs = [
            (out, g)
            for out, g in zip(outputs, (grad, self.log_det), strict=True)
            if out is not None and out.requires_grad
        ]
        learned = [p for p in parameters if p.requires_grad]
        grads = torch.autograd.grad(
            [out for out, _ in pairs],
            [*inputs, *learned],
            [g for _, g in pairs],
            allow_unused=True,
        )
        for p, g in zip(learned, grads[len(inputs) :], strict=True):
            if g is not None:
                self.sums[p] = self.sums[p] + g if p in self.sums else g
        return [
            torch.zeros_like(x) if g is None else g
            for x, g in zip(inputs, grads[: len(inputs)], strict=True)
        ]


def _learned(chain: nn.Module) -> list[nn.Parameter]:
    return [p for p in chain.parameters() if p.requires_grad]


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, chain: Any, call: str, *parameters: nn.Parameter
    ) -> tuple[Tensor, Tensor]:
        z, log_det = chain._plain(x, call)
        total = z.new_zeros(z.shape[0]) if log_det is None else log_det
        device = "cpu" if z.is_meta else z.device.type
        ctx.chain, ctx.call, ctx.parameters = chain, call, parameters
        ctx.versions = [p._version for p in parameters]
        # A backward pass runs outside autocast: the conditioners must be run again as they were.
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        z = z.clone() if z is x else z
        ctx.save_for_backward(x, z)
        return z, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        x, z = ctx.saved_tensors
        now = _learned(ctx.chain)
        if len(now) != len(ctx.parameters) or any(
            p is not q for p, q in zip(now, ctx.parameters, strict=True)
        ):
            raise RuntimeError(
                "save_memory: parameters were exchanged, frozen or freed between the forward and "
                "the backward pass, as by torch.func.functional_call. Build g with "
                "save_memory=False for that."
            )
        if [p._version for p in ctx.parameters] != ctx.versions:
            raise RuntimeError(
                "save_memory: parameters were changed in place between the forward and the "
                "backward pass, which recomputes from them. Call backward before the next step."
            )
        device, dtype, enabled = ctx.autocast
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            if torch.is_grad_enabled():  # create_graph=True: the result is differentiated again
                return _differentiable(ctx, x, grad, grad_total)
            pull = Pull(ctx.call, grad_total)
            _, grad = ctx.chain._pull_back(z.detach(), grad, pull)
        return (grad, None, None, *(pull.sums.get(p) for p in ctx.parameters))


def _differentiable(
    ctx: Any, x: Tensor, grad: Tensor, grad_total: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients by the plain path, as functions of x, of the parameters and of ``grad``."""
    outputs = ctx.chain._plain(x, ctx.call)
    pairs = [
        (out, g)
        for out, g in zip(outputs, (grad, grad_total), strict=True)
        if out is not None and out.requires_grad
    ]
    inputs = [t for t in (x, *ctx.parameters) if t.requires_grad]
    grads = torch.autograd.grad(
        [out for out, _ in pairs],
        inputs,
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    first, rest = (grads[0], grads[1:]) if x.requires_grad else (None, grads)
    return (first, None, None, *rest)
