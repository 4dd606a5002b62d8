r"""One process or many: the same calls, on torch.distributed.

Under ``torchrun`` each process finds its place in the environment. Gradients are averaged by DDP,
or parameters, gradients and optimizer state are sharded by FSDP.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..bijections.coupling import AdditiveCoupling, AffineCoupling

__all__ = ["Processes", "free_memory", "keep_memory", "whole"]


#: Numbers of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


def keep_memory() -> bool:
    """Let this process keep the memory that it frees; whether that could be arranged.

    The C library of Linux gives each tensor of tens of megabytes back to the system when it is
    freed, and the next step has to ask for the same pages again. Memory that is kept in pieces can
    be more than was ever in use; ``free_memory`` gives it back. LINEARIZER_KEEP_MEMORY=0 leaves the
    C library as it is, as do settings of one's own for it (glibc.malloc in GLIBC_TUNABLES, or
    MALLOC_… in the environment).
    """
    own = any(key.startswith("MALLOC_") for key in os.environ)
    own = own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = _c_function("mallopt")
    if own or mallopt is None or os.environ.get("LINEARIZER_KEEP_MEMORY") == "0":
        return False
    # First that one: the others alone would end its growing. Older libraries take 32 MiB at most.
    if not (mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 1 << 25)):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_TOP_PAD, 1 << 26))


def free_memory() -> None:
    """Give memory that is kept back to the system."""
    if (trim := _c_function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))


def _c_function(name: str) -> Any:
    """Return a function of the C library, or None on another system or with another library."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None


class Processes:
    """The group of processes that train together; often just this one.

    Arguments:
        device: "auto" (CUDA where there is one, else CPU), "cpu" or "cuda".
        strategy: "ddp" or "fsdp", for more than one process.
    """

    def __init__(self, device: str = "auto", strategy: str = "ddp") -> None:
        kind = device
        if device == "auto":
            kind = "cuda" if torch.cuda.is_available() else "cpu"
        elif device == "cuda" and not torch.cuda.is_available():
            raise ValueError("training: device is cuda, but torch finds no CUDA device here.")
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.world > 1 else 0
        self.strategy = strategy if self.world > 1 else "one"
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
        self._ours = False
        if kind == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")
            self._ours = True

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._ours:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def wrap(self, objective: nn.Module, unused: bool = False) -> nn.Module:
        """Equal weights everywhere, then DDP or FSDP around the module whose forward trains.

        ``unused`` tells that some parameters get no gradient.
        """
        if self.world == 1:
            return objective
        for tensor in _unique([*objective.parameters(), *objective.buffers()]):
            dist.broadcast(tensor.data, 0)
        if self.strategy == "fsdp":
            return self._shard(objective)
        from torch.nn.parallel import DistributedDataParallel

        ids = [self.device.index] if self.device.type == "cuda" else None
        known = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {"find_unused_parameters": unused, name: False}
        return DistributedDataParallel(objective, device_ids=ids, **options)

    def _shard(self, objective: nn.Module) -> nn.Module:
        """Conditioners, which hold most weights, are gathered one at a time; the rest once."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if any(getattr(m, "save_memory", False) for m in objective.modules()):
            raise ValueError(
                "training: save_memory recomputes layers inside the backward pass, where FSDP "
                "cannot gather their weights. Use one of the two: save_memory=false, or "
                "strategy=ddp."
            )
        mesh = init_device_mesh(self.device.type, (self.world,))
        for module in objective.modules():
            if isinstance(module, AdditiveCoupling | AffineCoupling) and any(
                True for _ in module.conditioner.parameters()
            ):
                fully_shard(module.conditioner, mesh=mesh)
        fully_shard(objective, mesh=mesh)
        return objective

    def without_sync(self, module: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Hold back the exchange of gradients until the last part of an accumulated batch."""
        if self.strategy == "ddp" and not last:
            return module.no_sync()  # type: ignore[operator]
        if self.strategy == "fsdp":
            module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return contextlib.nullcontext()

    def mean(self, values: dict[str, Tensor]) -> dict[str, float]:
        """The mean over processes of numbers that each has."""
        row = torch.stack([v.detach().double().mean() for v in values.values()])
        return dict(zip(values, (self.sum(row) / self.world).tolist(), strict=True))

    def sum(self, row: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(row)
        return row

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def share(self, value: Any) -> Any:
        """What the first process has (numbers, strings, lists, dicts), in all of them."""
        if self.world == 1:
            return value
        text = json.dumps(value).encode() if self.first else b""
        size = torch.tensor(len(text), device=self.device)
        dist.broadcast(size, 0)
        data = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.first:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, 0)
        return json.loads(bytes(data.tolist()))

    def give(self, target: Tensor, value: Tensor | None) -> None:
        """Copy the first process's whole ``value`` into ``target``, in place, sharded as it is."""
        if self.world == 1:
            assert value is not None
            target.copy_(value)
            return
        whole_value = torch.empty(target.shape, dtype=target.dtype, device=self.device)
        if value is not None:
            whole_value.copy_(value)
        dist.broadcast(whole_value, 0)
        placements = getattr(target, "placements", None)
        if placements is None:
            target.copy_(whole_value)
        else:
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(target, DTensor)
            local = distribute_tensor(whole_value, target.device_mesh, placements).to_local()
            target.to_local().copy_(local)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor (all processes must ask); any other as it is."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    # By one plain collective that waits: full_tensor leaves work to torch's other threads, and once
    # ended a process with a double free on gloo.
    part = local(tensor).detach().contiguous()
    world, n = dist.get_world_size(), tensor.shape[0]
    rows = -(-n // world)  # as many as each process but the last ones has
    mine = part.new_zeros(rows, *part.shape[1:])
    mine[: len(part)] = part
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[:n]


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor; any other as it is."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())
