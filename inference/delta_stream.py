"""The deltas of a generation, for the coroutine that streams it, wherever its tokens are computed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from inference.generation import Delta, Facts, Finish


class DeltaStream:
    """Base class of all generations. Used on the event loop only.

    Deltas are pushed to the receiver of `stream`; without one they are queued, and can be iterated over.
    """

    def __init__(self, facts: Facts, prompt_tokens: int, written: Sequence[int]) -> None:
        self.facts, self.prompt_tokens = facts, prompt_tokens
        self._deltas: deque[Delta] = deque()
        self._receive: Callable[[Delta], None] | None = None
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._due = False  # a call of `flush` is scheduled
        self.ids = list(written)
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
        """Push the queued deltas as one."""
        self._due = False
        if self._receive is not None and self._deltas and self._error is None:
            delta = self._deltas.popleft()
            if self._deltas:
                delta = joined(delta, *self._deltas)
                self._deltas.clear()
            try:
                self._receive(delta)
            except Exception as error:  # raised in the coroutine that streams, not in the caller
                self._error = error
        if self._receive is None or self.finish is not None or self._error is not None:
            self._changed.set()


def joined(*deltas: Delta) -> Delta:
    """Merge consecutive deltas."""
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs)
    return Delta("".join([delta.text for delta in deltas]), sum(delta.tokens for delta in deltas), logprobs, deltas)
