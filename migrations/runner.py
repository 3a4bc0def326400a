"""Migrates a database to the schema of this version, and checks the server's versions.

Migrations are NNNN_name.sql beside this file, applied in order, each in one transaction with its row in the history.
Any number of workers may start at once: one applies them, the others wait and find nothing left to do.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TypeAlias

import asyncpg

from migrations import pool

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

LOCK_ID = int.from_bytes(hashlib.sha256(b"firsttoken.migrations").digest()[:8], signed=True)
LOCK_WAIT_S = 300.0  # the longest that another worker's migration may take
LOCK_POLL_S = 0.1
TABLE_LOCK_TIMEOUT = "30s"  # a forgotten psql session must not hang every worker's start
SERVER_VERSION_MIN = 15
PGVECTOR_MIN = (0, 8)  # the first version whose index scan continues until enough rows pass the filter

SETTING = "DATABASE_URL"
POOLER, REJECTED = "unsupported startup parameter", "authentication failed"  # as pgbouncer says
NO_CERTIFICATE = "root certificate file"  # as the driver says
APP_ROLE = "firsttoken_app"  # made by the first migration; workers serve with its rights
UNREACHABLE = (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# Roles belong to a server, grants to a database: one that was restored elsewhere may have neither.
HAS_RIGHTS = """
select exists (select from pg_roles where rolname = $1 and pg_has_role(oid, $2)
                  and has_table_privilege(oid, to_regclass('responses'), 'select') is not false)
