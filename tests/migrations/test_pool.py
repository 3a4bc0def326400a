"""Which connections are kept, and what their users are told when the server stands still or an answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import NoneType
from uuid import UUID, uuid4

import asyncpg
import pytest

from migrations import pool
from migrations.embedded import EmbeddedPostgres
from migrations.pool import CommitUnknown, Database, _is_local, certain
from tests.proxy import Proxy, proxied

NOBODY = UUID(int=0)


@pytest.fixture
async def proxy(postgres: EmbeddedPostgres, owner_dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(postgres.app_dsn) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[Database]:
    """The database behind the proxy, by two connections."""
    database = await Database.connect(proxy.dsn, size_max=2)
    async with database.anonymous(), database.anonymous():
        pass  # both are there, and nobody waits for one of them to be made
    yield database
    proxy.cut()
    await database.close()


async def test_who_is_late_at_a_server_that_stands_still_is_late_by_half_a_second(far: Database, proxy: Proxy) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), far.anonymous() as connection:
            proxy.stand_still()
            await connection.execute("select 1")  # without a bound its end would be waited for until the server goes on
    proxy.go_on()
    async with far.anonymous() as connection:
        assert await connection.fetchval("select 1") == 1


async def test_a_connection_to_a_standby_gives_way_to_one_to_the_primary(
    postgres: EmbeddedPostgres, owner_dsn: str
) -> None:
    """A name may lead to a server that takes no writes any more, and later to another: its connections would stay."""
    owner, name = await asyncpg.connect(owner_dsn), f"standby_{uuid4().hex}"
    await owner.execute(f"create database {name}")
    try:
        await owner.execute(f"alter database {name} set default_transaction_read_only = on")  # of new sessions
        database = await Database.connect(postgres.app_dsn.replace("/postgres?", f"/{name}?"), size_max=1)
        await owner.execute(f"alter database {name} reset default_transaction_read_only")
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await database.check()
        await database.check()
        await database.close()
    finally:
        await owner.execute(f"drop database {name} with (force)")
        await owner.close()


async def test_nobody_waits_for_ever_for_a_connection(
    far: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ACQUIRE_S", 0.1)
    async with far.anonymous(), far.anonymous():
        with pytest.raises(TimeoutError):
            async with far.anonymous():
                pass


async def doze(database: Database, seconds: float = 0.05) -> None:
    async with database.anonymous() as connection:
        await connection.execute("select pg_sleep($1)", seconds)


async def test_who_waits_in_a_queue_that_moves_is_served(far: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ACQUIRE_S", 1.0)
    await asyncio.gather(*(doze(far, 0.12) for _ in range(20)))  # by two connections: longer than that in all


async def test_nobody_waits_for_ever_in_a_queue_that_moves(far: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ACQUIRE_S", 0.1)
    monkeypatch.setattr(pool, "QUEUE_S_MAX", 0.2)
    told = await asyncio.gather(*(doze(far) for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in told} == {NoneType, TimeoutError}


async def test_a_commit_whose_answer_is_lost_is_neither_done_nor_undone(far: Database, proxy: Proxy) -> None:
    proxy.commits_lost = 1
    with pytest.raises(CommitUnknown):
        async with far.tenant(NOBODY) as connection:
            await connection.execute("select 1")
    async with far.tenant(NOBODY) as connection:
        assert await connection.fetchval("select 1") == 1


async def test_what_must_be_certain_is_repeated_until_it_is(far: Database, proxy: Proxy) -> None:
    proxy.commits_lost, attempts = 2, 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        async with far.tenant(NOBODY) as connection:
            await connection.execute("select 1")
        return attempts

    assert await certain(attempt, 5.0) == 3


async def test_what_cannot_become_certain_in_time_says_so(far: Database, proxy: Proxy) -> None:
    proxy.commits_lost = 1000

    async def attempt() -> None:
        async with far.tenant(NOBODY) as connection:
            await connection.execute("select 1")

    with pytest.raises(CommitUnknown):
        await certain(attempt, 0.5)


def test_the_embedded_server_is_local(postgres: EmbeddedPostgres) -> None:
    assert _is_local(postgres.app_dsn)


@pytest.mark.parametrize(
    ("dsn", "local"),
    [
        ("postgresql:///firsttoken", False),
        ("postgresql://me@/firsttoken?host=/var/run/postgresql", True),
        ("postgresql://me@db.example/firsttoken", False),
        ("postgresql://me@/firsttoken?host=db.example", False),
        ("postgresql://me@10.0.0.7:5433/firsttoken?sslmode=require", False),
    ],
)
def test_only_sockets_of_this_machine_are_local(dsn: str, local: bool) -> None:
    assert _is_local(dsn) is local
