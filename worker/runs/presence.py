"""Notifications between workers: one connection that listens, whose session lock shows that this worker is alive."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from migrations.pool import DATABASE_AWAY, Database
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor, at_most
from worker.runs.running_store import CHANNEL, NEWS

CANCEL = "cancel"
ANSWER = "answer"  # its reasoning ends
STEER, STEER_AT_ONCE = "steer", "steer_at_once"  # its successor waits
FOLLOW = "follow"
FOLLOWED_S = 10.0  # a follower renews this after each pause without notifications
BATCH = "batch"
PROBE_S = 15.0  # a dead connection is noticed within this time
SILENT_S = 60.0  # the longest that listening may take, or a probe: each waits for its statement's own limit
START_S = 2.0  # without its database a worker starts all the same and says that it is not ready


class Presence:
    """`worker` is the number of this worker's lock. `on` are the acts by the words of notifications. They are called
    with the id of the response (or of the batch, to cancel), or with "" where a response is queued or a batch has work.
    """

    def __init__(self, database: Database) -> None:
        self.worker = secrets.randbits(62) + 1
        self.on = defaultdict[str, list[Callable[[str], object]]](list)
        self.on[FOLLOW].append(self._note_follower)
        self.on[NEWS].append(self.notify_local)
        self._database = database
        self._news: dict[str, asyncio.Event] = {}
        self._watchers: Counter[str] = Counter()
        self._followed: dict[str, float] = {}  # response ids, and until when they are followed
        self._listening = asyncio.Event()
        self._task: Supervised | None = None

    @property
    def is_alive(self) -> bool:
        """Whether other workers consider this one alive."""
        return self._listening.is_set()

    async def start(self, supervisor: Supervisor) -> None:
        """Return when this worker holds its lock and hears the others, or when the database lets it wait too long."""
        self._task = supervisor.start("presence", self._listen, silent_s=SILENT_S)
        async with at_most(START_S):
            await self._listening.wait()

    async def close(self) -> None:
        if self._task:
            await self._task.stop()

    async def notify(self, word: str, response_id: str) -> None:
        """Tell the worker that runs a response. FOLLOW: to notify of new events. It notifies only for followers, since
        commits with NOTIFY are serialised by Postgres."""
        await self._database.fetch("select pg_notify($1, $2)", CHANNEL, f"{word} {response_id}")

    def is_followed(self, response_id: str) -> bool:
        """Whether another worker has asked for notifications of it recently."""
        return self._followed.get(response_id, 0.0) > time.monotonic()

    def notify_local(self, response_id: str) -> None:
        """Notify the watchers at this worker."""
        if response_id in self._news:
            self._news[response_id].set()

    @contextmanager
    def watching(self, response_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever there may be new events of this response."""
        self._watchers[response_id] += 1
        try:
            yield self._news.setdefault(response_id, asyncio.Event())
        finally:
            self._watchers[response_id] -= 1
            if not self._watchers[response_id]:
                del self._watchers[response_id], self._news[response_id]

    async def _listen(self, healthy: Healthy) -> None:
        """Raises what ends the connection. Reconnect quickly: other workers must not consider this one dead."""
        lost = asyncio.Event()
        async with self._database.direct() as connection:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.execute("select pg_advisory_lock($1)", self.worker)
            await connection.add_listener(CHANNEL, self._on_notification)
            try:
                self._listening.set()
                for news in self._news.values():  # notifications in between were missed
                    news.set()
                while True:
                    healthy()
                    async with at_most(PROBE_S):
                        await lost.wait()
                    await connection.execute("select 1")
            finally:
                self._listening.clear()
                with suppress(*DATABASE_AWAY):  # a lost connection has forgotten it already
                    await connection.remove_listener(CHANNEL, self._on_notification)

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, message: object) -> None:
        word, _, response_id = str(message).partition(" ")
        for act in self.on.get(word, ()):
            act(response_id)

    def _note_follower(self, response_id: str) -> None:
        now, followed = time.monotonic(), self._followed
        followed.pop(response_id, None)
        followed[response_id] = now + FOLLOWED_S
        while followed[oldest := next(iter(followed))] <= now:
            del followed[oldest]
