"""The responses that this worker makes, and the care for those whose worker is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any
from uuid import UUID

import asyncpg

from migrations.pool import Database
from worker.runs.backlog import Backlog
from worker.runs.disconnect import Disconnect
from worker.runs.event_log import EventLog
from worker.runs.idempotency_store import IdempotencyStore
from worker.runs.ledger import Ledger
from worker.runs.presence import Presence
from worker.runs.queue_store import QueueStore
from worker.runs.rebuild import rebuilt
from worker.runs.run import Run
from worker.runs.running_store import RunningStore, Taken
from worker.runs.turn import ResponseTurn, finished_half
from worker.services import Services
from worker.wire.events import WireEvent

log = logging.getLogger("firsttoken.runs")

LOOK_EVERY_S = 2.0  # two looks find a response abandoned: its worker may just be connecting anew
FORGET_EVERY_S = 3600.0
CLOSE_S = 10.0
CANCEL_S = 5.0  # how long another worker may take to stop; it goes on doing so afterwards
POLL_S = 2.0  # between two looks at a response of which nothing is heard
ASK_AGAIN_S = 0.5  # a worker that has just taken a response from the queue may not hear the first time
NO_EVENTS = 2**31 - 1  # after the last one there can be
WORKER_GONE = {"code": "server_error", "message": "The worker that made this answer stopped. Please try again."}


class Runs:
    """By id. Also of other tenants: whoever asks says whose it must be."""

    def __init__(self, database: Database, *, event_days: float, background: int) -> None:
        """`background`: responses of the queue that this worker makes at once."""
        self.store = RunningStore(database)
        self.queue = QueueStore(database)
        self.keys = IdempotencyStore(database)
        self.backlog = Backlog(background)
        self.presence = Presence(database, self._cancel_if_here, self.backlog.look)
        self._journal = EventLog(self.store, self.presence.worker)
        self._event_days = event_days
        self._runs: dict[str, Run] = {}
        self._suspects: set[Taken] = set()
        self._forgot_at = float("-inf")
        self._janitor: asyncio.Task[None] | None = None

    async def start(self, services: Services) -> None:
        await self.presence.start()
        self._journal.start()
        self.backlog.start(services)
        self._janitor = asyncio.create_task(self._run_janitor(), name="janitor")

    async def close(self) -> None:
        """Stop what still runs, keeping what was said, and store everything. Leave the background to other workers."""
        self.backlog.stop()
        for run in self._runs.values():
            (run.leave if run.in_background else run.cancel)()
        await self.idle(CLOSE_S)
        await self.backlog.close()
        if self._janitor:
            self._janitor.cancel()
            await asyncio.wait([self._janitor])
        await self._journal.close()
        await self.presence.close()

    async def idle(self, timeout_s: float) -> None:
        """Return when nothing runs any more, or after the time."""
        waits = [asyncio.ensure_future(run.wait()) for run in self._runs.values()]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)

    async def begin(
        self,
        services: Services,
        turn: ResponseTurn,
        ledger: Ledger,
        held: ExitStack,
        on_disconnect: Disconnect,
        told: Sequence[WireEvent] = (),
    ) -> Run:
        """Start a response; raises what refuses it. `held` is closed at its end. `told` was told of it before."""
        run = Run(services, turn, ledger, self._journal, told)
        run.on_disconnect = on_disconnect
        self._runs[run.id] = run
        held.callback(self._runs.pop, run.id)
        await run.start(held)
        self.presence.tell_here(run.id)
        return run

    def get(self, tenant_id: UUID, response_id: str) -> Run | None:
        run = self._runs.get(response_id)
        return run if run and run.accepted and run.turn.tenant_id == tenant_id else None

    async def ended(self, tenant_id: UUID, response_id: str) -> None:
        """Return when a stored response has ended, wherever it is made. Raises NotFound."""
        run = self.get(tenant_id, response_id)
        if run is not None:
            with run.reading():
                await run.wait()
        with self.presence.watching(response_id) as news:
            while not (await self.store.read(tenant_id, response_id, NO_EVENTS)).sealed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await news.wait()
                news.clear()

    async def cancel(self, tenant_id: UUID, response_id: str) -> dict[str, Any]:
        """Stop a response wherever it is made, wait for its end and give it as it is then. Raises NotFound."""
        run = self.get(tenant_id, response_id)
        if run is not None:
            run.cancel()
            await run.wait()
            return run.snapshot
        with self.presence.watching(response_id) as news:
            chapter = await self.store.read(tenant_id, response_id, NO_EVENTS)
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    while not chapter.sealed:
                        await self._ask_to_cancel(tenant_id, response_id, news)
                        chapter = await self.store.read(tenant_id, response_id, NO_EVENTS)
        return chapter.body

    async def _ask_to_cancel(self, tenant_id: UUID, response_id: str, news: asyncio.Event) -> None:
        """Whoever has it: the queue, or a worker. Returns when there is news of it, or after a while."""
        if await self.queue.cancel(tenant_id, response_id):
            return
        await self.presence.ask_to_cancel(response_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_AGAIN_S):
                await news.wait()
        news.clear()

    def _cancel_if_here(self, response_id: str) -> None:
        if response_id in self._runs:
            self._runs[response_id].cancel()

    async def _give_up(self, taken: Taken) -> None:
        if await self.queue.put_back(taken, died=True):
            return
        chapter = await self.store.read(taken.tenant_id, taken.response_id, -1)
        said = finished_half(rebuilt(chapter.events))
        await self.store.give_up(taken, WORKER_GONE, said)

    async def _run_janitor(self) -> None:
        while True:
            try:
                await self._look()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                log.warning("could not look after abandoned responses: %r", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        """End the responses that nobody makes any more, and forget events that are old."""
        abandoned = {taken for taken in await self.store.abandoned() if taken.response_id not in self._runs}
        for taken in abandoned & self._suspects:
            await self._give_up(taken)
        self._suspects = abandoned
        if time.monotonic() - self._forgot_at >= FORGET_EVERY_S:
            await self.store.forget(self._event_days)
            await self.keys.forget()
            self._forgot_at = time.monotonic()
