"""Responses on their way to a socket: those made here from memory, all others from the store."""

from __future__ import annotations

from contextlib import aclosing
from uuid import UUID

from worker import sse
from worker.runs.follower import follow
from worker.runs.registry import Runs
from worker.runs.run import Run
from worker.stream import HEARTBEAT_S, EventStream


async def read_run(run: Run, stream: EventStream, number: int = 0) -> None:
    """Send the events from this number on until the response has ended. Raises ClientGone."""
    with run.reading():
        await stream.open()
        while not run.ended or number < len(run.frames):
            frames = await run.news(number, HEARTBEAT_S)
            if frames:
                await stream.write(b"".join(frames))
                number += len(frames)
            elif not run.ended:
                await stream.ping()
        if not run.left:
            await stream.write(sse.DONE)


async def read_stored(runs: Runs, stream: EventStream, tenant_id: UUID, response_id: str, after: int) -> None:
    """Send the events after this number until the response has ended. Raises NotFound, ApiError, ClientGone."""
    async with aclosing(follow(runs, tenant_id, response_id, after)) as chapters:
        async for events in chapters:
            if not stream.is_open:
                await stream.open()
            await (stream.write(b"".join(map(sse.encode, events))) if events else stream.ping())
            after = events[-1]["sequence_number"] if events else after
            if run := runs.get(tenant_id, response_id):  # this worker took it from the queue
                await read_run(run, stream, after + 1)
                return
    await stream.write(sse.DONE)
