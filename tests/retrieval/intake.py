"""The ingest worker as a worker keeps it running."""

from __future__ import annotations

from retrieval.ingest_worker import IngestWorker
from worker.lifecycle.supervisor import Supervised, Supervisor


class Intake(IngestWorker):
    """Runs from `start` to `close`, whatever its errors."""

    _task: Supervised | None = None

    def start(self) -> None:
        self._task = Supervisor().start("intake", self.run)

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()
