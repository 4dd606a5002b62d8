r"""How much the studio does at once, for whom, and for how long."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from ..apps.page import Limits, Refusal

__all__ = ["Gate", "check_wanted"]

T = TypeVar("T")
#: Seconds between looks at whether a client that waits is still there.
POLL = 0.25
#: Whether the work that a thread does is ``over``.
_thread = threading.local()


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
        self,
        key: str,
        work: Callable[[], T],
        gone: Callable[[], Awaitable[bool]] | None = None,
        lane: str = "",
    ) -> T:
        """Return the result of ``work``, done in a thread once the model ``key`` is free.

        Of the work that names one ``lane``, one piece is done at a time. Work whose client leaves,
        or whose time is over, ends at its next :func:`check_wanted`; until then it keeps its place.
        """
        if self.waiting >= self.limits.waiting:
            raise Refusal(
                503,
                f"the studio is busy: {self.waiting} requests wait already. Try again shortly.",
                retry=2,
            )
        self.waiting += 1
        begun: list[Future[T]] = []
        over = threading.Event()
        names = [lane, key] if lane else [key]
        task = asyncio.create_task(self._in_turn(names, partial(_watch, over, work), gone, begun))
        task.add_done_callback(self._leave)
        try:
            return await self._answer(task, gone)
        finally:
            over.set()
            if not task.done() and not begun:
                task.cancel()
            elif not task.done():
                begun[0].cancel()  # where no thread has taken it up yet

    async def _answer(self, task: asyncio.Task[T], gone: Callable[[], Awaitable[bool]] | None) -> T:
        """Wait for a task as long as its client is there and there is time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limits.seconds
        while not task.done():
            if (left := end - loop.time()) <= 0:
                raise Refusal(
                    504,
                    f"no answer within {self.limits.seconds:g} seconds. Ask for less, or try again "
                    "when the studio is less busy.",
                )
            await asyncio.wait([task], timeout=left if gone is None else min(left, POLL))
            if not task.done():
                await _refuse_gone(gone)
        return task.result()

    async def _in_turn(
        self,
        names: Sequence[str],
        work: Callable[[], T],
        gone: Callable[[], Awaitable[bool]] | None,
        begun: list[Future[T]],
    ) -> T:
        async with AsyncExitStack() as held:
            for name in names:
                await held.enter_async_context(self._turn(name))
            await _refuse_gone(gone)
            begun.append(self._pool.submit(work))
            return await asyncio.wrap_future(begun[0])

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a model or a lane; the last one to ask for it drops it."""
        self._asking[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                yield
        finally:
            self._asking[name] -= 1
            if not self._asking[name]:
                del self._asking[name], self._locks[name]

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self.waiting -= 1
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _refuse_gone(gone: Callable[[], Awaitable[bool]] | None) -> None:
    if gone is not None and await gone():
        raise Refusal(499, "the client has left.")


# -- in a thread ---------------------------------------------------------------------------


def _watch(over: threading.Event, work: Callable[[], T]) -> T:
    """Do work that :func:`check_wanted` ends once it is over."""
    _thread.over = over
    try:
        return work()
    finally:
        _thread.over = None


def check_wanted(*given: object) -> None:
    """End the work of this thread if nobody waits for it; models call it before each layer."""
    over: threading.Event | None = getattr(_thread, "over", None)
    if over is not None and over.is_set():
        raise Refusal(499, "nobody waits for this answer any more.")
