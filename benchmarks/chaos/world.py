"""The system under test: a worker that is restarted when it dies, with its embedded Postgres. And the faults that are
injected, each by one call: the system has to recover by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

START_MAX_S = 90.0
LOOK_S = 0.05


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """`firsttoken serve` on one address for the duration of the drill, restarted whenever it dies."""

    def __init__(self, home: Path, *flags: str) -> None:
        self._home = home
        self._ready_file = home / "ready.json"
        self._port = free_port()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.log = home / "worker.log"
        self.starts = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def worker(self) -> int:
        """The process id of the worker."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> dict[str, Any]:
        """Start the worker. Returns the content of its ready file. Raises RuntimeError if it does not start."""
        self._spawn()
        began = monotonic()
        while not self._ready_file.exists():
            if self._ended or monotonic() - began > START_MAX_S:
                raise RuntimeError(f"the worker did not start, see {self.log}")
            await asyncio.sleep(LOOK_S)
        self._keeper = asyncio.create_task(self._keep())
        told: dict[str, Any] = json.loads(self._ready_file.read_text())
        return told

    async def stop(self) -> None:
        if self._keeper:
            self._keeper.cancel()
        if self._process and not self._ended:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 30)
            self._process.kill()

    def postmaster(self) -> int | None:
        """The process id of the embedded Postgres; None if it is not running."""
        for file in self._home.rglob("postmaster.pid"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(file.read_text().splitlines()[0])
                os.kill(pid, 0)
                return pid
        return None

    def backends(self) -> list[int]:
        """The database processes that serve the worker's connections."""
        postmaster = self.postmaster()
        if postmaster is None:
            return []
        return [pid for pid in _children(postmaster) if b"firsttoken" in _command(pid)]

    def database(self) -> list[int]:
        """All processes of the database, the postmaster first."""
        postmaster = self.postmaster()
        return [postmaster, *_children(postmaster)] if postmaster else []

    @property
    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "worker", "serve", "--port", str(self._port), "--home", str(self._home)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready_file), *self._flags], stdout=subprocess.DEVNULL, stderr=log
            )
        self.starts += 1

    async def _keep(self) -> None:
        while True:
            if self._ended:
                self._spawn()
            await asyncio.sleep(LOOK_S)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may have exited."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


Fault: TypeAlias = Callable[[World, random.Random], Awaitable[None]]

STALL_S = (0.2, 3.0)


async def connections_lost(world: World, _: random.Random) -> None:
    """The database closes all connections, whatever their state."""
    send(world.backends(), signal.SIGTERM)


async def connection_lost(world: World, dice: random.Random) -> None:
    """The database closes one connection."""
    if backends := world.backends():
        send([dice.choice(backends)], signal.SIGTERM)


async def backend_killed(world: World, dice: random.Random) -> None:
    """One database process crashes, after which the whole database restarts and recovers."""
    if backends := world.backends():
        send([dice.choice(backends)], signal.SIGKILL)


async def database_stalled(world: World, dice: random.Random) -> None:
    """The database stalls for a while, as on a machine that swaps or with a disk that hangs."""
    pids = world.database()
    send(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(dice.uniform(*STALL_S))
    finally:
        send(pids, signal.SIGCONT)


async def database_killed(world: World, _: random.Random) -> None:
    """The postmaster dies; only the worker restarts it."""
    if postmaster := world.postmaster():
        send([postmaster], signal.SIGKILL)


async def worker_killed(world: World, _: random.Random) -> None:
    send([world.worker], signal.SIGKILL)


async def worker_stopped(world: World, _: random.Random) -> None:
    """An orderly stop under load, as in a rolling restart."""
    send([world.worker], signal.SIGTERM)


FAULTS: dict[str, Fault] = {
    "connection lost": connection_lost,
    "all connections lost": connections_lost,
    "database process killed": backend_killed,
    "database stalled": database_stalled,
    "database killed": database_killed,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
}
VANISH = "client vanished"  # done by the traffic itself
