r"""Distill a network: train a Linearizer that gives what the network gives on given data."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...data.distill import Arrays, DistillPart, DistillSettings, Some, load_samples
from ...data.kinds import GIVEN, Data, Part
from ...data.networks import Network, load_network
from ...runs.execute import execute
from ...runs.plan import Plan, make_plan
from .model import Student

__all__ = ["distill"]


def distill(
    network: nn.Module | str | Path,
    data: Tensor | str | Path,
    run: str | Path | None = None,
    *,
    same: bool = False,
    size: int | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    root: Path | None = None,
    progress: bool = True,
) -> Student:
    r"""Train a model whose ``model()`` is a Linearizer that gives what the network gives on data.

    Nine tenths of a tensor's rows are learned from, the rest validate (what is held out of other
    data is as their source has it). The mean R² over the outputs is printed, and in metrics.jsonl.

    Arguments:
        network: A torch module, (batch, \*shape) → (batch, m); or what ``load_network`` takes: an
            .onnx or .pt2 file, "file.py:name", the name of an encoder.
        data: Samples (n, \*shape) as floats; or a data set's name, a folder of images, a .npy, .npz
            or .csv file.
        run: Folder to keep the run in, to be resumed and loaded; none if not given. One that holds
            a run of another network or of other data is refused.
        same: Start as the network, with its own layers inside g: for images, and for encoders and
            modules that are an ``nn.Sequential`` of known layers.
        size: Side of the images, if not their own.
        model, training: Settings of the app ``distill`` and of ``Training``.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> f = distill(net.float(), torch.randn(500, 4).float(), progress=False,
        ...             model={"blocks": 2, "hidden": 16}, training={"steps": 5})()
        >>> f.operator.shape, f.rank()
        ((2, 4), 2)
    """
    chosen = _describe(network, data, size)
    given = _split_tensor(data) if isinstance(data, Tensor) else None
    flags = {"data": chosen, "model": dict(model or {}), "training": dict(training or {})}
    plan = make_plan("distill", preset="same" if same else None, flags=flags)
    source = None
    if isinstance(network, nn.Module) or given is not None:
        source = _ask_teacher(load_network(network, root), given, plan, root)
    with tempfile.TemporaryDirectory() as spare, _single_precision():
        folder = Path(run) if run is not None else Path(spare) / "run"
        resume = run is not None
        result = execute(plan, folder, root=root, resume=resume, progress=progress, source=source)
    return cast(Student, result.model).cpu().eval()


def _describe(
    network: nn.Module | str | Path, data: Tensor | str | Path, size: int | None
) -> dict[str, Any]:
    """Return the settings of the data: names, or digests of what was given in Python."""
    if not isinstance(network, nn.Module | str | Path):
        raise TypeError(
            f"distill: expected a torch module or a name, got {type(network).__name__}. Wrap a "
            "function in a module."
        )
    if not isinstance(data, Tensor | str | Path):
        raise TypeError(
            f"distill: expected a tensor or a name of data, got {type(data).__name__}. Use "
            "torch.as_tensor(…, dtype=torch.float32)."
        )
    chosen: dict[str, Any] = {"teacher": str(network), "name": str(data)}
    if isinstance(network, nn.Module):
        chosen["teacher"] = GIVEN + _digest(network.state_dict().values(), str(network))
    if isinstance(data, Tensor):
        if size is not None:
            raise ValueError("distill: size is for images from files; a tensor has its own.")
        chosen["name"] = GIVEN + _digest([data])
    elif size is not None:
        chosen["size"] = size
    return chosen


@contextmanager
def _single_precision() -> Iterator[None]:
    """Take float32 for networks and data, whatever torch's default is now."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _digest(tensors: Iterable[Any], text: str = "") -> str:
    """Return what tells one network or set of samples from another when a run is resumed."""
    total = hashlib.sha256(text.encode())
    for t in tensors:
        if isinstance(t, Tensor):
            total.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]


def _split_tensor(x: Tensor) -> tuple[Part, Part, Part]:
    """Hold out a tenth of the rows of a tensor."""
    if x.ndim < 2 or len(x) < 10:
        raise ValueError(
            f"distill: expected samples (n, …), 10 or more, got a tensor of shape {tuple(x.shape)}."
        )
    whole = Arrays(x.to(torch.float32))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held_out = Some(whole, order[: len(x) // 10])
    return Some(whole, order[len(x) // 10 :]), held_out, held_out


def _ask_teacher(
    network: Network, given: tuple[Part, Part, Part] | None, plan: Plan, root: Path | None
) -> Data:
    """Return the samples with what the network gives for them."""
    name = "given"
    notes: tuple[str, ...] = ()
    if given is None:
        name, given, notes = load_samples(cast(DistillSettings, plan.data), root, None)
    train, val, test = (DistillPart(part, network) for part in given)
    return Data(name, train, val, test, notes)
