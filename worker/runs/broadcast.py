"""The events of one response as frames: for the clients that follow it, and for the event log.

The events of a queued response are held back until it is stored that no other worker can restart it, and those of one
that another worker may resume until they are stored, so that no client sees an event that another worker would
generate differently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from agents.events import Event, TurnStarted
from agents.message import Item
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.lifecycle.supervisor import at_most
from worker.runs.continuation import Batch, ResponseEnd
from worker.runs.event_log import EventLog, Journal
from worker.runs.event_stream import BATCH_FRAMES, Stream
from worker.runs.record import FirstTokens
from worker.runs.turn import ResponseTurn, begun
from worker.wire.events import WireEvent, encode
from worker.wire.response import EventEncoder

log = logging.getLogger("firsttoken.runs")

SETTLE_AGAIN_S = 0.25  # between two attempts to store that a response cannot be restarted: its readers wait


class Reader:
    """Sends the frames of a run while its client has room for them. Nothing is buffered here: the broadcast keeps
    them."""

    def __init__(self, broadcast: Broadcast, stream: Stream, number: int) -> None:
        self._broadcast = broadcast
        self._stream = stream
        self.sent = number  # the next frame to send

    def push(self) -> None:
        stream, frames, sendable = self._stream, self._broadcast.frames, self._broadcast.sendable
        while self.sent < sendable and stream.has_room:
            end = min(sendable, self.sent + BATCH_FRAMES)
            stream.send(frames[self.sent : end])
            self.sent = end
        self._broadcast.on_sent(self.sent)


class Broadcast:
    """`frames[n]` is the encoded event with the sequence number n; the first ones were sent before it began.

    `settle` stores that a queued response cannot be restarted; `resumed`: it was begun by a worker that was lost.
    """

    def __init__(
        self,
        turn: ResponseTurn,
        trace: Trace,
        event_log: EventLog,
        sent_before: Sequence[WireEvent],
        *,
        resumed: bool,
        settle: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.frames: list[bytes] = list(map(encode, sent_before))
        beginning = None if resumed else begun(turn)
        self.journal = Journal(turn.tenant_id, turn.frame.id, self.frames, beginning, stored=len(sent_before))
        self.journal.on_stored = self._on_stored
        self._event_log = event_log
        self._encoder = EventEncoder(turn.frame, len(sent_before))
        self._is_streamed, self._is_stored = turn.frame.request.streamed, turn.frame.request.stored
        self._first = FirstTokens(trace, were_sent=resumed)
        self._settle = settle
        self._held_back: list[Event] | None = [] if settle else None
        self._settling: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()  # what stores the end settles it as well
        self._rest: list[bytes] = []  # what was held back until the end
        self._end: list[bytes] = []
        self._over = False  # the terminal event was published
        self._kept = asyncio.Event()  # more events are stored
        self._followers: list[Reader] = []
        self._moved = asyncio.Event()  # a follower has sent something, or left

    @property
    def output(self) -> tuple[Item, ...]:
        """The items so far."""
        return self._encoder.output

    @property
    def sendable(self) -> int:
        """The number of frames that may be sent."""
        if self.journal.continuation is None or self._over:
            return len(self.frames)
        return min(len(self.frames), self.journal.stored)

    @property
    def is_held_back(self) -> bool:
        """Whether another worker may restart the response: none of its events was sent."""
        return self._held_back is not None

    @contextmanager
    def followed_by(self, follower: Reader) -> Iterator[None]:
        """In the block, the follower is called for each new frame."""
        self._followers.append(follower)
        try:
            follower.push()
            yield
        finally:
            self._followers.remove(follower)
            self._moved.set()

    def on_sent(self, sent: int) -> None:
        """The frames before this number were written to a client's socket."""
        self._moved.set()
        self._first.sent(sent)

    async def drain(self) -> None:
        """Wait while there are followers and all of them are behind: back-pressure of the clients on the turn."""
        while self._followers and all(follower.sent < len(self.frames) for follower in self._followers):
            self._moved.clear()
            await self._moved.wait()

    def write(self, events: Sequence[Event]) -> None:
        """Take events that happened together. Never waits."""
        if self._held_back is not None:
            self._held_back += [event for event in events if not isinstance(event, TurnStarted)]
            if self._held_back and self._settling is None:
                self._settling = asyncio.create_task(self._keep_settling(), name="settle")
            events = [event for event in events if isinstance(event, TurnStarted)]
        if frames := self._encoded(events):
            self._publish(frames)

    def steered(self, steer_id: str) -> None:
        """What was said to the response was accepted."""
        self._publish(list(map(encode, self._encoder.steered(steer_id))))

    def replay(self, events: Sequence[Event]) -> None:
        """Take note of the events that the lost worker sent."""
        for event in events:
            self._encoder.replay(event)

    def release(self) -> None:
        """No other worker can restart the response: tell what was held back."""
        if held := self._held_back_frames():
            self._publish(held)

    async def until_stored(self) -> None:
        """Return when all events so far are stored."""
        while self.is_held_back or self.journal.stored < len(self.frames):
            self._event_log.note(self.journal, waited_for=True)
            self._kept.clear()
            await self._kept.wait()

    async def settled(self) -> None:
        """Return when no event is about to be released."""
        self._ending.set()
        if self._settling:
            await asyncio.wait([self._settling])

    def end(self, snapshot: dict[str, Any]) -> Batch:
        """What is to be stored before the end is told. May be called again, for another end in its place."""
        self._rest, self._end = [*self._rest, *self._held_back_frames()], self._encoded_end(snapshot)
        skipped = int(self._encoder.tells_trace and bool(self._end))
        return self.journal.batch([*self._rest, *self._end], skipped=skipped)

    def end_otherwise(self, snapshot: dict[str, Any], end: ResponseEnd) -> None:
        """The event log stores this end in place of one that may have been stored."""
        self._end, self.journal.end = self._encoded_end(snapshot), end

    def send_end(self, trace: Callable[[], dict[str, Any]]) -> None:
        """`trace` ends the trace: nothing is added to it afterwards."""
        if self._followers:  # where no event was stored before the end, they go out below, together with that
            self._first.sent(len(self.frames) + len(self._rest))
        traced = list(map(encode, self._encoder.trace(trace()))) if self._encoder.tells_trace else []
        if self.journal.stored > len(self.frames):
            self.journal.late = traced
        self._publish([*self._rest, *traced, *self._end], last=True)

    async def flush(self, give_up_s: float) -> None:
        """Store the end that could not be stored before: a client that reads the response now should find it."""
        async with at_most(give_up_s):
            await self._event_log.flush()

    def cut(self) -> None:
        """The response was stopped: nothing follows."""
        self._publish([], last=True)

    def close(self) -> None:
        if self._settling:
            self._settling.cancel()

    async def _keep_settling(self) -> None:
        """An event is about to be sent: from here on the response cannot be restarted. Until that is stored, no event
        is sent, and no tool runs that must not run twice."""
        assert self._settle is not None
        level = logging.WARNING  # once: the database may be away for long
        while not self._ending.is_set():
            try:
                await self._settle()
            except DATABASE_AWAY as error:
                log.log(level, "a queued response could not be announced, retrying: %r", error)
                level = logging.DEBUG
                async with at_most(SETTLE_AGAIN_S):
                    await self._ending.wait()
            except Exception as error:  # the boundary: another worker owns it, or the end says what is wrong
                log.warning("a queued response could not be announced: %r", error)
                return
            else:
                self.release()
                return

    def _on_stored(self) -> None:
        if self.journal.continuation is not None:
            self._kept.set()
            for follower in self._followers:
                follower.push()

    def _held_back_frames(self) -> list[bytes]:
        """The frames of the events that were held back until now."""
        held, self._held_back = self._held_back or (), None
        return self._encoded(held)

    def _encoded(self, events: Sequence[Event]) -> list[bytes]:
        frames: list[bytes] = []
        for event in events:
            frames += self._encoder.frames(event)
            if not self._first.have_answered:
                self._first.made([event], len(self.frames) + len(frames) - 1)
        if not self._is_streamed:  # no frame is sent: a token counts when it was generated
            self._first.sent(len(self.frames) + len(frames))
        return frames

    def _publish(self, frames: list[bytes], *, last: bool = False) -> None:
        self.frames += frames
        self._over = last
        for follower in self._followers:
            follower.push()
        if self._is_stored:
            self.journal.last = last
            waited_for = self.journal.continuation is not None and bool(self._followers)
            self._event_log.note(self.journal, waited_for=waited_for)

    def _encoded_end(self, snapshot: dict[str, Any]) -> list[bytes]:
        return list(map(encode, self._encoder.conclude(snapshot)))