"""
HISTORY = """
create table if not exists schema_migrations (
    version text primary key,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""


class MigrationError(Exception):
    """The database cannot be brought to this version. The message is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: str  # the file's name without .sql
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def bundled_migrations() -> tuple[Migration, ...]:
    """Every migration that ships with the package, in order."""
    files = (file for file in resources.files("migrations").iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(file.name.removesuffix(".sql"), file.read_text("utf-8"))  # with the same newlines on every system
        for file in sorted(files, key=lambda file: file.name)
    )


def pending(migrations: Sequence[Migration], applied: Mapping[str, str]) -> list[Migration]:
    """The migrations not applied yet, given version -> sha256 of the applied ones. Raises MigrationError."""
    unknown = sorted(applied.keys() - {migration.version for migration in migrations})
    if unknown:
        raise MigrationError(
            f"The database is ahead of this version of Firsttoken (it has {unknown[0]}): run the newer version."
        )
    for migration in migrations:
        if applied.get(migration.version, migration.sha256) != migration.sha256:
            raise MigrationError(
                f"{migration.version}.sql was changed after it was applied to this database: "
                "restore the file and make the change in a new one."
            )
    return [migration for migration in migrations if migration.version not in applied]


def check_server(major: int, pgvector: str | None) -> None:
    """Raises MigrationError if the tables need a newer Postgres or pgvector (None: not installed)."""
    if major < SERVER_VERSION_MIN:
        raise MigrationError(f"The server is Postgres {major}: Firsttoken needs {SERVER_VERSION_MIN} or newer.")
    if pgvector is None or tuple(map(int, pgvector.split(".")[:2])) < PGVECTOR_MIN:
        raise MigrationError(
            f"The server has {f'pgvector {pgvector}' if pgvector else 'no pgvector'}, and Firsttoken needs "
            f"{'.'.join(map(str, PGVECTOR_MIN))} or newer: install it there (Debian: postgresql-{major}-pgvector), or "
            "unset DATABASE_URL to use the embedded server."
        )


async def migrate(
    owner_dsn: str, migrations: Sequence[Migration] | None = None, *, setting: str = SETTING
) -> list[str]:
    """Apply the missing migrations; returns their versions. `owner_dsn` reaches the server directly, not through a
    transaction pooler, as the owner of the tables; messages name the `setting` that it comes from.

    Raises MigrationError, also if the server cannot be reached.
    """
    todo = bundled_migrations() if migrations is None else migrations
    connection = await _connect(owner_dsn, setting)
    try:
        await _take_lock(connection)
        return await _apply_pending(connection, todo)
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise _read_only(str(error), setting) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            f"The database login may not keep the history of migrations ({error}): migrate once as the owner of the "
            "tables with `firsttoken migrate`."
        ) from error
    finally:
        await connection.close()  # the lock ends with the session, even if this process is killed


async def _connect(dsn: str, setting: str) -> Connection:
    """Raises MigrationError."""
    settings = {"application_name": "firsttoken migrate", "lock_timeout": TABLE_LOCK_TIMEOUT}
    try:
        with pool.naming(dsn):
            return await asyncpg.connect(dsn, timeout=pool.CONNECT_TIMEOUT_S, server_settings=settings)
    except UNREACHABLE as error:
        # Without the cause, which may quote a part of the URL that was parsed as the port.
        raise MigrationError(f"The database cannot be reached: {why_unreachable(error, setting)}.") from None


def why_unreachable(error: Exception, setting: str = SETTING) -> str:
    """Why a connection failed, and what to do. Never quotes the URL of the setting, which may contain a password."""
    said = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, TimeoutError):
        return f"{said or 'no answer in time'}: check the host and the port in {setting}"
    if isinstance(error, ssl.SSLError) or NO_CERTIFICATE in said:  # before ValueError, as some of them are one
        return f"{said}: check sslmode and the certificates (sslrootcert, sslcert, sslkey) in {setting}"
    if isinstance(error, FileNotFoundError | PermissionError):
        return f"{said}: check the socket, or the certificates (sslrootcert, sslcert, sslkey), in {setting}"
    if isinstance(error, ValueError):  # also asyncpg's own errors about a URL
        return (
            f"{setting} is not valid: it must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special "
            "characters of the password percent-encoded"
        )
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError) or REJECTED in said:
        return f"{said}: check the user and the password in {setting}"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return f"{said}: create it, or name another one in {setting}"
    if POOLER in said:
        return f"{said}: it is a pooler, so name the server itself in --database-direct-url"
    if isinstance(error, asyncpg.DiskFullError):
        return f"{said}: free some space on its disk"
    if isinstance(error, asyncpg.CannotConnectNowError | asyncpg.InsufficientResourcesError):
        return f"{said}: try again later"
    return f"{said or type(error).__name__}: check that it runs, and the host and the port in {setting}"


async def _take_lock(connection: Connection) -> None:
    """Polls, because a waiting pg_advisory_lock holds a snapshot, for which `create index concurrently` would wait."""
    try:
        async with asyncio.timeout(LOCK_WAIT_S):
            while not await connection.fetchval("select pg_try_advisory_lock($1)", LOCK_ID):  # noqa: ASYNC110
                await asyncio.sleep(LOCK_POLL_S)
    except TimeoutError:
        raise MigrationError(
            f"Another worker has been migrating this database for {LOCK_WAIT_S:.0f} s: check what it is doing."
        ) from None


async def _apply_pending(connection: Connection, migrations: Sequence[Migration]) -> list[str]:
    check_server(*await _versions(connection))
    await connection.execute(HISTORY)
    rows = await connection.fetch("select version, sha256 from schema_migrations")
    todo = pending(migrations, {row["version"]: row["sha256"] for row in rows})
    for migration in todo:
        await _apply(connection, migration)
    await _check_role(connection)
    return [migration.version for migration in todo]


async def _check_role(connection: Connection) -> None:
    privilege = "SET" if connection.get_server_version().major >= 16 else "MEMBER"
    if not await connection.fetchval(HAS_RIGHTS, APP_ROLE, privilege):
        login = await connection.fetchval("select current_user")
        raise MigrationError(
            f"The role {APP_ROLE} has no rights here, as in a database that was restored on another server: `create "
            f"role {APP_ROLE} login; grant {APP_ROLE} to {login};` there, then restore the database again."
        )


def _read_only(error: str, setting: str) -> MigrationError:
    return MigrationError(f"The database is read-only, such as a standby is ({error}): name the primary in {setting}.")


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(
                "insert into schema_migrations (version, sha256) values ($1, $2)", migration.version, migration.sha256
            )
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            f"{migration.version}.sql needs more rights than the database login has ({error}): migrate once as a "
            "superuser with `firsttoken migrate`."
        ) from error
    except asyncpg.PostgresError as error:
        raise MigrationError(f"{migration.version}.sql failed and changed nothing: {error}") from error


@dataclass(frozen=True, slots=True)
class Server:
    """The major version of Postgres, the version of pgvector that it offers, and how many migrations the database
    lacks; None for an empty one."""

    major: int
    pgvector: str
    lacks: int | None = None


async def examine(dsn: str, *, setting: str = SETTING) -> Server:
    """Changes nothing. Raises MigrationError for all that would keep `migrate` from bringing it to this version."""
    connection = await _connect(dsn, setting)
    try:
        major, pgvector = await _versions(connection)
        check_server(major, pgvector)
        if await connection.fetchval("show transaction_read_only") == "on":
            raise _read_only("transaction_read_only is on", setting)
        if await connection.fetchval("select to_regclass('schema_migrations')") is None:  # an empty one
            return Server(major, str(pgvector))
        rows = await connection.fetch("select version, sha256 from schema_migrations")
        todo = pending(bundled_migrations(), {row["version"]: row["sha256"] for row in rows})
        await _check_role(connection)
    finally:
        await connection.close()
    return Server(major, str(pgvector), len(todo))


async def _versions(connection: Connection) -> tuple[int, str | None]:
    query = "select default_version from pg_available_extensions where name = 'vector'"
    return connection.get_server_version().major, await connection.fetchval(query)
