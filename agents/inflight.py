"""Work in flight: blocks of code that can be awaited and interrupted."""

from __future__ import annotations

import asyncio

from agents.errors import Interrupted


class Block:
    """As with `asyncio.timeout`, it is left by a cancellation, which is converted at its end."""

    __slots__ = ("_in_flight", "_task")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._in_flight.begin(task)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = self._in_flight.end(self._task)
        if interrupted and kind is asyncio.CancelledError and self._task.uncancel() == 0:  # not from elsewhere too
            raise Interrupted from None


class InFlight:
    """Blocks in progress, each in a task of its own. For the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()
        self._over = False
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<InFlight {len(self._tasks)} in progress>"

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def track(self) -> Block:
        """Raises Interrupted inside the block, and in each that begins later, once `interrupt` was called."""
        return Block(self)

    def begin(self, task: asyncio.Task[object]) -> None:
        if self._over:
            raise Interrupted
        self._tasks.add(task)

    def end(self, task: asyncio.Task[object]) -> bool:
        """Whether it was interrupted."""
        interrupted = task in self._interrupted
        self._tasks.discard(task)
        self._interrupted.discard(task)
        if not self._tasks:
            self._idle.set()
        return interrupted

    async def idle(self) -> None:
        """Return when nothing is in progress."""
        while self._tasks:
            self._idle.clear()
            await self._idle.wait()

    def interrupt(self) -> None:
        self._over = True
        for task in self._tasks - self._interrupted:
            self._interrupted.add(task)
            task.cancel()
