"""The signals that stop a process, and what each requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

LOOK_S = 0.25  # polling interval for conditions that cannot notify


def notice(drain_s: float) -> str:
    """For a terminal where a process that was told to stop is still running."""
    return f"Stopping. Running answers get up to {drain_s:g} s to finish. Press Ctrl-C again to end them now."


class StopSignals:
    """The first signal lets running responses finish, the second one ends them immediately."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.serving = False
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    @classmethod
    def by_signals(cls) -> StopSignals:
        """For the calling task."""
        task = asyncio.current_task()
        assert task is not None
        stop = cls(task)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.ask)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # renews a crew; a single process has no successor
        return stop

    async def wanted(self, over: Callable[[], str | None]) -> None:
        """Return when a signal requests the stop, or when this process cannot continue."""
        while not (self.asked.is_set() or over()):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.asked.wait()

    def ask(self) -> None:
        if not self.serving:
            self._task.cancel()  # no response can be lost yet
        elif self.asked.is_set():
            self.hurried.set()
        else:
            self.asked.set()
