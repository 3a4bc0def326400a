"""Sends the metrics of the worker to a collector, once a minute and when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from prometheus_client import Metric

from worker.batch_writer import NotStored
from worker.otlp.measurements import OtelMetric, metrics_of
from worker.supervisor import Supervised, Supervisor, Well

log = logging.getLogger("firsttoken.otlp")

Collect: TypeAlias = Callable[[], Iterable[Metric]]
Send: TypeAlias = Callable[[Sequence[OtelMetric]], bool]

EVERY_S = 60.0  # the default of OpenTelemetry's own readers


class Meter:
    """`collect` takes milliseconds and `send` waits for the network: both run in a thread. A failed export is made up
    for by the next one, since all counters are cumulative.
    """

    def __init__(self, collect: Collect, send: Send) -> None:
        self._collect = collect
        self._send = send
        self._task: Supervised | None = None

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("otlp", self._run, expected=(NotStored,))

    async def close(self) -> None:
        """Export the metrics once more, then stop."""
        if self._task:
            await self._task.stop()
        try:
            await self.tell()
        except NotStored:
            log.warning("the last metrics could not be sent to the collector")

    async def tell(self) -> None:
        """Raises NotStored if the collector does not accept them."""
        if not await asyncio.to_thread(lambda: self._send(metrics_of(self._collect()))):
            raise NotStored("metrics at the collector")

    async def _run(self, well: Well) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.tell()
            well()
