"""Background tasks: started by name, restarted when they fail or end, and reported while they are down.

A task that dies silently breaks a promise: events are not stored, files not read, and every health check is still
green. So no loop of the worker catches its own errors; it fails, and is restarted here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from migrations.pool import DATABASE_AWAY

log = logging.getLogger("firsttoken.supervisor")

# A closed list, since it is public: nothing here reveals a tenant or what an operator configured.
Part: TypeAlias = Literal[
    "answered",
    "batches",
    "calibrator",
    "canaries",
    "credentials",
    "engines",
    "event_log",
    "intake",
    "janitor",
    "jwks",
    "minutes",
    "otlp",
    "postgres",
    "presence",
    "queue",
    "replica",
    "samples",
    "telemetry",
    "tool_servers",
]
# Without these, a response of this worker is considered abandoned, or cannot be resumed: it should start no more.
VITAL: frozenset[Part] = frozenset({"event_log", "presence"})

RETRY_S = 0.25  # before a restart; doubled by each consecutive failure
RETRY_MAX_S = 5.0  # longest delay once the dependency is back
STOP_S = 5.0  # longer than any task takes to handle its cancellation
DOWN_FAILURES = 3  # consecutive failures: a single lost connection is not worth reporting

Healthy: TypeAlias = Callable[[], None]  # a task calls it whenever it has made progress
Run: TypeAlias = Callable[[Healthy], Awaitable[None]]


@asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """What is not over by then is given up, silently."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


async def first_of(*waits: Awaitable[object], within_s: float | None = None) -> None:
    """Return when one of them is done, or after `within_s`; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def all_of(*waits: Awaitable[Any]) -> list[Any]:
    """Their results. Raises the first failure, as soon as the others are cancelled. Each is cancelled once at most:
    `gather` would let a second cancellation through to those that clean up after a first one."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Vitals:
    """The health of a task. Pure. `since` is the time of the first failure after it was healthy, in Unix seconds."""

    failures: int = 0  # consecutive
    failures_total: int = 0
    since: float | None = None

    @property
    def is_down(self) -> bool:
        return self.failures >= DOWN_FAILURES

    def failed(self, now: float) -> Vitals:
        since = now if self.since is None else self.since
        return Vitals(self.failures + 1, self.failures_total + 1, since)

    def recovered(self) -> Vitals:
        return replace(self, failures=0, since=None)


def retry_s(failures: int, chance: float, max_s: float = RETRY_MAX_S) -> float:
    """The delay after this many consecutive failures. `chance`, from 0 to 1, is the jitter for tasks that lost the same
    dependency.
    """
    longest = RETRY_S * 2.0 ** min(failures - 1, 20)
    return min(longest, max_s) * (1 + chance) / 2


class Ended(Exception):
    """A task that should run forever returned."""


@dataclass(eq=False)
class Supervised:
    """One task with its health. Created by `Supervisor.start`."""

    part: Part
    run: Run
    silent_s: float | None
    retry_max_s: float
    ends: bool
    expected: tuple[type[Exception], ...]
    vitals: Vitals = Vitals()
    _over: bool = False

    def __post_init__(self) -> None:
        self._limit = asyncio.timeout(None)
        self._task = asyncio.create_task(self._keep(), name=self.part)
        self._task.add_done_callback(self._gone)

    async def stop(self) -> None:
        """Stop the task; return when it has ended."""
        self._over = True
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S)  # and again, if a library swallowed the cancellation

    def healthy(self) -> None:
        """Report that the task has made progress."""
        if self.vitals.is_down:
            log.info("%s is up again", self.part)
        if self.vitals.failures:
            self.vitals = self.vitals.recovered()
        if self.silent_s is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self.silent_s)

    async def _keep(self) -> None:
        while not self._over:
            await self._run_once()
            await asyncio.sleep(retry_s(self.vitals.failures, random.random(), self.retry_max_s))

    async def _run_once(self) -> None:
        """A cancellation that originates inside, in something that was awaited there, is a failure like any other."""
        self._limit = asyncio.timeout(self.silent_s)
        try:
            async with self._limit:
                await self.run(self.healthy)
            self._over = self.ends
            if not self._over:
                self._fail(Ended("returned"))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._fail(error)
        except Exception as error:  # top-level boundary: whatever failed, without this task its work is never done
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        was_down = self.vitals.is_down
        self.vitals = self.vitals.failed(time.time())
        unforeseen = not isinstance(error, (Ended, *self.expected))
        level = logging.DEBUG if was_down else logging.WARNING  # a part that is down is reported once
        log.log(level, "%s failed and is restarted: %r", self.part, error, exc_info=error if unforeseen else None)
        if self.vitals.is_down and not was_down:
            log.error("%s is down: it failed %d times in a row", self.part, self.vitals.failures)

    def _gone(self, _task: asyncio.Task[None]) -> None:
        if not self._over:
            log.error("%s was cancelled unexpectedly", self.part)
            self.vitals = replace(self.vitals.failed(time.time()), failures=DOWN_FAILURES)


class Supervisor:
    """The background tasks of a worker. The component that starts one stops it."""

    def __init__(self) -> None:
        self._tasks: list[Supervised] = []

    def start(
        self,
        part: Part,
        run: Run,
        *,
        silent_s: float | None = None,
        retry_max_s: float = RETRY_MAX_S,
        ends: bool = False,
        expected: tuple[type[Exception], ...] = DATABASE_AWAY,
    ) -> Supervised:
        """Keep `run` running. `silent_s`: restart it after this long without progress. `ends`: it may return.
        `expected` errors are logged in one line, others with a traceback.
        """
        task = Supervised(part, run, silent_s, retry_max_s, ends, expected)
        self._tasks.append(task)
        return task

    @property
    def vitals(self) -> Mapping[Part, Sequence[Vitals]]:
        """The health of the parts that were started; several tasks may form one part."""
        found: dict[Part, list[Vitals]] = {}
        for task in self._tasks:
            found.setdefault(task.part, []).append(task.vitals)
        return found

    @property
    def down(self) -> Mapping[Part, float]:
        """The parts that fail repeatedly, and since when, in Unix seconds."""
        return {
            part: min(each.since for each in all_of if each.is_down and each.since is not None)
            for part, all_of in self.vitals.items()
            if any(each.is_down for each in all_of)
        }
