"""Who may log in to the embedded server: root and whoever owns it, known by the kernel and without a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.embedded.account import SHARED, Account, separate_account, shared_account
from migrations.embedded.cluster import names_for
from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="Postgres runs as another account under root only")

LOG_IN = """
import asyncio, os, sys
import asyncpg
dsn, uid = sys.argv[1], int(sys.argv[2])
asyncio.get_event_loop_policy()  # what is imported late, while the files are still within reach
os.setgroups([]), os.setgid(uid), os.setuid(uid)
asyncio.run(asyncpg.connect(dsn, timeout=60))
"""


async def fetch(dsn: str, sql: str) -> list[object]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def logged_in_as(uid: int, dsn: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LOG_IN, dsn, str(uid)], capture_output=True, text=True, timeout=60)


def test_root_and_the_owner_of_the_data_may_log_in_and_an_account_that_others_share_may_not() -> None:
    ours = Account(os.geteuid(), os.getegid()).name
    assert names_for(Account(os.geteuid(), os.getegid())) == sorted({"root", ours})
    assert names_for(shared_account()) == names_for(separate_account()) == ["root"]


async def test_every_rule_asks_the_kernel_and_none_trusts(postgres: EmbeddedPostgres) -> None:
    assert await fetch(postgres.owner_dsn, "select distinct auth_method from pg_hba_file_rules") == ["peer"]


async def test_what_stands_in_the_data_folder_about_logins_does_not_count(used_home: Path) -> None:
    with EmbeddedPostgres(used_home):
        pass
    (placement_of(used_home).data / "pg_hba.conf").write_text("local all all trust\n")
    with EmbeddedPostgres(used_home) as server:
        assert await fetch(server.owner_dsn, "select distinct auth_method from pg_hba_file_rules") == ["peer"]


@root_only
def test_under_root_the_server_runs_under_a_number_that_no_account_has(home: Path) -> None:
    with EmbeddedPostgres(home):
        place = placement_of(home)
        file = PidFile.read(place.data)
        assert file is not None
        assert Path(f"/proc/{file.pid}").stat().st_uid == place.account.uid == separate_account().uid
        owners = {path.lstat().st_uid for path in (place.data, *place.data.rglob("*"))}
        assert owners == {place.account.uid}


@root_only
def test_under_root_nobody_cannot_reach_the_socket_and_the_servers_own_account_cannot_log_in(used_home: Path) -> None:
    with EmbeddedPostgres(used_home) as server:
        stranger = logged_in_as(shared_account().uid, server.owner_dsn)
        assert stranger.returncode != 0 and "PermissionError" in stranger.stderr
        itself = logged_in_as(placement_of(used_home).account.uid, server.owner_dsn)
        assert itself.returncode != 0 and "InvalidAuthorizationSpecificationError" in itself.stderr


@root_only
async def test_under_root_a_database_of_nobody_that_trusted_everybody_moves_to_its_own_account_with_its_rows(
    used_home: Path,
) -> None:
    """As earlier versions made it, and left behind by one that was killed."""
    with EmbeddedPostgres(used_home) as server:
        await fetch(server.owner_dsn, "create table kept as select 7 as id")
    place = placement_of(used_home)
    shared = shared_account()
    for path in (place.data, *place.data.rglob("*"), place.socket_folder):
        os.chown(path, shared.uid, shared.gid, follow_symlinks=False)
    (place.data / "pg_hba.conf").write_text("local all all trust\n")
    with EmbeddedPostgres(used_home) as server:
        assert await fetch(server.owner_dsn, "select id from kept") == [7]
        assert placement_of(used_home).account == separate_account()


@root_only
def test_under_root_a_link_to_anothers_file_is_not_taken_over(home: Path) -> None:
    shared, folder = shared_account(), home / "data"
    folder.mkdir()
    (home / "theirs").write_text("")
    (folder / "ours").write_text("")
    for path in (folder, folder / "ours"):
        shared.own(path)
    (folder / "link").symlink_to(home / "theirs")
    os.link(home / "theirs", folder / "hard")
    separate_account().take_over(folder, shared)
    assert (home / "theirs").stat().st_uid == 0
    assert (folder / "ours").stat().st_uid == folder.stat().st_uid == separate_account().uid


@root_only
def test_under_root_a_move_that_was_killed_half_way_goes_on_at_the_next_start(used_home: Path) -> None:
    with EmbeddedPostgres(used_home):
        pass
    place, shared = placement_of(used_home), shared_account()
    for path in (place.data, place.data / "PG_VERSION"):  # the rest had moved
        shared.own(path)
    shutil.rmtree(place.root / "run")
    with EmbeddedPostgres(used_home):
        assert placement_of(used_home).account == separate_account()
        assert (place.data / "PG_VERSION").stat().st_uid == separate_account().uid


def test_the_shared_account_is_the_one_that_initdb_runs_as_under_root() -> None:
    assert shared_account().name == SHARED
