r"""Plain matrices, (n, n) or (batch, n, n), and the small helpers that operators share."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .derivatives import needs_gradient, refuse_twice, truncated_pinv


class Sized(Protocol):
    """What these functions need to know of an operator."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def batch(self) -> Any: ...


class SVD(NamedTuple):
    r"""A = U diag(S) Vᵀ with orthonormal columns: U (m, k), S (k,) descending, V (n, k)."""

    U: Tensor
    S: Tensor
    V: Tensor


class Eig(NamedTuple):
    r"""A X = X diag(λ), complex: ``values`` (k,) by falling magnitude, ``vectors`` (n, k)."""

    values: Tensor
    vectors: Tensor


def own(tensor: Tensor) -> Tensor:
    """A copy for a derived operator: it holds values of now, and a graph, but no Parameter."""
    return tensor.clone()


def hold(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Keep a tensor of the user's: a Parameter to be learned, anything else as a buffer."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def require_axes(module: nn.Module, name: str, tensor: Tensor, ndim: int) -> None:
    kind = type(module).__name__
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        came = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{kind}: expected {name} to be a real floating tensor, got {came}.")
    if tensor.ndim not in (ndim, ndim + 1):
        raise ValueError(
            f"{kind}: expected {name} with {ndim} axes (or {ndim + 1} with a leading batch axis), "
            f"got shape {tuple(tensor.shape)}."
        )


def hold_factors(module: nn.Module, U: Tensor, V: Tensor) -> None:
    kind = type(module).__name__
    require_axes(module, "U", U, 2)
    require_axes(module, "V", V, 2)
    if U.shape[-1] != V.shape[-1] or U.dtype != V.dtype or U.device != V.device:
        raise ValueError(
            f"{kind}: expected U (m, r) and V (n, r) of one rank, dtype and device, got "
            f"{tuple(U.shape)} {U.dtype} {U.device} and {tuple(V.shape)} {V.dtype} {V.device}."
        )
    if U.ndim == V.ndim == 3 and U.shape[0] != V.shape[0]:
        raise ValueError(
            f"{kind}: expected factors of one batch, got {U.shape[0]} of U and {V.shape[0]} of V."
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
    own = t.shape[1:] or (1,)
    return t.reshape(t.shape[0], *(1,) * (z.ndim - 1 - len(own)), *own)


def scalar(c: float | Tensor, like: Sized, axes: int) -> Tensor:
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
    return None if k is None else operator.index(k)


def top(values: Any, k: int | None) -> Any:
    return type(values)(*(v[..., :k] for v in values))


def pick(columns: Tensor, order: Tensor) -> Tensor:
    index = order.unsqueeze(-2).expand(*order.shape[:-1], columns.shape[-2], order.shape[-1])
    return columns.expand(*order.shape[:-1], *columns.shape[-2:]).gather(-1, index)


def unit_columns(order: Tensor, n: int, like: Tensor) -> Tensor:
    """Unit vectors e_i of n entries for indices (..., k), as columns (..., n, k)."""
    columns = like.new_zeros(*order.shape[:-1], n, order.shape[-1])
    return columns.scatter_(-2, order.unsqueeze(-2), 1.0)


def cat(X: Tensor, Y: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])
    return torch.cat([X.expand(*lead, *X.shape[-2:]), Y.expand(*lead, *Y.shape[-2:])], -1)


def eye_like(M: Tensor) -> Tensor:
    return torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def as_complex(M: Tensor) -> Tensor:
    return torch.complex(M, torch.zeros_like(M))


def real_like(M: Tensor, like: Tensor) -> Tensor:
    """The real part of M where ``like`` is real."""
    return M if like.is_complex() else M.real


def safe(d: Tensor) -> Tensor:
    """d with zeros replaced by ones, so that 1/d has finite gradients where it is not used."""
    return torch.where(d == 0, torch.ones_like(d), d)


def peak(S: Tensor) -> Tensor:
    """The largest entry, keeping the axis; 0 where there is none."""
    return S.amax(-1, keepdim=True) if S.shape[-1] else S.new_zeros(*S.shape[:-1], 1)


def precise(M: Tensor, what: str) -> Tensor:
    """M, if torch can compute with it in full; otherwise one sentence."""
    if M.is_meta:
        raise ValueError(
            f"{what}: the operator is on the meta device and holds no numbers. Move it with "
            "to_empty(device=…) and load its weights first."
        )
    if M.dtype in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"{what}: expected float32 or float64, since torch does nothing else here, got "
            f"{M.dtype}. Take A.float()."
        )
    return M


