"""Records finished turns: metrics at once, Postgres in batches, without delaying a response."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID

from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.auth.principal import NOBODY
from worker.database import BatchWriter, NotStored
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.prometheus import Metrics
from worker.telemetry.traces import Traces

log = logging.getLogger("firsttoken.telemetry")

Export: TypeAlias = Callable[[TurnRecord], None]

WAITING_MAX = 4096  # traces of a few kilobytes, while the database is unavailable; beyond that the oldest are dropped
TENANT_TRACES_MAX = 100_000  # of about 5 KB, beyond which the oldest go: so that one tenant does not fill the disk
BATCH_MAX = 128
# Four statements and a commit, of which nobody waits for the result: on a machine without idle cores, the model waits.
GATHER_S = 1.0
ROLL_UP_EVERY_S = 300.0  # until an hour is rolled up, it is read minute by minute
FORGET_EVERY_S = 3600.0
NOT_TOKEN = re.compile(r"[^A-Za-z0-9_.-]")


class Telemetry:
    """`record` costs microseconds, never waits and never raises; what cannot be stored is dropped and counted."""

    def __init__(
        self,
        traces: Traces,
        metrics: Metrics,
        *,
        trace_days: float,
        tenant_traces: int = TENANT_TRACES_MAX,
        export: Export | None = None,
    ) -> None:
        """`export` receives every turn as well."""
        self.traces = traces
        self.metrics = metrics
        self._trace_days = trace_days
        self._tenant_traces = tenant_traces
        self._export = export
        self._waiting: deque[TurnRecord] = deque()
        self._done_at: dict[str, float] = {}
        self._flushing: set[asyncio.Task[None]] = set()
        self._writer = BatchWriter("telemetry", self._store_waiting, gather_s=GATHER_S)
        self.dropped = 0

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
        if self._export is not None:
            self._export(record)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(record)
        self._writer.notify()

    def started(self, trace: Trace, models: Mapping[str, Trace]) -> None:
        """The phases of the start, and the loads of models, which may be repeated. Only collectors receive it as a
        trace: the tables hold responses."""
        self.metrics.watch_starts(lambda: {"worker": trace, **models})  # a model may be loaded again
        if self._export is not None:
            for part, each in {"worker": trace, **models}.items():
                self._export(TurnRecord(each, NOBODY, "completed", "start", part))

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
                await self.traces.forget(days=self._trace_days, per_tenant=self._tenant_traces)
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
