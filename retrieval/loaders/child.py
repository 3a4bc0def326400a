"""The processes that parse documents: a fork server with the parsers loaded, and a reader forked from it per file.

A parser is up to half a million lines of C++, and a file may be crafted to crash it or to keep it busy. What crashes
here is a process that was created for this file, holds no other, and ends with it; a busy one is killed at its limits.
The server itself never sees a byte of a file, so every reader starts clean, and a fork takes a millisecond where a new
interpreter takes two hundred.

The worker sends two sockets per file: one carries the file in and its text out; the other is a lease. The reader is
killed when the worker closes the lease, even by dying; the reader's exit status is the last message on it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from retrieval.chunking import pieces
from retrieval.errors import UnreadableFile
from retrieval.loaders import formats
from retrieval.loaders.job import STATUS, Job, Limits, framed
from retrieval.loaders.source import decode

SERVER_FILES_MAX = 256  # open files: a lease per reader
READER_FILES_MAX = 32  # its socket, and what libraries open lazily (fonts, codecs)
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the socket on standard input until its other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a draining worker still reads files; it ends us by closing the socket
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (SERVER_FILES_MAX, SERVER_FILES_MAX))
    for loader in {*formats.LOADERS.values(), "picture"}:
        import_module(f"retrieval.loaders.{loader}")
    decode("Grüße aus der Küche".encode("cp1252"))  # loads the codecs used for guessing encodings
    gc.freeze()  # keeps what is loaded shared with the readers
    with socket.socket(fileno=os.dup(0)) as control:
        _Server(control).serve()


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._leases: dict[int, socket.socket] = {}  # by the process id of the reader
        self._wake, waker = socket.socketpair()
        self._wake.setblocking(False)
        waker.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the selector
        signal.set_wakeup_fd(waker.fileno())

    def serve(self) -> None:
        with selectors.DefaultSelector() as ready:
            for source in (self._control, self._wake):
                ready.register(source, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._control:
                        if not self._begin(ready):
                            return self._end()
                    elif key.fileobj is self._wake:
                        self._reap(ready)
                    elif key.data in self._leases:
                        os.kill(key.data, signal.SIGKILL)  # not reaped yet, so the id is still its own
                        ready.unregister(key.fileobj)

    def _begin(self, ready: selectors.BaseSelector) -> bool:
        """Fork a reader for the next file. Returns False if the worker is gone."""
        message, sockets, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message or len(sockets) != 2:
            return False
        link, lease = (socket.socket(fileno=number) for number in sockets)
        server = os.getpid()
        with link:
            try:
                pid = os.fork()
            except OSError:
                lease.close()  # without a status, which tells the worker that nothing was tried
                return True
            if pid == 0:
                _become_reader(link, server)
        self._leases[pid] = lease
        ready.register(lease, selectors.EVENT_READ, pid)
        return True

    def _reap(self, ready: selectors.BaseSelector) -> None:
        with suppress(BlockingIOError):
            while self._wake.recv(1024):
                pass
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                with self._leases.pop(pid) as lease, suppress(OSError):
                    with suppress(KeyError):
                        ready.unregister(lease)
                    lease.send(STATUS.pack(os.waitstatus_to_exitcode(status)))

    def _end(self) -> None:
        for pid in self._leases:
            os.kill(pid, signal.SIGKILL)


def _become_reader(link: socket.socket, server: int) -> NoReturn:
    """Keep nothing of the server but its code, read one file, and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(link.fileno(), 0)
        os.closerange(3, SERVER_FILES_MAX)
        _die_with(server)
        with open(0, "rb", closefd=False) as given, open(0, "wb", closefd=False) as answer:
            job = Job.receive(given)
            _limit(job.limits)
            answer.write(_answer(job, given))
        code = 0
    finally:
        os._exit(code)


def _die_with(server: int) -> None:
    if sys.platform == "linux":  # elsewhere only the limits end it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # if memory is short, the kernel kills readers first
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != server:
        os._exit(1)


def _limit(limits: Limits) -> None:
    os.nice(limits.niceness)
    for limit, soft, hard in (
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_NOFILE, READER_FILES_MAX, READER_FILES_MAX),
        (resource.RLIMIT_FSIZE, 0, 0),  # does not apply to sockets
        (resource.RLIMIT_NPROC, 0, 0),
    ):
        resource.setrlimit(limit, (soft, hard))


def _answer(job: Job, given: BinaryIO) -> bytes:
    """A JSON header, then the text in UTF-8 or the pixels; without them, the header says what is wrong with the file,
    or with us."""
    header: dict[str, Any]
    try:
        if job.is_picture:
            width, height, rgb = import_module("retrieval.loaders.picture").load(given.read(job.size))
            return _encoded({"width": width, "height": height}) + bytes(rgb)
        document = formats.load(Path(job.name), given.read(job.size))
        header = {
            "title": document.title,
            "media_type": document.media_type,
            "sections": [(part.heading, part.start, part.end) for part in document.sections],
            "pieces": pieces(document) if job.split else [],
        }
        return _encoded(header) + document.text.encode("utf-8", "replace")
    except UnreadableFile as error:
        header = {"unreadable": str(error)}
    except MemoryError:
        header = {"unreadable": f"needs more than {job.limits.memory_bytes // 1024**2} MB of memory to read; split it"}
    except Exception as error:  # isolation: a loader that a file confuses has a bug, which the worker logs
        place = traceback.extract_tb(error.__traceback__)[-1]
        header = {"bug": f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"}
    return _encoded(header)


def _encoded(header: dict[str, Any]) -> bytes:
    return framed(json.dumps(header, ensure_ascii=False).encode("utf-8", "replace"))
