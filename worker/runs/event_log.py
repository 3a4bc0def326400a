"""The way of events to Postgres: in batches, beside the answer, so that no token waits for a disk."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from agents.message import Item, Message
from agents.payload import from_payload
from migrations.pool import DATABASE_AWAY
from worker.batch_writer import BatchWriter
from worker.runs.running_store import Batch, RunningStore
from worker.wire import sse
from worker.wire.events import WireEvent

log = logging.getLogger("firsttoken.runs")

WAITING_MAX = 100_000  # events of some 300 bytes: what the database may be away for before they are dropped


@dataclass(slots=True)
class _Waiting:
    frames: list[bytes] = field(default_factory=list)
    number: int = -1  # of the last one
    last: bool = False


class EventLog:
    """`note` costs a microsecond and never waits. Events are stored in order; a failed write is tried again."""

    def __init__(self, store: RunningStore, worker: int) -> None:
        self._store = store
        self._worker = worker
        self._waiting: dict[tuple[UUID, str], _Waiting] = {}
        self._count = 0
        self._writer = BatchWriter("journal", self._store_waiting)

    def start(self) -> None:
        self._writer.start()

    async def close(self) -> None:
        """Store what is waiting, then stop."""
        await self._writer.close()

    async def flush(self) -> bool:
        """Try once to store everything noted so far; whether that worked."""
        return await self._writer.flush()

    def note(
        self, tenant_id: UUID, response_id: str, frames: Sequence[bytes], number: int, *, last: bool = False
    ) -> None:
        """`number` is that of the last frame. `last`: the response has ended and nothing follows."""
        if self._count > WAITING_MAX:
            self._drop()
        waiting = self._waiting.get((tenant_id, response_id))
        if waiting is None:
            waiting = self._waiting[tenant_id, response_id] = _Waiting()
            self._writer.notify()
        waiting.frames += frames
        waiting.number, waiting.last = number, last
        self._count += len(frames)

    async def _store_waiting(self) -> bool:
        taken, self._waiting, self._count = self._waiting, {}, 0
        by_tenant: dict[UUID, list[Batch]] = {}
        for (tenant_id, response_id), waiting in taken.items():
            events = list(map(sse.data_of, waiting.frames))
            by_tenant.setdefault(tenant_id, []).append(Batch(response_id, events, waiting.number, waiting.last))
        stored = [await self._store_batches(tenant_id, batches, taken) for tenant_id, batches in by_tenant.items()]
        return all(stored)

    async def _store_batches(
        self, tenant_id: UUID, batches: Sequence[Batch], taken: dict[tuple[UUID, str], _Waiting]
    ) -> bool:
        try:
            await self._store.append(tenant_id, batches, self._worker)
        except DATABASE_AWAY as error:
            log.warning("events of %d responses could not be stored yet: %r", len(batches), error)
            for batch in batches:
                self._put_back((tenant_id, batch.response_id), taken[tenant_id, batch.response_id])
            return False
        except Exception:  # the boundary: what Postgres refuses it would refuse for ever, and hold up all others
            log.exception("events of %d responses cannot be stored", len(batches))
            return all([await self._store_batches(tenant_id, rest, taken) for rest in _without_refused(batches)])
        return True

    def _put_back(self, key: tuple[UUID, str], earlier: _Waiting) -> None:
        """In front of what was noted meanwhile."""
        self._count += len(earlier.frames)
        later = self._waiting.get(key)
        if later is not None:
            earlier.frames += later.frames
            earlier.number, earlier.last = max(earlier.number, later.number), earlier.last or later.last
        self._waiting[key] = earlier

    def _drop(self) -> None:
        log.error("the database was unavailable for too long: the events of %d responses are lost", len(self._waiting))
        self._waiting.clear()
        self._count = 0


def _without_refused(batches: Sequence[Batch]) -> list[list[Batch]]:
    """What is left to try: each batch by itself, and of a single one the end of its response without the events."""
    if len(batches) > 1:
        return [[batch] for batch in batches]
    return [[replace(batch, events=())] for batch in batches if batch.events]


def rebuilt(events: Iterable[WireEvent]) -> tuple[Item, ...]:
    """The items of an answer from its events, all that is left when its worker was killed: the finished items, and of
    an unfinished message the text so far.
    """
    items: dict[int, Item] = {}
    texts: dict[int, list[str]] = {}
    ids: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "response.output_item.done", "output_index": index, "item": item}:
                items[index] = from_payload({**item, "results": item.get("results") or ()})
            case {"type": "response.output_text.delta", "output_index": index, "item_id": id, "delta": delta}:
                ids[index] = id
                texts.setdefault(index, []).append(delta)
    for index in texts.keys() - items.keys():
        items[index] = Message("assistant", "".join(texts[index]), status="incomplete", id=ids[index])
    return tuple(item for _, item in sorted(items.items()))
