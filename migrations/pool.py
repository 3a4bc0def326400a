"""The worker's connection pool, and the ways to use one of its connections.

The pool logs in as the plain role firsttoken_app. What a transaction may see is determined when it begins, by settings
that Postgres discards at its end, so a connection never carries one tenant's view over to the next user. Never hold a
connection while a stream is open.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
# Lets a caller add statements to a transaction of another module.
Also: TypeAlias = Callable[[Connection], Awaitable[None]]

POSTGRES_PORT = 5432
POOL_SIZE_MAX = 8  # more than a worker's statements keep busy, since none is held while a stream is open
STATEMENTS_KEPT = 100  # prepared statements per connection, the driver's default; there are fewer
# How long a caller waits for a connection, and then for each statement, before the database counts as unavailable.
# The wait restarts whenever any caller gets a connection: a queue that moves shows that the database responds.
ACQUIRE_S = 5.0
QUEUE_S_MAX = 20.0  # but no caller waits longer than clients do
COMMAND_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0  # a server that responds at all does so within a second, even from another continent
# A connection that takes longer to clean up is cut: a hanging server would otherwise block the caller that returns it.
UNDO_S = 0.5
AGAIN_S = 0.1  # between two attempts at a transaction that must succeed
# Firewalls and NAT between machines drop idle connections. On this machine nothing does, and after a pause a client
# would wait for a new connection without cached plans.
IDLE_S_MAX = 300.0

NOT_DURABLE = "set local synchronous_commit = off"

# Row-level security binds neither superusers nor a table's owner, whether directly or through a role.
MAY_BYPASS_SECURITY = """
select rolsuper or rolbypassrls or exists (
           select from pg_class where relrowsecurity and pg_has_role(current_user, relowner, 'usage')
       )
  from pg_roles
 where rolname = current_user
"""

T = TypeVar("T")


class CommitUnknown(Exception):
    """The response to a COMMIT was lost, so its outcome is unknown. Before repeating it, check in the database."""


# Errors of a statement which mean that the database is unavailable, was lost midway or lacks resources, so that a retry
# may succeed. A violated constraint is not among them: it would be violated again.
DATABASE_AWAY = (
    CommitUnknown,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it is stopped, crashed, starting, or closed this connection
    asyncpg.InsufficientResourcesError,  # a full disk, no memory, too many connections
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,  # a deadlock, or another transaction was first
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is about to take over
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver, if a connection breaks while being read
    OSError,
    TimeoutError,
)


async def nothing(_: Connection) -> None:
    """The default for `also`: does nothing."""


class UnsafeRole(Exception):
    """The database login could see the rows of all tenants. The message says what to use instead."""


@dataclass(frozen=True, slots=True)
class Act:
    """A call of a function (tenant, jsonb, bigint) that writes rows of one tenant. `payload` is JSON."""

    function: str
    tenant_id: UUID
    payload: bytes
    number: int

    @property
    def statement(self) -> str:
        """The payload is hex-encoded, so it needs no quoting, whatever users have written."""
        payload = f"convert_from(decode('{self.payload.hex()}', 'hex'), 'utf8')::jsonb"
        return f"select {self.function}('{self.tenant_id}', {payload}, {self.number})"


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in. `role` is set on the connection if the DSN logs in as a more privileged one."""

    dsn: str = field(repr=False)
    role: str | None = None


