"""The event log: stores the events of responses in batches beside their streams (write-behind), so that no token waits
for a disk."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from agents.errors import NotFound
from agents.store import ResponseRecord
from migrations.pool import DATABASE_AWAY
from worker.database import BatchWriter, NotStored
from worker.errors import BROKE
from worker.lifecycle.supervisor import Supervisor
from worker.runs.continuation import Batch, Continuation, ResponseEnd
from worker.runs.running_store import AT_ONCE_BYTES_MAX, OwnedResponse, RunningStore

log = logging.getLogger("firsttoken.runs")

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
