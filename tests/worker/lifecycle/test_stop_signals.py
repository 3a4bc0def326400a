"""A worker that is told to stop at a bad moment ends in time, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from migrations.embedded.placement import POSTGRES_MAJOR, placement_of
from migrations.embedded.postmaster import PidFile, is_listening
from tests.serving import ROOT, START_TIMEOUT_S, STOP_TIMEOUT_S, Worker, clean_environment


def wait_for(home: Path, pattern: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not list(home.glob(pattern)):
        assert time.monotonic() < give_up_at, pattern
        time.sleep(0.002)


MOMENTS = {
    "before its database is made": "postgres.users",
    "while its database is made": "postgres/init.*/base",
    "while its database starts": f"postgres/pg{POSTGRES_MAJOR}/postmaster.pid",
    "while its tables are made": f"postgres/pg{POSTGRES_MAJOR}/global/pg_internal.init",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_told_to_stop_during_its_first_start_leaves_no_database_running(moment: str, home: Path) -> None:
    worker = Worker(home, "--docs", "")
    wait_for(home, MOMENTS[moment])
    assert worker.stop() == 130
    assert "Traceback" not in worker.log.read_text()
    place = placement_of(home)
    assert PidFile.read(place.data) is None
    assert not is_listening(place)


def test_a_command_told_to_stop_leaves_no_database_running(home: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "worker", "migrate", "--home", str(home)], cwd=ROOT, env=clean_environment()
    )
    wait_for(home, MOMENTS["while its database starts"])
    command.send_signal(signal.SIGTERM)
    assert command.wait(STOP_TIMEOUT_S) == 130
    assert not is_listening(placement_of(home))


def test_a_worker_told_to_stop_while_its_database_cannot_come_back_ends_in_time(home: Path) -> None:
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
