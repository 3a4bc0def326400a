"""The database that the settings name: the embedded server, kept running, or an external one with its replica. And the
two ways in which small writes share a transaction.

`BatchWriter` stores what is produced while responses are served a moment later, off the request path. `GroupCommit`
writes at once for callers that wait: the writes of one tenant that arrive during a transaction form the next one.
Otherwise a thousand responses that start at once would each wait for a connection, most of them in vain, and one tenant
would take the connections of all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

import asyncpg

from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.pool import DATABASE_AWAY, Database, Login
from migrations.runner import APP_ROLE, SETTING, migrate, why_unreachable
from worker.config import Config
from worker.errors import StartError
from worker.lifecycle.supervisor import Healthy, Part, Supervised, Supervisor, at_most

CLOSE_TIMEOUT_S = 5.0
LOOK_S, LOOK_TIMEOUT_S = 5.0, 5.0  # between two looks at the replica, and for each
WATCH_S = 0.5  # between two checks of the embedded server; a check costs a few microseconds

log = logging.getLogger("firsttoken.database")


@asynccontextmanager
async def open_owner_dsn(config: Config, supervisor: Supervisor | None = None) -> AsyncIterator[tuple[str, str | None]]:
    """A running server: the DSN of the tables' owner, and that of the unprivileged role if it has one of its own."""
    if config.database_url:
        yield config.database_direct_url or config.database_url, None
        return
    postgres = EmbeddedPostgres(config.home)
    try:
        await asyncio.to_thread(postgres.start)
        watch = (supervisor or Supervisor()).start(
            "postgres", partial(_keep_running, postgres), expected=(EmbeddedPostgresError,)
        )
        try:
            yield postgres.owner_dsn, postgres.app_dsn
        finally:
            await watch.stop()
    finally:
        await asyncio.to_thread(postgres.stop)


async def _keep_running(postgres: EmbeddedPostgres, healthy: Healthy) -> None:
    """Restart the embedded server when it dies; the pool reconnects automatically. Raises EmbeddedPostgresError."""
    while True:
        if not await asyncio.to_thread(lambda: postgres.is_running):
            log.warning("Postgres stopped; restarting it")
            await asyncio.to_thread(postgres.start)
        healthy()
        await asyncio.sleep(WATCH_S)


@asynccontextmanager
async def open_database(config: Config, supervisor: Supervisor | None = None) -> AsyncIterator[Database]:
    """The migrated database, with the privileges of the worker."""
    async with open_owner_dsn(config, supervisor) as (owner_dsn, app_dsn):
        await migrate(owner_dsn, setting=owner_setting(config))
        async with opened(config, owner_dsn, app_dsn) as database:
            yield database


def owner_setting(config: Config) -> str:
    """The setting that `open_owner_dsn` follows, for messages."""
    return "--database-direct-url" if config.database_direct_url else SETTING


@asynccontextmanager
async def open_replica(
    config: Config, database: Database, supervisor: Supervisor | None = None
) -> AsyncIterator[Database]:
    """Where traces and searches are read; the database itself if there is no replica. Raises StartError."""
    if config.database_replica_url is None:
        yield database
        return
    size_max, setting = config.database_connections, "--database-replica-url"
    async with _opened(
        Database.connect(config.database_replica_url, role=APP_ROLE, size_max=size_max), setting
    ) as replica:
        watch = (supervisor or Supervisor()).start("replica", partial(_look_at, replica))
        try:
            yield replica
        finally:
            await watch.stop()


async def _look_at(replica: Database, healthy: Healthy) -> None:
    """So that one that is away is known before somebody needs it. Raises one of DATABASE_AWAY."""
    while True:
        await asyncio.sleep(LOOK_S)
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            await replica.fetch("select 1")
        healthy()


@asynccontextmanager
async def _opened(connecting: Awaitable[Database], setting: str) -> AsyncIterator[Database]:
    try:
        database = await connecting
    except (*DATABASE_AWAY, asyncpg.PostgresError, ValueError) as error:
        why = why_unreachable(error, setting)
        raise StartError(f"the database cannot be used: {why}") from None
    try:
        yield database
    finally:
        async with at_most(
            CLOSE_TIMEOUT_S
        ):  # a query that hangs must not keep the worker alive; the pool was terminated
            await database.close()


def opened(config: Config, owner_dsn: str, app_dsn: str | None) -> AbstractAsyncContextManager[Database]:
    """Behind a pooler, the login must be the unprivileged role itself: a SET ROLE would not persist. Raises StartError,
    UnsafeRole."""
    size_max = config.database_connections
    if config.database_url and config.database_direct_url:
        direct = Login(config.database_direct_url, APP_ROLE)
        return _opened(Database.connect(config.database_url, size_max=size_max, direct=direct), SETTING)
    role = None if app_dsn else APP_ROLE
    return _opened(Database.connect(app_dsn or owner_dsn, role=role, size_max=size_max), SETTING)


