r"""Derivatives that autograd alone would miss, and a refusal where second ones would be wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["first_order", "move_vectors", "needs_gradient", "refuse_twice", "truncated_pinv"]


def needs_gradient(*tensors: Tensor) -> bool:
    """Return whether a graph is being recorded for one of these."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


class _Refuse(torch.autograd.Function):
    """A gradient that is a function of ``parents`` which nobody has written down."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, what: str, *parents: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.what = inputs[1]

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.what}: expected to be differentiated once, got a second derivative, which is "
            "not known where factors are dependent, values are cut or a power is fractional. "
            "Take it of independent factors, or of an integer power."
        )


class _Once(torch.autograd.Function):
    """x itself, whose gradient refuses to be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, what: str, *parents: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.what = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        parents = ctx.saved_tensors
        return refuse_twice(grad, ctx.what, *parents), None, *(None for _ in parents)


def refuse_twice(grad: Tensor, what: str, *parents: Tensor) -> Tensor:
    """A gradient, made to raise one sentence where it is differentiated itself."""
    return _Refuse.apply(grad, what, *parents) if needs_gradient(*parents) else grad


def first_order(value: Tensor, moved: Tensor, what: str, *parents: Tensor) -> Tensor:
    """``value``, with the gradient of ``moved`` to the parents, and no second one."""
    return value.detach() + _Once.apply(moved - moved.detach(), what, *parents)


def move_vectors(
    U: Tensor,
    S: Tensor,
    V: Tensor,
    AV: Tensor,
    AtU: Tensor,
    group: Tensor | None = None,
    alpha: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    r"""How singular vectors follow A: zero in value, with the gradient of dU and dV.

    dU_j = Σᵢ U_i (σ_j Ω_ij + σ_i Ω_ji)/(σ_j² − σ_i²)
           + (I − UUᵀ)(σ_j dA V_j + α dAᵀ U_j)/(σ_j² − α²)
    with Ω = Uᵀ dA V, and dV likewise. Beside the triples A is α (0 for low rank). Pairs of equal
    values, of one ``group``, and values that equal |α| do not turn into each other: what depends
    on their span alone has its right derivative.

    Arguments:
        U, S, V: All triples inside the span, without a graph, (m, r), (r,) and (n, r).
        AV, AtU: A V and Aᵀ U, with the graph of A.
        group: A label of each triple, (r,).
        alpha: What A is outside the span, a number or (batch, 1, 1).
    """
    U, S, V = U.detach(), S.detach(), V.detach()
    unit = S.amax(-1, keepdim=True) if S.shape[-1] else S.new_ones(1)  # squares must not overflow
    unit = torch.where(unit > 0, unit, 1.0)
    S, alpha = S / unit, torch.as_tensor(alpha).detach().to(S) / unit.unsqueeze(-1)
    AV, AtU = AV / unit.unsqueeze(-1), AtU / unit.unsqueeze(-1)
    turn = U.mT @ AV
    own = S.unsqueeze(-2)  # σ_j
    other = S.unsqueeze(-1)  # σ_i
    gap = (own - other) * (own + other)
    tiny = 1e2 * torch.finfo(S.dtype).eps
    same = gap.abs() <= tiny
    if group is not None:
        same = same | (group.unsqueeze(-1) == group.unsqueeze(-2))
    F = torch.where(same, 0.0, 1.0 / torch.where(same, 1.0, gap))
    to_U = F * (own * turn + other * turn.mT)
    to_V = F * (other * turn + own * turn.mT)
    size = own * own - alpha * alpha
    near = size.abs() <= tiny
    weight = torch.where(near, 0.0, 1.0 / torch.where(near, 1.0, size))
    out_U = (own * AV + alpha * AtU) * weight if AV.shape == AtU.shape else own * AV * weight
    out_V = (own * AtU + alpha * AV) * weight if AV.shape == AtU.shape else own * AtU * weight
    dU = U @ to_U + out_U - U @ (U.mT @ out_U)
    dV = V @ to_V + out_V - V @ (V.mT @ out_V)
    return dU, dV


class _TruncatedPinv(torch.autograd.Function):
    r"""A† = V f(Σ) Uᴴ with f(σ) = 1/σ for what is kept and 0 for what is cut.

    In the basis of the singular vectors its derivative is (fᵢ ∓ fⱼ)/(σᵢ ∓ σⱼ) times the Hermitian
    and the skew part of Uᴴ dA V, and f/σ times what leaves their span.
    """

    @staticmethod
    def forward(ctx: Any, M: Tensor, U: Tensor, S: Tensor, V: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(M, U, S, V, kept)
        f = torch.where(kept, 1.0 / torch.where(kept, S, 1.0), 0.0)
        return (V * f.unsqueeze(-2)) @ U.mH

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        M, U, S, V, kept = ctx.saved_tensors
        with torch.no_grad():
            whole = torch.where(kept, S, 1.0)
            f = torch.where(kept, 1.0 / whole, 0.0)
            si, sj, fi, fj = S.unsqueeze(-1), S.unsqueeze(-2), f.unsqueeze(-1), f.unsqueeze(-2)
            mixed = kept.unsqueeze(-1) ^ kept.unsqueeze(-2)
            gap = torch.where(mixed, si - sj, 1.0)
            both = fi * fj
            lower = torch.where(mixed, (fi - fj) / gap, -both)
            upper = torch.where(mixed, (fi + fj) / torch.where(mixed, si + sj, 1.0), both)
            G = grad.mH
            turn = U.mH @ G @ V
            inside = (lower * (turn + turn.mH) + upper * (turn - turn.mH)) / 2
            square = (f * f).unsqueeze(-2)
            left, right = G @ (V * square), (U * square).mH @ G
            result = (
                U @ inside @ V.mH
                + (left - U @ (U.mH @ left)) @ V.mH
                + U @ (right - (right @ V) @ V.mH)
            )
        return refuse_twice(result, "pinv", M), None, None, None, None


def truncated_pinv(M: Tensor, U: Tensor, S: Tensor, V: Tensor, kept: Tensor) -> Tensor:
    """M† of the kept triples alone, with the derivative of that."""
    return _TruncatedPinv.apply(M, U.detach(), S.detach(), V.detach(), kept)
