"""Work that nobody waits for, done in bites: others have the event loop in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SLICE_S = 0.01  # of the event loop at a time: about what it takes to parse a long request
REST_SHARE = 3.0  # of a bite, while somebody waits for tokens: a core is taken for a quarter of the time


class TimeSlice:
    """`chatting` says whether anybody waits for tokens."""

    def __init__(self, chatting: Callable[[], bool]) -> None:
        self._chatting = chatting
        self._began = time.monotonic()

    async def yield_if_due(self) -> None:
        """To be called between any two steps."""
        busy_s = time.monotonic() - self._began
        if busy_s >= SLICE_S:
            await asyncio.sleep(REST_SHARE * busy_s if self._chatting() else 0)
            self._began = time.monotonic()
