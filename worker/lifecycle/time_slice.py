"""Cooperative time slicing: background work on the event loop yields between short slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SLICE_S = 0.01  # of the event loop at a time: about as long as parsing a long request takes
REST_SHARE = 3.0  # times a slice, while clients wait for tokens: the work then has a quarter of a core


class TimeSlice:
    """`chatting` says whether any client waits for tokens."""

    def __init__(self, chatting: Callable[[], bool]) -> None:
        self._chatting = chatting
        self._began = time.monotonic()

    async def yield_if_due(self) -> None:
        """Call this between any two steps of the work."""
        busy_s = time.monotonic() - self._began
        if busy_s >= SLICE_S:
            await asyncio.sleep(REST_SHARE * busy_s if self._chatting() else 0)
            self._began = time.monotonic()
