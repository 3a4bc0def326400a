"""Deltas on their way to the coroutine that streams an answer, wherever its tokens are computed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from inference.core import Delta, Finish


class DeltaStream:
    """What all generations share. Only the event loop reads and writes it.

    Deltas are pushed to the one that streams; without one they wait, and may be iterated over.
    """

    def __init__(self) -> None:
        self._deltas: deque[Delta] = deque()
        self._receive: Callable[[Delta], None] | None = None
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._due = False  # somebody will call `flush`
        self.ids: list[int] = []
        self.finish: Finish | None = None

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        self._receive = receive
        try:
            self.flush()
            while self.finish is None and self._error is None:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._receive = None
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            while self._deltas:
                yield self._deltas.popleft()
            if self._error is not None:
                raise self._error
            if self.finish is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    def flush(self) -> None:
        """Push what is there."""
        self._due = False
        if self._receive is not None and self._deltas and self._error is None:
            delta = self._deltas.popleft()
            if self._deltas:
                delta = joined(delta, *self._deltas)
                self._deltas.clear()
            try:
                self._receive(delta)
            except Exception as error:  # it belongs to the coroutine that streams, not to who delivers
                self._error = error
        if self._receive is None or self.finish is not None or self._error is not None:
            self._changed.set()


def joined(*deltas: Delta) -> Delta:
    """Neighbouring deltas as one."""
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs)
    return Delta("".join([delta.text for delta in deltas]), sum(delta.tokens for delta in deltas), logprobs)
