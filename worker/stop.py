"""What the signals that stop a process ask for."""

from __future__ import annotations

import asyncio


class Stop:
    """What signals ask for: the first one lets running answers finish, the second one ends them at once."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.serving = False
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self) -> None:
        if not self.serving:
            self._task.cancel()  # nobody has an answer to lose yet
        elif self.asked.is_set():
            self.hurried.set()
        else:
            self.asked.set()
