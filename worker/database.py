"""The database that the settings name: the embedded server, kept running, or an external one with its replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import asyncpg

from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.pool import DATABASE_AWAY, Database, Login
from migrations.runner import migrate, why_unreachable
from worker.config import Config
from worker.errors import StartError
from worker.lifecycle.supervisor import Supervisor, Well

APP_ROLE = "firsttoken_app"  # the role to assume when a DATABASE_URL has more privileges
CLOSE_TIMEOUT_S = 5.0
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


async def _keep_running(postgres: EmbeddedPostgres, well: Well) -> None:
    """Restart the embedded server when it dies; the pool reconnects automatically. Raises EmbeddedPostgresError."""
    while True:
        if not await asyncio.to_thread(lambda: postgres.is_running):
            log.warning("Postgres stopped; restarting it")
            await asyncio.to_thread(postgres.start)
        well()
        await asyncio.sleep(WATCH_S)


@asynccontextmanager
async def open_database(config: Config, supervisor: Supervisor | None = None) -> AsyncIterator[Database]:
    """The migrated database, with the privileges of the worker."""
    async with open_owner_dsn(config, supervisor) as (owner_dsn, app_dsn):
        await migrate(owner_dsn)
        database = await _connect(config, owner_dsn, app_dsn)
        try:
            yield database
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await database.close()
            except TimeoutError:
                pass  # a query that hangs must not keep the worker alive; the pool was terminated


@asynccontextmanager
async def open_replica(config: Config, database: Database) -> AsyncIterator[Database]:
    """Where traces and searches are read; the database itself if there is no replica. Raises StartError."""
    if config.database_replica_url is None:
        yield database
        return
    try:
        replica = await Database.connect(
            config.database_replica_url, role=APP_ROLE, size_max=config.database_connections
        )
    except (*DATABASE_AWAY, asyncpg.PostgresError, ValueError) as error:
        raise StartError(
            f"the read replica cannot be used: {why_unreachable(error)} (--database-replica-url)"
        ) from None
    try:
        yield replica
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await replica.close()


async def _connect(config: Config, owner_dsn: str, app_dsn: str | None) -> Database:
    """Behind a pooler, the login must be the unprivileged role itself: a SET ROLE would not persist."""
    size_max = config.database_connections
    if config.database_url and config.database_direct_url:
        direct = Login(config.database_direct_url, APP_ROLE)
        return await Database.connect(config.database_url, size_max=size_max, direct=direct)
    return await Database.connect(app_dsn or owner_dsn, role=None if app_dsn else APP_ROLE, size_max=size_max)
