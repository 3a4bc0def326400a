"""The table latency: written with the traces, read in as few pieces as cover a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from worker.latency.measures import Measures
from worker.latency.stretch import Stretch
from worker.runs.record import TurnRecord

if TYPE_CHECKING:
    from migrations.pool import Connection

TENANTS_MAX = 4096  # whose span names are remembered as stored

ADD = """
insert into latency (tenant_id, resolution_s, at, surface, model, agent, measures)
select $1, 60, * from unnest($2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bytea[])
    on conflict (resolution_s, at, tenant_id, surface, model, agent, generation)
    do update set measures = latency.measures || excluded.measures
"""
ADD_NAMES = "insert into span_names select $1, * from unnest($2::text[]) on conflict do nothing"

# Every value once: days from $1 to $2 in one piece, hours from $3 to $4 around them, minutes from $5 to $6 around
# those; and what is in no coarser piece yet.
PIECES = """
(select * from latency where resolution_s = 86400 and at >= $1 and at < $2 {slice}
 union all
 select * from latency where resolution_s = 3600 and at >= $3 and at < least($1, $4) {slice}
 union all
 select * from latency where resolution_s = 3600 and at >= greatest($2, $3) and at < $4 {slice}
 union all
 select * from latency where resolution_s = 3600 and at >= $1 and at < $2 and generation = 0 {slice}
 union all
 select * from latency where resolution_s = 60 and at >= $5 and at < least($3, $6) {slice}
 union all
 select * from latency where resolution_s = 60 and at >= greatest($4, $5) and at < $6 {slice}
 union all
 select * from latency where resolution_s = 60 and at >= $3 and at < $4 and generation = 0 {slice}) as pieces
"""


@dataclass(frozen=True, slots=True)
class Slice:
    """Which answers are counted; None means all."""

    surface: str | None = None
    model: str | None = None
    agent: str | None = None
    tenant: UUID | None = None

    def conditions(self, first: int) -> tuple[str, list[Any]]:
        """SQL that is appended to conditions, and its parameters, numbered from `first`."""
        named = (("surface", self.surface), ("model", self.model), ("agent", self.agent), ("tenant_id", self.tenant))
        given = [(column, value) for column, value in named if value is not None]
        sql = "".join(f" and {column} = ${number}" for number, (column, _) in enumerate(given, first))
        return sql, [value for _, value in given]


@dataclass(frozen=True, slots=True)
class Group:
    """What a combination of dimensions did."""

    surface: str
    model: str
    agent: str
    tenant_id: UUID
    measures: bytes


@dataclass(frozen=True, slots=True)
class Point:
    """What was done in the step that begins at `at`, in Unix seconds."""

    at: int
    measures: bytes


class Rollups:
    """The side that writes."""

    def __init__(self) -> None:
        self._measures = Measures()
        self._named: dict[UUID, frozenset[str]] = {}

    async def add(self, connection: Connection, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        """In the transaction that stores the traces."""
        rows = self._measures.rows(records)
        if not rows:
            return
        await connection.execute(ADD, tenant_id, *map(list, zip(*rows, strict=True)))
        names = frozenset(self._measures.span_names)
        if self._named.get(tenant_id) != names:
            await connection.execute(ADD_NAMES, tenant_id, list(names))
            if len(self._named) >= TENANTS_MAX:
                self._named.clear()
            self._named[tenant_id] = names


async def groups(connection: Connection, stretch: Stretch, slice: Slice) -> list[Group]:
    pieces, given = _pieces(stretch, slice, whole=True)
    rows = await connection.fetch(
        "select surface, model, agent, tenant_id, string_agg(measures, '') as measures "
        f"from {pieces} group by surface, model, agent, tenant_id",
        *given,
    )
    return [Group(*row) for row in rows]


async def points(connection: Connection, stretch: Stretch, slice: Slice) -> list[Point]:
    """There is none where nothing happened."""
    pieces, given = _pieces(stretch, slice, whole=False)
    rows = await connection.fetch(
        f"select (floor(extract(epoch from at) / {stretch.step_s}) * {stretch.step_s})::bigint as point, "
        f"string_agg(measures, '') as measures from {pieces} group by 1",
        *given,
    )
    return [Point(*row) for row in rows]


async def span_names(connection: Connection) -> list[str]:
    return [row["name"] for row in await connection.fetch("select distinct name from span_names")]


async def worker_points(connection: Connection, stretch: Stretch) -> list[dict[str, Any]]:
    """What the workers did together; for operators. The highest of each step: an average hides what hurt."""
    rows = await connection.fetch(
        "with minutes as (select at, sum(running) as running, sum(waiting) as waiting, max(loop_lag_ms) as lag, "
        "  max(kv_use) as kv_use from worker_minutes where at >= $1 and at < $2 group by at) "
        f"select (floor(extract(epoch from at) / {stretch.step_s}) * {stretch.step_s})::bigint as at, "
        "max(running) as running, max(waiting) as waiting, max(lag) as loop_lag_ms, max(kv_use) as kv_use "
        "from minutes group by 1",
        _moment(stretch.start),
        _moment(stretch.end),
    )
    return [dict(row) for row in rows]


def _pieces(stretch: Stretch, slice: Slice, *, whole: bool) -> tuple[str, list[Any]]:
    hours, days = stretch.parts(whole=whole)
    conditions, given = slice.conditions(7)
    bounds = (*days, *hours, stretch.start, stretch.end)
    return PIECES.format(slice=conditions), [*map(_moment, bounds), *given]


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)
