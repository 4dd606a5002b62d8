r"""The contract of an invertible network, and chains of them."""

from __future__ import annotations

import abc
import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .reversible import Pull, apply_layer, is_ordinary, run_reversibly

__all__ = ["Bijection", "Chain", "Flatten", "full_precision", "resize", "say"]

Self = TypeVar("Self", bound="Bijection")


class Bijection(nn.Module, abc.ABC):
    r"""An invertible map g, (batch, \*shape) → (batch, \*out_shape), of one dimension ``dim``.

    A subclass writes ``forward`` and ``inverse``, and ``with_log_det`` where it is free. A whole g
    ends in coordinates: its ``out_shape`` is (dim,); layers of an image stack keep (C, H, W).

    A layer whose weights serve images of any size also writes ``_resize`` (see :func:`resize`).

    To add a bijection:

    1. Write ``__init__`` (call ``super().__init__(shape)``), ``forward`` and ``inverse``. It sees x
       alone: a condition, such as time, belongs into a :class:`~linearizer.families.Family`.
    2. Write ``with_log_det`` where it is cheap, and ``_initialize(x)`` where data set its weights.
       Learned tensors are Parameters, derived ones and flags are buffers.
    3. Name it in ``__init__.py`` of this folder and in ``docs/api/bijections.md``.
    4. Add one line to ``tests/catalogue.py``: that buys every law.
    """

    def __init__(self, shape: tuple[int, ...], out_shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if isinstance(shape, int):
            raise TypeError(
                f"{type(self).__name__}: expected a data shape without the batch, got the number "
                f"{shape}. The shape of vectors is ({shape},)."
            )
        self.shape = tuple(int(n) for n in shape)
        self.out_shape = self.shape if out_shape is None else tuple(int(n) for n in out_shape)
        if not self.shape or min(self.shape) < 1:
            raise ValueError(
                f"{type(self).__name__}: expected a data shape of positive sizes without the "
                f"batch, got {tuple(shape)}."
            )
        self.dim = math.prod(self.shape)
        if math.prod(self.out_shape) != self.dim:
            raise ValueError(
                f"{type(self).__name__}: {self.shape} holds {self.dim} numbers but "
                f"{self.out_shape} holds {math.prod(self.out_shape)}; a bijection keeps them all."
            )

    def __init_subclass__(cls) -> None:
        """Every ``inverse`` and ``with_log_det`` checks the shape that it is given."""
        for name, side in (("inverse", "out_shape"), ("with_log_det", "shape")):
            if name in vars(cls):
                setattr(cls, name, _checking(vars(cls)[name], side))

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """z = g(x)."""

    @abc.abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """x = g⁻¹(z)."""

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g(x) and log |det ∂g/∂x|, (batch,)."""
        raise NotImplementedError(
            f"{type(self).__name__} gives no log-determinant. Define with_log_det(x), which "
            "returns z and log |det ∂g/∂x| of each sample."
        )

    def initialize(self: Self, data: Tensor | Iterable[Tensor], limit: int = 4096) -> Self:
        """Set what depends on data (ActNorm) from a batch, or from up to ``limit`` of a loader.

        Explicit and once: layers that are initialised already stay as they are.
        """
        x = data if isinstance(data, Tensor) else _gather(data, limit)
        if x.is_meta:
            raise ValueError(
                f"{type(self).__name__}.initialize: expected data, got a tensor of the meta "
                "device, which holds no numbers. Load weights (assign=True), or build g on a CPU."
            )
        self._check(x, self.shape, "data")
        if x.shape[0] == 0 or not torch.isfinite(x).all():
            fault = "an empty batch" if x.shape[0] == 0 else "NaN or infinite values"
            raise ValueError(
                f"{type(self).__name__}.initialize: expected finite data, got {fault}."
            )
        before = {name: value.clone() for name, value in self.state_dict().items()}
        try:
            with torch.no_grad():
                self._initialize(x)
        except ValueError:
            self.load_state_dict(before)  # not half initialised
            raise
        return self

    def _initialize(self, x: Tensor) -> Tensor:
        return self(x)

    def _pull_back(self, z: Tensor, grad: Tensor, pull: Pull) -> tuple[Tensor, Tensor]:
        """The input that gave z, and its gradient from that of z, for ``Chain(save_memory=True)``.

        Write it where one pass gives both, as in couplings. This one takes two: the input without
        gradients, and the output of it with them.

        Arguments:
            z: What ``pull.call`` of this layer gave: z = g(x), or x = g⁻¹(z) for "inverse".
            grad: Gradient of z.
            pull: Collects the gradients of parameters.
        """
        with torch.no_grad():
            x = apply_layer(self, z, pull.undo)[0].detach()
        with torch.enable_grad():
            outputs = apply_layer(self, x.requires_grad_(), pull.call)
        (grad,) = pull.through(outputs, grad, [x], self.parameters())
        return x.detach(), grad

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        """The same weights on another shape, for :func:`resize`; refused unless written."""
        raise ValueError(
            f"resize: the weights of {type(self).__name__} belong to one size, {self.shape}. "
            "Use layers that convolve, as those of glow, or write its _resize(shape)."
        )

    def _twin(self: Self, shape: tuple[int, ...], out_shape: tuple[int, ...] | None = None) -> Self:
        """Return this layer on another shape, with the same parameters and buffers."""
        if len(self.shape) == 1:
            Bijection._resize(self, shape)  # refuses: vectors have a weight for each number
        # Shallow: both have the same dicts of parameters, buffers and modules, so that not even
        # .to(), which puts new buffers into them, takes the two apart.
        twin = copy.copy(self)
        twin.shape, twin.out_shape = shape, out_shape or shape
        twin.dim = math.prod(shape)
        return twin

    def __call__(self, x: Tensor) -> Tensor:
        self._check(x, self.shape, "x")
        return super().__call__(x)

    def _check(self, x: Tensor, shape: tuple[int, ...], name: str) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{type(self).__name__}: expected {name} as a tensor, got {type(x).__name__}. "
                "Use torch.as_tensor(…, dtype=torch.float32)."
            )
        if tuple(x.shape[1:]) != shape or x.ndim != len(shape) + 1:
            single = " A single one is x[None]." if tuple(x.shape) == shape else ""
            raise ValueError(
                f"{type(self).__name__}: expected {name} of shape "
                f"(batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}.{single}"
            )
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        if not x.is_floating_point() or (like is not None and x.dtype != like.dtype):
            kind = "a floating dtype" if like is None else f"{like.dtype}, as its weights"
            raise ValueError(
                f"{type(self).__name__}: expected {name} of {kind}, got {x.dtype}. Use .to(dtype)."
            )
        if like is not None and x.device != like.device:
            raise ValueError(
                f"{type(self).__name__}: expected {name} on {like.device}, where its weights are, "
                f"got {x.device}. Use .to()."
            )


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Where autocast is off; a tensor without numbers has none to switch off."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def say(flag: Tensor) -> bool | str:
    """A stored flag for people to read, also where it has no value."""
    return "meta" if flag.is_meta else bool(flag)


def _checking(method: Callable[..., Any], side: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: Bijection, x: Tensor) -> Any:
        shape = getattr(self, side)
        if not isinstance(x, Tensor) or x.shape[1:] != shape:
            self._check(x, shape, "z" if side == "out_shape" else "x")
        return method(self, x)

    return checked


class Flatten(Bijection):
    r"""(batch, \*shape) → (batch, dim). By itself the Euclidean coordinates of ``shape``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.out_shape = (self.dim,)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def inverse(self, z: Tensor) -> Tensor:
        return z.reshape(z.shape[0], *self.shape)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x), x.new_zeros(x.shape[0])

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        return Flatten(shape)


