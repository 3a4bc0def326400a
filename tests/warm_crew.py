"""The first process of `firsttoken serve --workers 2`; its members are forked with our modules loaded, as it was.

Else each of them would import for seconds of the processor. That it runs commands of its own is shown by the tests of
`Child`, and by a start that fails.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.serving import run_command
from tests.warm_process import POLL_S, WarmProcess, run, serve

FILE = "TEST_MEMBERS_FILE"  # environment variable: where the names of members and their processes are written down


@dataclass(frozen=True)
class Forked:
    """Has what is used of asyncio.subprocess.Process."""

    process: WarmProcess

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    async def wait(self) -> int:
        while (code := self.process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


async def begin(server: socket.socket, *command: str, pass_fds: tuple[int], **_usual: Any) -> Forked:
    """In place of asyncio.create_subprocess_exec."""
    arguments = command[len(sys.orig_argv) - len(sys.argv) + 1 :]
    output = sys.stdout.buffer, sys.stderr.buffer
    process = WarmProcess("tests.margins", arguments, *output, os.environ, passed=pass_fds[0], server=server)
    note(arguments[arguments.index("--member") + 1].partition(":")[0], process.pid)
    return Forked(process)


def note(name: str, pid: int) -> None:
    with Path(os.environ[FILE]).open("a") as file:
        file.write(f"{name} {pid}\n")


def members(file: Path) -> dict[str, int]:
    """The newest process of each member, by its name."""
    return {name: int(pid) for name, pid in map(str.split, file.read_text().splitlines())}


def fork_members(server: socket.socket) -> None:
    patch("worker.lifecycle.crew.child.asyncio.create_subprocess_exec", partial(begin, server)).start()


if __name__ == "__main__":
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        sys.exit(run_command(partial(fork_members, ours)))
    ours.close()
    serve(theirs)  # returns in each member
    theirs.close()
    run()
