r"""Progress for a person to watch: a live bar on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Display", "Transfer", "duration"]


def duration(seconds: float) -> str:
    """'0:07', '3:05' or '2:03:05'."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


class Display:
    """Steps done of a total, with rate, time to go and the latest numbers.

    Arguments:
        total: Steps in all.
        done: Steps done before.
        label: What is going on.
        every: Seconds between plain lines.
        after: Steps of stages that come after this one, which count as the time to go.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        label: str = "training",
        every: float = 10.0,
        after: int = 0,
    ) -> None:
        self.total, self.label, self.every, self.after = total, label, every, after
        self.begun = (time.perf_counter(), done)
        self.spoken = self.begun[0]
        self.line = ""
        self.numbers: dict[str, float] = {}
        self.bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.table import Column

            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # on a narrow terminal
            self.bar = Progress(
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.description}", table_column=rest),
                console=Console(stderr=True),
                refresh_per_second=4,
                expand=True,
            )
            self.task = self.bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Display:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif self.line:
            self.say(self.line)

    def update(self, done: int, numbers: Mapping[str, float]) -> None:
        self.numbers.update(numbers)
        now = time.perf_counter()
        since, before = self.begun
        rate = (done - before) / max(now - since, 1e-9)
        left = duration((self.total - done + self.after) / rate) if rate > 0 else "?"
        speed = f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.1f} s/step"
        values = "  ".join(f"{k} {v:.4g}" for k, v in self.numbers.items())
        text = f"{speed}  {left} to go  {values}"
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=f"{self.label}  {text}")
            return
        self.line = f"{self.label}: step {done}/{self.total}  {text}"
        if now - self.spoken >= self.every:
            self.say(self.line)
            self.spoken, self.line = now, ""

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


class Transfer:
    """Things of a known or unknown number as they come: bytes of a download, decoded images.

    Arguments:
        unit: What is counted.
        every: Seconds between plain lines; the first comes after two.
    """

    def __init__(self, unit: str = "bytes", every: float = 5.0) -> None:
        self.unit, self.every = unit, every
        self.spoken = time.perf_counter() + 2.0 - every
        self.bar: Progress | None = None
        self.tasks: dict[str, TaskID] = {}
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> Transfer:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, name: str, done: int, total: int | None) -> None:
        if self.bar is not None:
            if name not in self.tasks:
                self.tasks[name] = self.bar.add_task(name, total=total)
            self.bar.update(self.tasks[name], completed=done)
        elif time.perf_counter() - self.spoken >= self.every:
            self.spoken = time.perf_counter()
            of = f" of {total:,}" if total is not None else ""
            print(f"{name}: {done:,}{of} {self.unit}", file=sys.stderr, flush=True)
