"""A worker that is told to stop at a bad moment ends in time, and leaves nothing running."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from migrations.embedded.placement import POSTGRES_MAJOR, placement_of
from migrations.embedded.postmaster import PidFile, is_listening
from tests.serving import ROOT, START_TIMEOUT_S, STOP_TIMEOUT_S, Worker, clean_environment
from tests.worker.cli.test_main import firsttoken

GOES_ON = 7


def wait_for(home: Path, pattern: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not list(home.glob(pattern)):
        assert time.monotonic() < give_up_at, pattern
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
@pytest.mark.parametrize("module", ["argparse", "uvloop"])
def test_a_signal_during_the_imports_ends_the_process_silently_or_is_ignored(
    number: signal.Signals, module: str, tmp_path: Path
) -> None:
    """The first that our command imports, and the last before its event loop."""
    (tmp_path / f"{module}.py").write_text(f"import os\nos.kill(os.getpid(), {number:d})\nos._exit({GOES_ON})\n")
    done = subprocess.run(
        [sys.executable, "-m", "worker", "version"],
        cwd=ROOT,
        env=clean_environment(PYTHONPATH=str(tmp_path)),
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # shells have jobs in the background ignore some
        capture_output=True,
        timeout=START_TIMEOUT_S,
    )
    assert (done.returncode, done.stderr) == (GOES_ON if number == signal.SIGUSR1 else 130, b"")


MOMENTS = {
    "before there is any of its database": "postgres.users",
    "while its database is made": "postgres/init.*/base",
    "while its database starts": f"postgres/pg{POSTGRES_MAJOR}/postmaster.pid",
    "while its tables are made": f"postgres/pg{POSTGRES_MAJOR}/global/pg_internal.init",
}


@pytest.mark.parametrize(
    "moment", [moment if "made" in moment else pytest.param(moment, marks=pytest.mark.long) for moment in MOMENTS]
)
def test_a_worker_told_to_stop_during_its_first_start_leaves_no_database_running(moment: str, home: Path) -> None:
    worker = Worker(home, "--docs", "")
    wait_for(home, MOMENTS[moment])
    assert worker.stop() == 130
    assert "Traceback" not in worker.log.read_text()
    place = placement_of(home)
    assert PidFile.read(place.data) is None
    assert not is_listening(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["asked", "its terminal is closed"])
def test_a_command_told_to_stop_leaves_no_database_running(home: Path, number: signal.Signals) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "worker", "migrate", "--home", str(home)],
        cwd=ROOT,
        env=clean_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run without a terminal
    )
    wait_for(home, MOMENTS["while its database starts"])
    command.send_signal(number)
    assert command.wait(STOP_TIMEOUT_S) == 130
    assert not is_listening(placement_of(home))


@pytest.mark.parametrize("command", [["migrate"], ["serve", "--port", "0", "--docs", ""]], ids=" ".join)
def test_a_first_start_that_is_interrupted_again_and_again_leaves_nothing_in_the_way(
    command: list[str], home: Path
) -> None:
    interrupted = subprocess.Popen(
        [sys.executable, "-m", "worker", *command, "--home", str(home)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_for(home, MOMENTS["while its database is made"])
    while interrupted.poll() is None:
        interrupted.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, said = interrupted.communicate()
    assert interrupted.returncode in (130, -signal.SIGINT), "the latter where only the interpreter's end was left"
    assert said == b""
    assert not is_listening(placement_of(home))
    assert not list(home.glob("postgres/init.*"))
    assert firsttoken("migrate", "--home", str(home)).returncode == 0


def test_a_worker_whose_terminal_is_closed_stops_in_order(make_home: Callable[[], Path]) -> None:
    home = make_home()
    ours, theirs = pty.openpty()
    ready = home / "ready.json"
    command = [sys.executable, "-m", "worker", "serve", "--port", "0", "--home", str(home), "--ready-file", str(ready)]
    worker = subprocess.Popen(
        [*command, "--docs", ""],
        cwd=ROOT,
        env=clean_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=partial(_own_terminal, theirs),
    )
    os.close(theirs)
    wait_for(home, ready.name)
    os.close(ours)
    assert worker.wait(STOP_TIMEOUT_S) == 0
    assert not ready.exists()
    assert not is_listening(placement_of(home))


def _own_terminal(descriptor: int) -> None:
    os.setsid()
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_worker_told_to_stop_while_its_database_cannot_come_back_ends_in_time(make_home: Callable[[], Path]) -> None:
    home = make_home()
    worker = Worker(home, "--docs", "")
    worker.wait_until_ready()
    place = placement_of(home)
    file = PidFile.read(place.data)
    assert file is not None
    control = place.data / "global" / "pg_control"
    kept = control.read_bytes()
    control.write_bytes(b"")
    os.kill(file.pid, signal.SIGKILL)
    while is_listening(place):
        time.sleep(0.005)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log.read_text()
    control.write_bytes(kept)
