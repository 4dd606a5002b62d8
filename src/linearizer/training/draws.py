r"""Everything random in training, as a function of (seed, step, place in the global batch).

Nothing is carried from step to step: a run that is killed and resumed, or moved to another number
of processes, sees the same samples in the same order with the same noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Draw", "Order", "mix"]

#: Samples that share one generator: noise of a sample depends on its place, not on its process.
BLOCK = 32


def mix(*parts: int | str) -> int:
    """A 63-bit seed from whatever tells this use of randomness from another."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Draw:
    r"""Random numbers of one step for the samples at ``start``, ``start`` + 1, … of its batch.

    Each call is a new draw. The numbers of a sample depend on the seed, the number of the call and
    the sample's place only: two processes draw what one would, each for its half of the batch.

    Example:
        >>> whole = Draw(7).normal(torch.empty(100, 3))
        >>> half = Draw(7, start=60).normal(torch.empty(40, 3))
        >>> torch.equal(whole[60:], half)
        True
    """

    def __init__(self, seed: int, start: int = 0, done: float = 0.0) -> None:
        self.seed = seed
        self.start = start
        self.done = done  #: share of the training that lies behind, for weights that change
        self.calls = 0

    @torch.compiler.disable
    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape, dtype and device of ``like``, (n, \\*)."""
        return self._fill(like, lambda x, g: x.normal_(generator=g))

    @torch.compiler.disable
    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from [0, 1) of the shape, dtype and device of ``like``, (n, \\*)."""
        return self._fill(like, lambda x, g: x.uniform_(generator=g))

    def _fill(self, like: Tensor, fill: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        self.calls += 1
        if not len(like):
            return torch.empty_like(like)
        first, last = self.start // BLOCK, (self.start + len(like) - 1) // BLOCK
        out = like.new_empty((last - first + 1, BLOCK, *like.shape[1:]))
        generator = torch.Generator(like.device)
        for i, block in enumerate(out):
            generator.manual_seed(mix(self.seed, self.calls, first + i))
            fill(block, generator)
        offset = self.start - first * BLOCK
        return out.flatten(0, 1)[offset : offset + len(like)]


class Order:
    r"""An endless stream of shuffles of n samples; place p always holds the same sample.

    Example:
        >>> order = Order(10, seed=0)
        >>> sorted(order.take(0, 10).tolist()) == list(range(10))
        True
    """

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ValueError("training: expected data, got an empty set.")
        self.n = n
        self.seed = seed
        self._shuffles: dict[int, Tensor] = {}

    def take(self, start: int, count: int) -> Tensor:
        """The samples at places start … start + count − 1."""
        parts = []
        while count > 0:
            epoch, offset = divmod(start, self.n)
            parts.append(self._shuffle(epoch)[offset : offset + count])
            start, count = start + len(parts[-1]), count - len(parts[-1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _shuffle(self, epoch: int) -> Tensor:
        if epoch not in self._shuffles:
            self._shuffles = {e: s for e, s in self._shuffles.items() if e == epoch - 1}
            generator = torch.Generator().manual_seed(mix(self.seed, "epoch", epoch))
            self._shuffles[epoch] = torch.randperm(self.n, generator=generator)
        return self._shuffles[epoch]
