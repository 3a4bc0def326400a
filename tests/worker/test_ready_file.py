"""What a worker prints once it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.ready_file import Ready


def test_a_command_is_told_as_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = Ready("http://host:8080", "ft_key", "http://host:8080/?token=x", "http://host:8080/ops", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bin/firsttoken link" in ready.banner(1.0)
    (tmp_path / "firsttoken").touch(mode=0o755)
    assert "for another one: firsttoken link" in ready.banner(1.0)
