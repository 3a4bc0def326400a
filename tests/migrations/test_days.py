"""Events and spans are kept by day, and a day is dropped as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from migrations.pool import Database


@pytest.fixture
async def owner(owner_dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(owner_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def today(owner: asyncpg.Connection[asyncpg.Record]) -> date:
    """Another one, maybe, than when the database was made: then its days are made as workers make them."""
    await owner.execute("select make_days(3)")
    found: date = await owner.fetchval("select (now() at time zone 'utc')::date")
    return found


@pytest.fixture
async def tenant(owner: asyncpg.Connection[asyncpg.Record]) -> UUID:
    made: UUID = await owner.fetchval("select ensure_tenant($1)", f"test-{uuid4()}")
    return made


async def day_of(owner: asyncpg.Connection[asyncpg.Record], table: str, day: date) -> None:
    name = f"{table}_{day:%Y%m%d}"
    await owner.execute(
        f"create table if not exists {name} partition of {table} for values from ('{day}') to ('{day + timedelta(1)}')"
    )


async def days(owner: asyncpg.Connection[asyncpg.Record], table: str) -> set[str]:
    rows = await owner.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::regclass", table
    )
    return {row["name"].removeprefix(f"{table}_") for row in rows}


async def tell(owner: asyncpg.Connection[asyncpg.Record], tenant: UUID, told: dict[str, date]) -> None:
    """Responses that ended long ago, each with an event of a day."""
    for id, day in told.items():
        await owner.execute(
            "insert into responses (tenant_id, id, status, created_at, completed_at, input, body) "
            "values ($1, $2, 'completed', now(), now() - interval '90 days', '[]', '{}')",
            *(tenant, id),
        )
        await owner.execute(
            "insert into response_events (tenant_id, response_id, sequence_number, payload, day) "
            "values ($1, $2, 0, '{}', $3)",
            *(tenant, id, day),
        )


async def test_there_is_a_day_for_today_and_for_those_to_come(
    owner: asyncpg.Connection[asyncpg.Record], today: date
) -> None:
    coming = {f"{today + timedelta(ahead):%Y%m%d}" for ahead in range(3)}
    for table in ("response_events", "spans"):
        assert {*coming, "beside"} <= await days(owner, table)


async def test_days_that_are_over_are_dropped_and_what_had_none_is_deleted(
    owner: asyncpg.Connection[asyncpg.Record], database: Database, tenant: UUID, today: date
) -> None:
    old, kept = today - timedelta(9), today - timedelta(1)
    for day in (old, kept):
        await day_of(owner, "response_events", day)
    await tell(owner, tenant, {"resp_old": old, "resp_kept": kept, "resp_without_a_day": today - timedelta(30)})
    async with database.anonymous() as connection:
        await connection.execute("select forget_response_events(interval '3 days')")
    left = await owner.fetch("select response_id from response_events where tenant_id = $1", tenant)
    assert [row["response_id"] for row in left] == ["resp_kept"]
    assert f"{old:%Y%m%d}" not in await days(owner, "response_events")
    assert f"{kept:%Y%m%d}" in await days(owner, "response_events")
    await owner.execute("delete from responses where tenant_id = $1", tenant)  # takes the events along
    assert not await owner.fetch("select from response_events where tenant_id = $1", tenant)
    await owner.execute(f"drop table response_events_{kept:%Y%m%d}")


async def test_a_worker_can_neither_read_a_day_past_the_policies_nor_drop_one(
    database: Database, owner: asyncpg.Connection[asyncpg.Record], today: date
) -> None:
    statements = (
        f"select from response_events_{today:%Y%m%d}",
        f"select from spans_{today:%Y%m%d}",
        "select drop_days('spans', current_date + 1)",
        "select make_days(1000)",
    )
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with database.anonymous() as connection:
                await connection.execute(statement)
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await owner.execute("select drop_days('responses', current_date)")
