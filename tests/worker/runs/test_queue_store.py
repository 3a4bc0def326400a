"""A response is in one worker's hands at a time: whoever comes too late changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from agents.errors import NotFound
from agents.message import new_id
from agents.store import ResponseRecord, ResponseStore
from inference.generation import Priority
from migrations.pool import Database
from tests.agents.turns import user
from worker.runs.continuation import Batch
from worker.runs.queue_store import Job, QueueStore
from worker.runs.running_store import OwnedResponse, RunningStore
from worker.wire.events import encode

GONE, NEXT = 11, 12  # no session holds the locks of either
BODY: dict[str, Any] = {"output": []}
ERROR = {"code": "server_error", "message": "gone"}
EVENTS = [{"type": "response.created", "sequence_number": 0}]
LATER = encode({"type": "response.output_text.delta", "sequence_number": 1})


@pytest.fixture
def queue(database: Database) -> QueueStore:
    return QueueStore(database)


@pytest.fixture
async def waiting(queue: QueueStore, tenant_id: UUID, owner_dsn: str) -> AsyncIterator[ResponseRecord]:
    """A response in the queue, alone there."""
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("delete from queued_responses")
    record = ResponseRecord(new_id("resp"), "queued", BODY, datetime.now(UTC), None, (user("ask"),), (), None, None)
    await queue.add(tenant_id, record, Job({}, {}, Priority.STANDARD), EVENTS)
    yield record
    await connection.execute("delete from responses where id = $1", record.id)
    await connection.close()


async def take(queue: QueueStore, worker: int) -> OwnedResponse:
    taken = await queue.take(worker)
    assert taken is not None
    return taken


async def test_who_left_it_is_known(queue: QueueStore, running: RunningStore, waiting: ResponseRecord) -> None:
    taken = await take(queue, GONE)
    assert taken in await running.abandoned(NEXT, of_others=True)
    assert await queue.put_back(taken, died=True)
    assert waiting.id not in [each.response_id for each in await running.abandoned(NEXT, of_others=True)]


async def test_a_late_verdict_takes_nothing_from_the_next_worker(
    queue: QueueStore, running: RunningStore, responses: ResponseStore, waiting: ResponseRecord, tenant_id: UUID
) -> None:
    """Two workers find the same one abandoned, and a third has taken it when the slower of them acts."""
    left = await take(queue, GONE)
    assert await queue.put_back(left, died=True)
    now = await take(queue, NEXT)
    assert await queue.put_back(left, died=True)
    await running.give_up(left, ERROR)
    await queue.fail(left, ERROR)
    assert await queue.take(GONE) is None
    await queue.begin(now, BODY)
    await queue.settle(now)
    assert (await responses.get(tenant_id, waiting.id)).status == "in_progress"


async def test_a_worker_that_was_taken_for_dead_tells_nothing_more(
    queue: QueueStore, running: RunningStore, responses: ResponseStore, waiting: ResponseRecord, tenant_id: UUID
) -> None:
    late = await take(queue, GONE)
    await queue.put_back(late, died=True)
    await queue.begin(await take(queue, NEXT), BODY)
    with pytest.raises(NotFound):
        await queue.begin(late, BODY)
    with pytest.raises(NotFound):
        await queue.settle(late)
    with pytest.raises(NotFound):
        await running.finish(tenant_id, waiting, GONE, Batch(waiting.id, (), -1))
    await running.append(tenant_id, Batch(waiting.id, [LATER], number=1, last=True), GONE)
    chapter = await running.read(tenant_id, waiting.id, -1)
    assert (list(chapter.events), chapter.sealed) == (EVENTS, False)
    await running.append(tenant_id, Batch(waiting.id, [LATER], number=1, last=True), NEXT)
    assert (await running.read(tenant_id, waiting.id, -1)).sealed
