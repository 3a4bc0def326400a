"""Migrations: what is left to do is a pure question, applying it is one worker's job."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from migrations.runner import (
    Migration,
    MigrationError,
    bundled_migrations,
    check_server,
    examine,
    migrate,
    pending,
    why_unreachable,
)

ONE = Migration("0001_one", "create table one (id int)")
TWO = Migration("0002_two", "create table two (id int)")


@pytest.fixture
async def empty_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database of its own on the shared server."""
    name = f"migrate_{uuid4().hex}"
    connection = await asyncpg.connect(postgres.owner_dsn)
    await connection.execute(f"create database {name}")
    yield postgres.owner_dsn.replace("/postgres?", f"/{name}?")
    await connection.execute(f"drop database {name} with (force)")
    await connection.close()


def test_the_bundled_migrations_are_in_order_and_no_two_share_a_number() -> None:
    numbers = [int(migration.version.split("_")[0]) for migration in bundled_migrations()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


async def test_keys_of_before_there_were_scopes_keep_what_they_could_do(empty_dsn: str) -> None:
    before, after = _until("0019_credentials")
    await migrate(empty_dsn, before)
    connection = await asyncpg.connect(empty_dsn)
    tenant = await connection.fetchval("select ensure_tenant('acme')")
    for id, scopes in (("key_plain", []), ("key_operator", ["operator"])):
        await connection.execute(
            "insert into api_keys (id, tenant_id, name, hash, hint, scopes) values ($1, $2, $1, $3, 'ft_', $4)",
            *(id, tenant, id.encode(), scopes),
        )
    await migrate(empty_dsn, [*before, *after])
    rows = await connection.fetch("select id, scopes from api_keys")
    await connection.close()
    assert {row["id"]: set(row["scopes"]) for row in rows} == {
        "key_plain": {"chat", "ingest"},
        "key_operator": {"chat", "ingest", "ops"},
    }


def _until(version: str) -> tuple[list[Migration], list[Migration]]:
    """The migrations before this one, and the others."""
    bundled = list(bundled_migrations())
    at = [migration.version for migration in bundled].index(version)
    return bundled[:at], bundled[at:]


def test_nothing_is_pending_when_all_is_applied() -> None:
    assert pending([ONE, TWO], {ONE.version: ONE.sha256, TWO.version: TWO.sha256}) == []


def test_what_was_not_applied_is_pending_in_order() -> None:
    assert pending([ONE, TWO], {}) == [ONE, TWO]
    assert pending([ONE, TWO], {ONE.version: ONE.sha256}) == [TWO]


def test_a_migration_edited_after_it_was_applied_is_refused() -> None:
    with pytest.raises(MigrationError, match=r"0001_one\.sql was changed"):
        pending([replace(ONE, sql="create table won (id int)")], {ONE.version: ONE.sha256})


def test_a_database_from_the_future_is_refused() -> None:
    with pytest.raises(MigrationError, match=r"ahead of this version.*0002_two"):
        pending([ONE], {ONE.version: ONE.sha256, TWO.version: TWO.sha256})


@pytest.mark.parametrize("pgvector", ["0.8.0", "0.8.5", "0.10.1", "1.0"])
def test_a_server_with_iterative_scans_will_do(pgvector: str) -> None:
    check_server(15, pgvector)


@pytest.mark.parametrize(
    ("major", "pgvector", "sentence"),
    [
        (14, "0.8.5", "The server is Postgres 14: .* needs 15 or newer"),
        (17, None, "has no pgvector, .* needs 0.8 or newer: install it there .*postgresql-17-pgvector"),
        (16, "0.7.4", "has pgvector 0.7.4, .* needs 0.8"),
    ],
)
def test_a_server_that_will_not_do_is_told_what_it_needs(major: int, pgvector: str | None, sentence: str) -> None:
    with pytest.raises(MigrationError, match=sentence):
        check_server(major, pgvector)


async def test_migrating_twice_changes_nothing(empty_dsn: str) -> None:
    assert await migrate(empty_dsn) == [migration.version for migration in bundled_migrations()]
    assert await migrate(empty_dsn) == []


async def test_four_workers_at_once_apply_each_migration_once(empty_dsn: str) -> None:
    answers = await asyncio.gather(*(migrate(empty_dsn) for _ in range(4)))
    assert sorted(answers) == [[], [], [], [migration.version for migration in bundled_migrations()]]


async def test_a_failing_migration_leaves_nothing_behind_and_the_ones_before_it_done(empty_dsn: str) -> None:
    torn = Migration("0002_torn", "create table torn (id int); select 1 / 0;")
    with pytest.raises(MigrationError, match=r"0002_torn.* changed nothing: division by zero"):
        await migrate(empty_dsn, [ONE, torn])
    assert await migrate(empty_dsn, [ONE, TWO]) == ["0002_two"]
    connection = await asyncpg.connect(empty_dsn)
    assert await connection.fetchval("select to_regclass('torn')") is None
    await connection.close()


async def test_an_unreachable_server_is_one_sentence(empty_dsn: str) -> None:
    with pytest.raises(MigrationError, match=r"The database cannot be reached: .*nowhere"):
        await migrate(empty_dsn.replace("/migrate_", "/nowhere_"))


async def test_a_server_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migrations.pool.CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        dsn, told = f"postgresql://a:b@127.0.0.1:{port}/c", f"no answer from 127.0.0.1 port {port} within 0.05 s"
        with pytest.raises(MigrationError, match=f"{told}: check the host and the port in DATABASE_URL"):
            await migrate(dsn)
        with pytest.raises(TimeoutError, match=told):
            async with asyncio.timeout(30):  # half of what the driver would wait
                await Database.connect(dsn)
        several = dsn.replace("/c", f",127.0.0.1:{port}/c")
        with pytest.raises(MigrationError, match=r"no answer within 0\.05 s: check the host and the port"):
            await migrate(several)


async def test_a_user_that_the_server_does_not_know_is_told_to_check_the_url(empty_dsn: str) -> None:
    with pytest.raises(MigrationError, match=r"stranger.*check the user and the password in DATABASE_URL"):
        await migrate(empty_dsn.replace("postgres@", "stranger@"))


async def test_a_database_that_is_read_only_like_a_standby_is_said_to_be(empty_dsn: str) -> None:
    owner = await asyncpg.connect(empty_dsn)
    await owner.execute(
        f"alter database {empty_dsn.split('/')[3].split('?')[0]} set default_transaction_read_only = on"
    )
    await owner.close()
    with pytest.raises(MigrationError, match=r"read-only, such as a standby.*name the primary in DATABASE_URL"):
        await migrate(empty_dsn)


async def test_what_would_keep_a_start_from_its_database_is_found_without_changing_it(empty_dsn: str) -> None:
    assert (await examine(empty_dsn)).lacks is None  # the first start makes all of it
    *older, newest = bundled_migrations()
    await migrate(empty_dsn, older)
    assert (await examine(empty_dsn)).lacks == 1
    assert await migrate(empty_dsn) == [newest.version]
    assert (await examine(empty_dsn)).lacks == 0
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("insert into schema_migrations (version, sha256) values ('9999_future', '')")
    with pytest.raises(MigrationError, match="run the newer version"):
        await examine(empty_dsn)
    await connection.execute(
        "alter database current_database set default_transaction_read_only = on".replace(
            "current_database", empty_dsn.split("/")[3].split("?")[0]
        )
    )
    await connection.close()
    with pytest.raises(MigrationError, match=r"read-only, such as a standby.*name the primary in DATABASE_URL"):
        await examine(empty_dsn)


@pytest.mark.parametrize("act", [migrate, examine])
async def test_a_database_that_was_restored_without_its_role_is_said_to_need_it(
    empty_dsn: str, act: Callable[[str], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pg_restore leaves it on another server: the role is none of the database's, and without it no grant is one."""
    await migrate(empty_dsn)
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("revoke all on all tables in schema public from firsttoken_app")
    await connection.close()
    with pytest.raises(MigrationError, match=r"`create role firsttoken_app login; grant firsttoken_app to postgres;`"):
        await act(empty_dsn)
    monkeypatch.setattr("migrations.runner.APP_ROLE", "nobody_at_all")
    with pytest.raises(MigrationError, match="nobody_at_all has no rights here"):
        await act(empty_dsn)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            asyncpg.InvalidPasswordError('password authentication failed for user "a"'),
            "check the user and the password",
        ),
        (asyncpg.InvalidCatalogNameError('database "x" does not exist'), "create it, or name another one"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), "try again later"),
        (asyncpg.DiskFullError("could not write init file"), "free some space on its disk"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "try again later"),
        (ConnectionRefusedError(111, "Connect call failed"), "check that it runs"),
        (asyncpg.ProtocolViolationError("unsupported startup parameter: lock_timeout"), "--database-direct-url"),
        (asyncpg.ProtocolViolationError("password authentication failed"), "check the user and the password"),
        (TimeoutError("no answer from a port 5 within 10 s"), "within 10 s: check the host and the port"),
        (ssl.SSLCertVerificationError("certificate verify failed"), "check sslmode and the certificates"),
        (
            asyncpg.ClientConfigurationError('root certificate file "/a" does not exist'),
            '"/a" does not exist: check ssl',
        ),
        (FileNotFoundError(2, "No such file or directory"), "check the socket, or the certificates"),
        (ValueError("Port could not be cast to integer value as 'hunter2'"), "percent-encoded"),
    ],
)
def test_why_a_database_cannot_be_reached_comes_with_what_to_do(error: Exception, advice: str) -> None:
    assert advice in why_unreachable(error)
    assert "hunter2" not in why_unreachable(error)
    assert "DATABASE_URL" not in why_unreachable(error, "--database-direct-url")


