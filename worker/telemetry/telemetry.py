"""Finished turns: recorded in batches, for metrics and in Postgres, without delaying a response; and their traces
there, with their latencies, as the operators' page reads them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

from inference.trace import Trace
from migrations.pool import DATABASE_AWAY, Database
from worker.auth.principal import NOBODY, Principal
from worker.database import BatchWriter, NotStored
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.latency import answer_list, spending
from worker.telemetry.latency.answer_list import CACHE_CLASS, Search
from worker.telemetry.latency.measures import Measures, Rows, visible
from worker.telemetry.latency.queries import LatencyQueries
from worker.telemetry.latency.rollups import Rollups
from worker.telemetry.latency.spending import Spending
from worker.telemetry.prometheus import Metrics

log = logging.getLogger("firsttoken.telemetry")

Export: TypeAlias = Callable[[TurnRecord], None]
Grouping: TypeAlias = Literal["surface", "tenant_id", "model", "cache"]

WAITING_MAX = 4096  # traces of a few kilobytes, while the database is unavailable; beyond that the oldest are dropped
TENANT_TRACES_MAX = 100_000  # of about 5 KB, beyond which the oldest go: so that one tenant does not fill the disk
BATCH_MAX = 128
# Four statements and a commit, of which nobody waits for the result: on a machine without idle cores, the model waits.
GATHER_S = 1.0
ROLL_UP_EVERY_S = 300.0  # until an hour is rolled up, it is read minute by minute
FORGET_EVERY_S = 3600.0
NOT_TOKEN = re.compile(r"[^A-Za-z0-9_.-]")
FACTS = (
    "tenant_id, id, started_at, duration_ms, ttft_ms, tpot_ms, status, surface, model, agent, response_id, "
    "conversation_id, attributes, within_target, worker"
)


class Traces:
    """The owner of the tables traces and spans. Operators read all tenants'; others their own tenant's.

    `replica` may lag behind: a trace looked up by id that is not there yet is read from the primary. `worker` is the
    name under which responses are found again: that of its host.
    """

    def __init__(self, database: Database, replica: Database | None = None, *, worker: str = "") -> None:
        self._database = database
        self._replica = replica or database
        self._worker = worker
        self._measures, self._rollups = Measures(), Rollups(worker)
        self.views = LatencyQueries(self._replica)
        self.spending = Spending(database)

    async def write(self, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        """Store finished turns of one tenant. Losing the last ones in a crash is cheaper than waiting for the disk."""
        traces, spans, latencies = await asyncio.to_thread(self._rows, records)
        async with self._database.tenant(tenant_id, durable=False) as connection:
            await connection.execute(
                "insert into traces select $1::uuid, t.* from jsonb_to_recordset($2) as t ("
                "id text, started_at timestamptz, duration_ms float8, ttft_ms float8, tpot_ms float8, status text, "
                "surface text, model text, response_id text, conversation_id text, attributes jsonb, "
                "within_target boolean, agent text, prompt_tokens int, cached_tokens int, output_tokens int, "
                "key_id text, worker text)",
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
            await self._rollups.add(connection, tenant_id, latencies)
            await spending.add(connection, tenant_id, records)
        self._rollups.added(tenant_id, latencies)

    def _rows(self, records: Sequence[TurnRecord]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Rows]:
        """Of the traces, their spans and their latencies. Those of a full batch take 5 ms, in which the event loop
        could deliver no token."""
        traces = [record.row() | {"key_id": record.key_id, "worker": self._worker} for record in records]
        spans = [row for record in records for row in record.span_rows()]
        return traces, spans, self._measures.rows(records)

    async def roll_up(self) -> None:
        """Aggregate minutes into hours, and hours into days. For all tenants; several workers may call it at once."""
        await self._database.fetch("select roll_up_latency(), roll_up_latency_slices()")

    async def annotate(self, tenant_id: UUID, response_id: str, notes: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Add to the attributes of the turn that made a response; null removes one. Returns all of them, or none if the
        trace is gone or not written yet."""
        attributes: Mapping[str, Any] | None = await self._database.value(
            tenant_id,
            "update traces set attributes = jsonb_strip_nulls(attributes || $3) "
            "where tenant_id = $1 and response_id = $2 returning attributes",
            *(response_id, dict(notes)),
        )
        return attributes or {}

    async def forget(self, *, days: float, per_tenant: int) -> None:
        """Remove old traces, and of each tenant all but a number of the newest. For all tenants."""
        async with self._database.anonymous() as connection:
            await connection.execute("select forget_traces($1, $2)", timedelta(days=days), per_tenant)
            await connection.execute("select forget_latency()")
        await self.spending.forget()

    async def list(self, principal: Principal, search: Search) -> list[dict[str, Any]]:
        """Turns without their spans, except for the names and times of the top-level ones."""
        async with visible(self._replica, principal) as connection:
            return [_public(row, principal) for row in await answer_list.rows(connection, search)]

    async def get(self, principal: Principal, id: str) -> dict[str, Any] | None:
        """One turn with its spans: by its id, by the trace id that the client sent (the latest turn of it), or by the
        response that it made.
        """
        found = await self._get(principal, id, self._replica)
        if found is None and self._replica is not self._database:
            found = await self._get(principal, id, self._database)
        return found

    async def _get(self, principal: Principal, id: str, database: Database) -> dict[str, Any] | None:
        async with visible(database, principal) as connection:
            row = await connection.fetchrow(
                f"select {FACTS} from traces where response_id = $1 limit 1"
                if id.startswith("resp_")
                else f'select {FACTS} from traces where id collate "C" = $1 or (id collate "C" > $1 || \'-\' '
                f"and id collate \"C\" < $1 || '.' and {len(id) == 32}) order by started_at desc limit 1",
                id,
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
        return {**_public(dict(row), principal), "spans": [dict(span) for span in spans]}

    async def goodput(
        self, principal: Principal, by: Grouping, *, window_s: float, slices: int
    ) -> Sequence[dict[str, Any]]:
        """Counts of the last `window_s` seconds by group and slice of the window, the oldest slice being 0."""
        column = CACHE_CLASS if by == "cache" else by
        async with visible(self._replica, principal) as connection:
            rows = await connection.fetch(
                f"select coalesce(({column})::text, 'none') as name, "
                "least($2 - 1, floor($2 * (1 - extract(epoch from now() - started_at) / $3)))::int as slice, "
                "count(*) as requests, count(within_target) as judged, "
                "count(*) filter (where within_target) as in_time, "
                "count(*) filter (where status = 'refused' and not within_target) as refused, "
                "count(*) filter (where status = 'failed' and not within_target) as failed, "
                "count(*) filter (where status = 'cancelled') as cancelled, "
                "count(*) filter (where status = 'invalid') as invalid "
                "from traces where started_at > now() - $1::interval group by 1, 2 order by 1, 2",
                timedelta(seconds=window_s),
                slices,
                window_s,
            )
        return [dict(row) for row in rows]


def _public(row: Mapping[str, Any], principal: Principal) -> dict[str, Any]:
    """Only operators see the tenant and the worker."""
    named = {"tenant": str(row["tenant_id"]), "worker": row["worker"]} if principal.is_operator else {}
    shown = {name: value for name, value in row.items() if name not in ("tenant_id", "worker")}
    return {**shown, **named, "started_at": row["started_at"].timestamp()}


@dataclass(eq=False)
class Telemetry:
    """`record` costs microseconds, never waits and never raises; what cannot be stored is dropped and counted. `export`
    receives every turn as well."""

    traces: Traces
    metrics: Metrics
    trace_days: float = field(kw_only=True)
    tenant_traces: int = field(default=TENANT_TRACES_MAX, kw_only=True)
    export: Export | None = field(default=None, kw_only=True)
    dropped: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._waiting: deque[TurnRecord] = deque()
        self._done_at: dict[str, float] = {}
        self._flushing: set[asyncio.Task[None]] = set()
        self._writer = BatchWriter("telemetry", self._store_waiting, gather_s=GATHER_S)

    def start(self, supervisor: Supervisor) -> None:
        self._writer.start(supervisor)

    async def close(self) -> None:
        """Store what is pending, then stop."""
        with suppress(NotStored):
            await self._writer.close()

    def record(self, record: TurnRecord) -> None:
        """Take a finished turn: its trace must not change afterwards."""
        if not record.trace.end_ns:
            record.trace.finish()
        self.metrics.observe(record)
        if self.export is not None:
            self.export(record)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(record)
        self._writer.notify()

    def started(self, trace: Trace, models: Mapping[str, Trace]) -> None:
        """The phases of the start, and the loads of models, which may be repeated. Only collectors receive it as a
        trace: the tables hold responses."""
        self.metrics.watch_starts(lambda: {"worker": trace, **models})  # a model may be loaded again
        if self.export is not None:
            for part, each in {"worker": trace, **models}.items():
                self.export(TurnRecord(each, NOBODY, "completed", "start", part))

    async def flush(self) -> None:
        """Return when everything recorded so far is stored or dropped. What is being stored is stored to its end, even
        if the caller is cancelled meanwhile: a reader who leaves."""
        flushing = asyncio.create_task(self._flush(), name="flush of telemetry")
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushing.discard)
        await asyncio.shield(flushing)

    async def _flush(self) -> None:
        with suppress(NotStored):
            await self._writer.flush()

    async def _store_waiting(self) -> bool:
        """What arrives meanwhile gathers for the next time: under load there would be many small transactions."""
        await asyncio.to_thread(self.metrics.catch_up)
        stored, dropped, left = 0, self.dropped, len(self._waiting)
        while left > 0 and self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, left, len(self._waiting)))]
            stored += await self._store(batch)
            left -= len(batch)
        if self.dropped > dropped and not stored:  # one turn that cannot be stored is not the writer's failure
            raise NotStored(f"{self.dropped - dropped} traces")
        if stored:
            await self._tidy()
        return stored > 0

    async def _store(self, batch: list[TurnRecord]) -> int:
        """Store a batch; returns the number of turns stored."""
        stored = 0
        by_tenant: dict[UUID, list[TurnRecord]] = {}
        for record in batch:
            by_tenant.setdefault(record.tenant_id, []).append(record)
        for tenant_id, records in by_tenant.items():
            try:
                await self.traces.write(tenant_id, records)
                stored += len(records)
            except Exception as error:  # top-level boundary: a turn that cannot be stored is dropped, for any reason
                self._drop(len(records))
                log.warning("%d traces could not be stored: %r", len(records), error)
        return stored

    async def _tidy(self) -> None:
        """Periodic maintenance, for all tenants. It may fail: it runs again."""
        try:
            if self._due("roll_up", ROLL_UP_EVERY_S):
                await self.traces.roll_up()
            if self._due("forget", FORGET_EVERY_S):
                await self.traces.forget(days=self.trace_days, per_tenant=self.tenant_traces)
        except DATABASE_AWAY as error:
            log.warning("old traces could not be deleted: %r", error)

    def _due(self, act: str, every_s: float) -> bool:
        now = time.monotonic()
        if now - self._done_at.get(act, -every_s) < every_s:
            return False
        self._done_at[act] = now
        return True

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.metrics.dropped.add(amount=count)


def server_timing(trace: Trace) -> str:
    """The value of the Server-Timing header: the spans known when the headers are sent, and the trace id."""
    totals: dict[str, float] = {}
    for span in trace.spans:
        if span.end_ns:
            totals[span.name] = totals.get(span.name, 0.0) + span.duration_ms
    parts = [f"{NOT_TOKEN.sub('-', name)};dur={total:.3f}" for name, total in totals.items()]
    return ", ".join([*parts, f'traceparent;desc="00-{trace.id}-{trace.attributes.get("span_id", "0" * 16)}-01"'])
