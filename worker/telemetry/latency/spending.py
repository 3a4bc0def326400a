"""The table spending: tokens and costs of responses, written with the traces, summed up by any of its dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

from migrations.pool import Connection, Database
from worker.auth.principal import Principal
from worker.runs.record import TurnCost, TurnRecord
from worker.telemetry.latency.measures import HOUR_S, NOT_ANSWERED, Slice, visible

By: TypeAlias = Literal["surface", "model", "agent", "tenant", "key", "conversation", "day", "all"]
ROWS_MAX = 200  # of a result: the most expensive
COLUMNS: Mapping[By, str] = {
    "surface": "surface",
    "model": "model",
    "agent": "agent",
    "tenant": "tenant_id::text",
    "key": "key_id",
    "day": "to_char(at at time zone 'UTC', 'YYYY-MM-DD')",
    "all": "'all answers'",
}

ADD = """
insert into spending (tenant_id, at, key_id, surface, model, agent,
                      answers, cost, engine_ms, speculation_ms, tool_ms, cascade_ms)
select $1, * from unnest($2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[],
                         $7::bigint[], $8::float8[], $9::float8[], $10::float8[], $11::float8[],
                         $12::float8[])
    on conflict (tenant_id, at, key_id, surface, model, agent)
    do update set answers = spending.answers + excluded.answers, cost = spending.cost + excluded.cost,
                  engine_ms = spending.engine_ms + excluded.engine_ms,
                  speculation_ms = spending.speculation_ms + excluded.speculation_ms,
                  tool_ms = spending.tool_ms + excluded.tool_ms,
                  cascade_ms = spending.cascade_ms + excluded.cascade_ms
"""
SUMS = (
    "sum(answers)::bigint as answers, sum(cost) as cost, sum(engine_ms) as engine_ms, "
    "sum(speculation_ms) as speculation_ms, sum(tool_ms) as tool_ms, sum(cascade_ms) as cascade_ms"
)
# For conversations, only the stored single responses have the data.
TOLD = "coalesce((attributes->>'firsttoken.{0}')::float8, 0) as {0}"
ANSWERS = ", ".join(["conversation_id", "1 as answers", *(TOLD.format(name) for name in TurnCost._fields)])


async def add(connection: Connection, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
    """In the transaction that stores the traces."""
    if rows := cells(records):
        await connection.execute(ADD, tenant_id, *map(list, zip(*rows, strict=True)))


def cells(records: Sequence[TurnRecord]) -> list[tuple[Any, ...]]:
    """One row for each hour, key, surface, model and agent, in the order in which every worker writes them, to avoid
    deadlocks. Pure.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        if record.response_id is None or record.status in NOT_ANSWERED:
            continue
        at = datetime.fromtimestamp(record.trace.started_at // HOUR_S * HOUR_S, UTC)
        cell = found.setdefault(
            (at, record.key, record.surface, record.model, record.agent), [0.0] * (1 + len(TurnCost._fields))
        )
        for place, amount in enumerate((1, *record.taken)):
            cell[place] += amount
    return [(*key, int(answers), *amounts) for key, (answers, *amounts) in sorted(found.items())]


class Spending:
    """Operators see all tenants' spending; others see their own tenant's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def by(self, principal: Principal, by: By, *, window_s: float) -> list[dict[str, Any]]:
        """Sums of the last `window_s` seconds, in whole hours except for conversations, the most expensive first."""
        source = (
            f"(select {ANSWERS} from traces where response_id is not null and started_at > now() - $1::interval "
            "and status not in ('refused', 'invalid')) as answers"
        )
        name = "conversation_id"
        if by != "conversation":
            source, name = "spending where at > now() - $1::interval - interval '1 hour'", COLUMNS[by]
        async with visible(self._database, principal) as connection:
            rows = await connection.fetch(
                f"select coalesce({name}, '') as name, {SUMS} from {source} "
                f"group by 1 order by sum(cost) desc, sum(engine_ms) desc, 1 limit {ROWS_MAX}",
                timedelta(seconds=window_s),
            )
        return [dict(row) for row in rows]

    async def board(self, principal: Principal, slice: Slice, *, start: float, end: float) -> list[dict[str, Any]]:
        """Sums by surface, model and agent of the hours that contain these moments; `slice.has_costs`."""
        sliced, values = slice.conditions(3)
        async with visible(self._database, principal) as connection:
            rows = await connection.fetch(
                f"select surface, model, agent, {SUMS} from spending where at > $1 and at < $2{sliced} "
                f"group by 1, 2, 3 order by sum(answers) desc, 1, 2, 3 limit {ROWS_MAX}",
                datetime.fromtimestamp(start - HOUR_S, UTC),
                datetime.fromtimestamp(end, UTC),
                *values,
            )
        return [dict(row) for row in rows]

    async def of_key(self, tenant_id: UUID, key_id: str, since: datetime) -> float:
        """The cost of a key's responses since then; `since` is the beginning of an hour."""
        select = "select coalesce(sum(cost), 0) from spending where tenant_id = $1 and key_id = $2 and at >= $3"
        return float(await self._database.value(tenant_id, select, key_id, since))

    async def forget(self) -> None:
        """Remove rows older than a year. For all tenants."""
        await self._database.fetch("select forget_spending()")


def per_thousand(row: Mapping[str, Any]) -> dict[str, float | None]:
    """A row with averages per thousand responses. Pure."""
    answers = row["answers"]

    def each(name: str) -> float | None:
        return round(1000 * row[name] / answers, 6) if answers else None

    engine_ms = row["engine_ms"]

    def share(name: str) -> float | None:
        return round(row[name] / engine_ms, 6) if engine_ms else None

    return {
        "cost_per_1000": each("cost"),
        "engine_s_per_1000": None if not answers else round(engine_ms / answers, 6),
        "speculation_share": share("speculation_ms"),
        "cascade_share": share("cascade_ms"),
    }
