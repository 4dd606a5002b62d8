r"""Any data as a :class:`Source`: tensors, arrays, data sets and loaders of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

__all__ = ["Source", "as_source"]


@runtime_checkable
class Source(Protocol):
    """Data: how many samples there are, and a batch of any of them."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Any:
        """Tensors (n, …) of the samples of these numbers, as a NamedTuple or tuple."""


class _Rows:
    """Tensors whose rows belong together; one alone makes batches of a tensor."""

    def __init__(self, tensors: Sequence[Tensor], single: bool) -> None:
        self.tensors, self.single = tensors, single

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, index: Tensor) -> Any:
        rows = tuple(t[index] for t in self.tensors)
        return rows[0] if self.single else rows


class _Items:
    """A map-style data set; samples are collated as a DataLoader does it."""

    def __init__(self, items: Any, collate: Callable[[list[Any]], Any], what: str) -> None:
        self.items, self.collate, self.what = items, collate, what

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, index: Tensor) -> Any:
        samples = [self.items[i] for i in index.tolist()]
        try:
            made = self.collate(samples)
        except (TypeError, RuntimeError) as problem:
            raise ValueError(
                f"{self.what}: the samples do not make a batch ({problem}). Give tensors or "
                "numbers of one shape for all samples, or a DataLoader with a collate_fn."
            ) from None
        return tuple(made) if isinstance(made, list) else made


def as_source(data: object, what: str = "data") -> Source:
    r"""Data as a source of batches.

    Arguments:
        data: A source already; a tensor, numpy array or data frame (n, \*shape), or a list of rows
            of numbers; a tuple or list of arrays with equal n; a TensorDataset or any map-style
            data set; a DataLoader, whose data set and collate function are taken (order and batch
            size are those of ``Training``). Numbers keep their dtype.

    Example:
        >>> x, y = as_source((torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))).batch(
        ...     torch.tensor([2, 0]))
        >>> x.tolist(), y.tolist()
        ([[4.0, 5.0], [0.0, 1.0]], [2, 0])
    """
    numbered = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, Source) and not numbered:
        return data
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, IterableDataset) or not hasattr(data.dataset, "__len__"):
            raise TypeError(
                f"{what}: the DataLoader has an iterable data set, whose samples have no numbers. "
                "Give one with __len__ and __getitem__, so that a run can be resumed."
            )
        if isinstance(data.dataset, TensorDataset):
            return as_source(data.dataset, what)
        return _Items(data.dataset, data.collate_fn if data.batch_size else default_collate, what)
    if isinstance(data, TensorDataset):
        return _Rows(data.tensors, single=len(data.tensors) == 1)
    if _is_array(data):
        return _rows([data], what)
    first = data[0] if isinstance(data, tuple | list) and data else None
    if isinstance(data, tuple | list) and data and all(map(_is_array, data)):
        return _rows(data, what)
    if isinstance(first[0] if isinstance(first, list) and first else first, int | float):
        return _rows([data], what)
    words = isinstance(first, str)
    if numbered and not words and not isinstance(data, str | dict | IterableDataset):
        return _Items(data, default_collate, what)
    raise TypeError(
        f"{what}: expected tensors, arrays, a data set with __len__ and __getitem__, or a "
        f"DataLoader, got {type(data).__name__}{' of strings' if words else ''}."
    )


def _is_array(value: object) -> bool:
    """Whether it is a tensor, of numpy, or a data frame or column of one."""
    return (
        isinstance(value, Tensor)
        or type(value).__module__ == "numpy"
        or callable(getattr(value, "to_numpy", None))
    )


def _as_tensor(array: Any) -> Tensor:
    """A tensor of anything array-like; torch knows no steps backwards, as of x[::-1]."""
    array = array.to_numpy() if hasattr(array, "to_numpy") else array
    backwards = any(step < 0 for step in getattr(array, "strides", ()))
    return torch.as_tensor(array.copy() if backwards else array)


def _rows(arrays: Sequence[Any], what: str) -> _Rows:
    try:
        tensors = [_as_tensor(a) for a in arrays]
    except (TypeError, ValueError) as problem:
        raise TypeError(f"{what}: expected arrays of numbers ({problem}).") from None
    if any(t.layout is not torch.strided for t in tensors):
        raise TypeError(f"{what}: expected dense tensors, got a sparse one. Call its to_dense().")
    if any(t.ndim == 0 for t in tensors) or len({len(t) for t in tensors}) != 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(f"{what}: expected arrays (n, …) of one n, got {shapes}.")
    return _Rows(tensors, single=len(tensors) == 1)
