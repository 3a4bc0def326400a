"""The home folder, and files that appear in it whole and privately."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from worker.errors import StartError
from worker.home import Home, write_atomically


@pytest.fixture
def home_of(tmp_path: Path) -> Home:
    home = Home(tmp_path / "deep" / "home")
    home.prepare()
    return home


def test_what_is_secret_is_readable_by_its_owner_alone(home_of: Home) -> None:
    write_atomically(home_of.key_file, b"ft_x")
    assert stat.S_IMODE(home_of.key_file.stat().st_mode) == 0o600


def test_a_home_is_new_until_a_worker_was_ready_there(home_of: Home) -> None:
    assert home_of.is_new
    write_atomically(home_of.key_file, b"ft_x")
    assert not home_of.is_new


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="--home"):
        Home(tmp_path / "file" / "home").prepare()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_atomically(path, b"old" * 1000)
    before = os.open(path, os.O_RDONLY)
    write_atomically(path, b"new")
    assert os.read(before, 10_000) == b"old" * 1000
    os.close(before)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
