"""Writes that come together are done together, and each is told what became of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from migrations.pool import CommitUnknown
from worker.database import BATCH_MAX, GroupCommit

OURS, THEIRS = uuid4(), uuid4()


class Desk:
    """Does what it is given once it is `open`; refuses what is negative, and whatever comes with it."""

    def __init__(self) -> None:
        self.done: list[Sequence[int]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.taken = asyncio.Semaphore(0)

    async def do(self, tenant_id: UUID, items: Sequence[int]) -> None:
        self.done.append(items)
        self.taken.release()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if any(item < 0 for item in items):
            raise ValueError(items)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_what_comes_meanwhile_is_done_together(desk: Desk) -> None:
    group_commit = GroupCommit(desk.do)
    told = [asyncio.create_task(group_commit.put(OURS, number)) for number in range(1000)]
    await asyncio.sleep(0)
    desk.open.set()
    await asyncio.gather(*told)
    assert len(desk.done) == -(-999 // BATCH_MAX) + 1  # the first one waits for nobody
    assert [number for items in desk.done for number in items] == [*range(1000)]
    assert not group_commit._waiting and not group_commit._in_progress


async def test_tenants_do_not_wait_for_each_other(desk: Desk) -> None:
    group_commit = GroupCommit(desk.do)
    told = [asyncio.create_task(group_commit.put(tenant, 1)) for tenant in (OURS, THEIRS)]
    for _ in told:
        await desk.taken.acquire()
    desk.open.set()
    await asyncio.gather(*told)


async def test_what_is_refused_refuses_nothing_else(desk: Desk) -> None:
    group_commit = GroupCommit(desk.do)
    desk.open.set()
    told = [asyncio.create_task(group_commit.put(OURS, number)) for number in (0, 2, -1, 4)]
    found = await asyncio.gather(*told, return_exceptions=True)
    assert [isinstance(each, ValueError) for each in found] == [False, False, True, False]


async def test_a_database_that_is_away_is_asked_once(desk: Desk) -> None:
    group_commit, desk.error = GroupCommit(desk.do), CommitUnknown()
    told = [asyncio.create_task(group_commit.put(OURS, number)) for number in range(10)]
    desk.open.set()
    found = await asyncio.gather(*told, return_exceptions=True)
    assert all(isinstance(each, CommitUnknown) for each in found)
    assert len(desk.done) == 2


async def test_what_nobody_waits_for_any_more_is_broken_off_and_what_waits_is_left_out(desk: Desk) -> None:
    group_commit = GroupCommit(desk.do)
    under_way, waiting = (asyncio.create_task(group_commit.put(OURS, number)) for number in (1, 2))
    await desk.taken.acquire()
    under_way.cancel()
    waiting.cancel()
    await asyncio.wait([under_way, waiting])
    await group_commit.settled(OURS)
    assert desk.done == [[1]]
    desk.open.set()
    await group_commit.put(OURS, 4)
    assert desk.done == [[1], [4]]
