"""A read-only copy of the database: what is read from it, and what never is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import worker.database
import worker.lifecycle.supervisor
from inference.trace import Trace
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from tests.far_postgres import FarPostgres
from tests.proxy import proxied
from tests.worker.telemetry.test_telemetry import member, turn
from worker.config import Config
from worker.database import open_replica
from worker.errors import StartError
from worker.lifecycle.supervisor import Supervisor
from worker.setting import ConfigError
from worker.telemetry.latency.answer_list import Search
from worker.telemetry.telemetry import Traces


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the name of a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
async def copy(postgres: EmbeddedPostgres, owner_dsn: str, folder: Path) -> AsyncIterator[FarPostgres]:
    """The same server on a wire of its own, which tells who was asked."""
    async with FarPostgres(postgres.owner_dsn, folder).serving() as wire:
        yield wire


def settings(url: str | None) -> Config:
    return Config(database_url="postgresql://unused", database_replica_url=url)


async def test_traces_are_written_to_the_server_and_read_from_its_copy(
    database: Database, tenant_id: UUID, copy: FarPostgres
) -> None:
    trace = Trace()
    trace.finish()
    async with open_replica(settings(copy.dsn), database) as replica:
        traces = Traces(database, replica)
        before = copy.counts.round_trips
        await traces.write(tenant_id, [turn(trace, tenant_id)])
        assert copy.counts.round_trips == before
        listed = await traces.list(member(tenant_id), Search(trace.started_at - 1, trace.started_at + 60))
        assert [found["id"] for found in listed] == [trace.id]
        assert copy.counts.round_trips > before
        assert (await traces.get(member(tenant_id), trace.id) or {})["id"] == trace.id


async def test_what_the_copy_lacks_yet_is_found_at_the_server(database: Database, tenant_id: UUID) -> None:
    asked: list[Database] = []

    class Behind(Traces):
        async def _get(self, principal: Any, id: str, database: Database) -> dict[str, Any] | None:
            asked.append(database)
            return None if database is self._replica else await super()._get(principal, id, database)

    trace = Trace()
    trace.finish()
    replica = Database(database._pool, database._direct, behind_pooler=False)
    traces = Behind(database, replica)
    await traces.write(tenant_id, [turn(trace, tenant_id)])
    assert (await traces.get(member(tenant_id), trace.id) or {})["id"] == trace.id
    assert asked == [replica, database]


async def test_a_copy_that_is_away_is_down_until_it_is_back(
    database: Database, postgres: EmbeddedPostgres, owner_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.lifecycle.supervisor, "RETRY_S", 0.01)
    monkeypatch.setattr(worker.database, "LOOK_S", 0.01)
    monkeypatch.setattr(worker.database, "LOOK_TIMEOUT_S", 0.5)
    supervisor = Supervisor()
    async with proxied(postgres.owner_dsn) as wire, open_replica(settings(wire.dsn), database, supervisor):
        assert not supervisor.down
        wire.stand_still()
        while "replica" not in supervisor.down:  # noqa: ASYNC110  # the test's own time limit ends this
            await asyncio.sleep(0.01)
        wire.go_on()
        while supervisor.down:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_without_a_copy_the_server_is_read_and_one_that_is_not_there_is_told(database: Database) -> None:
    async with open_replica(settings(None), database) as replica:
        assert replica is database
    with pytest.raises(StartError, match="--database-replica-url"):
        async with open_replica(settings("postgresql://nobody@127.0.0.1:1/none"), database):
            pass
    with pytest.raises(ConfigError, match="needs --database-url"):
        Config(database_replica_url="postgresql://a")
