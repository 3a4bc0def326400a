"""How long the event loop was held at once, in processor time of its thread: what other processes take counts not."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

TICK_S = 0.001


class Blocks:
    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def watch(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            self.longest_ms = max(self.longest_ms, 1000 * (time.thread_time() - began_s))


@asynccontextmanager
async def blocks() -> AsyncIterator[Blocks]:
    """`longest_ms` is known at the end. Everything in the process's event loop counts, the client of a test too."""
    gc.collect()
    gc.freeze()  # what thousands of tests before this one left is no work of a worker's, which has none of it
    found = Blocks()
    watching = asyncio.create_task(found.watch())
    await asyncio.sleep(0)
    try:
        yield found
        await asyncio.sleep(2 * TICK_S)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