class Database:
    """A pool of plain-role connections; json columns are Python objects on both sides."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], direct: Login, *, behind_pooler: bool) -> None:
        self._pool = pool
        self._direct = direct
        self._behind_pooler = behind_pooler
        self._given_at = float("-inf")  # when a caller last got a connection

    @classmethod
    async def connect(
        cls, dsn: str, *, role: str | None = None, size_max: int = POOL_SIZE_MAX, direct: Login | None = None
    ) -> Database:
        """Open the pool. `role` is set on every connection if the DSN logs in as a more privileged role. `direct` is
        given if the DSN leads to a transaction pooler: it logs in to the server itself.

        Raises UnsafeRole, and OSError or asyncpg.PostgresError if the server cannot be reached.
        """
        logging.getLogger("asyncpg.pool").addFilter(_in_one_line)
        behind_pooler = direct is not None
        with naming(dsn):
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size_max,
                max_inactive_connection_lifetime=0 if _is_local(dsn) else IDLE_S_MAX,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=COMMAND_TIMEOUT_S,
                init=_prepare_behind_pooler if behind_pooler else _prepare,
                reset=_skip_reset,
                server_settings=_settings(role),
                statement_cache_size=0 if behind_pooler else STATEMENTS_KEPT,  # each transaction may be elsewhere
                max_cached_statement_lifetime=0,  # forgotten, each would take a round trip more before a first token
            )
        database = cls(pool, direct or Login(dsn, role), behind_pooler=behind_pooler)
        try:
            await database._refuse_privileged_role()
        except BaseException:
            pool.terminate()
            raise
        return database

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def anonymous(self) -> AsyncIterator[Connection]:
        """A connection that sees no tenant's rows, for authentication functions and health checks. Changes to its
        session are undone. Behind a pooler it is a transaction, since its statements could go to different servers.
        """
        if self._behind_pooler:
            async with self._transaction("begin") as connection:
                yield connection
            return
        async with self._connection() as connection:
            try:
                yield connection
            finally:
                await _undo(connection, connection.reset)

    async def check(self) -> None:
        """Raises one of DATABASE_AWAY if nothing can be stored now."""
        async with self.anonymous() as connection:
            if await connection.fetchval("show transaction_read_only") == "on":
                raise asyncpg.ReadOnlySQLTransactionError("it is read-only, such as a standby is")

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """A dedicated connection to the server itself, for what outlives a transaction: LISTEN, and session locks. It
        sees no tenant's rows."""
        async with asyncio.timeout(ACQUIRE_S):
            connection = await asyncpg.connect(
                self._direct.dsn, command_timeout=COMMAND_TIMEOUT_S, server_settings=_settings(self._direct.role)
            )
        try:
            yield connection
        finally:
            try:
                await connection.close(timeout=UNDO_S)
            except DATABASE_AWAY:
                connection.terminate()

    @asynccontextmanager
    async def tenant(self, tenant_id: UUID, *, durable: bool = True) -> AsyncIterator[Connection]:
        """A transaction that sees and writes the rows of one tenant. If not `durable`, it does not wait for the disk: a
        crash of the server may lose it."""
        begin = f"begin; select set_config('app.tenant_id', '{tenant_id.hex}', true)"
        async with self._transaction(begin if durable else f"{begin}; {NOT_DURABLE}") as connection:
            yield connection

    async def rows(self, tenant_id: UUID, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Those of one statement, in a transaction of one tenant, whose id is its first argument."""
        async with self.tenant(tenant_id) as connection:
            return await connection.fetch(query, tenant_id, *arguments)

    async def row(self, tenant_id: UUID, query: str, *arguments: object) -> asyncpg.Record | None:
        """The first of `rows`."""
        async with self.tenant(tenant_id) as connection:
            return await connection.fetchrow(query, tenant_id, *arguments)

    async def value(self, tenant_id: UUID, query: str, *arguments: object) -> Any:
        """The first one of the first of `rows`; None without a row."""
        async with self.tenant(tenant_id) as connection:
            return await connection.fetchval(query, tenant_id, *arguments)

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Run one statement that sets its tenant itself, like the migrations' functions do: one round trip. Behind a
        pooler it is a transaction, since a statement must not be prepared on one server and executed on another."""
        if self._behind_pooler:
            async with self._transaction("begin") as connection:
                return await connection.fetch(query, *arguments)
        async with self._connection() as connection:
            return await connection.fetch(query, *arguments)

    async def carry_out(self, acts: Sequence[Act], *, durable: bool = True) -> None:
        """Run all acts in one transaction and one round trip, for any tenants: each act sets its own tenant.

        One act is a prepared statement, which is its own transaction: that takes Postgres four fifths of the time.

        Raises CommitUnknown, and the error of an act, in which case none took effect.
        """
        arguments: tuple[object, ...] = ()
        if len(acts) == 1 and not self._behind_pooler:
            options = "" if durable else "set_config('synchronous_commit', 'off', true), "
            text = f"select {options}{acts[0].function}($1, $2::text::jsonb, $3)"
            arguments = acts[0].tenant_id, acts[0].payload.decode(), acts[0].number
        else:
            begin = "begin" if durable else f"begin; {NOT_DURABLE}"
            text = "; ".join([begin, *(act.statement for act in acts), "commit"])
        async with self._connection() as connection:
            try:
                await connection.execute(text, *arguments)
            except BaseException as error:
                if isinstance(error, DATABASE_AWAY) and not isinstance(error, asyncpg.TransactionRollbackError):
                    _cut(connection)
                    raise CommitUnknown(repr(error)) from error
                if not arguments:  # else nothing was begun that is not over
                    await _undo(connection, partial(connection.execute, "rollback"))
                raise

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        """A transaction that reads the traces of all tenants."""
        async with self._transaction("begin read only; select set_config('app.operator', 'on', true)") as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[Connection]:
        """Begin and commit are simple queries, so a statement takes three messages instead of five: every first token
        waits for some of them.

        Raises CommitUnknown.
        """
        async with self._connection() as connection:
            try:
                await connection.execute(begin)
                yield connection
            except BaseException:
                await _undo(connection, partial(connection.execute, "rollback"))
                raise
            try:
                await connection.execute("commit")
            except asyncpg.TransactionRollbackError:
                raise  # the server responded: it is not committed
            except DATABASE_AWAY as error:
                _cut(connection)
                raise CommitUnknown(repr(error)) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection from the pool. Raises TimeoutError if no caller got one for ACQUIRE_S, or this one for
        QUEUE_S_MAX."""
        async with self._patience():
            connection = await self._pool.acquire()
        self._given_at = time.monotonic()
        try:
            yield connection
        except asyncpg.ReadOnlySQLTransactionError:
            _cut(connection)  # to a standby, which serves on: the next one may find the primary
            raise
        finally:
            with suppress(*DATABASE_AWAY):  # the pool has closed it, and the caller's own error takes precedence
                await self._pool.release(connection, timeout=UNDO_S)

    async def _refuse_privileged_role(self) -> None:
        async with self.anonymous() as connection:
            if not await connection.fetchval(MAY_BYPASS_SECURITY):
                return
            name = await connection.fetchval("select current_user")
        raise UnsafeRole(
            f"The database role '{name}' is a superuser or owns the tables, so tenants would not be separated: "
            "serve as firsttoken_app, which the migrations create, or as another role that was granted it."
        )

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """The timeout of a caller in the queue: see ACQUIRE_S."""
        loop, give_up_at = asyncio.get_running_loop(), time.monotonic() + QUEUE_S_MAX
        async with asyncio.timeout(None) as limit:

            def look() -> None:
                left_s = min(self._given_at + ACQUIRE_S, give_up_at) - time.monotonic()
                if left_s > 0:
                    timers.append(loop.call_later(left_s, look))
                else:
                    limit.reschedule(loop.time())

            timers = [loop.call_later(ACQUIRE_S, look)]
            try:
                yield
            finally:
                timers[-1].cancel()


async def certain(transaction: Callable[[], Awaitable[T]], within_s: float) -> T:
    """Retry a transaction until it is known to be done. It must be idempotent, since it may have been done unnoticed.

    Raises the error of the last attempt if no time is left for another one.
    """
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            return await transaction()
        except DATABASE_AWAY:
            if time.monotonic() + AGAIN_S >= give_up_at:
                raise
            await asyncio.sleep(AGAIN_S)


async def _undo(connection: Connection, undo: Callable[[], Awaitable[object]]) -> None:
    """Clean up a connection after use, or cut it."""
    try:
        async with asyncio.timeout(UNDO_S):
            await undo()
    except BaseException as error:
        _cut(connection)
        if not isinstance(error, DATABASE_AWAY):
            raise


def _cut(connection: Connection) -> None:
    with suppress(asyncpg.InterfaceError):  # it was lost, and the pool already has it back
        connection.terminate()


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=lambda v: orjson.dumps(v).decode(), decoder=orjson.loads
    )


async def _prepare_behind_pooler(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    async with connection.transaction():  # so that all of it runs on one server
        await _prepare(connection)


def _settings(role: str | None) -> dict[str, str]:
    return {"application_name": "firsttoken", **({"role": role} if role else {})}


async def _skip_reset(_: asyncpg.Connection[asyncpg.Record]) -> None:
    """No reset: the pool still rolls back an open transaction, which also discards its settings."""


def _is_local(dsn: str) -> bool:
    """Whether the DSN names a socket of this machine. Without a host, the environment decides, so it does not count."""
    return parse_qs(urlsplit(dsn).query).get("host", [""])[0].startswith("/")


@contextmanager
def naming(dsn: str) -> Iterator[None]:
    """Where a connection to this server times out, the error says which one it is."""
    try:
        yield
    except TimeoutError:
        raise TimeoutError(f"no answer{_place(dsn)} within {CONNECT_TIMEOUT_S:g} s") from None


def _place(dsn: str) -> str:
    """In words; empty for a socket, and for several hosts, of which none can be called the one."""
    url = urlsplit(dsn)
    try:
        return f" from {url.hostname} port {url.port or POSTGRES_PORT}" if url.hostname else ""
    except ValueError:  # what follows the first colon is no port then
        return ""


def _in_one_line(record: logging.LogRecord) -> bool:
    """While the server is away, the pool logs every reconnection attempt with a traceback."""
    if record.exc_info:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]}", ()
        record.exc_info = None
    return True
