"""A turn on its way to the socket: the same for every API, which differ in how they spell what happens."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from agents.events import Event, TurnFinished, Usage
from inference.trace import Trace
from worker import timing
from worker.feed import TOKENS, Feed
from worker.stream import HEARTBEAT_S, EventStream

log = logging.getLogger("firsttoken.turn")

BROKE = "Something went wrong on our side while answering. Please try again."


async def relay(
    turn: AsyncGenerator[Event, None], stream: EventStream, spell: Callable[[Event], bytes], trace: Trace
) -> TurnFinished:
    """Send every event as it happens and return the last one, with which the caller concludes.

    What the turn raises before its first event passes through: no header is out, so it becomes a plain HTTP error.
    Raises ClientGone; the turn is closed then, and its generation with it.
    """
    waits_for_token = True
    async with Feed(turn) as feed:
        batch = await feed.batch()
        await stream.open()
        while True:
            await stream.write(b"".join(map(spell, batch)))
            if waits_for_token and any(isinstance(event, TOKENS) for event in batch):
                timing.mark_first_token(trace)
                waits_for_token = False
            if isinstance(batch[-1], TurnFinished):
                return batch[-1]
            batch = await _next(feed, stream)


async def _next(feed: Feed, stream: EventStream) -> list[Event]:
    while True:
        try:
            batch = await feed.batch(HEARTBEAT_S)
        except Exception:  # the boundary: headers are out, so whatever broke must still end the stream well
            log.exception("a turn broke")
            return [TurnFinished("failed", (), Usage(), error_code="server_error", error_message=BROKE)]
        if batch:
            return batch
        await stream.ping()


async def gather(turn: AsyncGenerator[Event, None], trace: Trace) -> TurnFinished:
    """Wait for the last event of a turn. Cancelling this closes the turn, and its generation with it."""
    waits_for_token = True
    async with aclosing(turn) as events:
        async for event in events:
            if waits_for_token and isinstance(event, TOKENS):
                timing.mark_first_token(trace)
                waits_for_token = False
            if isinstance(event, TurnFinished):
                return event
    raise RuntimeError("the turn ended without its last event")
