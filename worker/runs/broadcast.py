"""The events of one response as frames: for the clients that follow it, and for the log that stores them in batches
beside the stream (write-behind), so that no token waits for a disk.

The events of a queued response are held back until it is stored that no other worker can restart it, and those of one
that another worker may resume until they are stored, so that no client sees an event that another worker would
generate differently.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from agents.errors import NotFound
from agents.events import Event, TurnStarted
from agents.message import Item
from agents.store import ResponseRecord
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.database import BatchWriter, NotStored
from worker.errors import BROKE
from worker.lifecycle.supervisor import Supervisor, at_most
from worker.runs.continuation import Batch, Continuation, ResponseEnd
from worker.runs.event_stream import BATCH_FRAMES, Stream
from worker.runs.record import FirstTokens
from worker.runs.running_store import AT_ONCE_BYTES_MAX, OwnedResponse, RunningStore
from worker.runs.turn import ResponseTurn, begun
from worker.wire.events import WireEvent, encode
from worker.wire.response import EventEncoder

log = logging.getLogger("firsttoken.runs")

SETTLE_AGAIN_S = 0.25  # between two attempts to store that a response cannot be restarted: its readers wait
WAITING_MAX = 100_000  # events of some 300 bytes, kept while the database is away; beyond it they are dropped
REFUSED = {"code": "server_error", "message": BROKE}


@dataclass(slots=True, eq=False)
class Journal:
    """The events of one response, and how many of them are known to be stored. Its run appends to `frames`, where the
    event with the sequence number n is frames[n - first]; an event that is stored twice is replayed once.
    """

    tenant_id: UUID
    response_id: str
    frames: list[bytes]
    begun: ResponseRecord | None = None  # as inserted, where a crash of Postgres may have lost that row
    first: int = 0
    stored: int = 0  # of the frames, from the first on
    last: bool = False  # nothing follows
    late: Sequence[bytes] = ()  # the frame before the last one, if it is told only now that the last one is stored
    end: ResponseEnd | None = None  # where it could not be stored before it was sent
    continuation: Continuation | None = None  # where another worker may resume
    on_stored: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None  # another worker owns the response

    def batch(self, further: Sequence[bytes] = (), *, skipped: int = 0) -> Batch:
        """What is not known to be stored, and `further` frames that are about to be sent after `skipped` others."""
        frames = [*self.late, *self.frames[self.stored :], *further]
        number = self.first + len(self.frames) + len(further) + skipped - 1 - len(self.late)
        marks = self.continuation.marks_up_to(number) if self.continuation and not further else ()
        return Batch(self.response_id, frames, number, self.last, self.end, marks)

    def keep(self, batch: Batch) -> None:
        """The batch is stored."""
        self.stored = max(self.stored, batch.number + 1 - self.first)  # the end may have been stored meanwhile
        if self.continuation:
            self.continuation.keep()
        self.on_stored()

    def drop(self) -> None:
        """Drop what is not stored, except for the end of a response, so that nobody waits for it any more; free the
        frames of one that has ended."""
        kept = 1 if self.last and self.frames else 0
        self.stored = max(self.stored, len(self.frames) - kept)
        self.on_stored()
        if self.last:
            self.first += self.stored
            self.frames, self.stored = self.frames[self.stored :], 0


Waiting: TypeAlias = tuple[Journal, Batch]  # and what of it is to be stored


@dataclass(slots=True)
class EventLog:
    """`note` costs less than a microsecond and never waits. Events are stored in order; failed writes are retried."""

    store: RunningStore
    worker: int
    is_followed: Callable[[str], bool] = lambda _: False  # by readers at other workers; takes the response id
    _waiting: dict[str, Journal] = field(default_factory=dict)
    _writer: BatchWriter = field(init=False)

    def __post_init__(self) -> None:
        self._writer = BatchWriter("event_log", self._store_waiting)

    def start(self, supervisor: Supervisor) -> None:
        self._writer.start(supervisor)

    async def close(self) -> None:
        """Store what is waiting, then stop."""
        with suppress(NotStored):
            await self._writer.close()

    async def flush(self) -> bool:
        """Try once to store everything noted so far; whether that worked."""
        try:
            await self._writer.flush()
        except NotStored:
            return False
        return True

    def note(self, journal: Journal, *, waited_for: bool = False) -> None:
        """The journal has new events. `waited_for`: a reader waits until they are stored."""
        if waited_for or self._waiting.get(journal.response_id) is not journal:  # else the writer knows of it
            self._waiting[journal.response_id] = journal
            self._writer.notify(hurry=waited_for)

    def knows(self, response_id: str) -> bool:
        """Whether events of this response wait to be stored."""
        return response_id in self._waiting

    async def _store_waiting(self) -> bool:
        waiting = [(journal, journal.batch()) for journal in self._waiting.values()]
        alone = [each for each in waiting if each[1].end is not None]
        try:
            for some in _portions(each for each in waiting if each[1].end is None):
                if not await self._store_at_once(some):
                    alone += some
            for journal, batch in alone:
                await self._store_alone(journal, batch)
        except DATABASE_AWAY as error:
            log.warning("events of %d responses could not be stored, retrying: %r", len(self._waiting), error)
            self._drop_too_many()
            raise NotStored(f"events of {len(self._waiting)} responses") from error
        if self._waiting:  # what was noted meanwhile
            self._writer.notify()
        return bool(waiting)

    async def _store_at_once(self, some: Sequence[Waiting]) -> bool:
        """Whether all could be stored in one transaction. If not, each is tried alone, which says what is wrong."""
        by_tenant: defaultdict[UUID, list[Batch]] = defaultdict(list)
        for journal, batch in some:
            by_tenant[journal.tenant_id].append(batch)
        followed = [journal.response_id for journal, _ in some if self.is_followed(journal.response_id)]
        try:
            done = await self.store.append_all(by_tenant, self.worker, followed)
        except DATABASE_AWAY:
            raise
        except Exception:  # the boundary: what is wrong is found and told by those who store less
            return False
        for journal, batch in some if done else ():
            self._keep(journal, batch)
        return done

    async def _store_alone(self, journal: Journal, batch: Batch) -> None:
        """Events that the database refuses would be refused for ever, and hold up all others."""
        id = journal.response_id
        try:
            done = await self.store.append(journal.tenant_id, batch, self.worker, followed=self.is_followed(id))
        except DATABASE_AWAY:
            self._waiting[id] = self._waiting.pop(id)  # others come before it next time
            raise
        except Exception:  # the boundary: without what is refused
            log.exception("events of %s cannot be stored", id)
            await self._give_up(journal)
            return
        if done:
            self._keep(journal, batch)
        elif not await self._begun_again(journal):
            self._done(journal, last=True)
            journal.on_lost()

    def _keep(self, journal: Journal, batch: Batch) -> None:
        journal.keep(batch)
        self._done(journal, last=batch.last)

    async def _begun_again(self, journal: Journal) -> bool:
        """Whether its row had been lost in a crash of Postgres, which loses the latest inserts, and is inserted
        again."""
        if journal.begun is None:
            return False
        try:
            await self.store.begin(journal.tenant_id, journal.begun, self.worker)
        except NotFound:  # deleted, or owned by another worker
            return False
        return True

    def _done(self, journal: Journal, *, last: bool) -> None:
        if last or (journal.stored == len(journal.frames) and not journal.last):
            self._waiting.pop(journal.response_id, None)

    async def _give_up(self, journal: Journal) -> None:
        """Skip what Postgres refuses. A response that has ended becomes failed; one in progress has a gap."""
        if journal.last:
            await self.store.give_up(OwnedResponse(journal.tenant_id, journal.response_id, self.worker), REFUSED)
        else:
            journal.drop()
        self._done(journal, last=journal.last)

    def _drop_too_many(self) -> None:
        count = sum(len(journal.frames) - journal.stored for journal in self._waiting.values())
        if count <= WAITING_MAX:
            return
        log.error(
            "the database was unavailable for too long: %d events of %d responses are lost", count, len(self._waiting)
        )
        for journal in self._waiting.values():
            journal.drop()


def _portions(waiting: Iterable[Waiting]) -> Iterator[Sequence[Waiting]]:
    """What fits into one statement: of a backlog after an outage of the database it takes several."""
    some, size = list[Waiting](), 0
    for journal, batch in waiting:
        size += (added := sum(map(len, batch.frames)))
        if some and size > AT_ONCE_BYTES_MAX:
            yield some
            some, size = [], added
        some.append((journal, batch))
    if some:
        yield some


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

    def end_stored(self, events: Batch) -> None:
        """What `end` returned is stored: all but the trace, which precedes the end."""
        self.journal.keep(events)

    def end_otherwise(self, snapshot: dict[str, Any], end: ResponseEnd) -> None:
        """The event log stores this end in place of one that may have been stored."""
        self._end, self.journal.end = self._encoded_end(snapshot), end

    def tell_end(self, trace: Callable[[], dict[str, Any]]) -> None:
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
