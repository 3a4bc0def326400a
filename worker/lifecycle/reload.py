"""Reloads models.toml while a worker serves: a new model is loaded and warm before it takes requests, and no request is
refused because of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from agents.errors import AgentError
from inference.errors import InferenceError
from worker.engines.active_engines import Check, Reload, Warm
from worker.errors import StartError
from worker.setting import ConfigError

# ConfigError: a table may conflict with the worker's own settings.
FORESEEN = (StartError, ConfigError, AgentError, InferenceError, OSError)

log = logging.getLogger("firsttoken.models")


@dataclass(slots=True)
class Reloader:
    """`check` raises StartError if agents, surfaces or aliases refer to something that would be gone; `warm` prefills
    the prompts of agents on a model; `done` is called when the file is in effect. For the event loop only."""

    reload: Reload | None
    check: Check
    warm: Warm
    done: Callable[[], None]
    _running: asyncio.Task[None] | None = None
    _again: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Request a reload; once more after one in progress, since the file may have changed meanwhile."""
        self._again.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="reload")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while self._again.is_set():
            self._again.clear()
            began = monotonic()
            try:
                changed = await self._read()
            except Exception as error:  # top-level boundary: whatever failed is logged, and the next file is read
                trace = None if isinstance(error, FORESEEN) else error
                log.error("models.toml was not reloaded; all models stay as they are: %s", error, exc_info=trace)
            else:
                told = f"{', '.join(changed)} changed" if changed else "no model changed"
                log.warning("models.toml was reloaded in %.1f s: %s", monotonic() - began, told)

    async def _read(self) -> list[str]:
        if self.reload is None:
            raise StartError("this worker was started without one; restart it")
        changed = await self.reload(self.check, self.warm)
        self.done()
        return changed
