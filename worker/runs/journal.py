"""The way of events to Postgres: in batches, beside the answer, so that no token waits for a disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from agents.store import Batch, RunningStore
from worker.wire.events import WireEvent

log = logging.getLogger("firsttoken.runs")

GATHER_S = 0.25  # how long a batch collects, and how far a reader at another worker is behind
RETRY_S = 1.0
WAITING_MAX = 100_000  # events of some 300 bytes: what the database may be away for before they are let go


@dataclass(slots=True)
class _Waiting:
    events: list[WireEvent] = field(default_factory=list)
    last: bool = False


class Journal:
    """`note` costs a microsecond and never waits. Events are stored in order; a failed write is tried again."""

    def __init__(self, store: RunningStore, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._waiting: dict[tuple[UUID, str], _Waiting] = {}
        self._count = 0
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write_for_ever(), name="journal")

    async def close(self) -> None:
        """Store what is waiting, then stop."""
        if self._writer:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        await self.flush()

    def note(self, tenant_id: UUID, response_id: str, events: Sequence[WireEvent], *, last: bool = False) -> None:
        """`last`: the response has ended and nothing follows."""
        if self._count > WAITING_MAX:
            self._let_go()
        waiting = self._waiting.setdefault((tenant_id, response_id), _Waiting())
        waiting.events += events
        waiting.last = last
        self._count += len(events)
        self._arrived.set()

    async def flush(self) -> bool:
        """Try once to store everything noted so far; whether that worked."""
        async with self._writing:
            taken, self._waiting, self._count = self._waiting, {}, 0
            by_tenant: dict[UUID, list[Batch]] = {}
            for (tenant_id, response_id), waiting in taken.items():
                by_tenant.setdefault(tenant_id, []).append(Batch(response_id, waiting.events, waiting.last))
            stored = [await self._store_batches(tenant_id, batches) for tenant_id, batches in by_tenant.items()]
        return all(stored)

    async def _write_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_S)
            self._arrived.clear()
            if not await self.flush():
                await asyncio.sleep(RETRY_S)
                self._arrived.set()

    async def _store_batches(self, tenant_id: UUID, batches: list[Batch]) -> bool:
        try:
            await self._store.append(tenant_id, batches, self._worker)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            log.warning("events of %d responses could not be stored yet: %r", len(batches), error)
            self._put_back(tenant_id, batches)
            return False
        return True

    def _put_back(self, tenant_id: UUID, batches: list[Batch]) -> None:
        """In front of what was noted meanwhile."""
        for batch in batches:
            waiting = self._waiting.setdefault((tenant_id, batch.response_id), _Waiting())
            waiting.events[:0] = batch.events
            waiting.last = waiting.last or batch.last
            self._count += len(batch.events)

    def _let_go(self) -> None:
        log.error("the database has been away for too long: the events of %d responses are lost", len(self._waiting))
        self._waiting.clear()
        self._count = 0
