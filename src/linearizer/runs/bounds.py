r"""Models from strangers' settings: what the weights do not fill is not built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["build_within"]

M = TypeVar("M")

#: Functions that make a tensor from its sizes alone.
_NAMES = "empty zeros ones full rand randn randint randperm eye arange linspace"
_MAKERS = frozenset(
    [getattr(torch, name) for name in _NAMES.split()]
    + [getattr(Tensor, f"new_{name}") for name in ["empty", "zeros", "ones", "full"]]
)


def build_within(build: Callable[[], M], tensors: Mapping[str, Tensor], where: str) -> M:
    """Return what ``build`` makes, and stop it once it makes far more than the weights hold.

    Some weights are made twice, since a start other than torch's own replaces them.
    """
    gradients = torch.is_grad_enabled()
    try:
        with _Bounded(tensors, where):
            return build()
    except (ValueError, KeyboardInterrupt):
        raise
    except Exception as problem:
        first = (str(problem).split("\n")[0] or type(problem).__name__).rstrip(".")
        raise ValueError(f"{where}: no model can be built from its settings: {first}.") from problem
    finally:  # a refusal may hit the very call that ends a no_grad
        torch.set_grad_enabled(gradients)


class _Bounded(TorchFunctionMode):
    """Counts, in this thread, the calls of torch and the numbers that they are asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        super().__init__()
        self.where, self.held = where, sum(t.numel() for t in tensors.values())
        self.numbers, self.calls = 4 * self.held + 2**20, 100 * len(tensors) + 10_000

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.calls -= 1
        if func in _MAKERS:
            self.numbers -= _count(func, args, kwargs)
        else:
            self._refuse_outer([a.shape for a in args if isinstance(a, Tensor)])
        if self.numbers < 0 or self.calls < 0:
            self._refuse()
        return func(*args, **kwargs)

    def _refuse_outer(self, shapes: list[torch.Size]) -> None:
        """Refuse a product of a column and a row that is too large."""
        if len(shapes) > 1 and math.prod(s.numel() for s in shapes) > self.numbers:
            with suppress(RuntimeError):  # they do not broadcast, as in a product of matrices
                if torch.broadcast_shapes(*shapes).numel() > max(self.numbers, self.held):
                    self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(
            f"{self.where}: its settings describe a larger model than its weights fill. "
            "Restore the file that was changed."
        )


def _count(func: Any, args: Any, kwargs: Mapping[str, Any]) -> int:
    """How many numbers are asked for, or a few more."""
    given = [kwargs[k] for k in ("size", "end", "n", "m", "steps") if k in kwargs]
    sizes: list[int] = []
    for each in (*args, *given):
        sizes += [n for n in (each if isinstance(each, tuple | list) else [each]) if type(n) is int]
    count = math.prod(max(1, abs(n)) for n in sizes)
    return count * count if func is torch.eye and len(sizes) == 1 else count
