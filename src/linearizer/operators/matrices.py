r"""Plain matrices, (n, n) or (batch, n, n), and the small helpers that operators share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .base import Operator


class SVD(NamedTuple):
    r"""A = U diag(S) Vᵀ with orthonormal columns: U (m, k), S (k,) descending, V (n, k)."""

    U: Tensor
    S: Tensor
    V: Tensor


class Eig(NamedTuple):
    r"""A X = X diag(λ), complex: ``values`` (k,) by falling magnitude, ``vectors`` (n, k)."""

    values: Tensor
    vectors: Tensor


def hold(module: nn.Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def shaped(module: Operator, name: str, tensor: Tensor, ndim: int) -> None:
    kind = type(module).__name__
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        came = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{kind}: expected {name} to be a real floating tensor, got {came}.")
    if tensor.ndim not in (ndim, ndim + 1):
        raise ValueError(
            f"{kind}: expected {name} with {ndim} axes (or {ndim + 1} with a leading batch axis), "
            f"got shape {tuple(tensor.shape)}."
        )


def hold_factors(module: Operator, U: Tensor, V: Tensor) -> None:
    kind = type(module).__name__
    shaped(module, "U", U, 2)
    shaped(module, "V", V, 2)
    if U.shape[-1] != V.shape[-1] or U.dtype != V.dtype or U.device != V.device:
        raise ValueError(
            f"{kind}: expected U (m, r) and V (n, r) of one rank, dtype and device, got "
            f"{tuple(U.shape)} {U.dtype} {U.device} and {tuple(V.shape)} {V.dtype} {V.device}."
        )
    learned = isinstance(U, nn.Parameter) or isinstance(V, nn.Parameter)
    if U.shape[-1] > min(U.shape[-2], V.shape[-2]) and not learned:
        # More columns than the rank can be (after many products): fold them, exactly.
        if V.shape[-2] <= U.shape[-2]:
            U, V = U @ V.mT, torch.eye(V.shape[-2], dtype=V.dtype, device=V.device)
        else:
            U, V = torch.eye(U.shape[-2], dtype=U.dtype, device=U.device), V @ U.mT
    hold(module, "U", U)
    hold(module, "V", V)


def batch_of(*tensors: tuple[Tensor, int]) -> int | None:
    return next((t.shape[0] for t, ndim in tensors if t.ndim > ndim), None)


def rows(z: Tensor, M: Tensor) -> Tensor:
    """Rows z (batch, ..., n) times M (n, k), or each sample's own M (batch, n, k)."""
    if M.ndim == 2 or z.ndim > 2:
        return z @ M
    return (z.unsqueeze(-2) @ M).squeeze(-2)


def middle(t: Tensor, z: Tensor, ndim: int) -> Tensor:
    """A batched t of ``ndim`` own axes, with axes of one between batch and those, to match z."""
    if t.ndim == ndim:
        return t
    inner = max(ndim, 1) if ndim else 1
    own = t.shape[1:] if ndim else (1,)
    return t.reshape(t.shape[0], *(1,) * (z.ndim - 1 - inner), *own)


def scalar(c: float | Tensor, like: Operator, axes: int) -> Tensor:
    """c as a tensor that multiplies something with ``axes`` axes after the batch axis."""
    c = torch.as_tensor(c, dtype=like.dtype, device=like.device)
    if c.ndim > 1 or (c.ndim == 1 and like.batch not in (None, c.shape[0])):
        raise ValueError(
            f"{type(like).__name__}: expected a number, or one for each of "
            f"{like.batch or 'the'} samples, got a tensor of shape {tuple(c.shape)}."
        )
    return c.reshape((*c.shape, *(1,) * axes))


def count(k: int | None) -> int | None:
    if k is not None and k < 1:
        raise ValueError(f"expected k ≥ 1 leading values, or None for all, got {k}.")
    return k


def top(values: Any, k: int | None) -> Any:
    return type(values)(*(v[..., :k] for v in values))


def pick(columns: Tensor, order: Tensor) -> Tensor:
    index = order.unsqueeze(-2).expand(*order.shape[:-1], columns.shape[-2], order.shape[-1])
    return columns.expand(*order.shape[:-1], *columns.shape[-2:]).gather(-1, index)


