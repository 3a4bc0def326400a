"""A process of the crew, from its own point of view: its name, its private socket, and the line to its parent.

The line is one end of a socket pair; only the crew's first process holds the other end. So a crew whose first process
was killed ends too, whatever else happens.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from worker.lifecycle.process import StopSignals
from worker.lifecycle.ready_file import Ready

LINE_BYTES_MAX = 64 * 1024  # of a message, in either direction
HELLO_S = 10.0  # the first process sends it before it starts this one
LEAVE = b"leave\n"
SUFFIX = ".sock"


def socket_in(folder: Path, name: str) -> Path:
    """The socket on which a member of that name listens for the others."""
    return folder / f"{name}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Member:
    """`folder` holds the private sockets of all members. `introduces`: this one creates the key and the link for the
    person at the terminal. `reads_samples`: it reads the sample documents, whatever its predecessor has left of them.
    `model` is the one of several that an engine serves."""

    name: str
    folder: Path
    introduces: bool
    line: socket.socket = field(repr=False)
    model: str | None = None
    reads_samples: bool = False
    leaving: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @classmethod
    def join(cls, text: str) -> Member:
        """Parse `--member NAME:DESCRIPTOR`. Raises ValueError and OSError: only the crew uses this flag."""
        name, _, descriptor = text.partition(":")
        line = socket.socket(fileno=int(descriptor))
        line.settimeout(HELLO_S)
        said, _, more = line.recv(LINE_BYTES_MAX).partition(b"\n")
        hello = orjson.loads(said)
        line.setblocking(False)
        member = cls(name, Path(hello["folder"]), hello["introduces"], line, hello["model"], hello["reads_samples"])
        if LEAVE in more:  # it was asked to make room before it was running
            member.leaving.set()
        return member

    @property
    def socket(self) -> Path:
        return socket_in(self.folder, self.name)

    def introduce(self, ready: Ready) -> None:
        self._send({"ready": asdict(ready)})

    def fail(self, reason: str) -> None:
        """Report a failure to the parent instead of the terminal: all members may fail for the same reason."""
        self._send({"failed": reason})

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the parent is gone
            self.line.sendall(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)[-LINE_BYTES_MAX:])

    @asynccontextmanager
    async def on_duty(self, stop: StopSignals) -> AsyncIterator[None]:
        """Receive messages from the parent until the block ends."""
        hearing = asyncio.create_task(self._hear(stop), name="crew")
        try:
            yield
        finally:
            hearing.cancel()

    async def _hear(self, stop: StopSignals) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while message := await loop.sock_recv(self.line, len(LEAVE)):
                if message == LEAVE:
                    self.leaving.set()
        stop.ask()