async def test_a_login_without_the_rights_is_told_so(empty_dsn: str, owner_dsn: str) -> None:
    plain = empty_dsn.replace("postgres@", "firsttoken_app@")
    owner = await asyncpg.connect(empty_dsn)
    await owner.execute("grant create on schema public to firsttoken_app")
    with pytest.raises(MigrationError, match="needs more rights"):
        await migrate(plain, [Migration("0001_role", "create role mighty superuser")])
    await owner.close()


async def test_stores_that_are_there_learn_how_many_chunks_they_have(empty_dsn: str) -> None:
    migrations = bundled_migrations()
    before = [migration.version for migration in migrations].index("0011_store_chunks")
    await migrate(empty_dsn, migrations[:before])
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("""
        select ensure_tenant('old');
        insert into vector_stores (tenant_id, id, name, embedding_model, dimensions)
        select id, store, store, 'minilm-l6-v2', 384 from tenants, unnest(array['full', 'empty']) as store;
        insert into files (tenant_id, id, filename, title, media_type, bytes, sha256, content)
        select id, file, file, file, 'text/plain', 1, '', '' from tenants, unnest(array['one', 'two']) as file;
        insert into vector_store_files (tenant_id, vector_store_id, file_id, path, status, chunks)
        select id, 'full', file, file, 'completed', 3 from tenants, unnest(array['one', 'two']) as file;
    """)
    await migrate(empty_dsn)
    rows = await connection.fetch("select id, embedding_model, chunks from vector_stores order by id")
    await connection.close()
    assert [tuple(row) for row in rows] == [("empty", "minilm-l6-v2", 0), ("full", "minilm-l6-v2", 6)]
