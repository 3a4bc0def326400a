"""A worker that is killed at any moment of its first start leaves nothing that the next start cannot make good."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import is_listening
from tests.serving import Worker

IMPORTED_S, READY_S = 0.8, 7.0  # the worker has its home by the first, and is ready by the second on two busy cores


def processes_of(home: Path) -> Iterator[int]:
    """Initdb and the servers: what names the home on its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(home) in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                yield int(folder.name)


def kill_after(worker: Worker, seconds: float, *, all_of: Path | None) -> None:
    """The worker alone, or everything at once as in a crash of the machine."""
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(seconds)
    for pid in {worker.process.pid, *(processes_of(all_of) if all_of else ())}:  # it was forked, without a command line
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.process.wait()


@pytest.mark.long
@pytest.mark.parametrize("kills_all", [False, True], ids=["worker", "everything"])
@pytest.mark.parametrize("seed", range(20))
def test_a_first_start_that_is_killed_twice_comes_up_the_third_time(seed: int, kills_all: bool, home: Path) -> None:
    random = Random(seed)
    for name in ("first", "second"):
        worker = Worker(home, "--docs", "", name=name)
        kill_after(worker, random.uniform(IMPORTED_S, READY_S), all_of=home if kills_all else None)
        worker.ready_file.unlink(missing_ok=True)
    third = Worker(home, "--docs", "", name="third")
    third.wait_until_ready()
    assert third.stop() == 0
    assert "Traceback" not in third.log.read_text()
    assert not is_listening(placement_of(home))
