"""The disk in memory that tests write to, and what is left there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import disks
from tests.conftest import HOME_PREFIX, remove_left
from tests.disks import in_memory, mounted, root_only, small_disk


@root_only
def test_a_disk_in_memory_is_used_if_it_has_the_room_and_lets_programs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "MEMORY", tmp_path)
    with small_disk(tmp_path, 16):
        assert in_memory(8 * 2**20) == tmp_path
        assert in_memory(32 * 2**20) is None
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=16m,noexec", "tmpfs"):
        assert in_memory(8 * 2**20) is None


def test_a_machine_without_a_disk_in_memory_uses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "MEMORY", Path("/dev/nothing"))
    assert in_memory(0) is None


def test_the_home_of_a_process_that_was_killed_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        killed.kill()
    ours, left, odd = (tmp_path / f"{HOME_PREFIX}{maker}" for maker in (os.getpid(), killed.pid, f"{killed.pid}-x"))
    for home in (ours, left):
        (home / "postgres").mkdir(parents=True)
    odd.mkdir()
    (odd / "postgres").touch()  # no database any more: another process removes it at the same time
    remove_left()
    assert ours.exists() and odd.exists() and not left.exists()