def cat(X: Tensor, Y: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    return torch.cat([X.expand(*lead, *X.shape[-2:]), Y.expand(*lead, *Y.shape[-2:])], -1)


def eye_like(M: Tensor) -> Tensor:
    return torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def complex(M: Tensor) -> Tensor:
    return torch.complex(M, torch.zeros_like(M))


def safe(d: Tensor) -> Tensor:
    """d with zeros replaced by ones, so that 1/d has finite gradients where it is not used."""
    return torch.where(d == 0, torch.ones_like(d), d)


def peak(S: Tensor) -> Tensor:
    """The largest entry, keeping the axis; 0 where there is none."""
    return S.amax(-1, keepdim=True) if S.shape[-1] else S.new_zeros(*S.shape[:-1], 1)


def finite(M: Tensor, what: str) -> Tensor:
    if not torch.isfinite(M).all():
        raise ValueError(
            f"{what}: the operator holds NaN or infinite entries, so it has no decomposition. "
            "Look at the training that produced it."
        )
    return M


def fix_signs(svd: SVD) -> SVD:
    U, S, V = svd
    if not V.numel():
        return svd
    # Near ties in magnitude are decided by position, so that rounding does not flip a sign.
    size = V.detach().abs()
    index = (size >= 0.999 * peak(size.mT).mT).to(torch.uint8).argmax(-2, keepdim=True)
    sign = torch.where(V.detach().gather(-2, index) < 0, -1.0, 1.0).to(V.dtype)
    return SVD(U * sign, S, V * sign)


def matrix_svd(M: Tensor) -> SVD:
    U, S, Vh = torch.linalg.svd(finite(M, "svd"), full_matrices=False)
    return fix_signs(SVD(U, S, Vh.mT))


def matrix_pinv(M: Tensor, rtol: float) -> Tensor:
    U, S, V = matrix_svd(M)
    return (V * reciprocal(S, rtol).unsqueeze(-2)) @ U.mT


def reciprocal(d: Tensor, rtol: float) -> Tensor:
    """1/d, and 0 where |d| ≤ rtol·max|d|."""
    size = d.abs()
    return torch.where(size > rtol * peak(size), 1.0 / safe(d), 0.0)


def matrix_eig(M: Tensor) -> Eig:
    values, vectors = torch.linalg.eig(finite(M, "eig"))
    order = values.abs().argsort(dim=-1, descending=True, stable=True)
    return Eig(values.gather(-1, order), pick(vectors, order))


def phi1(M: Tensor) -> Tensor:
    """(e^M − I)/M, from exp [[M, I], [0, 0]] = [[e^M, φ₁(M)], [0, I]]; M may be singular."""
    r = M.shape[-1]
    eye = eye_like(M).expand_as(M)
    top = torch.cat([M, eye], -1)
    return torch.linalg.matrix_exp(torch.cat([top, torch.zeros_like(top)], -2))[..., :r, r:]


def phases(rows: int, period: int, taps: int, origin: int, like: Tensor) -> Tensor:
    """e^{2πi f (j − origin)/period} for frequencies f < rows and taps j, (rows, taps)."""
    f = torch.arange(rows, device=like.device)[:, None]
    j = torch.arange(taps, device=like.device) - origin
    turns = (f * j % period).to(like.dtype) / period
    return torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)


def singular(A: Operator) -> ValueError:
    return ValueError(
        f"{type(A).__name__}.inverse: the operator is singular to working precision. "
        "Use pinv(rtol), the least-norm inverse."
    )


def nonsingular(d: Tensor, A: Operator) -> None:
    size = finite(d, "inverse").abs()
    if (size <= torch.finfo(A.dtype).eps * peak(size)).any():
        raise singular(A)


def matrix_inverse(M: Tensor, A: Operator) -> Tensor:
    inverse, info = torch.linalg.inv_ex(finite(M, "inverse"))
    if M.shape[-1]:
        norm = M.detach().abs().sum(-2).amax(-1) * inverse.detach().abs().sum(-2).amax(-1)
        if info.any() or not (norm * torch.finfo(M.dtype).eps < 1).all():
            raise singular(A)
    return inverse


def real_power(d: Tensor, p: float) -> Tensor:
    """dᵖ for real d; 0 stays 0 for p > 0, negative numbers have no real power."""
    if (d < 0).any() or (p < 0 and (d == 0).any()):
        raise no_power(p)
    return torch.where(d == 0, torch.zeros_like(d), safe(d) ** p)


def spectral_power(values: Tensor, p: float, A: Operator) -> Tensor:
    """Principal power of all Fourier multipliers; self-conjugate ones must not be negative."""
    size = values.abs()
    zero = size <= torch.finfo(A.dtype).eps * max(A.shape) * size.amax()
    if p < 0 and zero.any():
        raise no_power(p)
    flipped = values.flip(-2, -1).roll((1, 1), (-2, -1))  # value at the opposite frequency
    on_axis = (values - flipped).abs() <= 1e-12 * size.amax()
    if (on_axis & ~zero & (values.real < 0)).any():
        raise no_power(p)
    return torch.where(zero, torch.zeros_like(values), torch.where(zero, 1.0, values) ** p)


def matrix_power(M: Tensor, p: float) -> Tensor:
    """Principal Mᵖ through the eigendecomposition, checked: it must give M back."""
    values, X = torch.linalg.eig(finite(M, "power"))
    if not M.shape[-1]:
        return M
    size = values.abs()
    scale = size.amax()
    zero = size <= torch.finfo(M.dtype).eps * M.shape[-1] * scale * 8
    tiny = torch.finfo(M.dtype).eps ** 0.5 * scale
    if (p < 0 and zero.any()) or (
        ~zero & (values.real < 0) & (values.imag.abs() <= tiny * 1e-3)
    ).any():
        raise no_power(p)

    def rebuild(w: Tensor) -> Tensor:
        return torch.linalg.solve(X, X * w.unsqueeze(-2), left=False)

    power = torch.where(zero, torch.zeros_like(values), torch.where(zero, 1.0, values) ** p)
    with torch.no_grad():
        off = (rebuild(values).real - M).abs().amax()
    # An eigenvector basis that cannot rebuild M (a Jordan block) would give a wrong power.
    if not off <= 1e3 * torch.finfo(M.dtype).eps * max(float(M.detach().abs().amax()), 1e-300):
        raise no_power(p)
    return rebuild(power).real


def no_power(p: float) -> ValueError:
    return ValueError(
        f"A ** {p}: this operator has no real principal power (an eigenvalue on the negative real "
        "axis, 0 with a negative exponent, or no basis of eigenvectors). Use an integer power."
    )


def compress_factors(
    U: Tensor, V: Tensor, rtol: float, floor: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """U Vᵀ by QR and a small SVD, without what is ≤ rtol·(σ_max + floor)."""
    P, R = torch.linalg.qr(U)
    Q, L = torch.linalg.qr(V)
    left, S, right = matrix_svd(R @ L.mT)
    scale = peak(S) + torch.as_tensor(floor).unsqueeze(-1)
    keep = int((rtol * scale < S).reshape(-1, S.shape[-1]).any(0).sum())
    return P @ (left * S.unsqueeze(-2))[..., :keep], Q @ right[..., :keep]
