"""The tables latency and latency_slices: written with the traces, read in as few rows as cover a time range; and the
load of each worker by minute, which is sampled here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from migrations.pool import Connection, Database
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor
from worker.telemetry.latency.measures import MINUTE_S, Rows, Slice, TimeRange

NAMES_MAX = 200  # pairs of a key and a worker: more than a selection list has room for
TENANTS_MAX = 4096  # whose span names are remembered as stored

ADD = """
insert into latency (tenant_id, resolution_s, at, surface, model, agent, measures)
select $1, 60, * from unnest($2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bytea[])
    on conflict (resolution_s, at, tenant_id, surface, model, agent, generation)
    do update set measures = latency.measures || excluded.measures
"""
# Writers never wait for each other: a cell that exists gets another row.
ADD_SLICES = """
insert into latency_slices (tenant_id, resolution_s, worker, at, surface, model, agent,
                            key_id, status, cache, length, measures)
select $1, 60, $2, * from unnest($3::timestamptz[], $4::text[], $5::text[], $6::text[],
                                 $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[])
"""
ADD_NAMES = "insert into span_names select $1, * from unnest($2::text[]) on conflict do nothing"

# Every value once: days from $1 to $2 as one row, hours from $3 to $4 around them, minutes from $5 to $6 around those;
# and rows that are not rolled up yet.
PIECES = """
(select * from {table} where resolution_s = 86400 and at >= $1 and at < $2 {slice}
 union all
 select * from {table} where resolution_s = 3600 and at >= $3 and at < least($1, $4) {slice}
 union all
 select * from {table} where resolution_s = 3600 and at >= greatest($2, $3) and at < $4 {slice}
 union all
 select * from {table} where resolution_s = 3600 and at >= $1 and at < $2 and generation = 0 {slice}
 union all
 select * from {table} where resolution_s = 60 and at >= $5 and at < least($3, $6) {slice}
 union all
 select * from {table} where resolution_s = 60 and at >= greatest($4, $5) and at < $6 {slice}
 union all
 select * from {table} where resolution_s = 60 and at >= $3 and at < $4 and generation = 0 {slice}) as pieces
"""
GROUP = "surface, model, agent, tenant_id"

Row: TypeAlias = dict[str, Any]


class Rollups:
    """The side that writes. `worker` is its name."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._named: dict[UUID, frozenset[str]] = {}

    async def add(self, connection: Connection, tenant_id: UUID, rows: Rows) -> None:
        """In the transaction that stores the traces."""
        if not rows.whole:
            return
        await connection.execute(ADD, tenant_id, *_columns(rows.whole))
        await connection.execute(ADD_SLICES, tenant_id, self._worker, *_columns(rows.slices))
        if self._named.get(tenant_id) != rows.span_names:
            await connection.execute(ADD_NAMES, tenant_id, sorted(rows.span_names))  # in one order: no two deadlock

    def added(self, tenant_id: UUID, rows: Rows) -> None:
        """That transaction is committed."""
        if rows.whole:
            if len(self._named) >= TENANTS_MAX:
                self._named.clear()
            self._named[tenant_id] = rows.span_names


async def groups(connection: Connection, time_range: TimeRange, slice: Slice) -> list[Row]:
    """The tallies (`measures`) of each surface, model, agent and tenant."""
    columns = f"{GROUP}, string_agg(measures, '') as measures"
    return await _grouped(connection, columns, GROUP, time_range, slice, whole=True)


async def points(connection: Connection, time_range: TimeRange, slice: Slice) -> list[Row]:
    """The tallies (`measures`) of each step, which begins at `at`, in Unix seconds. Steps without data are left
    out."""
    columns = f"{_step(time_range)} as at, string_agg(measures, '') as measures"
    return await _grouped(connection, columns, "1", time_range, slice, whole=False)


async def span_names(connection: Connection) -> list[str]:
    return [row["name"] for row in await connection.fetch("select distinct name from span_names")]


async def choices(connection: Connection, time_range: TimeRange) -> list[Row]:
    """The combinations of dimensions, each with the `size` of its data in bytes."""
    columns = f"{GROUP}, sum(length(measures)) as size"
    return await _grouped(connection, columns, GROUP, time_range, Slice(), whole=True)


