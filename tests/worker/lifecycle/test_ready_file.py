"""What a worker prints once it answers."""

from __future__ import annotations

import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from inference.provisioning.catalogue import purpose_of
from tests.serving import ROOT
from worker.config import HOME
from worker.lifecycle.ready_file import Ready


def test_a_command_is_told_as_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = Ready("http://host:8080", "ft_key", "http://host:8080/?token=x", "http://host:8080/ops", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "bin/firsttoken link\n" in ready.banner(1.0, HOME.expanduser())
    (tmp_path / "firsttoken").touch(mode=0o755)
    assert "for a new link: firsttoken link\n" in ready.banner(1.0, HOME.expanduser())


def test_what_is_printed_where_the_disk_is_full_ends_no_process() -> None:
    program = "from worker.lifecycle.process import say; say('ready'); say('stopping')"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_user_without_a_home_directory_is_told_of_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in /etc/passwd."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    ready = Ready("http://host:8080", "ft_key", "link", "ops", 1)
    assert "firsttoken link --home /srv\n" in ready.banner(1.0, Path("/srv"))


def test_what_the_model_can_do_is_told_before_it_is_asked() -> None:
    ready = Ready("http://host:8080", "ft_key", "link", "ops", 1, model=f"demo-chat: {purpose_of('demo-chat')}")
    assert "  Model    demo-chat: answers with tools and documents, cannot chat\n" in ready.banner(1.0, Path("/srv"))


def test_the_command_for_another_link_names_a_home_of_its_own() -> None:
    ready = Ready("http://host:8080", "ft_key", "http://host:8080/?token=x", "http://host:8080/ops", 1)
    assert "firsttoken link --home '/srv/my chat'\n" in ready.banner(1.0, Path("/srv/my chat"))
