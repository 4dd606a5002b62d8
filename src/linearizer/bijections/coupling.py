r"""Couplings: half of the channels is transformed by a network of the other half."""

from __future__ import annotations

import abc
import copy

import torch
from torch import Tensor, nn

from ..nets import refuse_mode_dependent
from .base import Bijection
from .reversible import Pull

__all__ = ["AdditiveCoupling", "AffineCoupling"]


class _Coupling(Bijection):
    """What both couplings share: the split, and a conditioner checked once, at construction."""

    parts: int  # tensors that the conditioner gives for each transformed channel

    def __init__(
        self,
        shape: tuple[int, ...],
        conditioner: nn.Module,
        transform: str = "first",
        cut: int | None = None,
    ) -> None:
        super().__init__(shape)
        name = type(self).__name__
        if transform not in ("first", "second"):
            raise ValueError(f'{name}: expected transform "first" or "second", got {transform!r}.')
        channels = self.shape[0]
        if cut is not None and not 0 < cut < channels:
            raise ValueError(f"{name}: expected 0 < cut < {channels} channels, got {cut}.")
        if channels < 2 or (cut is None and len(self.shape) > 1 and channels % 2):
            raise ValueError(
                f"{name}: expected an even number of channels to split, got {channels}. "
                "Put a Squeeze before it (or use glow, which does so)."
            )
        self.cut = channels // 2 if cut is None else cut
        self.transform = transform
        refuse_mode_dependent(conditioner, name)
        self.conditioner = conditioner
        self._try(name)

    def _channels(self) -> tuple[int, int]:
        """How many the conditioner takes, and gives."""
        kept, changed = self.cut, self.shape[0] - self.cut
        if self.transform == "first":
            kept, changed = changed, kept
        return kept, self.parts * changed

    def _try(self, name: str) -> None:
        inputs, outputs = self._channels()
        expected = (2, outputs, *self.shape[1:])
        like = next(self.conditioner.parameters(), torch.zeros(()))
        with torch.no_grad():
            got = self.conditioner(like.new_zeros(2, inputs, *self.shape[1:]))
        if tuple(got.shape) != expected:
            raise ValueError(
                f"{name}: the conditioner must take (batch, {inputs}, …) to (batch, "
                f"{expected[1]}, …), here {expected}, but it gives {tuple(got.shape)}."
            )
        if like.is_meta:  # there are no numbers to compare
            return
        # Dropout may hide in a function call. A copy with moved weights shows it, as last layers
        # often start at zero.
        copied, generator = copy.deepcopy(self.conditioner), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in copied.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p))
            x = torch.randn(2, inputs, *self.shape[1:], generator=generator).to(like)
            if not torch.allclose(copied.train()(x), copied.eval()(x), rtol=1e-3, atol=1e-4):
                raise ValueError(
                    f"{name}: the conditioner differs between training and evaluation (dropout in "
                    "its forward?), so g and its inverse would disagree."
                )

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        twin = self._twin(shape)
        inputs, outputs = self._channels()
        like = next(self.conditioner.parameters(), torch.zeros(()))
        x = like.new_zeros(0, inputs, *shape[1:])  # no images: shapes are known without arithmetic
        expected = (outputs, *shape[1:])
        try:
            with torch.no_grad():
                got = tuple(self.conditioner(x).shape[1:])
            problem = "" if got == expected else f"gives {got}"
        except Exception as error:
            problem = f"fails: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        if problem:
            raise ValueError(
                f"resize: the conditioner of {type(self).__name__} must take "
                f"{tuple(x.shape[1:])} to {expected}, but it {problem}. Use one that only "
                "convolves, as nets.ResidualConv."
            )
        return twin

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The half that changes, and the half that conditions it."""
        first, second = x[:, : self.cut], x[:, self.cut :]
        return (first, second) if self.transform == "first" else (second, first)

    def _condition(self, kept: Tensor) -> Tensor:
        # In planes: on channels_last convolutions gain less than GroupNorm loses, and its backward
        # pass in low precision can crash.
        if torch._C._are_functorch_transforms_active():  # vmap takes views for contiguous
            kept = kept.clone(memory_format=torch.contiguous_format)
        return self.conditioner(kept.contiguous()).to(kept.dtype).contiguous()

    @abc.abstractmethod
    def _given(self, kept: Tensor) -> tuple[Tensor, ...]:
        """What the conditioner says of the kept half: the shift, and the log-scale if any."""

    @abc.abstractmethod
    def _change(self, changed: Tensor, *given: Tensor) -> Tensor:
        """The other half of z, from that of x."""

    @abc.abstractmethod
    def _restore(self, changed: Tensor, *given: Tensor) -> Tensor:
        """The other half of x, from that of z."""

    @abc.abstractmethod
    def _log_det(self, *given: Tensor) -> Tensor:
        """Of each sample, (batch,)."""

    def forward(self, x: Tensor) -> Tensor:
        changed, kept = self._halves(x)
        return self._join(self._change(changed, *self._given(kept)), kept)

    def inverse(self, z: Tensor) -> Tensor:
        changed, kept = self._halves(z)
        return self._join(self._restore(changed, *self._given(kept)), kept)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        changed, kept = self._halves(x)
        given = self._given(kept)
        return self._join(self._change(changed, *given), kept), self._log_det(*given)

    def _pull_back(self, z: Tensor, grad: Tensor, pull: Pull) -> tuple[Tensor, Tensor]:
        # The kept half is the same before and after, so one pass of the conditioner both recovers
        # the other half and carries its gradient.
        changed, kept = self._halves(z)
        kept = kept.detach().requires_grad_()
        do, undo = self._change, self._restore
        if pull.call == "inverse":
            do, undo = undo, do
        with torch.enable_grad():
            given = self._given(kept)
        with torch.no_grad():
            before = undo(changed, *given).requires_grad_()
        with torch.enable_grad():
            after = do(before, *given)
            log_det = self._log_det(*given) if pull.call == "with_log_det" else None
        direct, through = self._halves(grad)
        direct, aside = pull.through(
            (after, log_det), direct, [before, kept], self.conditioner.parameters()
        )
        return self._join(before.detach(), kept.detach()), self._join(direct, through + aside)

    def _join(self, changed: Tensor, kept: Tensor) -> Tensor:
        pair = (changed, kept) if self.transform == "first" else (kept, changed)
        return torch.cat(pair, 1)


class AdditiveCoupling(_Coupling):
    r"""z₁ = x₁ + F(x₂), z₂ = x₂; volume preserving, and its inverse is exact.

    Arguments:
        shape: (C, H, W) with even C, or (dim,).
        conditioner: F, from the channels of one half to those of the other.
        transform: Which half changes, "first" or "second".
        cut: Channels of the first half, if the two are not to be equal.
    """

    parts = 1

    def _given(self, kept: Tensor) -> tuple[Tensor, ...]:
        return (self._condition(kept),)

    def _change(self, changed: Tensor, *given: Tensor) -> Tensor:
        return changed + given[0]

    def _restore(self, changed: Tensor, *given: Tensor) -> Tensor:
        return changed - given[0]

    def _log_det(self, *given: Tensor) -> Tensor:
        return given[0].new_zeros(given[0].shape[0])


class AffineCoupling(_Coupling):
    r"""z₁ = x₁ · s(x₂) + t(x₂), z₂ = x₂, with log s = c·tanh(raw/c).

    The clamp bounds every scale in [e^−c, e^c]. A hard one, log s = min(max(raw, −c), c), is what
    the authors' code has; it gives no gradient beyond the bound. Under autocast only the
    conditioner runs in low precision, the same both ways; this arithmetic keeps the dtype of x.

    Paper: appendix G.1 and G.4 (diffusion and style).

    Arguments:
        shape: (C, H, W) with even C, or (dim,).
        conditioner: From the channels of one half to twice those of the other: shift and raw.
        transform: Which half changes, "first" or "second".
        max_log_scale: The bound c.
        cut: Channels of the first half, if the two are not to be equal.
        clamp: "soft" or "hard".
    """

    parts = 2
    clamp = "soft"

    def __init__(
        self,
        shape: tuple[int, ...],
        conditioner: nn.Module,
        transform: str = "first",
        max_log_scale: float = 1.0,
        cut: int | None = None,
        clamp: str = "soft",
    ) -> None:
        super().__init__(shape, conditioner, transform, cut)
        if not max_log_scale > 0:
            raise ValueError(f"AffineCoupling: expected max_log_scale > 0, got {max_log_scale}.")
        if clamp not in ("soft", "hard"):
            raise ValueError(f'AffineCoupling: expected clamp "soft" or "hard", got {clamp!r}.')
        self.clamp = clamp
        self.max_log_scale = float(max_log_scale)

    def _given(self, kept: Tensor) -> tuple[Tensor, ...]:
        shift, raw = self._condition(kept).chunk(2, 1)
        c = self.max_log_scale
        if self.clamp == "hard":
            return shift, raw.clamp(-c, c)
        return shift, torch.tanh(raw) if c == 1 else c * torch.tanh(raw / c)

    def _change(self, changed: Tensor, *given: Tensor) -> Tensor:
        shift, log_scale = given
        return torch.addcmul(shift, changed, log_scale.exp())

    def _restore(self, changed: Tensor, *given: Tensor) -> Tensor:
        shift, log_scale = given
        return (changed - shift) * torch.exp(-log_scale)

    def _log_det(self, *given: Tensor) -> Tensor:
        return given[1].flatten(1).sum(1)
