"""Writes events to Postgres in batches beside the stream (write-behind), so that no token waits for a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from agents.errors import NotFound
from agents.store import ResponseRecord
from migrations.pool import DATABASE_AWAY
from worker.errors import BROKE
from worker.lifecycle.supervisor import Supervisor
from worker.runs.continuation import Continuation
from worker.runs.response_rows import Batch, ResponseEnd
from worker.runs.running_store import OwnedResponse, RunningStore
from worker.telemetry.batch_writer import BatchWriter, NotStored
from worker.wire import sse

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
        return Batch(self.response_id, list(map(sse.data_of, frames)), number, self.last, self.end, marks)

    def keep(self, batch: Batch) -> None:
        """The batch is stored."""
        self.stored = max(self.stored, batch.number + 1 - self.first)  # the end may have been stored meanwhile
        if self.continuation:
            self.continuation.keep()
        self.on_stored()

    def drop(self) -> None:
        """Drop what is not stored, except for the end of a response; free the frames of one that has ended."""
        kept = 1 if self.last and self.frames else 0
        self.stored = max(self.stored, len(self.frames) - kept)
        if self.last:
            self.first += self.stored
            self.frames, self.stored = self.frames[self.stored :], 0


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
        self._waiting[journal.response_id] = journal
        self._writer.notify(hurry=waited_for)

    def knows(self, response_id: str) -> bool:
        """Whether events of this response wait to be stored."""
        return response_id in self._waiting

    async def _store_waiting(self) -> bool:
        by_tenant: dict[UUID, list[Journal]] = {}
        for journal in self._waiting.values():
            by_tenant.setdefault(journal.tenant_id, []).append(journal)
        if by_tenant and await self._store_at_once(by_tenant):
            return True
        stored = [await self._store_journals(tenant_id, journals) for tenant_id, journals in by_tenant.items()]
        if not all(stored):
            self._drop_too_many()
            raise NotStored(f"events of {len(self._waiting)} responses")
        if self._waiting:  # what was noted meanwhile
            self._writer.notify()
        return bool(stored)

    async def _store_at_once(self, by_tenant: Mapping[UUID, Sequence[Journal]]) -> bool:
        """Whether all could be stored in one transaction. If not, each tenant's is tried, which says why."""
        batches = {tenant_id: [journal.batch() for journal in journals] for tenant_id, journals in by_tenant.items()}
        ids = [batch.response_id for of_tenant in batches.values() for batch in of_tenant]
        try:
            done = await self.store.append_all(batches, self.worker, [id for id in ids if self.is_followed(id)])
        except DATABASE_AWAY as error:
            log.warning("events of %d responses could not be stored, retrying: %r", len(ids), error)
            self._drop_too_many()
            raise NotStored(f"events of {len(ids)} responses") from error
        except Exception:  # the boundary: what is wrong is found and told by those who store less
            return False
        if done:
            for tenant_id, journals in by_tenant.items():
                for journal, batch in zip(journals, batches[tenant_id], strict=True):
                    journal.keep(batch)
                    self._done(journal, last=batch.last)
            if self._waiting:  # what was noted meanwhile
                self._writer.notify()
        return done

    async def _store_journals(self, tenant_id: UUID, journals: Sequence[Journal]) -> bool:
        """Whether the database stored them. A row that it refuses would be refused for ever and block all others."""
        try:
            await self._store_batches(tenant_id, journals)
        except DATABASE_AWAY as error:
            log.warning("events of %d responses could not be stored, retrying: %r", len(journals), error)
            return False
        except Exception:  # the boundary: each by itself, then without what is refused
            log.exception("events of %d responses cannot be stored", len(journals))
            if len(journals) > 1:
                return all([await self._store_journals(tenant_id, [journal]) for journal in journals])
            return await self._give_up(journals[0])
        return True

    async def _store_batches(self, tenant_id: UUID, journals: Sequence[Journal]) -> None:
        batches = [journal.batch() for journal in journals]
        followed = [batch.response_id for batch in batches if self.is_followed(batch.response_id)]
        held = await self.store.append(tenant_id, batches, self.worker, followed)
        for journal, batch in zip(journals, batches, strict=True):
            if journal.response_id in held:
                journal.keep(batch)
                self._done(journal, last=batch.last)
            elif not await self._begun_again(journal):
                self._done(journal, last=True)
                journal.on_lost()

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

    async def _give_up(self, journal: Journal) -> bool:
        """Skip what Postgres refuses. A response that has ended becomes failed; one in progress has a gap."""
        if not journal.last:
            journal.drop()
            self._done(journal, last=False)
            return True
        taken = OwnedResponse(journal.tenant_id, journal.response_id, self.worker)
        try:
            await self.store.give_up(taken, REFUSED)
        except DATABASE_AWAY:
            return False
        self._done(journal, last=True)
        return True

    def _drop_too_many(self) -> None:
        count = sum(len(journal.frames) - journal.stored for journal in self._waiting.values())
        if count <= WAITING_MAX:
            return
        log.error(
            "the database was unavailable for too long: %d events of %d responses are lost", count, len(self._waiting)
        )
        for journal in self._waiting.values():
            journal.drop()
