"""Exports finished turns to a collector by OTLP over HTTP: in batches, off the request path, by the official SDK in a
thread.

The SDK is an optional library. It only encodes and sends: its processors would timestamp spans with clocks of their
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from worker.batch_writer import BatchWriter, NotStored
from worker.otlp.meter import Collect, Meter
from worker.otlp.spans import spans_of
from worker.runs.record import TurnRecord
from worker.supervisor import Supervisor

log = logging.getLogger("firsttoken.otlp")

WAITING_MAX = 2048  # turns while the collector is unavailable; beyond that the oldest are dropped
BATCH_MAX = 64  # turns per request: some hundred kilobytes
SEND_S_MAX = 10


class SdkMissing(Exception):
    """The packages of the extra `otlp` are not installed."""


class Exporter:
    """`offer` costs less than a microsecond and never waits. What cannot be sent is dropped and counted."""

    def __init__(self, endpoint: str, headers: dict[str, str], version: str) -> None:
        """`endpoint` is that of the collector, without /v1/traces and /v1/metrics. Raises SdkMissing."""
        try:
            from worker.otlp.sdk import Sdk
        except ImportError as error:
            raise SdkMissing(error.name) from error
        self._sdk = Sdk(endpoint.rstrip("/"), headers, version, SEND_S_MAX)
        self._meter: Meter | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._writer = BatchWriter("otlp", self._send_waiting)
        self.dropped = 0

    def start(self, supervisor: Supervisor, collect: Collect) -> None:
        """`collect` returns the metrics of the worker."""
        self._writer.start(supervisor)
        self._meter = Meter(collect, self._sdk.send_metrics)
        self._meter.start(supervisor)

    async def close(self) -> None:
        """Send what is pending, once, then stop."""
        try:
            await self._writer.close()
        except NotStored:
            log.warning("the last traces could not be sent to the collector")
        if self._meter:
            await self._meter.close()
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
            if not await asyncio.to_thread(self._sdk.send, [span for turn in batch for span in spans_of(turn)]):
                self.dropped += len(batch)
                raise NotStored(f"{len(batch)} traces at the collector")
            sent = True
        return sent
