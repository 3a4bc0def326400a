"""Work in flight: blocks of code that can be awaited and interrupted."""

from __future__ import annotations

import asyncio

from agents.errors import Interrupted


class Block:
    """As with `asyncio.timeout`, it is left by a cancellation, which is converted at its end."""

    __slots__ = ("_in_flight", "_interrupted", "_task")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight, self._interrupted = in_flight, False

    def __enter__(self) -> None:
        if self._in_flight.over:
            raise Interrupted
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._in_flight.blocks.add(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._in_flight.blocks.discard(self)
        if not self._in_flight.blocks:
            self._in_flight.ended.set()
        was_cancelled = self._interrupted and kind is asyncio.CancelledError
        if was_cancelled and self._task.uncancel() == 0:  # not from elsewhere too
            raise Interrupted from None

    def interrupt(self) -> None:
        if not self._interrupted:
            self._interrupted = True
            self._task.cancel()


class InFlight:
    """Blocks in progress, each in a task of its own. For the event loop only."""

    def __init__(self) -> None:
        self.blocks: set[Block] = set()
        self.ended = asyncio.Event()  # the last of them
        self.over = False

    def __repr__(self) -> str:
        return f"<InFlight {len(self.blocks)} in progress>"

    @property
    def busy(self) -> bool:
        return bool(self.blocks)

    def track(self) -> Block:
        """Raises Interrupted inside the block, and in each that begins later, once `interrupt` was called."""
        return Block(self)

    async def idle(self) -> None:
        """Return when nothing is in progress."""
        while self.blocks:
            self.ended.clear()
            await self.ended.wait()

    def interrupt(self) -> None:
        self.over = True
        for block in tuple(self.blocks):
            block.interrupt()
