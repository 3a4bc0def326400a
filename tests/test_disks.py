"""The disk in memory that tests write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import disks
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