GATHER_S = 0.25  # how long a batch accumulates: one commit for a busy moment
HURRY_S = 0.01  # when a request waits for the batch
UNDER_WAY_S = 2.0  # for a batch that is being stored when the worker stops: otherwise it would be lost


class NotStored(Exception):
    """The pending records could not be stored. Their owner has kept them, or dropped and counted them."""


class BatchWriter:
    """Calls `store` a moment after `notify`, in a task of its own. `store` stores everything that is pending and
    returns whether there was anything; when it raises, it is called again.
    """

    def __init__(self, part: Part, store: Callable[[], Awaitable[bool]], *, gather_s: float | None = None) -> None:
        """`gather_s`: how long a batch accumulates; None: GATHER_S."""
        self._part = part
        self._store = store
        self._gather_s = gather_s
        self._notified = asyncio.Event()
        self._hurried = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: Supervised | None = None

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start(self._part, self._write, expected=(NotStored,))

    def notify(self, *, hurry: bool = False) -> None:
        """Signal that there is something to store. Costs less than a microsecond."""
        self._notified.set()
        if hurry:
            self._hurried.set()

    async def flush(self) -> bool:
        """Store what is pending now; returns whether there was anything. Raises what `store` raises."""
        async with self._writing:
            return await self._store()

    async def close(self) -> None:
        """Stop after storing what is pending: once, after the batch in progress. Raises what `store` raises."""
        async with at_most(UNDER_WAY_S), self._writing:
            pass
        if self._task:
            await self._task.stop()
        await self.flush()

    async def _write(self, healthy: Healthy) -> None:
        while True:
            await self._notified.wait()
            await self._gather()
            self._notified.clear()
            self._hurried.clear()
            try:
                stored = await self.flush()
            except BaseException:
                self._notified.set()  # the next iteration of this task stores what is pending
                raise
            if stored:
                healthy()

    async def _gather(self) -> None:
        async with at_most(GATHER_S if self._gather_s is None else self._gather_s):
            await self._hurried.wait()
            await asyncio.sleep(HURRY_S)


BATCH_MAX = 128  # of some kilobytes each: one transaction of a few milliseconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place(Generic[T]):
    item: T
    outcome: asyncio.Future[None]


class GroupCommit(Generic[T]):
    """`do` commits all items that it is given, or raises and commits none. For the event loop only."""

    def __init__(self, do: Callable[[UUID, Sequence[T]], Awaitable[None]]) -> None:
        self._do = do
        self._waiting: dict[UUID, deque[_Place[T]]] = {}
        self._in_progress: dict[UUID, asyncio.Task[None]] = {}

    async def put(self, tenant_id: UUID, item: T) -> None:
        """Return when the item is written. Raises what `do` raises of this item. A caller that is cancelled may find it
        written or not."""
        place = _Place(item, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant_id, deque()).append(place)
        self._go_on(tenant_id)
        await place.outcome

    async def settled(self, tenant_id: UUID) -> None:
        """Return when no transaction that was started before is in progress. Waiting items of cancelled callers are not
        written."""
        if task := self._in_progress.get(tenant_id):
            await asyncio.wait([task])

    def _go_on(self, tenant_id: UUID) -> None:
        """One transaction per tenant at a time: a tenant must not take the connections that others need."""
        if tenant_id in self._in_progress:
            return
        waiting, taken = self._waiting[tenant_id], list[_Place[T]]()
        while waiting and len(taken) < BATCH_MAX:
            if not waiting[0].outcome.done():
                taken.append(waiting[0])
            waiting.popleft()
        if not taken:
            del self._waiting[tenant_id]
            return
        task = self._in_progress[tenant_id] = asyncio.create_task(self._do_all(tenant_id, taken), name="group commit")
        task.add_done_callback(lambda _: self._done(tenant_id))
        for place in taken:
            place.outcome.add_done_callback(lambda _: _wanted(taken) or task.cancel())

    def _done(self, tenant_id: UUID) -> None:
        del self._in_progress[tenant_id]
        self._go_on(tenant_id)

    async def _do_all(self, tenant_id: UUID, taken: Sequence[_Place[T]]) -> None:
        try:
            await self._do(tenant_id, [place.item for place in taken])
        except DATABASE_AWAY as error:
            _fail(taken, error)
        except Exception as error:  # the boundary: one that is refused refuses no other
            if len(taken) == 1:
                _fail(taken, error)
            else:
                for place in taken:
                    await self._do_all(tenant_id, [place])
        except BaseException:
            for place in taken:
                place.outcome.cancel()
            raise
        else:
            for place in taken:
                if not place.outcome.done():
                    place.outcome.set_result(None)


def _wanted(taken: Sequence[_Place[T]]) -> bool:
    """Whether a caller still waits for the result, or already has it."""
    return not all(place.outcome.cancelled() for place in taken)


def _fail(taken: Sequence[_Place[T]], error: Exception) -> None:
    for place in taken:
        if not place.outcome.done():
            place.outcome.set_exception(error)
