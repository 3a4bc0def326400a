"""Exports finished turns to a collector by OTLP over HTTP: in batches, off the request path, by the official SDK in a
thread.

The SDK is an optional library. It only encodes and sends: its processors would timestamp spans with clocks of their
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from prometheus_client import Metric

from worker.database import BatchWriter, NotStored
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.otlp.conventions import spans_of

log = logging.getLogger("firsttoken.otlp")

Collect: TypeAlias = Callable[[], Iterable[Metric]]

EVERY_S = 60.0  # the default of OpenTelemetry's own readers
WAITING_MAX = 2048  # turns while the collector is unavailable; beyond that the oldest are dropped
BATCH_MAX = 64  # turns per request: some hundred kilobytes
SEND_S_MAX = 5  # a worker that stops waits for it


class SdkMissing(Exception):
    """The packages of the extra `otlp` are not installed."""


class Exporter:
    """`offer` costs less than a microsecond and never waits. What cannot be sent is dropped and counted."""

    def __init__(self, endpoint: str, headers: dict[str, str], version: str) -> None:
        """`endpoint` is that of the collector, without /v1/traces and /v1/metrics. Raises SdkMissing."""
        try:
            from worker.telemetry.otlp.sdk import Sdk
        except ImportError as error:
            raise SdkMissing(error.name) from error
        self._sdk = Sdk(endpoint.rstrip("/"), headers, version, SEND_S_MAX)
        self._collect: Collect = tuple
        self._task: Supervised | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._writer = BatchWriter("otlp", self._send_waiting)
        self.dropped = 0

    def start(self, supervisor: Supervisor, collect: Collect) -> None:
        """`collect` returns the metrics of the worker. It takes milliseconds, and runs in a thread."""
        self._collect = collect
        self._writer.start(supervisor)
        self._task = supervisor.start("otlp", self._run, expected=(NotStored,))

    async def close(self) -> None:
        """Send what is pending and the metrics, once, then stop. A collector that does not take the one is not waited
        for with the other."""
        if self._task:
            await self._task.stop()
        try:
            await self._writer.close()
            await self.send_metrics()
        except NotStored as error:
            log.warning("not sent before the end: %s", error)
        await asyncio.to_thread(self._sdk.close)

    def offer(self, record: TurnRecord) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(record.payload())
        self._writer.notify()

    async def _send_waiting(self) -> bool:
        sent = False
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            spans = [span for turn in batch for span in spans_of(turn)]
            if why := await asyncio.to_thread(self._sdk.send, spans):
                self.dropped += len(batch)
                raise NotStored(f"{len(batch)} traces, at the collector of --otlp-endpoint: {why}")
            sent = True
        return sent

    async def send_metrics(self) -> None:
        """Raises NotStored if the collector refuses them: the next ones make up for it, as counters are cumulative."""
        if why := await asyncio.to_thread(lambda: self._sdk.send_metrics(self._collect())):
            raise NotStored(f"metrics, at the collector of --otlp-endpoint: {why}")

    async def _run(self, healthy: Healthy) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.send_metrics()
            healthy()
