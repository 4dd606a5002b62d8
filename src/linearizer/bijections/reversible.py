r"""Backpropagation through invertible layers with activation memory constant in depth.

The forward pass keeps only its result. The backward pass walks the layers in reverse: each input
is recomputed from its output by the inverse, the one layer is run again with gradients, and its
graph is freed before the next. Works for g, for g⁻¹ and for g with its log-determinant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["run_reversibly"]


def run_reversibly(layers: nn.ModuleList, x: Tensor, call: str) -> tuple[Tensor, Tensor]:
    """Apply ``call`` ("forward", "inverse" or "with_log_det") of all layers to x.

    Returns the result and the log-determinant, which is zero unless asked for.
    """
    ordered = list(reversed(layers)) if call == "inverse" else list(layers)
    parameters = [p for p in layers.parameters() if p.requires_grad]
    return _Reversible.apply(x, ordered, call, *parameters)


def _step(layer: Any, x: Tensor, call: str) -> tuple[Tensor, Tensor | None]:
    if call == "with_log_det":
        return layer.with_log_det(x)
    return (layer.inverse(x) if call == "inverse" else layer.forward(x)), None


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: Sequence[Any], call: str, *parameters: nn.Parameter
    ) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(x.shape[0])
        start = x
        for layer in layers:
            x, log_det = _step(layer, x, call)
            if log_det is not None:
                total = total + log_det
        device = x.device.type
        ctx.layers, ctx.call, ctx.parameters = layers, call, parameters
        ctx.versions = [p._version for p in parameters]
        # A backward pass runs outside autocast: the conditioners must be run again as they were.
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        x = x.clone() if x is start else x
        ctx.save_for_backward(x.detach())
        return x, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        if [p._version for p in ctx.parameters] != ctx.versions:
            raise RuntimeError(
                "save_memory: parameters were changed in place between the forward and the "
                "backward pass, which recomputes from them. Call backward before the next step."
            )
        undo = "forward" if ctx.call == "inverse" else "inverse"
        sums: dict[nn.Parameter, Tensor] = {}
        device, dtype, enabled = ctx.autocast
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            for layer in reversed(ctx.layers):
                with torch.no_grad():
                    x = _step(layer, y, undo)[0].detach()
                own = [p for p in layer.parameters() if p.requires_grad]
                with torch.enable_grad():
                    x.requires_grad_()
                    outputs = _step(layer, x, ctx.call)
                pairs = [
                    (o, g)
                    for o, g in zip(outputs, (grad, grad_total), strict=True)
                    if o is not None and o.requires_grad
                ]
                grads = torch.autograd.grad(
                    [o for o, _ in pairs], [x, *own], [g for _, g in pairs], allow_unused=True
                )
                grad = grads[0]
                for p, g in zip(own, grads[1:], strict=True):
                    if g is not None:
                        sums[p] = sums[p] + g if p in sums else g
                y = x.detach()
        return (grad, None, None, *(sums.get(p) for p in ctx.parameters))
