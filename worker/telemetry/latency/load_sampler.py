"""Samples the load of this worker: per minute, the peaks of running and waiting requests, and the lag of the event
loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from migrations.pool import Database
from worker.lifecycle.supervisor import Supervised, Supervisor, Well
from worker.telemetry.latency.slice import MINUTE_S

LOOK_S = 0.5  # a loop that is blocked for longer than this is always noticed
SILENT_S = 3 * MINUTE_S


@dataclass(slots=True)
class Peak:
    running: float = 0.0
    waiting: float = 0.0
    loop_lag_ms: float = 0.0
    kv_use: float | None = None  # of the KV cache; None if the engines are remote

    def note(self, stats: Mapping[str, Any], late_s: float) -> None:
        self.running = max(self.running, float(stats.get("running") or 0))
        self.waiting = max(self.waiting, float(stats.get("waiting") or 0))
        self.loop_lag_ms = max(self.loop_lag_ms, 1000 * late_s)
        if (used := stats.get("kv_use")) is not None:
            self.kv_use = max(self.kv_use or 0.0, float(used))


class LoadSampler:
    """Stores the peaks of each minute."""

    def __init__(self, database: Database, worker: int, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._database = database
        self._worker = worker
        self._stats = stats

    def start(self, supervisor: Supervisor) -> Supervised:
        return supervisor.start("minutes", self._watch, silent_s=SILENT_S)

    async def _watch(self, well: Well) -> None:
        loop = asyncio.get_running_loop()
        while True:
            highest, ends_at = Peak(), loop.time() + MINUTE_S
            while loop.time() < ends_at:
                due = loop.time() + LOOK_S
                await asyncio.sleep(LOOK_S)
                highest.note(self._stats(), max(0.0, loop.time() - due))
            await self.store(highest)
            well()

    async def store(self, highest: Peak) -> None:
        async with self._database.anonymous() as connection:
            await connection.execute(
                "insert into worker_minutes (at, worker, running, waiting, loop_lag_ms, kv_use) "
                "values (date_trunc('minute', now()), $1, $2, $3, $4, $5) on conflict do nothing",
                self._worker,
                highest.running,
                highest.waiting,
                highest.loop_lag_ms,
                highest.kv_use,
            )