def finite(M: Tensor, what: str) -> Tensor:
    """M, if it has a decomposition; otherwise one sentence."""
    precise(M, what)
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


def joint(values: Tensor, blocks: bool) -> Tensor:
    """A value of each matrix; the largest one where axis −1 holds the blocks of one matrix."""
    return values.amax(-1, keepdim=True) if blocks else values


def matrix_pinv(
    M: Tensor, rtol: float = 0.0, blocks: bool = False, cut: Tensor | None = None
) -> Tensor:
    """M†; with ``blocks``, of the diagonal blocks (axis −3) of one matrix, whose σ_max counts.

    What is ≤ ``cut``, (..., 1), counts as zero, or else what is ≤ rtol·σ_max.
    """
    if not finite(M, "pinv").numel():
        return M.mH.clone()
    if blocks and M.shape[-1] == M.shape[-2]:
        # Where no singular value counts as zero it is the inverse, six times as fast.
        inverse, failed = torch.linalg.inv_ex(M)
        size = math.prod(float(torch.linalg.matrix_norm(X.detach()).max()) for X in (M, inverse))
        if not failed.any() and size * rtol < 0.5:
            return inverse
    with torch.no_grad():
        U, S, Vh = torch.linalg.svd(M, full_matrices=False)
        largest = joint(S[..., :1].squeeze(-1), blocks)[..., None]
        cut = rtol * largest if cut is None else cut
        kept = cut < S
        rounding = 8 * max(M.shape[-2:]) * torch.finfo(S.dtype).eps * largest
        constant_rank = bool((kept | (rounding >= S)).all())
    if needs_gradient(M) and constant_rank:
        # torch's own: its gradient needs M† alone, so repeated singular values do no harm.
        atol = cut.squeeze(-1).expand(S.shape[:-1])
        return torch.linalg.pinv(M, atol=atol, rtol=torch.zeros_like(atol))
    return truncated_pinv(M, U, S, Vh.mH, kept)


def matrix_projector(M: Tensor, rtol: float, null: bool = False) -> Tensor:
    """Onto the range, or the null space, of the diagonal blocks (axis −3) of one matrix."""
    with torch.no_grad():
        U, S, Vh = torch.linalg.svd(finite(M, "projector"), full_matrices=False)
        kept = rtol * S.amax((-2, -1), keepdim=True) < S if S.numel() else S > 0
        Q = (Vh.mH if null else U) * kept.unsqueeze(-2)
        P = Q @ Q.mH
    if needs_gradient(M):
        pinv = matrix_pinv(M, rtol, blocks=True)
        graph = pinv @ M if null else M @ pinv
        P = P + (graph - graph.detach())
    return eye_like(P) - P if null else P


def matrix_solve(M: Tensor, w: Tensor, A: Sized, blocks: bool = False) -> Tensor:
    """M⁻¹ w for columns w, (..., n, k), by LU with pivots; an error where M is singular."""
    M = finite(M, "solve")
    if not M.numel():
        return w.clone()
    LU, pivots, info = torch.linalg.lu_factor_ex(M)
    diagonal = LU.detach().diagonal(dim1=-2, dim2=-1).abs()
    tiny = torch.finfo(M.dtype).eps * joint(peak(diagonal).squeeze(-1), blocks)[..., None]
    if info.any() or (diagonal <= tiny).any():
        # A small pivot may only mean rows of very different sizes: ask the inverse.
        matrix_inverse(M, A, blocks)
    return torch.linalg.lu_solve(LU, pivots, w)


def reciprocal(d: Tensor, rtol: float) -> Tensor:
    """1/d, and 0 where |d| ≤ rtol·max|d|."""
    size = d.abs()
    return torch.where(size > rtol * peak(size), 1.0 / safe(d), 0.0)


