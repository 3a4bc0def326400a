"""Responses on their way to a client: those made here from memory, all others from the store."""

from __future__ import annotations

from contextlib import aclosing
from uuid import UUID

from worker.runs.event_stream import BATCH_FRAMES, Stream
from worker.runs.follower import follow
from worker.runs.manager import Runs
from worker.runs.run import Run
from worker.wire import sse


class Reader:
    """Sends the frames of a run while its client has room for them. The run keeps them, so nothing waits here."""

    def __init__(self, run: Run, stream: Stream, number: int) -> None:
        self._run = run
        self._stream = stream
        self.sent = number  # the next frame to send

    def push(self) -> None:
        stream, frames = self._stream, self._run.frames
        while self.sent < len(frames) and stream.has_room:
            batch = frames[self.sent : self.sent + BATCH_FRAMES]
            stream.send(batch)
            self.sent += len(batch)
        self._run.went_out(self.sent)


async def read_run(run: Run, stream: Stream, number: int = 0) -> None:
    """Send the frames from this number on until the response has ended. Raises ClientGone."""
    reader = Reader(run, stream, number)
    with run.reading():
        await stream.open()
        stream.on_room.append(reader.push)
        try:
            with run.followed_by(reader):
                await run.wait()
                while reader.sent < len(run.frames):
                    await stream.room()
        finally:
            stream.on_room.remove(reader.push)


async def read_stored(runs: Runs, stream: Stream, tenant_id: UUID, response_id: str, after: int) -> None:
    """Send the events after this number until the response has ended. Raises NotFound, ApiError, ClientGone."""
    async with aclosing(follow(runs, tenant_id, response_id, after)) as chapters:
        async for events in chapters:
            await stream.open()
            await stream.write([*map(sse.encode, events)])
            after = events[-1]["sequence_number"] if events else after
            if run := runs.get(tenant_id, response_id):  # this worker took it from the queue
                await read_run(run, stream, after + 1)
                return