class Chain(Bijection):
    r"""g = g_k ∘ … ∘ g_1, the first given is applied first.

    Arguments:
        layers: Bijections whose shapes follow on each other.
        save_memory: Train with activation memory constant in depth: the backward pass recomputes
            the input of each layer from its output. Gradients agree to rounding; a step costs
            one more pass through the conditioners. Second derivatives, transforms of
            ``torch.func`` and forward-mode derivatives are right, but keep every activation.

    Example:
        >>> g = Chain(Flatten((2, 2)), InvertibleLinear((4,)))
        >>> x = torch.randn(3, 2, 2)
        >>> torch.allclose(g.inverse(g(x)), x, atol=1e-5)
        True
    """

    def __init__(self, *layers: Bijection, save_memory: bool = False) -> None:
        if not layers:
            raise ValueError("Chain: expected at least one bijection, got none.")
        for i, (one, two) in enumerate(pairwise(layers)):
            if one.out_shape != two.shape:
                raise ValueError(
                    f"Chain: layer {i} ({type(one).__name__}) gives {one.out_shape}, but layer "
                    f"{i + 1} ({type(two).__name__}) takes {two.shape}."
                )
        super().__init__(layers[0].shape, layers[-1].out_shape)
        self.layers = nn.ModuleList(layers)
        self.save_memory = save_memory

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self.layers)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, "forward")[0]

    def inverse(self, z: Tensor) -> Tensor:
        return self._run(z, "inverse")[0]

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_det = self._run(x, "with_log_det")
        assert log_det is not None
        return z, log_det

    def _run(self, x: Tensor, call: str) -> tuple[Tensor, Tensor | None]:
        if (
            self.save_memory
            and torch.is_grad_enabled()
            and (x.requires_grad or any(p.requires_grad for p in self.parameters()))
            and is_ordinary(x)
        ):
            return run_reversibly(self, x, call)
        return self._plain(x, call)

    def _plain(self, x: Tensor, call: str) -> tuple[Tensor, Tensor | None]:
        total = None
        for layer in reversed(list(self)) if call == "inverse" else self:
            x, log_det = apply_layer(layer, x, call)
            total = log_det if total is None or log_det is None else total + log_det
        return x, total

    def _pull_back(self, z: Tensor, grad: Tensor, pull: Pull) -> tuple[Tensor, Tensor]:
        for layer in self if pull.call == "inverse" else reversed(list(self)):
            z, grad = layer._pull_back(z, grad, pull)
        return z, grad

    def _initialize(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer._initialize(x)
        return x

    def _resize(self, shape: tuple[int, ...]) -> Bijection:
        layers: list[Bijection] = []
        for layer in self:
            layers.append(layer._resize(shape))
            shape = layers[-1].out_shape
        return Chain(*layers, save_memory=self.save_memory)


def resize(g: Bijection, shape: tuple[int, ...]) -> Bijection:
    r"""The same map on images of another size: a bijection that holds the very weights of g.

    Train, load or move one of the two, and the other follows; g itself stays as it is. For its own
    shape this is g.

    Arguments:
        g: Layers whose weights do not depend on the size: ActNorm, couplings by convolutions, 1×1,
            squeezes and shuffles, Flatten, and chains of them, such as ``glow``.
        shape: (C, H, W) with the channels of g.

    Example:
        >>> g = glow((3, 16, 16), blocks=2)
        >>> h = resize(g, (3, 20, 14))
        >>> x = torch.rand(4, 3, 20, 14)
        >>> torch.allclose(h.inverse(h(x)), x, atol=1e-5)
        True
        >>> all(p is q for p, q in zip(g.parameters(), h.parameters(), strict=True))
        True
    """
    shape = tuple(int(n) for n in shape)
    if shape == g.shape:
        return g
    if len(shape) != len(g.shape) or shape[0] != g.shape[0] or min(shape) < 1:
        raise ValueError(
            f"resize: expected another height and width for {g.shape}, with as many channels, got "
            f"{shape}."
        )
    return g._resize(shape)


def _gather(loader: Iterable[Tensor], limit: int) -> Tensor:
    batches: list[Tensor] = []
    for batch in loader:
        first = batch[0] if isinstance(batch, list | tuple) else batch
        if not isinstance(first, Tensor) or not first.ndim:
            raise TypeError(
                "initialize: expected a tensor or a loader of tensors (or of tuples that start "
                f"with one), got {type(first).__name__}. Use torch.as_tensor(…, dtype=…)."
            )
        batches.append(first)
        if sum(len(b) for b in batches) >= limit:
            break
    if not batches:
        raise ValueError("initialize: expected data, got an empty loader.")
    return torch.cat(batches)[:limit]