def matrix_eig(M: Tensor) -> Eig:
    values, vectors = torch.linalg.eig(finite(M, "eig"))
    order = values.abs().argsort(dim=-1, descending=True, stable=True)
    return Eig(values.gather(-1, order), pick(vectors, order))


def matrix_exp(M: Tensor) -> Tensor:
    """e^M to rounding.

    torch takes a polynomial of too low a degree where ‖M‖ is between 0.004 and 0.05 (it is then off
    by up to 6e-11 in float64). A corner of 1 beside M keeps the norm out of there.
    """
    n = M.shape[-1]
    corner = torch.zeros(n + 1, n + 1, dtype=M.dtype, device=M.device)
    corner[n, n] = 1.0
    return torch.linalg.matrix_exp(torch.nn.functional.pad(M, (0, 1, 0, 1)) + corner)[..., :n, :n]


def exp_quotient(M: Tensor, alpha: Tensor) -> Tensor:
    """(e^{αI + M} − e^α I)/M, from exp [[αI + M, I], [0, αI]]; M may be singular."""
    r = M.shape[-1]
    lead = torch.broadcast_shapes(M.shape, alpha.shape)
    M, eye = M.expand(lead), eye_like(M).expand(lead)
    scaled = eye * alpha
    top = torch.cat([M + scaled, eye], -1)
    below = torch.cat([torch.zeros_like(M), scaled], -1)
    return matrix_exp(torch.cat([top, below], -2))[..., :r, r:]


def independent(R: Tensor) -> bool:
    """Whether a QR's R has full rank, which its gradient needs."""
    pivots = R.detach().diagonal(dim1=-2, dim2=-1).abs()
    if R.shape[-2] < R.shape[-1]:
        return False
    return bool((pivots > 1e2 * torch.finfo(R.dtype).eps * R.shape[-1] * peak(pivots)).all())


def safe_qr(M: Tensor) -> tuple[Tensor, Tensor]:
    """QR; without a gradient where the columns are dependent, since it would be NaN or wrong."""
    Q, R = torch.linalg.qr(M)
    return (Q, R) if independent(R) else (Q.detach(), R.detach())


def phases(rows: int, period: int, taps: int, origin: int, like: Tensor) -> Tensor:
    """e^{2πi f (j − origin)/period} for frequencies f < rows and taps j, (rows, taps)."""
    f = torch.arange(rows, device=like.device)[:, None]
    j = torch.arange(taps, device=like.device) - origin
    turns = (f * j % period).to(like.dtype) / period
    return torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)


def singular(A: Sized, what: str = "inverse") -> ValueError:
    return ValueError(
        f"{type(A).__name__}.{what}: the operator is singular to working precision. "
        "Use pinv(rtol), the least-norm inverse."
    )


def nonsingular(d: Tensor, A: Sized) -> None:
    size = finite(d, "inverse").abs()
    if (size <= torch.finfo(A.dtype).eps * peak(size)).any():
        raise singular(A)


def matrix_inverse(M: Tensor, A: Sized, blocks: bool = False) -> Tensor:
    """M⁻¹; with ``blocks``, of the diagonal blocks (axis −3) of one matrix, judged together."""
    inverse, info = torch.linalg.inv_ex(finite(M, "inverse"))
    if M.numel():
        norm, inverse_norm = (
            joint(X.detach().abs().sum(-2).amax(-1), blocks) for X in (M, inverse)
        )
        if info.any() or not (norm * inverse_norm * torch.finfo(M.dtype).eps < 1).all():
            raise singular(A)
    return inverse


def real_power(d: Tensor, p: float) -> Tensor:
    """dᵖ for real d; 0 stays 0 for p > 0, negative numbers have no real power."""
    finite(d, "power")
    if (d < 0).any() or (p < 0 and (d == 0).any()):
        raise no_power(p)
    return torch.where(d == 0, torch.zeros_like(d), safe(d) ** p)


