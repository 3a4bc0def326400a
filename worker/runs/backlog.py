"""Responses of the queue at this worker: a few at once, each taken by one worker only.

Postgres tells when there is one (LISTEN), and a slow poll covers for what was not heard. Two statements and a loop; a
library for queues would bring a second driver and its own tables, and still not know what of an answer was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agents.errors import NotFound
from migrations.pool import DATABASE_AWAY
from worker.errors import BROKE
from worker.failures import to_api_error
from worker.runs.background import begin_queued
from worker.runs.running_store import Taken

if TYPE_CHECKING:
    from worker.services import Services

log = logging.getLogger("firsttoken.runs")

POLL_S = 5.0
RETRY_S = 1.0
BUSY = frozenset({429, 503})  # not the fault of the request: it may be begun elsewhere, or later


class Backlog:
    """`places` responses at once; the others wait for whichever worker has a place. None with 0 places."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._making: set[asyncio.Task[None]] = set()
        self._queued = asyncio.Event()
        self._taking: asyncio.Task[None] | None = None

    def start(self, services: Services) -> None:
        if self._places:
            self._taking = asyncio.create_task(self._take_for_ever(services), name="backlog")

    def look(self) -> None:
        """There may be something to take."""
        self._queued.set()

    def stop(self) -> None:
        """Take nothing more. What waits stays queued."""
        if self._taking:
            self._taking.cancel()

    async def close(self) -> None:
        """What was taken and not begun is left, as if this worker had died."""
        self.stop()
        tasks = [*self._making, *([self._taking] if self._taking else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _take_for_ever(self, services: Services) -> None:
        while True:
            self._queued.clear()
            try:
                await self._take_all(services)
            except DATABASE_AWAY as error:
                log.warning("the queue cannot be read for the moment: %r", error)
            try:
                async with asyncio.timeout(POLL_S):
                    await self._queued.wait()
            except TimeoutError:
                pass

    async def _take_all(self, services: Services) -> None:
        while services.runs.presence.is_alive and len(self._making) < self._places:
            taken = await services.runs.queue.take(services.runs.presence.worker)
            if taken is None:
                return
            task = asyncio.create_task(self._make(services, taken), name="background")
            self._making.add(task)
            task.add_done_callback(self._free)

    def _free(self, task: asyncio.Task[None]) -> None:
        self._making.discard(task)
        self.look()

    async def _make(self, services: Services, taken: Taken) -> None:
        try:
            run = await begin_queued(services, taken.tenant_id, taken.response_id)
            await run.wait()
        except NotFound:
            log.info("%s was deleted before it was begun", taken.response_id)
        except Exception as error:  # the boundary: whatever keeps a response from being begun ends it, or waits
            queue, answer = services.runs.queue, to_api_error(error)
            if answer is not None and answer.status in BUSY:
                await asyncio.sleep(RETRY_S)
                await _retry_until_done(lambda: queue.put_back(taken, died=False))
                return
            if answer is None:
                log.exception("%s could not be begun", taken.response_id)
            code, message = (answer.code, answer.message) if answer else (None, BROKE)
            failure = {"code": code or "server_error", "message": message}
            await _retry_until_done(lambda: queue.fail(taken, failure))


async def _retry_until_done(store: Callable[[], Awaitable[Any]]) -> None:
    """Until the database is back: a response that this worker took is nobody else's while it lives."""
    while True:
        try:
            await store()
            return
        except DATABASE_AWAY as error:
            log.warning("the queue cannot be written for the moment: %r", error)
            await asyncio.sleep(RETRY_S)
