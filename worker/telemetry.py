"""Where finished turns go: metrics at once, Postgres in batches, without delaying an answer."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from uuid import UUID

from inference.trace import Trace
from worker.batch_writer import BatchWriter
from worker.prometheus import Metrics
from worker.runs.record import TurnRecord
from worker.traces import Traces

log = logging.getLogger("firsttoken.telemetry")

WAITING_MAX = 4096  # traces of a few kilobytes, while the database is unavailable; then the oldest are dropped
BATCH_MAX = 128
FORGET_EVERY_S = 3600.0
NOT_TOKEN = re.compile(r"[^A-Za-z0-9_.-]")


class Telemetry:
    """`record` costs microseconds, never waits and never raises; what cannot be stored is dropped and counted."""

    def __init__(self, traces: Traces, metrics: Metrics, *, trace_days: float) -> None:
        self.traces = traces
        self.metrics = metrics
        self._trace_days = trace_days
        self._waiting: deque[TurnRecord] = deque()
        self._forgot_at: dict[UUID, float] = {}
        self._writer = BatchWriter("telemetry", self._store_waiting)
        self.dropped = 0

    def start(self) -> None:
        self._writer.start()

    async def close(self) -> None:
        """Store what is waiting, then stop."""
        await self._writer.close()

    def record(self, record: TurnRecord) -> None:
        """Take a finished turn: nothing may be added to its trace afterwards."""
        if not record.trace.end_ns:
            record.trace.finish()
        self.metrics.observe(record)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(record)
        self._writer.notify()

    async def flush(self) -> None:
        """Return when everything recorded so far is stored or dropped."""
        await self._writer.flush()

    async def _store_waiting(self) -> bool:
        while self._waiting:
            await self._store([self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))])
        return True

    async def _store(self, batch: list[TurnRecord]) -> None:
        by_tenant: dict[UUID, list[TurnRecord]] = {}
        for record in batch:
            by_tenant.setdefault(record.tenant_id, []).append(record)
        for tenant_id, records in by_tenant.items():
            try:
                await self.traces.write(tenant_id, records)
                await self._forget(tenant_id)
            except Exception as error:  # the boundary: a turn that cannot be stored is dropped, whatever the reason
                self._drop(len(records))
                log.warning("%d traces could not be stored: %r", len(records), error)

    async def _forget(self, tenant_id: UUID) -> None:
        now = time.monotonic()
        if now - self._forgot_at.get(tenant_id, -FORGET_EVERY_S) >= FORGET_EVERY_S:
            self._forgot_at[tenant_id] = now
            await self.traces.forget(tenant_id, self._trace_days)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.metrics.dropped.inc(count)


def server_timing(trace: Trace) -> str:
    """The value of the Server-Timing header: the spans known when the headers are sent, and the id of the trace."""
    totals: dict[str, float] = {}
    for span in trace.spans:
        if span.end_ns:
            totals[span.name] = totals.get(span.name, 0.0) + span.duration_ms
    parts = [f"{NOT_TOKEN.sub('-', name)};dur={total:.3f}" for name, total in totals.items()]
    return ", ".join([*parts, f'traceparent;desc="00-{trace.id}-{trace.attributes.get("span_id", "0" * 16)}-01"'])
