"""The file of the secret: one, or two while it is being rotated, readable by its owner alone."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from worker.auth.authenticator import RECHECK_S
from worker.auth.secret import SIGNS_AFTER_S, SecretFile
from worker.errors import StartError
from worker.home import Home


@pytest.fixture
def file(tmp_path: Path) -> SecretFile:
    home = Home(tmp_path / "home")
    home.prepare()
    return SecretFile(home)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)


def test_workers_that_start_at_once_share_one_secret(file: SecretFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: file.read(), range(8)))
    assert found == {file.read()}
    assert len(file.read()) == 1


def test_a_new_secret_counts_at_once_and_signs_when_all_workers_have_read_it(
    file: SecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = file.read()
    file.rotate()
    assert file.read()[0] == old and len(file.read()) == 2
    assert SIGNS_AFTER_S > 2 * RECHECK_S
    later(monkeypatch, SIGNS_AFTER_S + 1)
    new, before = file.read()
    assert before == old != new


def test_the_old_secret_is_dropped_and_the_new_one_stays(file: SecretFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.read()
    file.rotate()
    with pytest.raises(StartError, match="wait"):
        file.drop()
    later(monkeypatch, SIGNS_AFTER_S + 1)
    new, _ = file.read()
    file.drop()
    assert file.read() == (new,)


def test_there_are_never_three_secrets_nor_none(file: SecretFile) -> None:
    file.read()
    with pytest.raises(StartError, match="rotate"):
        file.drop()
    file.rotate()
    with pytest.raises(StartError, match="drop"):
        file.rotate()


def test_both_files_are_readable_by_their_owner_alone(file: SecretFile) -> None:
    file.read()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.rotate()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_damaged_secret_is_said_to_be_damaged(file: SecretFile) -> None:
    file.path.write_bytes(b"short")
    with pytest.raises(StartError, match="damaged"):
        file.read()
