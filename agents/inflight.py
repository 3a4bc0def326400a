"""Work in flight: blocks of code that can be awaited and interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agents.errors import Interrupted


class InFlight:
    """Blocks in progress, each in a task of its own. For the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._interrupted: set[asyncio.Task[object]] = set()
        self._over = False
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<InFlight {len(self._tasks)} in progress>"

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Raises Interrupted inside the block, and in each that begins later, once `interrupt` was called.

        As with `asyncio.timeout`, the block is left by a cancellation, which is converted here.
        """
        if self._over:
            raise Interrupted
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._interrupted or task.uncancel() > 0:  # also cancelled from elsewhere
                raise
            raise Interrupted from None
        finally:
            self._tasks.discard(task)
            self._interrupted.discard(task)
            self._changed.set()

    async def idle(self) -> None:
        """Return when nothing is in progress."""
        while self._tasks:
            self._changed.clear()
            await self._changed.wait()

    def interrupt(self) -> None:
        self._over = True
        for task in self._tasks - self._interrupted:
            self._interrupted.add(task)
            task.cancel()
