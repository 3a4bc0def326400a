"""Streams responses to clients: those of runs of this worker from memory, all others from the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from uuid import UUID

from worker.errors import ApiError
from worker.runs.broadcast import Broadcast
from worker.runs.event_stream import BATCH_FRAMES, Stream
from worker.runs.presence import FOLLOW, FOLLOWED_S
from worker.runs.run import Run
from worker.runs.run_services import RunServices
from worker.wire.events import WireEvent, encode

POLL_S = 2.0


class Reader:
    """Sends the frames of a run while its client has room for them. Nothing is buffered here: the run keeps them."""

    def __init__(self, broadcast: Broadcast, stream: Stream, number: int) -> None:
        self._broadcast = broadcast
        self._stream = stream
        self.sent = number  # the next frame to send

    def push(self) -> None:
        stream, frames, told = self._stream, self._broadcast.frames, self._broadcast.told
        while self.sent < told and stream.has_room:
            batch = frames[self.sent : min(told, self.sent + BATCH_FRAMES)]
            stream.send(batch)
            self.sent += len(batch)
        self._broadcast.on_sent(self.sent)


async def read_run(run: Run, stream: Stream, number: int = 0) -> int:
    """Send the frames from this number on until the response has ended; returns the number of the next frame. Raises
    ClientGone."""
    reader = Reader(run.broadcast, stream, number)
    with run.readers.reading():
        await stream.open()
        stream.on_room.append(reader.push)
        try:
            with run.broadcast.followed_by(reader):
                await run.wait()
                while reader.sent < run.broadcast.told:
                    await stream.room()
        finally:
            stream.on_room.remove(reader.push)
    return reader.sent


async def read_stored(
    services: RunServices,
    stream: Stream,
    tenant_id: UUID,
    response_id: str,
    after: int,
    find_run: Callable[[UUID, str], Run | None],
) -> None:
    """Send the events after this number until the response has ended. Raises NotFound, ApiError, ClientGone.

    `find_run` finds the run of a response that this worker takes from the queue during that time.
    """
    async with aclosing(_follow(services, tenant_id, response_id, after)) as pages:
        async for page in pages:
            events = [
                event for event in page if event["sequence_number"] > after
            ]  # a run of this worker may have sent more
            await stream.open()
            await stream.write([*map(encode, events)])
            after = events[-1]["sequence_number"] if events else after
            if run := find_run(tenant_id, response_id):
                after = await read_run(run, stream, after + 1) - 1
                if not run.lost:
                    return


async def _follow(
    services: RunServices, tenant_id: UUID, response_id: str, after: int
) -> AsyncGenerator[list[WireEvent], None]:
    """The stored events after this number as they are stored, [] while there are none. Ends with the response.

    No database connection is held while waiting: `presence` notifies of new events, and a slow poll covers missed
    notifications. Raises NotFound, and ApiError 404 when the events are not kept any more.
    """
    with services.presence.watching(response_id) as news:
        page = await services.running.read(tenant_id, response_id, after)
        if page.expired:
            message = "The events of this response have expired. Read it without 'stream'."
            raise ApiError(404, message, param="stream", code="events_expired")
        follow_at = 0.0
        while True:
            yield list(page.events)
            after = page.events[-1]["sequence_number"] if page.events else after
            if page.sealed:
                break
            if time.monotonic() >= follow_at:  # then read immediately: events may have come since the last read
                await services.presence.tell(FOLLOW, response_id)
                follow_at = time.monotonic() + FOLLOWED_S / 3
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await news.wait()
            news.clear()
            page = await services.running.read(tenant_id, response_id, after)
