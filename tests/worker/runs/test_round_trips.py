"""What an answer costs a database that is far away: counted on the wire."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from agents.errors import NotFound
from agents.message import new_id
from agents.store import ConversationStore, ResponseRecord
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Act, Database
from tests.agents.turns import user
from tests.far_postgres import Answers, FarPostgres
from worker.runs.continuation import Batch, batch_rows, ending_row
from worker.runs.running_store import RunningStore
from worker.wire.events import encode

WORKER, ANOTHER = 31, 32  # no session holds their locks
EVENT = encode({"type": "x", "sequence_number": 0})


class Far:
    """A database on a wire that counts."""

    def __init__(self, proxy: FarPostgres, database: Database) -> None:
        self.proxy, self.database = proxy, database
        self.running = RunningStore(database)
        self._before = 0

    def begin(self) -> None:
        self._before = self.proxy.counts.round_trips

    @property
    def round_trips(self) -> int:
        return self.proxy.counts.round_trips - self._before


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the name of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
async def far(postgres: EmbeddedPostgres, owner_dsn: str, folder: Path) -> AsyncIterator[Far]:
    async with FarPostgres(postgres.app_dsn, folder).serving() as proxy:
        database = await Database.connect(proxy.dsn)
        yield Far(proxy, database)
        await database.close()


async def tenants(owner_dsn: str, count: int) -> list[UUID]:
    owner = await asyncpg.connect(owner_dsn)
    made = [await owner.fetchval("select ensure_tenant($1)", f"test-{uuid4()}") for _ in range(count)]
    await owner.close()
    return made


def record() -> ResponseRecord:
    return ResponseRecord(new_id("resp"), "in_progress", {"output": []}, datetime.now(UTC), None, (user("x'\\$$"),))


async def test_what_stands_before_a_question_is_read_in_one_round_trip(far: Far, owner_dsn: str) -> None:
    mine, other = await tenants(owner_dsn, 2)
    store = ConversationStore(far.database)
    said = [user("one"), user("two")]
    id = (await store.create(mine, items=said)).id
    assert await store.history(mine, id) == tuple(said)  # plans the statement
    far.begin()
    assert await store.history(mine, id) == tuple(said)
    assert far.round_trips == 1
    with pytest.raises(NotFound):
        await store.history(other, id)
    # The tenant is forgotten with the statement, whoever has the connection next.
    async with far.database.anonymous() as connection:
        assert await connection.fetchval("select current_tenant()") is None


async def test_a_beginning_is_stored_in_one_round_trip_and_not_over_that_of_another_worker(
    far: Far, owner_dsn: str
) -> None:
    (tenant,) = await tenants(owner_dsn, 1)
    mine = record()
    await far.running.begin(tenant, record(), WORKER)  # plans the statement
    far.begin()
    await far.running.begin(tenant, mine, WORKER)
    assert far.round_trips == 1
    await far.running.begin(tenant, mine, WORKER)  # again does nothing
    with pytest.raises(NotFound):
        await far.running.begin(tenant, mine, ANOTHER)
    assert (await far.running.read(tenant, mine.id, -1)).body == {"output": []}


async def test_the_statement_that_stores_a_response_says_nothing_of_it(far: Far, owner_dsn: str) -> None:
    """The server shows and logs statements, not their arguments."""
    (tenant,) = await tenants(owner_dsn, 1)
    await far.running.begin(tenant, record(), WORKER)
    owner = await asyncpg.connect(owner_dsn)
    shown = await owner.fetch(
        "select query from pg_stat_activity where query like '%begin_responses(%' and pid <> pg_backend_pid()"
    )
    assert shown and not any(str(tenant) in row["query"] for row in shown)
    await owner.close()


async def test_a_statement_that_is_refused_takes_one_round_trip_too(far: Far, owner_dsn: str) -> None:
    (tenant,) = await tenants(owner_dsn, 1)
    unknown = Act("append_response_events", tenant, batch_rows([Batch(new_id("resp"), [EVENT], 0)], ()), WORKER)
    far.begin()
    with pytest.raises(asyncpg.NoDataFoundError):
        await far.database.carry_out([unknown])
    assert far.round_trips == 1  # there is nothing to roll back
    with pytest.raises(asyncpg.NoDataFoundError):
        await far.database.carry_out([unknown, unknown])
    async with far.database.anonymous() as connection:  # of use as before
        assert await connection.fetchval("select current_tenant()") is None


async def test_events_of_all_tenants_are_stored_in_one_round_trip(far: Far, owner_dsn: str) -> None:
    made = {tenant: record() for tenant in await tenants(owner_dsn, 3)}
    for tenant, each in made.items():
        await far.running.begin(tenant, each, WORKER)
    batches = {tenant: [Batch(each.id, [EVENT], 0)] for tenant, each in made.items()}
    far.begin()
    assert await far.running.append_all(batches, WORKER)
    assert far.round_trips == 1
    for tenant, each in made.items():
        assert [event["type"] for event in (await far.running.read(tenant, each.id, -1)).events] == ["x"]
    assert await far.running.append_all({t: [Batch(each.id, [], 0, last=True)] for t, each in made.items()}, WORKER)
    assert all([(await far.running.read(tenant, each.id, -1)).sealed for tenant, each in made.items()])


async def test_where_one_response_is_in_other_hands_or_of_another_tenant_nothing_of_all_is_stored(
    far: Far, owner_dsn: str
) -> None:
    one, other = await tenants(owner_dsn, 2)
    mine, foreign = record(), record()
    await far.running.begin(one, mine, WORKER)
    await far.running.begin(other, foreign, ANOTHER)
    good = Batch(mine.id, [EVENT], 0)
    for batches in (
        {one: [good], other: [Batch(foreign.id, [EVENT], 0)]},  # in other hands
        {one: [good, Batch(foreign.id, [EVENT], 0)]},  # of another tenant
    ):
        assert not await far.running.append_all(batches, WORKER)
        assert not (await far.running.read(one, mine.id, -1)).events
    assert await far.running.append_all({one: [good]}, WORKER)  # the connection is of use as before


def test_round_trips_are_counted_however_the_answers_are_cut() -> None:
    said = (b"C" + (9).to_bytes(4, "big") + b"ZZZZZ" + b"Z" + (5).to_bytes(4, "big") + b"I") * 3
    for size in (1, 2, 3, 7, 100):
        answers = Answers()
        assert sum(answers.feed(said[at : at + size]) for at in range(0, len(said), size)) == 3


def ended(begun: ResponseRecord, *turns: tuple[bytes, tuple[int, ...]]) -> ResponseRecord:
    return replace(begun, status="completed", completed_at=datetime.now(UTC), remembered=turns)


async def test_ends_of_one_tenant_that_come_together_are_stored_in_two_round_trips(far: Far, owner_dsn: str) -> None:
    (tenant,) = await tenants(owner_dsn, 1)
    made = [record() for _ in range(5)]
    for each in made:
        await far.running.begin(tenant, each, WORKER)
    far.begin()
    turns = [(bytes([number]) * 8, (number, 70_000)) for number in range(len(made))]
    ends = [ended(each, turn) for each, turn in zip(made, turns, strict=True)]
    stored = [far.running.finish(tenant, each, WORKER, Batch(each.id, [EVENT], 0, last=True)) for each in ends]
    assert await asyncio.gather(*stored) == [None] * len(made)
    assert far.round_trips == 2  # the first is stored at once, and the others with each other
    for each in ends:
        page = await far.running.read(tenant, each.id, -1)
        assert [event["type"] for event in page.events] == ["x"]
    assert sorted(await far.running.generated_turns(tenant, [digest for digest, _ in turns])) == turns
    await far.running.finish(tenant, ends[0], WORKER, Batch(made[0].id, [EVENT], 0, last=True))  # again does nothing
    assert len((await far.running.read(tenant, made[0].id, -1)).events) == 1


async def test_an_end_of_what_another_worker_owns_is_refused_and_those_beside_it_are_stored(
    far: Far, owner_dsn: str
) -> None:
    (tenant,) = await tenants(owner_dsn, 1)
    mine, foreign = record(), record()
    await far.running.begin(tenant, mine, WORKER)
    await far.running.begin(tenant, foreign, ANOTHER)
    stored = [
        far.running.finish(tenant, ended(each), WORKER, Batch(each.id, [EVENT], 0, last=True))
        for each in (mine, foreign, foreign)
    ]
    first, *others = await asyncio.gather(*stored, return_exceptions=True)
    assert first is None
    assert [type(each) for each in others] == [NotFound, NotFound]
    assert not (await far.running.read(tenant, foreign.id, -1)).events


@pytest.mark.parametrize("writes", ["ends", "events"])
async def test_whoever_writes_several_responses_locks_them_in_one_order(far: Far, owner_dsn: str, writes: str) -> None:
    (tenant,) = await tenants(owner_dsn, 1)
    made = sorted((record() for _ in range(2)), key=lambda each: each.id)
    for each in made:
        await far.running.begin(tenant, each, WORKER)
    batches = [Batch(each.id, [EVENT], 0) for each in reversed(made)]
    ends = [ending_row(ended(each), batch) for each, batch in zip(reversed(made), batches, strict=True)]
    acts = {
        "ends": Act("end_responses", tenant, b"[%b]" % b",".join(ends), WORKER),
        "events": Act("append_response_events", tenant, batch_rows(batches, ()), WORKER),
    }
    owner, other = await asyncpg.connect(owner_dsn), await asyncpg.connect(owner_dsn)
    lock = "select from responses where id = $1 for update nowait"
    async with owner.transaction():
        await owner.execute(lock, made[1].id)
        writing = asyncio.create_task(far.database.carry_out([acts[writes]]))
        holder = await owner.fetchval("select pg_backend_pid()")
        waits = "select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))"
        while not await other.fetchval(waits, holder):
            pass
        with pytest.raises(asyncpg.LockNotAvailableError):  # the first is taken while the second is waited for
            await other.execute(lock, made[0].id)
    await writing
    await owner.close()
    await other.close()
