"""Writing behind: what is noted while answers are made is stored in batches beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("firsttoken.writer")

GATHER_S = 0.25  # how long a batch collects: one commit for a busy moment
RETRY_S = 1.0


class BatchWriter:
    """Calls `store` a moment after `notify`, in a task of its own. `store` takes everything that waits and says whether
    nothing is left: if something is, or if it raises, it is called again after a pause.
    """

    def __init__(self, name: str, store: Callable[[], Awaitable[bool]]) -> None:
        self._name = name
        self._store = store
        self._notified = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write(), name=self._name)

    def notify(self) -> None:
        """There is something to store. Costs less than a microsecond."""
        self._notified.set()

    async def flush(self) -> bool:
        """Store what waits now; whether nothing is left."""
        async with self._writing:
            return await self._store()

    async def close(self) -> None:
        """Stop, and store what is waiting: once, whether that works or not."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.flush()

    async def _write(self) -> None:
        while True:
            await self._notified.wait()
            await asyncio.sleep(GATHER_S)
            self._notified.clear()
            try:
                done = await self.flush()
            except Exception:  # the boundary: without this task nothing would be stored until the next start
                log.exception("%s could not store a batch", self._name)
                done = False
            if not done:
                await asyncio.sleep(RETRY_S)
                self._notified.set()
