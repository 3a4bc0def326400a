"""The system under test: a worker that is restarted when it dies, with its embedded Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

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
