"""Reads a turn in a task of its own: what happens while the socket is busy waits together and goes out together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TypeAlias

from agents.events import ArgumentsDelta, Event, ReasoningDelta, TextDelta

# Events that may wait for a slow client. A turn that is not read on stands still, which is what slows it down.
WAITING_MAX = 256
Delta: TypeAlias = TextDelta | ReasoningDelta | ArgumentsDelta
TOKENS = (TextDelta, ReasoningDelta, ArgumentsDelta)


class Feed:
    """A turn while it runs. Leaving the `async with` block early closes the turn, which ends its generation."""

    def __init__(self, turn: AsyncGenerator[Event, None]) -> None:
        self._turn = turn
        self._waiting: list[Event] = []
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Feed:
        self._pump = asyncio.create_task(self._read(), name="turn")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._pump is not None
        self._pump.cancel()
        await asyncio.wait([self._pump])

    async def batch(self, idle_s: float | None = None) -> list[Event]:
        """What happened since the last call, merged; waits for something to happen, or gives [] after `idle_s`.

        Raises what the turn raised.
        """
        assert self._pump is not None
        if not self._waiting:
            self._filled.clear()
            if self._pump.done():
                self._pump.result()
                raise RuntimeError("the turn ended without its last event")
            try:
                async with asyncio.timeout(idle_s):
                    await self._filled.wait()
            except TimeoutError:
                return []
        batch, self._waiting = self._waiting, []
        self._taken.set()
        if not batch:  # woken by the end of the turn
            await self._pump
        return merged(batch)

    async def _read(self) -> None:
        try:
            async with aclosing(self._turn) as events:
                async for event in events:
                    self._waiting.append(event)
                    self._filled.set()
                    while len(self._waiting) >= WAITING_MAX:
                        self._taken.clear()
                        await self._taken.wait()
        finally:
            self._filled.set()


def merged(events: Sequence[Event]) -> list[Event]:
    """Text that waits together goes out together: neighbouring deltas of one item become one."""
    together: list[Event] = []
    for event in events:
        last = together[-1] if together else None
        if isinstance(event, TOKENS) and isinstance(last, TOKENS) and event.item_id == last.item_id:
            together[-1] = _joined(last, event)
        else:
            together.append(event)
    return together


def _joined(before: Delta, after: Delta) -> Delta:
    text = before.text + after.text
    if isinstance(before, TextDelta) and isinstance(after, TextDelta):
        return replace(before, text=text, logprobs=before.logprobs + after.logprobs)
    return replace(before, text=text)
