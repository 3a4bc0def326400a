"""The embedded server: shared by processes, outliving their crashes and its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.embedded.account import account_for
from migrations.embedded.placement import SOCKET_NAME, placement_of
from migrations.embedded.postmaster import PidFile, is_listening

HOLDER = """
import sys
from pathlib import Path
from migrations.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that uses the server of a home until it is told to stop, or killed."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._process.communicate()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def server(used_home: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(used_home) as server:
        yield server


def postmaster_pid(home: Path) -> int:
    file = PidFile.read(placement_of(home).data)
    assert file is not None and file.is_ready
    return file.pid


def is_running(home: Path) -> bool:
    place = placement_of(home)
    return is_listening(place)


def kill_server(home: Path) -> None:
    os.kill(postmaster_pid(home), signal.SIGKILL)
    give_up_at = time.monotonic() + 60
    while is_running(home):
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


async def query(dsn: str, sql: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_what_was_written_is_there_after_a_restart(used_home: Path) -> None:
    with EmbeddedPostgres(used_home) as server:
        await query(server.owner_dsn, "create table kept (id int)")
    assert not is_running(used_home)
    with EmbeddedPostgres(used_home) as server:
        assert await query(server.owner_dsn, "select to_regclass('kept')::text") == "kept"


def test_four_starters_at_once_share_one_server_and_the_last_one_out_stops_it(home: Path) -> None:
    holders = [Holder(home) for _ in range(4)]
    for holder in holders:
        holder.wait_ready()
    pid = postmaster_pid(home)
    for holder in holders[:3]:
        holder.close()
        assert is_running(home)
    assert postmaster_pid(home) == pid
    holders[3].close()
    assert not is_running(home)


def test_a_server_that_others_still_use_is_left_to_them_and_not_forgotten(used_home: Path) -> None:
    """Python warns of a child that nobody refers to while it runs, and warnings are errors here."""
    starter = EmbeddedPostgres(used_home)
    starter.start()
    other = Holder(used_home)
    other.wait_ready()
    starter.stop()
    del starter
    gc.collect()
    assert is_running(used_home)
    other.close()
    assert not is_running(used_home)


LEAVES = """
import sys, warnings
from pathlib import Path
from migrations.embedded import EmbeddedPostgres
warnings.simplefilter("error")
with EmbeddedPostgres(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_process_that_leaves_its_server_to_others_ends_in_silence(used_home: Path) -> None:
    command = [sys.executable, "-c", LEAVES, str(used_home)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout and first.stdout.readline() == "ready\n"
        with EmbeddedPostgres(used_home) as server:
            _, said = first.communicate("\n", timeout=60)
            assert (first.returncode, said) == (0, "") and server.is_running


def test_a_server_whose_owner_was_killed_is_adopted_and_then_stopped(used_home: Path) -> None:
    owner = Holder(used_home)
    owner.wait_ready()
    pid = postmaster_pid(used_home)
    owner.kill()
    assert is_running(used_home)
    with EmbeddedPostgres(used_home):
        assert postmaster_pid(used_home) == pid
    assert not is_running(used_home)


async def test_killing_the_server_loses_no_acknowledged_row(server: EmbeddedPostgres, used_home: Path) -> None:
    """The kill comes while rows are being written: the writer notes each one that was acknowledged before it."""
    acknowledged: list[int] = []
    enough = asyncio.Event()

    async def write() -> None:
        connection = await asyncpg.connect(server.owner_dsn)
        await connection.execute("create table rows (id int)")
        while True:
            await connection.execute("insert into rows values ($1)", len(acknowledged))
            acknowledged.append(len(acknowledged))
            if len(acknowledged) == 50:
                enough.set()

    writing = asyncio.create_task(write())
    await enough.wait()
    os.kill(postmaster_pid(used_home), signal.SIGKILL)
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await writing
    await asyncio.to_thread(server.start)
    connection = await asyncpg.connect(server.owner_dsn)
    kept = {row["id"] for row in await connection.fetch("select id from rows")}
    await connection.close()
    assert kept >= set(acknowledged)
    assert len(kept) <= len(acknowledged) + 1  # one commit may be in doubt


def test_a_reused_pid_in_the_lock_files_is_not_taken_for_the_server(used_home: Path) -> None:
    """After a reboot or in a container, the dead server's pid soon belongs to a stranger of the same account."""
    owner = Holder(used_home)
    owner.wait_ready()
    place = placement_of(used_home)
    kill_server(used_home)
    owner.close()
    stranger = subprocess.Popen(["sleep", "60"], **place.account.switch)
    try:
        for lock_file in (place.data / "postmaster.pid", place.socket_folder / f"{SOCKET_NAME}.lock"):
            lock_file.write_text("\n".join([str(stranger.pid), *lock_file.read_text().splitlines()[1:], ""]))
        with EmbeddedPostgres(used_home):
            assert is_running(used_home)
        assert stranger.poll() is None, "stopping must not signal the stranger"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_killed_start_leaves_nothing_that_counts(home: Path) -> None:
    """A half-made cluster lies beside the data folder, never in its place."""
    place = placement_of(home)
    (place.root / "init.tmp" / "base").mkdir(parents=True)
    (place.root / "init.tmp" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(home):
        assert is_running(home)
    assert not (place.root / "init.tmp").exists()


def test_stopping_a_server_that_died_is_no_error(used_home: Path) -> None:
    server = EmbeddedPostgres(used_home)
    server.start()
    kill_server(used_home)
    server.stop()
    server.stop()
    assert not is_running(used_home)


@pytest.mark.parametrize("name", ["dreißig, with comma", "long" * 30])
async def test_any_name_of_a_home_works(home: Path, name: str) -> None:
    folder = home / name
    folder.mkdir(mode=0o711)
    with EmbeddedPostgres(folder) as server:
        assert await query(server.app_dsn.replace("firsttoken_app", "postgres"), "select 1") == 1
    assert not is_running(folder)
    place = placement_of(folder)
    socket_folder = place.socket_folder
    assert socket_folder.parent == place.root or not socket_folder.exists()


async def test_postgres_settings_of_the_environment_do_not_matter(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert await query(server.owner_dsn, "select 1") == 1


async def test_the_server_listens_on_nothing_but_its_socket(server: EmbeddedPostgres, used_home: Path) -> None:
    assert await query(server.owner_dsn, "show listen_addresses") == ""
    place = placement_of(used_home)
    folder = place.socket_folder
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("content", "sentence"), [("15\n", "holds Postgres 15 where Postgres 18"), (None, "holds no database")]
)
def test_a_broken_data_folder_is_one_sentence(home: Path, content: str | None, sentence: str) -> None:
    data = placement_of(home).data
    data.mkdir(parents=True)
    account = account_for(home / "nothing")
    account.own(data)
    if content is not None:
        (data / "PG_VERSION").write_text(content)
    with pytest.raises(EmbeddedPostgresError, match=sentence):
        EmbeddedPostgres(home).start()


def test_a_server_that_cannot_start_says_why(used_home: Path) -> None:
    with EmbeddedPostgres(used_home):
        pass
    (placement_of(used_home).data / "global" / "pg_control").unlink()
    server = EmbeddedPostgres(used_home)
    with pytest.raises(EmbeddedPostgresError, match=r"Postgres did not start: .*pg_control.*log"):
        server.start()
    server.stop()


def test_a_home_that_is_a_file_is_one_sentence(home: Path) -> None:
    (home / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot be used: File exists .*--home"):
        EmbeddedPostgres(home / "file").start()
