"""Write-behind: records produced while responses are served are stored in batches, off the request path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from worker.lifecycle.supervisor import Part, Supervised, Supervisor, Well

GATHER_S = 0.25  # how long a batch accumulates: one commit for a busy moment
HURRY_S = 0.01  # when a request waits for the batch
UNDER_WAY_S = 2.0  # for a batch that is being stored when the worker stops: otherwise it would be lost


class NotStored(Exception):
    """The pending records could not be stored. Their owner has kept them, or dropped and counted them."""


class BatchWriter:
    """Calls `store` a moment after `notify`, in a task of its own. `store` stores everything that is pending and
    returns whether there was anything; when it raises, it is called again.
    """

    def __init__(self, part: Part, store: Callable[[], Awaitable[bool]], *, gather_s: float | None = None) -> None:
        """`gather_s`: how long a batch accumulates; None: GATHER_S."""
        self._part = part
        self._store = store
        self._gather_s = gather_s
        self._notified = asyncio.Event()
        self._hurried = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: Supervised | None = None

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start(self._part, self._write, expected=(NotStored,))

    def notify(self, *, hurry: bool = False) -> None:
        """Signal that there is something to store. Costs less than a microsecond."""
        self._notified.set()
        if hurry:
            self._hurried.set()

    async def flush(self) -> bool:
        """Store what is pending now; returns whether there was anything. Raises what `store` raises."""
        async with self._writing:
            return await self._store()

    async def close(self) -> None:
        """Stop after storing what is pending: once, after the batch in progress. Raises what `store` raises."""
        with suppress(TimeoutError):
            async with asyncio.timeout(UNDER_WAY_S), self._writing:
                pass
        if self._task:
            await self._task.stop()
        await self.flush()

    async def _write(self, well: Well) -> None:
        while True:
            await self._notified.wait()
            await self._gather()
            self._notified.clear()
            self._hurried.clear()
            try:
                stored = await self.flush()
            except BaseException:
                self._notified.set()  # the next iteration of this task stores what is pending
                raise
            if stored:
                well()

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S if self._gather_s is None else self._gather_s):
                await self._hurried.wait()
                await asyncio.sleep(HURRY_S)
