r"""How much the studio does at once, for whom, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from ..apps.page import Limits, Refusal

__all__ = ["Gate"]

T = TypeVar("T")
#: Seconds between looks at whether a client that waits is still there.
POLL = 0.25


class Gate:
    """Runs work in threads: one at a time for a model, a few in all, and no more than may wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting = 0
        self.large = 0
        self.clients: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="model")
        self._locks: dict[str, asyncio.Lock] = {}
        self._asking: Counter[str] = Counter()

    @contextmanager
    def client(self, address: str) -> Iterator[None]:
        """Count one request of an address, and refuse one too many."""
        if self.clients[address] >= self.limits.per_client:
            raise Refusal(
                429,
                f"too many requests at a time: this address has {self.limits.per_client} under "
                "way. Wait for one of them.",
                retry=1,
            )
        self.clients[address] += 1
        try:
            yield
        finally:
            self.clients[address] -= 1
            if not self.clients[address]:
                del self.clients[address]

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Give what takes the bytes that have come; a large request takes one of a few places."""
        held = False

        def come(seen: int) -> None:
            nonlocal held
            if held or seen <= self.limits.small_bytes:
                return
            if self.large >= self.limits.large:
                raise Refusal(
                    503,
                    f"the studio is busy: {self.large} large requests are under way. Try again "
                    "shortly.",
                    retry=2,
                )
            held = True
            self.large += 1

        try:
            yield come
        finally:
            self.large -= held

    async def run(
        self, key: str, work: Callable[[], T], gone: Callable[[], Awaitable[bool]] | None = None
    ) -> T:
        """Return the result of ``work``, done in a thread once the model ``key`` is free.

        Work that has begun cannot be stopped: after a time-out it goes on and keeps its place.
        """
        if self.waiting >= self.limits.waiting:
            raise Refusal(
                503,
                f"the studio is busy: {self.waiting} requests wait already. Try again shortly.",
                retry=2,
            )
        self.waiting += 1
        begun: list[Future[T]] = []
        task = asyncio.create_task(self._in_turn(key, work, gone, begun))
        task.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.shield(task), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refusal(
                504,
                f"no answer within {self.limits.seconds:g} seconds. Ask for less, or try again "
                "when the studio is less busy.",
            ) from None
        finally:
            if not task.done() and not begun:
                task.cancel()
            elif not task.done():
                begun[0].cancel()  # where no thread has taken it up yet

    async def _in_turn(
        self,
        key: str,
        work: Callable[[], T],
        gone: Callable[[], Awaitable[bool]] | None,
        begun: list[Future[T]],
    ) -> T:
        self._asking[key] += 1
        try:
            lock = self._locks.setdefault(key, asyncio.Lock())
            await _acquire(lock, gone)
            try:
                begun.append(self._pool.submit(work))
                return await asyncio.wrap_future(begun[0])
            finally:
                lock.release()
        finally:
            self._asking[key] -= 1
            if not self._asking[key]:
                del self._asking[key], self._locks[key]

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self.waiting -= 1
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _acquire(lock: asyncio.Lock, gone: Callable[[], Awaitable[bool]] | None) -> None:
    """Wait for a lock in turn, unless the client leaves meanwhile."""
    turn = asyncio.create_task(lock.acquire())
    try:
        while not turn.done():
            await asyncio.wait([turn], timeout=None if gone is None else POLL)
            if gone is not None and await gone():
                raise Refusal(499, "the client has left.")
    except BaseException:
        if not turn.cancel() and not turn.cancelled():
            lock.release()  # it had just come
        raise