async def names(connection: Connection, time_range: TimeRange) -> list[Row]:
    """Which keys used which workers, the most frequent first. Empty for requests without an API key, or a worker
    without a name."""
    rows = await connection.fetch(
        f"select key_id, worker from {PIECES.format(table='latency_slices', slice='')} "
        f"group by key_id, worker order by count(*) desc limit {NAMES_MAX}",
        *_bounds(time_range, whole=True),
    )
    return [dict(row) for row in rows]


async def worker_points(connection: Connection, time_range: TimeRange) -> list[Row]:
    """The combined load of the workers; for operators. The maximum of each step: an average hides peaks."""
    rows = await connection.fetch(
        "with minutes as (select at, sum(running) as running, sum(waiting) as waiting, max(loop_lag_ms) as lag, "
        "  max(kv_use) as kv_use from worker_minutes where at >= $1 and at < $2 group by at) "
        f"select {_step(time_range)} as at, "
        "max(running) as running, max(waiting) as waiting, max(lag) as loop_lag_ms, max(kv_use) as kv_use "
        "from minutes group by 1",
        _moment(time_range.start),
        _moment(time_range.end),
    )
    return [dict(row) for row in rows]


async def _grouped(
    connection: Connection, columns: str, by: str, time_range: TimeRange, slice: Slice, *, whole: bool
) -> list[Row]:
    bounds = _bounds(time_range, whole=whole)
    conditions, given = slice.conditions(len(bounds) + 1)
    pieces = PIECES.format(table="latency" if slice.is_coarse else "latency_slices", slice=conditions)
    rows = await connection.fetch(f"select {columns} from {pieces} group by {by}", *bounds, *given)
    return [dict(row) for row in rows]


def _step(time_range: TimeRange) -> str:
    """In which `at` is."""
    return f"(floor(extract(epoch from at) / {time_range.step_s}) * {time_range.step_s})::bigint"


def _bounds(time_range: TimeRange, *, whole: bool) -> list[datetime]:
    """The first arguments of PIECES."""
    hours, days = time_range.parts(whole=whole)
    return [_moment(at) for at in (*days, *hours, time_range.start, time_range.end)]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)


LOOK_S = 0.5  # a loop that is blocked for longer than this is always noticed
SILENT_S = 3 * MINUTE_S


@dataclass(slots=True)
class Peak:
    running: float = 0.0
    waiting: float = 0.0
    loop_lag_ms: float = 0.0
    kv_use: float | None = None  # of the KV cache; None if the engines are remote

    def note(self, stats: Mapping[str, Any], late_s: float) -> None:
        self.running = max(self.running, float(stats.get("running") or 0))
        self.waiting = max(self.waiting, float(stats.get("waiting") or 0))
        self.loop_lag_ms = max(self.loop_lag_ms, 1000 * late_s)
        if (used := stats.get("kv_use")) is not None:
            self.kv_use = max(self.kv_use or 0.0, float(used))


class LoadSampler:
    """Stores the peaks of each minute."""

    def __init__(self, database: Database, worker: int, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._database = database
        self._worker = worker
        self._stats = stats

    def start(self, supervisor: Supervisor) -> Supervised:
        return supervisor.start("minutes", self._watch, silent_s=SILENT_S)

    async def _watch(self, healthy: Healthy) -> None:
        loop = asyncio.get_running_loop()
        while True:
            highest, ends_at = Peak(), loop.time() + MINUTE_S
            while loop.time() < ends_at:
                due = loop.time() + LOOK_S
                await asyncio.sleep(LOOK_S)
                highest.note(self._stats(), max(0.0, loop.time() - due))
            await self.store(highest)
            healthy()

    async def store(self, highest: Peak) -> None:
        await self._database.fetch(
            "insert into worker_minutes (at, worker, running, waiting, loop_lag_ms, kv_use) "
            "values (date_trunc('minute', now()), $1, $2, $3, $4, $5) on conflict do nothing",
            self._worker,
            highest.running,
            highest.waiting,
            highest.loop_lag_ms,
            highest.kv_use,
        )
