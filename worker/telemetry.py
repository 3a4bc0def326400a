"""Where finished turns go: metrics at once, Postgres in batches, and never in the way of an answer."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from uuid import UUID

import asyncpg

from inference.trace import Trace
from worker.metrics import Metrics
from worker.traces import Record, Traces, trace_payload

__all__ = ["Telemetry", "server_timing", "trace_payload"]

log = logging.getLogger("firsttoken.telemetry")

WAITING_MAX = 4096  # traces of a few kilobytes: what a database may be away for before the oldest are let go
BATCH_MAX = 128
GATHER_S = 0.25  # how long a batch collects: one commit for the turns of a busy moment
FORGET_EVERY_S = 3600.0
NOT_TOKEN = re.compile(r"[^A-Za-z0-9_.-]")


class Telemetry:
    """`record` costs microseconds, never waits and never raises; what cannot be stored is dropped and counted."""

    def __init__(self, traces: Traces, metrics: Metrics, *, trace_days: float) -> None:
        self.traces = traces
        self.metrics = metrics
        self._trace_days = trace_days
        self._waiting: deque[Record] = deque()
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._forgot_at: dict[UUID, float] = {}
        self._writer: asyncio.Task[None] | None = None
        self.dropped = 0

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write_for_ever(), name="telemetry")

    async def close(self) -> None:
        """Store what is waiting, then stop."""
        if self._writer:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.flush()

    def record(
        self,
        trace: Trace,
        *,
        tenant_id: UUID,
        status: str,
        surface: str,
        model: str,
        response_id: str | None = None,
        conversation_id: str | None = None,
        ttft_ms: float | None = None,
        tpot_ms: float | None = None,
        within_target: bool | None = None,
    ) -> None:
        """Take over a finished trace: nobody may add to it afterwards. Times are milliseconds."""
        if not trace.end_ns:
            trace.finish()
        self.metrics.observe(
            trace, surface=surface, status=status, ttft_ms=ttft_ms, tpot_ms=tpot_ms, within_target=within_target
        )
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        known = (status, surface, model, response_id, conversation_id, ttft_ms, tpot_ms, within_target)
        self._waiting.append(Record(trace, tenant_id, *known))
        self._arrived.set()

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count an HTTP answer. `route` is the pattern, not the path."""
        self.metrics.requests.labels(method if route != "none" else "any", route, str(status)).inc()

    async def flush(self) -> None:
        """Return when everything recorded so far is stored or dropped."""
        async with self._writing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                await self._store(batch)

    async def _write_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_S)
            self._arrived.clear()
            await self.flush()

    async def _store(self, batch: list[Record]) -> None:
        by_tenant: dict[UUID, list[Record]] = {}
        for record in batch:
            by_tenant.setdefault(record.tenant_id, []).append(record)
        for tenant_id, records in by_tenant.items():
            try:
                await self.traces.write(tenant_id, records)
                await self._forget(tenant_id)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
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
    """The value of the Server-Timing header: what is known when the headers go out, and the trace to look up."""
    totals: dict[str, float] = {}
    for span in trace.spans:
        if span.end_ns:
            totals[span.name] = totals.get(span.name, 0.0) + span.duration_ms
    parts = [f"{NOT_TOKEN.sub('-', name)};dur={total:.3f}" for name, total in totals.items()]
    return ", ".join([*parts, f'traceparent;desc="00-{trace.id}-{trace.attributes.get("span_id", "0" * 16)}-01"'])
