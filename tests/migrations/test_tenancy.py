"""Row-level security keeps tenants apart, whatever the queries above it say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database, UnsafeRole
from migrations.runner import migrate

INSERT = "insert into conversations (tenant_id, id) values ($1, $2)"


async def test_every_table_of_tenants_has_row_security_and_a_policy_by_tenant(owner_dsn: str) -> None:
    """Reads the catalogue, so a table added without a policy fails here by name."""
    connection = await asyncpg.connect(owner_dsn)
    rows = await connection.fetch(
        """
        select c.relname, c.relrowsecurity,
               exists (select from pg_policies p
                        where p.tablename = c.relname and p.cmd = 'ALL'
                          and replace(p.qual, '( SELECT current_tenant() AS current_tenant)', 'current_tenant()')
                              like '%tenant_id = current_tenant()%'
                          and p.with_check like '%tenant_id = current_tenant()%') as has_policy
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
         where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
        """
    )
    await connection.close()
    assert len(rows) >= 13
    assert [row["relname"] for row in rows if not (row["relrowsecurity"] and row["has_policy"])] == []


async def test_every_table_the_worker_may_touch_is_guarded(owner_dsn: str) -> None:
    connection = await asyncpg.connect(owner_dsn)
    open_tables = await connection.fetch(
        """
        select relname from pg_class
         where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace and not relrowsecurity
           and has_table_privilege('firsttoken_app', oid, 'select, insert, update, delete, truncate')
        """
    )
    await connection.close()
    assert [row["relname"] for row in open_tables] == []


async def test_a_tenant_never_sees_anothers_rows(database: Database, tenant_id: UUID, other_tenant_id: UUID) -> None:
    async with database.tenant(tenant_id) as connection:
        await connection.execute(INSERT, tenant_id, "conv_mine")
    async with database.tenant(other_tenant_id) as connection:
        assert await connection.fetch("select id from conversations") == []
        assert await connection.execute("delete from conversations") == "DELETE 0"
    async with database.tenant(tenant_id) as connection:
        assert await connection.fetchval("select id from conversations") == "conv_mine"


async def test_a_tenant_cannot_write_a_row_of_another(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.tenant(tenant_id) as connection:
            await connection.execute(INSERT, other_tenant_id, "conv_forged")


async def test_a_tenant_cannot_give_its_row_to_another(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    async with database.tenant(tenant_id) as connection:
        await connection.execute(INSERT, tenant_id, "conv_gift")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.tenant(tenant_id) as connection:
            await connection.execute("update conversations set tenant_id = $1", other_tenant_id)


async def test_a_tenants_view_ends_with_its_transaction(postgres: EmbeddedPostgres, tenant_id: UUID) -> None:
    """One connection in the pool, so the next user surely gets the one that a tenant had."""
    database = await Database.connect(postgres.app_dsn, size_max=1)
    async with database.tenant(tenant_id) as connection:
        await connection.execute(INSERT, tenant_id, "conv_before")
    async with database.anonymous() as connection:
        assert await connection.fetch("select id from conversations") == []
    await database.close()


async def test_what_a_session_was_told_ends_with_it(postgres: EmbeddedPostgres, tenant_id: UUID) -> None:
    database = await Database.connect(postgres.app_dsn, size_max=1)
    async with database.anonymous() as connection:
        await connection.execute("select set_config('app.tenant_id', $1, false), pg_advisory_lock(7)", str(tenant_id))
    async with database.anonymous() as connection:
        assert not await connection.fetchval("select current_setting('app.tenant_id', true)")
        assert not await connection.fetchval("select count(*) from pg_locks where locktype = 'advisory' and objid = 7")
    await database.close()


async def test_what_fails_or_is_cancelled_leaves_nothing(postgres: EmbeddedPostgres, tenant_id: UUID) -> None:
    database = await Database.connect(postgres.app_dsn, size_max=1)
    begun = asyncio.Event()

    async def written(then: str) -> None:
        async with database.tenant(tenant_id) as connection:
            await connection.execute(INSERT, tenant_id, f"conv_{then}")
            begun.set()
            await connection.execute(f"select {then}")

    with pytest.raises(asyncpg.DivisionByZeroError):
        await written("1 / 0")
    begun.clear()
    task = asyncio.create_task(written("pg_sleep(60)"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.tenant(tenant_id) as connection:
        assert await connection.fetch("select id from conversations") == []
    async with database.anonymous() as connection:
        assert not await connection.fetchval("select current_setting('app.tenant_id', true)")
    await database.close()


async def test_an_operator_reads_everyones_traces_and_nothing_else(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    for tenant in (tenant_id, other_tenant_id):
        async with database.tenant(tenant) as connection:
            await connection.execute(INSERT, tenant, "conv_private")
            await connection.execute(
                "insert into traces (tenant_id, id, started_at, duration_ms, status, surface, model)"
                " values ($1, $2, now(), 1, 'completed', 'chat', 'demo')",
                tenant,
                uuid4().hex,
            )
    async with database.operator() as connection:
        seen = await connection.fetch("select distinct tenant_id from traces")
        assert {tenant_id, other_tenant_id} <= {row["tenant_id"] for row in seen}
        assert await connection.fetch("select id from conversations") == []


async def test_an_operator_cannot_write(database: Database) -> None:
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with database.operator() as connection:
            await connection.execute("delete from traces")


async def test_the_worker_refuses_to_serve_as_a_superuser(owner_dsn: str) -> None:
    with pytest.raises(UnsafeRole, match="'postgres' is a superuser or owns the tables"):
        await Database.connect(owner_dsn)


async def test_the_worker_refuses_to_serve_as_an_owner_of_tables(owner_dsn: str) -> None:
    role = f"owner_{uuid4().hex}"
    owner = await asyncpg.connect(owner_dsn)
    await owner.execute(f"create role {role} login; create table {role} (tenant_id uuid)")
    await owner.execute(f"alter table {role} enable row level security; alter table {role} owner to {role}")
    try:
        with pytest.raises(UnsafeRole, match=role):
            await Database.connect(owner_dsn.replace("postgres@", f"{role}@"))
    finally:
        await owner.execute(f"drop table {role}; drop role {role}")
        await owner.close()


async def test_a_mighty_login_may_serve_in_the_plain_role(owner_dsn: str, tenant_id: UUID) -> None:
    database = await Database.connect(owner_dsn, role="firsttoken_app")
    async with database.anonymous() as connection:
        assert await connection.fetchval("select current_user") == "firsttoken_app"
        assert await connection.fetch("select id from tenants") == []
    await database.close()


async def test_an_ordinary_owner_of_a_database_migrates_it_and_serves_in_the_plain_role(home: Path) -> None:
    """A server of its own: on the shared one the plain role exists already, and is not this owner's to grant."""
    with EmbeddedPostgres(home) as server:
        admin = await asyncpg.connect(server.owner_dsn)
        await admin.execute("create role ordinary login createrole")
        await admin.execute("create database theirs owner ordinary")
        await admin.close()
        dsn = server.owner_dsn.replace("/postgres?", "/theirs?")
        admin = await asyncpg.connect(dsn)
        await admin.execute("create extension vector")
        await admin.close()
        dsn = dsn.replace("postgres@", "ordinary@")
        await migrate(dsn)
        assert await migrate(dsn) == []
        with pytest.raises(UnsafeRole, match="'ordinary'"):
            await Database.connect(dsn)
        database = await Database.connect(dsn, role="firsttoken_app")
        async with database.anonymous() as connection:
            assert await connection.fetchval("select current_user") == "firsttoken_app"
        await database.close()
