"""The pool that the worker serves from, and the three ways to hold a connection of it.

The pool logs in as the plain role firsttoken_app. What a transaction may see is decided when it begins, by settings
that Postgres forgets at its end, so a connection never carries one tenant's view to the next user.
Never hold one of these while a stream is open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import orjson

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]

# Embedded Postgres allows 40 connections; four workers of eight leave room for migrations and psql.
POOL_SIZE_MAX = 8
COMMAND_TIMEOUT_S = 30.0
# What stands between this machine and another forgets idle connections. On this machine nothing does, and a client
# after a pause would wait for a new connection that has planned nothing yet.
IDLE_S_MAX = 300.0

# Row-level security binds neither superusers nor the owner of a table, directly or through a role.
MAY_BYPASS_SECURITY = """
select rolsuper or rolbypassrls or exists (
           select from pg_class where relrowsecurity and pg_has_role(current_user, relowner, 'usage')
       )
  from pg_roles
 where rolname = current_user
"""

# What a statement raises because the database is away, went away in the middle or has no room, so that it may work when
# it is tried again. A violated constraint is not among them: it would be violated forever.
DATABASE_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it is stopped, crashed, starting, or ended this connection
    asyncpg.InsufficientResourcesError,  # a full disk, no memory, too many connections
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,  # a deadlock, or another transaction was first
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is about to take over
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver, when a connection breaks while it is being read
    OSError,
    TimeoutError,
)


class UnsafeRole(Exception):
    """The database login could see every tenant's rows. The message says what to use instead."""


class Database:
    """A pool of plain-role connections; json columns are Python objects on both sides."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._pool = pool

    @classmethod
    async def connect(cls, dsn: str, *, role: str | None = None, size_max: int = POOL_SIZE_MAX) -> Database:
        """Open the pool. `role` is set on every connection when the DSN logs in as a more privileged role.

        Raises UnsafeRole, and OSError or asyncpg.PostgresError when the server cannot be reached.
        """
        logging.getLogger("asyncpg.pool").addFilter(_in_one_line)
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=size_max,
            max_inactive_connection_lifetime=0 if _is_local(dsn) else IDLE_S_MAX,
            command_timeout=COMMAND_TIMEOUT_S,
            init=_prepare,
            reset=_skip_reset,
            server_settings={"application_name": "firsttoken", **({"role": role} if role else {})},
        )
        try:
            await _refuse_privileged_role(pool)
        except BaseException:
            pool.terminate()
            raise
        return cls(pool)

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def anonymous(self) -> AsyncIterator[Connection]:
        """A connection that sees no tenant's rows: for authentication functions and health checks. What is changed of
        its session is undone."""
        async with self._pool.acquire() as connection:
            try:
                yield connection
            finally:
                if not connection.is_closed():
                    await connection.reset()

    @asynccontextmanager
    async def tenant(self, tenant_id: UUID) -> AsyncIterator[Connection]:
        """A transaction that sees and writes the rows of one tenant."""
        async with self._transaction(
            f"begin; select set_config('app.tenant_id', '{tenant_id.hex}', true)"
        ) as connection:
            yield connection

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        """A transaction that reads the traces of all tenants."""
        async with self._transaction("begin read only; select set_config('app.operator', 'on', true)") as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[Connection]:
        """A statement takes three messages like this, instead of five: every first token waits for some of them."""
        async with self._pool.acquire() as connection:
            try:
                await connection.execute(begin)
                yield connection
            except BaseException:
                with suppress(*DATABASE_AWAY):  # then it is rolled back, and what went wrong is known
                    await connection.execute("rollback")
                raise
            await connection.execute("commit")


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=lambda v: orjson.dumps(v).decode(), decoder=orjson.loads
    )


async def _skip_reset(_: asyncpg.Connection[asyncpg.Record]) -> None:
    """A transaction that is still open is rolled back all the same, and what it set is forgotten with it."""


async def _refuse_privileged_role(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    if await pool.fetchval(MAY_BYPASS_SECURITY):
        name = await pool.fetchval("select current_user")
        raise UnsafeRole(
            f"The database role '{name}' is a superuser or owns the tables, so tenants would not be separated: "
            "serve as firsttoken_app, which the migrations create, or as another role that was granted it."
        )


def _is_local(dsn: str) -> bool:
    """Whether it names a socket of this machine. One that names no host leaves it to the environment."""
    return parse_qs(urlsplit(dsn).query).get("host", [""])[0].startswith("/")


def _in_one_line(record: logging.LogRecord) -> bool:
    """While the server is away the pool reports every attempt to reconnect, each with a traceback."""
    if record.exc_info:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}", ()
        record.exc_info = None
    return True
