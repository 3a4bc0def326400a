"""Processes of our programs whose modules are loaded when they begin: to import them takes most of a short life.

`python -m tests.warm_process` loads the modules once, and forks for each program that it is asked for over the socket
that is its standard input. Until then it computes nothing, so it has no threads that a fork would lose.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

FOLDER = Path(__file__).resolve().parent.parent
NUMBER = struct.Struct("!i")  # the length of a request, a process, or its exit status
POLL_S = 0.01
BESIDE = ("numpy.random", "pytest", "unittest.mock", "tests.retrieval.patience")  # what our programs import as well


class WarmProcess:
    """`python -m program arguments` in the project, without input. Has what is used of subprocess.Popen.

    `passed` is a descriptor of ours that it has, too, under the same number. `server` forks it, if that is not the one
    of the tests."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
        *,
        passed: int | None = None,
        server: socket.socket | None = None,
    ) -> None:
        server = server or _server()
        self.args = [program, *arguments]
        self.returncode: int | None = None
        self._asking = threading.Lock()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        asked: dict[str, Any] = {"program": program, "arguments": list(arguments), "environment": dict(env)}
        asked |= {"files": files, "passed": passed}
        request = json.dumps(asked).encode()
        self._lease, theirs = socket.socketpair()
        with theirs:
            descriptors = [stdout.fileno(), stderr.fileno(), theirs.fileno(), *([] if passed is None else [passed])]
            socket.send_fds(server, [NUMBER.pack(len(request))], descriptors)
            server.sendall(request)
        self.pid = self._number()

    def poll(self) -> int | None:
        with self._asking:
            if self.returncode is None and select.select([self._lease], [], [], 0)[0]:
                self.returncode = self._number()
                self._lease.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it. Raises subprocess.TimeoutExpired."""
        give_up_at = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        number: int = NUMBER.unpack(self._lease.recv(NUMBER.size, socket.MSG_WAITALL))[0]
        return number


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.warm_process"]
        process = subprocess.Popen(command, cwd=FOLDER, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


# --- in the process that forks ---


def serve(requests: socket.socket) -> None:
    """Returns in each process that is to run a program, as which it looks. Ends when nobody is left who asks."""
    leases: dict[int, socket.socket] = {}
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the tests
    while True:
        readable, _, _ = select.select([requests, ended], [], [])
        if ended in readable:
            ended.recv(4096)
            _tell(leases)
        if requests in readable:
            size, descriptors, _, _ = socket.recv_fds(requests, NUMBER.size, 4)
            if not size:
                for pid in leases:  # of tests that failed, or were interrupted
                    os.kill(pid, signal.SIGTERM)
                sys.exit()
            [length] = NUMBER.unpack(size)
            request = requests.recv(length, socket.MSG_WAITALL)
            stdout, stderr, lease, *passed = descriptors
            if not (pid := os.fork()):
                break
            for descriptor in (stdout, stderr, *passed):
                os.close(descriptor)
            leases[pid] = socket.socket(fileno=lease)
            leases[pid].sendall(NUMBER.pack(pid))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupted)
    for each in (ended, wakes, *leases.values()):
        each.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, stdout, stderr)):
        os.dup2(descriptor, number)
    for descriptor in (nothing, stdout, stderr, lease):
        os.close(descriptor)
    asked = json.loads(request)
    number = asked.pop("passed")
    if passed and passed[0] != number:
        os.dup2(passed[0], number)
        os.close(passed[0])
    _become(**asked)


def _tell(leases: dict[int, socket.socket]) -> None:
    """Those who wait for processes that have ended."""
    while leases:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with leases.pop(pid) as lease, suppress(OSError):  # nobody waits any more
            lease.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(program: str, arguments: list[str], environment: dict[str, str], files: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    sys.orig_argv = [sys.executable, "-m", program, *arguments]


def main() -> None:
    """Returns where a program is to be run, as `serve` does."""
    from worker.config import prepare_process

    gc.disable()
    prepare_process()  # before llama.cpp is imported
    import worker

    for module in pkgutil.walk_packages(worker.__path__, "worker."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in BESIDE:
        import_module(name)
    gc.freeze()
    gc.enable()
    with socket.socket(fileno=0) as requests:
        serve(requests)
        requests.detach()


def run() -> None:
    """Run the program, and end as an interpreter does, but for the modules: to take them apart, object by object, costs
    more than most commands do. Processes that were not forked do it (`lifecycle/test_stop_signals.py`)."""
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise  # with a message
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code or 0)


if __name__ == "__main__":
    main()
    run()
