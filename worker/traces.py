"""Traces in Postgres: written in batches after the answers, read by the operators' page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

from migrations.pool import Database
from worker.auth.principal import Principal
from worker.runs.record import TurnRecord

if TYPE_CHECKING:
    from migrations.pool import Connection

Order: TypeAlias = Literal["recent", "slowest"]
QUANTILES = (0.5, 0.95, 0.99)


class Traces:
    """The owner of the tables traces and spans. Operators read everybody's; others read their tenant's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        """Store finished turns of one tenant. Losing the last ones in a crash is cheaper than waiting for the disk."""
        traces = [record.row() for record in records]
        spans = [row for record in records for row in record.span_rows()]
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("set local synchronous_commit = off")
            await connection.execute(
                "insert into traces select $1::uuid, t.* from jsonb_to_recordset($2) as t ("
                "id text, started_at timestamptz, duration_ms float8, ttft_ms float8, tpot_ms float8, status text, "
                "surface text, model text, response_id text, conversation_id text, attributes jsonb, "
                "within_target boolean)",
                tenant_id,
                traces,
            )
            await connection.execute(
                "insert into spans select $1::uuid, s.* from jsonb_to_recordset($2) as s ("
                "trace_id text, ordinal int, parent int, name text, lane text, start_us bigint, duration_us bigint, "
                "attributes jsonb)",
                tenant_id,
                spans,
            )

    async def forget(self, tenant_id: UUID, days: float) -> None:
        """Remove a tenant's traces that are older."""
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("delete from traces where started_at < now() - $1::interval", timedelta(days=days))

    async def list(
        self, principal: Principal, *, limit: int, order: Order = "recent", status: str | None = None, window_s: float
    ) -> list[dict[str, Any]]:
        """Turns of the last `window_s` seconds without their spans, the latest or the slowest first."""
        column = {"recent": "started_at", "slowest": "duration_ms"}[order]
        async with self._view(principal) as connection:
            rows = await connection.fetch(
                "select id, started_at, duration_ms, ttft_ms, tpot_ms, status, surface, model, response_id, "
                "conversation_id, attributes, within_target, "
                "(select coalesce(sum((s.attributes->>'tokens')::int), 0) from spans s "
                " where s.tenant_id = t.tenant_id and s.trace_id = t.id and s.name = 'decode') as output_tokens, "
                "(select coalesce(sum((s.attributes->>'cached_tokens')::int), 0) from spans s "
                " where s.tenant_id = t.tenant_id and s.trace_id = t.id and s.name = 'prefill') as cached_tokens "
                "from traces t where started_at > now() - $1::interval and ($2::text is null or status = $2) "
                f"order by {column} desc limit $3",
                timedelta(seconds=window_s),
                status,
                limit,
            )
        return [_public(dict(row)) for row in rows]

    async def get(self, principal: Principal, id: str) -> dict[str, Any] | None:
        """One turn with its spans, by its id or by the trace id that the caller sent along (the latest turn of it)."""
        async with self._view(principal) as connection:
            row = await connection.fetchrow(
                "select * from traces where id = $1 or ($2 and id ^@ ($1 || '-')) order by started_at desc limit 1",
                id,
                len(id) == 32,
            )
            if row is None:
                return None
            spans = await connection.fetch(
                "select name, lane, parent, start_us / 1000.0::float8 as start_ms, "
                "duration_us / 1000.0::float8 as duration_ms, attributes "
                "from spans where tenant_id = $1 and trace_id = $2 order by ordinal",
                row["tenant_id"],
                row["id"],
            )
        return {**_public(dict(row)), "spans": [dict(span) for span in spans]}

    async def summary(self, principal: Principal, window_s: float) -> dict[str, Any]:
        """Goodput and percentiles of the last `window_s` seconds: of all answers, and by surface, where embeddings and
        the like count too. Spans of one name are summed within a turn."""
        window = timedelta(seconds=window_s)
        async with self._view(principal) as connection:
            turns = await connection.fetch(
                "select response_id is not null as answers, surface, "
                "count(*) as requests, count(*) filter (where status = 'failed') as failed, "
                "count(within_target) as judged, count(*) filter (where within_target) as within_target, "
                "percentile_cont($2::float8[]) within group (order by ttft_ms) as ttft_ms, "
                "percentile_cont($2::float8[]) within group (order by tpot_ms) as tpot_ms, "
                "percentile_cont($2::float8[]) within group (order by duration_ms) as duration_ms "
                "from traces where started_at > now() - $1::interval "
                "group by grouping sets ((response_id is not null), (surface)) order by requests desc, surface",
                window,
                list(QUANTILES),
            )
            spans = await connection.fetch(
                "with per_turn as (select s.name, t.id, min(s.start_us) as start_us, "
                "  sum(s.duration_us) / 1000.0::float8 as duration_ms, count(*) as occurrences "
                "  from traces t join spans s on s.tenant_id = t.tenant_id and s.trace_id = t.id "
                "  where t.started_at > now() - $1::interval group by s.name, t.tenant_id, t.id) "
                "select name, count(*) as turns, sum(occurrences)::int as count, "
                "percentile_cont($2::float8[]) within group (order by duration_ms) as ms "
                "from per_turn group by name order by avg(start_us)",
                window,
                list(QUANTILES),
            )
        return {
            "window_s": window_s,
            **next((_turns(dict(row)) for row in turns if row["answers"]), _turns({})),
            "surfaces": [{"surface": row["surface"], **_turns(dict(row))} for row in turns if row["surface"]],
            "spans": [
                {"name": row["name"], "turns": row["turns"], "count": row["count"], **_percentiles(row["ms"])}
                for row in spans
            ],
        }

    @asynccontextmanager
    async def _view(self, principal: Principal) -> AsyncIterator[Connection]:
        view = self._database.operator() if principal.is_operator else self._database.tenant(principal.tenant_id)
        async with view as connection:
            yield connection


def _turns(row: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: row.get(name, 0) for name in ("requests", "failed", "judged", "within_target")}
    return counts | {name: _percentiles(row.get(name)) for name in ("ttft_ms", "tpot_ms", "duration_ms")}


def _percentiles(values: Sequence[float | None] | None) -> dict[str, float | None]:
    """Milliseconds; None where nothing was measured."""
    named = zip(("p50", "p95", "p99"), values or (None, None, None), strict=True)
    return {name: None if value is None else round(value, 3) for name, value in named}


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: value for name, value in row.items() if name != "tenant_id"},
        "started_at": row["started_at"].timestamp(),
    }
