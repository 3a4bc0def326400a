"""The home folder keeps one secret, privately, however many workers ask for it first."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from worker.errors import StartError
from worker.home import Home, write_atomically


@pytest.fixture
def home_of(tmp_path: Path) -> Home:
    home = Home(tmp_path / "deep" / "home")
    home.prepare()
    return home


def test_workers_that_start_at_once_share_one_secret(home_of: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: Home(home_of.path).read_secret(), range(8)))
    assert len(secrets) == 1
    assert secrets == {home_of.read_secret()}


def test_what_is_secret_is_readable_by_its_owner_alone(home_of: Home) -> None:
    home_of.read_secret()
    write_atomically(home_of.key_file, b"ft_x")
    for path in (home_of.path / "secret", home_of.key_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_secret_is_said_to_be_damaged(home_of: Home) -> None:
    (home_of.path / "secret").write_bytes(b"short")
    with pytest.raises(StartError, match="damaged"):
        home_of.read_secret()


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