def spectral_power(values: Tensor, p: float, A: Sized) -> Tensor:
    """Principal power of all Fourier multipliers; self-conjugate ones must not be negative."""
    size, eps = finite(values, "power").abs(), torch.finfo(A.dtype).eps
    scale = size.amax((-3, -2, -1), keepdim=True)
    zero = size <= eps * max(A.shape) * scale
    on_axis = (values.real < 0) & (values.imag.abs() <= 1e3 * eps * scale)
    if (p < 0 and zero.any()) or (on_axis & ~zero).any():
        raise no_power(p)
    return torch.where(zero, torch.zeros_like(values), torch.where(zero, 1.0, values) ** p)


def matrix_power(M: Tensor, p: float, blocks: bool = False) -> Tensor:
    """Principal Mᵖ: through the eigenvectors where they are a good basis, else through roots.

    With ``blocks``, axis −3 holds the diagonal blocks of one matrix, judged together.
    """
    M = finite(M, "power")
    if not M.numel():
        return M.clone()
    with torch.no_grad():
        values, X = torch.linalg.eig(M)
        size, eps = values.abs(), torch.finfo(M.dtype).eps
        scale = joint(size.amax(-1), blocks).unsqueeze(-1)
        # The rounding of many blocks, which come from an FFT, grows with their logarithm.
        rounding = 8 * eps * M.shape[-1] * (M.shape[-3].bit_length() if blocks else 1)
        zero = size <= rounding * scale
        on_axis = (values.real < 0) & (values.imag.abs() <= 1e-3 * eps**0.5 * scale)
        if (p < 0 and zero.any()) or (~zero & on_axis).any():
            raise no_power(p)
        inverse, fault = torch.linalg.inv_ex(X)
        norms = X.abs().sum(-2).amax(-1) * inverse.abs().sum(-2).amax(-1)
        basis = not fault.any() and bool((norms <= 1e3 * M.shape[-1]).all())
        if not basis and zero.any():
            off = ((X * values.unsqueeze(-2)) @ inverse - M).abs().amax((-2, -1))
            if fault.any() or not (off <= 1e3 * eps * joint(M.abs().amax((-2, -1)), blocks)).all():
                raise no_power(p)
            basis = True
    if basis:
        return _Power.apply(M, p, values, X, inverse, zero)
    return _power_by_roots(M, p)


def _power_by_roots(M: Tensor, p: float) -> Tensor:
    """Mᵖ = exp(p log M); Jordan blocks do no harm."""
    unit, log, halvings = _log_by_roots(M)
    return unit**p * matrix_exp(p * 2.0**halvings * log)


