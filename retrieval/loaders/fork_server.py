"""The worker's side of the processes that parse documents: starts the server, sends it files, kills its readers."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders.job import STATUS, Job

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; sys.path.insert(0, sys.argv.pop()); from retrieval.loaders.child import main; main()"
END_S = 1.0  # for the server to notice that its worker closed the socket: it takes a millisecond
LAST_WORD_S = 5.0  # for the server to report a reader's exit status
RECEIVE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a reader. Without a status, the fork server is gone or could not start another process."""

    answer: bytes
    status: int | None  # an exit code, or minus a signal


class ForkServer:
    """Inherits nothing: no sockets or files, no environment with its secrets, no signals from the terminal.

    It ends with the process that started it, however that dies, because its socket is closed then.
    """

    def __init__(self) -> None:
        """Raises OSError if no process can be started."""
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)  # its buffer takes hundreds of files, and the pool sends three
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", MAIN, str(ROOT)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                self._control.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> Reader:
        """A reader that waits for its file. Raises OSError if the server is gone, or no descriptors are left."""
        link, its_link = socket.socketpair()
        lease, its_lease = socket.socketpair()
        reader = Reader(link, lease)
        with its_link, its_lease:
            try:
                socket.send_fds(self._control, [b"r"], [its_link.fileno(), its_lease.fileno()])
            except OSError:
                reader.close()
                raise
        return reader

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Reader:
    """One process for one file."""

    def __init__(self, link: socket.socket, lease: socket.socket) -> None:
        self._link = link
        self._lease = lease
        self._lease.settimeout(LAST_WORD_S)

    @property
    def waits(self) -> bool:
        """Whether it is still waiting for a file: a spare one may have been killed, for whatever reason."""
        return not select.select([self._lease], [], [], 0)[0]

    def run(self, job: Job, data: bytes) -> Ended:
        """Blocks until it has ended. Raises TimeoutError if the server reports no status, and UnreadableFile."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it ended before reading everything: its status says why
            self._link.sendall(job.header())
            self._link.sendall(data)
        answer = self._answer(job.limits.answer_bytes)
        with suppress(ConnectionResetError):
            if status := self._lease.recv(STATUS.size):
                return Ended(answer, *STATUS.unpack(status))
        return Ended(answer, None)

    def abandon(self) -> None:
        """Kill it if it still runs, so that `run` returns. Thread-safe."""
        with suppress(OSError):
            self._lease.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._link.close()
        self._lease.close()

    def _answer(self, bytes_max: int) -> bytes:
        answer = bytearray()
        with suppress(ConnectionResetError):
            while part := self._link.recv(RECEIVE_BYTES):
                answer += part
                if len(answer) > bytes_max:
                    raise UnreadableFile(
                        f"makes more than {bytes_max // 1024**2} MB of text; split it into smaller files"
                    )
        return bytes(answer)
