"""A supervised process of the crew: restarted when it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson

from inference.remote.transport import Transport
from worker.errors import StartError
from worker.lifecycle.crew.member import LEAVE, LINE_BYTES_MAX
from worker.lifecycle.supervisor import Vitals, at_most, first_of, retry_s

LOOK_S, LOOK_STARTING_S = 1.0, 0.1  # between two checks; shorter while a start is awaited
LOOK_TIMEOUT_S = 5.0
# An event loop that does not respond for this long serves nobody, and the system still hands it connections. Streams of
# a busy machine stall for seconds, never for this long.
HANGS_S = 30.0
# A start may read hundreds of gigabytes over a network. One that is still not ready by then never will be.
STARTS_S = 1800.0
RESTART_MAX_S = 30.0  # between two starts of a process that does not come up: the cause will not vanish at once
STEADY_S = 10.0  # one that was ready for this long fails for a new reason
KILL_S = 5.0  # a process that should have ended by then does not end by itself

log = logging.getLogger("firsttoken.crew")


class Child:
    """A member as the crew's first process sees it.

    `url` answers `path` with 200 when it is ready. `hello` is the message sent to it at its start; `told` is called
    with each message from it.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        hello: Callable[[], dict[str, Any]],
        told: Callable[[dict[str, Any]], None],
        transport: Transport,
        url: str,
        path: str,
    ) -> None:
        self.name = name
        self.is_ready = asyncio.Event()
        self.keeping: asyncio.Task[None] | None = None  # once it was begun
        self._command, self._hello, self._told = command, hello, told
        self._transport, self._url, self._path = transport, url, path
        self._process: asyncio.subprocess.Process | None = None
        self._line: socket.socket | None = None
        self._failure = ""  # the last failure it reported
        self._vitals = Vitals()
        self._was_ready = False  # ever
        self._ready_at = float("inf")  # the current process
        self._stopping = asyncio.Event()
        self._relieved = False  # it was asked to make room for its successor

    def __repr__(self) -> str:
        return f"<Child {self.name} {self.pid}>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_lost(self) -> bool:
        """Whether nobody keeps it any more, although it was ready once and nobody has asked it to stop."""
        over = self.keeping is not None and self.keeping.done()
        return over and self._was_ready and not self._stopping.is_set()

    async def begin(self) -> None:
        """Keep it from here on; return when it is ready. Raises StartError."""
        self.keeping = asyncio.create_task(self.keep(), name=self.name)
        await first_of(self.is_ready.wait(), asyncio.wait([self.keeping]))
        if self.keeping.done():
            self.keeping.result()

    async def keep(self) -> None:
        """Return when it was stopped. Raises StartError if it ends before it was ever ready: that is an error for
        people.
        """
        while not self._stopping.is_set():
            self._ready_at = float("inf")
            end = await self._run_once()
            if self._stopping.is_set():
                return
            if not self._was_ready:
                raise StartError(self._failure or f"{self.name} {end} while it started")
            if self._relieved or time.monotonic() - self._ready_at > STEADY_S:
                self._vitals = Vitals()
            if not self._relieved:
                self._vitals = self._vitals.failed(time.monotonic())
                await self._pause(end)

    async def _pause(self, end: str) -> None:
        pause_s = retry_s(self._vitals.failures, random.random(), RESTART_MAX_S)
        why = f": {self._failure}" if self._failure else ""
        log.warning("%s %s%s; it restarts in %.1f s", self.name, end, why, pause_s)
        async with at_most(pause_s):
            await self._stopping.wait()

    async def _run_once(self) -> str:
        """Run the process once; returns how it ended."""
        self.is_ready.clear()
        self._failure, self._relieved = "", False
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                self._line.setblocking(False)
                self._line.send(orjson.dumps(self._hello(), option=orjson.OPT_APPEND_NEWLINE))
                # In a session of its own: a terminal's Ctrl-C is for the first process, which signals the others.
                process = await asyncio.create_subprocess_exec(
                    *self._command(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._process = process
            if self._stopping.is_set():
                process.terminate()
            beside = [asyncio.create_task(each) for each in (self._hear(self._line), self._look_after(process))]
            try:
                code = await process.wait()
                await asyncio.wait(beside[:1], timeout=KILL_S)  # its last messages
            finally:
                for task in beside:
                    task.cancel()
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        finally:
            self._line.close()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    async def _hear(self, line: socket.socket) -> None:
        loop, rest = asyncio.get_running_loop(), b""
        while len(rest) < LINE_BYTES_MAX and (data := await loop.sock_recv(line, LINE_BYTES_MAX)):
            *lines, rest = (rest + data).split(b"\n")
            for message in map(orjson.loads, lines):
                self._failure = message.get("failed", self._failure)
                self._told(message)

    async def _look_after(self, process: asyncio.subprocess.Process) -> None:
        """Note when it is ready, and kill it when it hangs. Before its first response it may take `STARTS_S`."""
        began, heard_at = time.monotonic(), float("inf")
        while True:
            try:
                answer = await self._transport.get(self._url, self._path, LOOK_TIMEOUT_S)
                heard_at = time.monotonic()
                if answer.status == 200 and not self.is_ready.is_set():
                    self._ready_at = heard_at
                    self.is_ready.set()
                    if self._was_ready:
                        log.warning("%s is ready again", self.name)
                    self._was_ready = True
            except (ConnectionError, TimeoutError):
                if time.monotonic() - heard_at > HANGS_S:
                    log.error("%s has not responded for %.0f s and is killed", self.name, HANGS_S)
                    process.kill()
                    return
            if self._ready_at == float("inf") and time.monotonic() - began > STARTS_S:
                self._failure = f"{self.name} was not ready after {STARTS_S / 60:.0f} minutes"
                process.kill()
                return
            await asyncio.sleep(LOOK_S if self._ready_at < heard_at else LOOK_STARTING_S)

    async def relieve(self, within_s: float) -> None:
        """Have it finish its requests while others take new ones, and return when its successor is ready."""
        process = self._process
        if process is not None and process.returncode is None and self._line is not None:
            self._relieved = True
            with suppress(OSError):
                self._line.send(LEAVE)
            try:
                async with asyncio.timeout(within_s + KILL_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self.is_ready.clear()
        await self.is_ready.wait()

    def ask(self) -> None:
        """Ask it to stop, as by SIGTERM: once to drain, twice to stop at once. It is not restarted."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            log.error("%s did not stop in time and is killed", self.name)
            self._process.kill()