def _log_by_roots(M: Tensor) -> tuple[Tensor, Tensor, int]:
    """u, L, k with log M = log(u) I + 2ᵏ L, from repeated square roots."""
    eye = eye_like(M)
    unit = M.detach().abs().sum(-2).amax(-1)[..., None, None]
    root, halvings = M / unit, 0
    while (root - eye).abs().sum(-2).amax() > 0.25 and halvings < 40:
        root, halvings = _square_root(root), halvings + 1
    # log(I + E) = ∫₀¹ E (I + tE)⁻¹ dt by Gauss–Legendre, nodes from the Jacobi matrix.
    k = torch.arange(1.0, 12.0, dtype=torch.float64)
    off = k / (4 * k * k - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    E, log = root - eye, torch.zeros_like(root)
    for node, weight in zip(nodes.tolist(), vectors[0].square().tolist(), strict=True):
        log = log + weight * torch.linalg.solve(eye + (node + 1) / 2 * E, E)
    return unit, log, halvings


def matrix_log(M: Tensor, blocks: bool = False) -> Tensor:
    """The principal logarithm; an error where an eigenvalue is 0 or on the negative axis."""
    if not finite(M, "log").numel():
        return M.clone()
    with torch.no_grad():
        values = torch.linalg.eigvals(M)
        size, eps = values.abs(), torch.finfo(M.dtype).eps
        scale = joint(size.amax(-1), blocks).unsqueeze(-1)
        zero = size <= 8 * eps * M.shape[-1] * scale
        on_axis = (values.real < 0) & (values.imag.abs() <= 1e-3 * eps**0.5 * scale)
        if (zero | on_axis).any():
            raise no_log()
    unit, log, halvings = _log_by_roots(M)
    return 2.0**halvings * log + unit.log() * eye_like(M)


def real_log(d: Tensor) -> Tensor:
    """log d for d > 0."""
    if (finite(d, "log") <= 0).any():
        raise no_log()
    return d.log()


def no_log() -> ValueError:
    return ValueError(
        "log: this operator has no real principal logarithm (an eigenvalue is 0 or on the negative "
        "real axis). Its square may have one."
    )


def _square_root(M: Tensor) -> Tensor:
    """The principal square root by the product form of Denman and Beavers' iteration."""
    eye, tiny = eye_like(M), M.shape[-1] * torch.finfo(M.dtype).eps
    root, N = M, M
    for _ in range(50):
        inverse = torch.linalg.inv(N)
        root, N = (root + root @ inverse) / 2, (2 * eye + N + inverse) / 4
        if (N - eye).abs().amax() <= tiny:
            break
    return root


class _Power(torch.autograd.Function):
    r"""Mᵖ = X diag(λᵖ) X⁻¹ and its derivative X (D ∘ (X⁻¹ dM X)) X⁻¹.

    D holds the divided differences (λᵢᵖ − λⱼᵖ)/(λᵢ − λⱼ), so that repeated eigenvalues (the
    identity, say) have their finite gradient, which the eigenvectors have not.
    """

    @staticmethod
    def forward(
        ctx: Any, M: Tensor, p: float, values: Tensor, X: Tensor, inverse: Tensor, zero: Tensor
    ) -> Tensor:
        power = torch.where(zero, 0.0, torch.where(zero, 1.0, values) ** p)
        ctx.save_for_backward(M, values, power, X, inverse, zero)
        ctx.p = p
        return real_like((X * power.unsqueeze(-2)) @ inverse, M)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            result = _Power._gradient(ctx, grad)
        return refuse_twice(result, f"A ** {ctx.p}", ctx.saved_tensors[0]), *(5 * [None])

    @staticmethod
    def _gradient(ctx: Any, grad: Tensor) -> Tensor:
        _, values, power, X, inverse, zero = ctx.saved_tensors
        gap = values.unsqueeze(-1) - values.unsqueeze(-2)
        middle = (values.unsqueeze(-1) + values.unsqueeze(-2)) / 2
        near = gap.abs() <= torch.finfo(grad.dtype).eps ** (1 / 3) * middle.abs()
        nothing = zero.unsqueeze(-1) & zero.unsqueeze(-2)
        slope = ctx.p * torch.where(nothing, 1.0, middle) ** (ctx.p - 1)
        apart = (power.unsqueeze(-1) - power.unsqueeze(-2)) / torch.where(near | nothing, 1.0, gap)
        D = torch.where(nothing, 0.0, torch.where(near, slope, apart))
        inner = D.conj() * (X.mH @ grad.to(X.dtype) @ inverse.mH)
        return real_like(inverse.mH @ inner @ X.mH, grad)


def no_power(p: float) -> ValueError:
    return ValueError(
        f"A ** {p}: this operator has no real principal power (an eigenvalue on the negative real "
        "axis, or 0 with a negative exponent), or none that its eigenvectors can give (they are no "
        "basis). Use an integer power."
    )


def compress_factors(
    U: Tensor, V: Tensor, rtol: float, floor: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """U Vᵀ by QR and a small SVD, without what is ≤ rtol·(σ_max + floor)."""
    if needs_gradient(U, V):
        raise ValueError(
            "compress: gradients do not pass through it. Call it under torch.no_grad()."
        )
    if not U.shape[-1]:
        return own(U), own(V)
    P, R = torch.linalg.qr(U)
    Q, L = torch.linalg.qr(V)
    left, S, right = matrix_svd(R @ L.mT)
    scale = peak(S) + torch.as_tensor(floor).unsqueeze(-1)
    keep = int((rtol * scale < S).reshape(-1, S.shape[-1]).any(0).sum())
    return P @ (left * S.unsqueeze(-2))[..., :keep], Q @ right[..., :keep]
