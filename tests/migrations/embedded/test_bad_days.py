"""The embedded server on a bad day: it starts all the same, or says in one sentence what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.embedded import server as server_module
from migrations.embedded.errors import StartInterrupted
from migrations.embedded.lock import FileLock
from migrations.embedded.placement import SOCKET_NAME, Placement
from migrations.embedded.postmaster import PidFile, is_alive, is_listening
from tests.disks import fill, mounted, root_only, small_disk
from tests.migrations.embedded.conftest import copied
from tests.migrations.embedded.test_server import Holder, postmaster_pid

CRAMPED = """
import resource, sys
from pathlib import Path
from migrations.embedded import EmbeddedPostgres, server
server.CONTEST_TIMEOUT_S = 1000.0  # nobody contests anything
resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, 400 * 2**20))
EmbeddedPostgres(Path(sys.argv[1])).start()
"""
FOREIGN = b"\xff\x00\x17 not ours \x80"


@dataclass(frozen=True, slots=True)
class Day:
    """What happened before the start; `told` is what the start says, None if it starts."""

    sentence: str
    happen: Callable[[Placement], object]
    told: str | None = None

    def __str__(self) -> str:
        return self.sentence


def writes(name: str, content: bytes = FOREIGN) -> Callable[[Placement], object]:
    """Into a file below the folder of the server; `run` is where its socket is."""

    def write(place: Placement) -> None:
        path = place.root / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        if path.parent == place.socket_folder:
            place.account.own(path.parent)
        path.write_bytes(content)

    return write


def makes_folder(name: str) -> Callable[[Placement], object]:
    def make(place: Placement) -> None:
        (place.root / name).unlink()
        (place.root / name).mkdir()

    return make


def lets_no_room(place: Placement) -> None:
    shutil.rmtree(place.root)
    place.root.write_text("")


STARTS = [
    Day("its pid file is empty", writes("pg18/postmaster.pid", b"")),
    Day("its pid file has other bytes", writes("pg18/postmaster.pid")),
    Day("its pid file names all processes", writes("pg18/postmaster.pid", b"-1\n/x\n1\n5432\n\n\n\nready\n")),
    Day("its pid file names the first process", writes("pg18/postmaster.pid", b"1\n/x\n1\n5432\n\n\n\nready\n")),
    Day("the lock of its socket is empty", writes(f"run/{SOCKET_NAME}.lock", b"")),
    Day("the lock of its socket has other bytes", writes(f"run/{SOCKET_NAME}.lock")),
    Day("a file is where its socket goes", writes(f"run/{SOCKET_NAME}")),
    Day("the locks of its users have other bytes", writes("../postgres.users")),
    Day("the lock of its starters has other bytes", writes("../postgres.lock")),
    Day("its log has other bytes", writes("postgres.log")),
    Day("its rules for logins have other bytes", writes("pg_hba.conf")),
    Day("its names for logins have other bytes", writes("pg_ident.conf")),
    Day("the rules of the data folder have other bytes", writes("pg18/pg_hba.conf")),
    Day("a killed start left half a database beside it", writes("init.tmp/PG_VERSION")),
]
STAYS = [
    Day("its version has other bytes", writes("pg18/PG_VERSION"), r"damaged database.*restore it from a backup"),
    Day("its version is empty", writes("pg18/PG_VERSION", b""), r"damaged database.*restore it from a backup"),
    Day("its settings have other bytes", writes("pg18/postgresql.conf"), r"did not start: .*restore .* from a backup"),
    Day("its control file has other bytes", writes("pg18/global/pg_control"), r"did not start: .*from a backup"),
    Day("its log is a folder", makes_folder("postgres.log"), r"Is a directory .*postgres\.log"),
    Day("its folder is a file", lets_no_room, r"postgres is not a folder: move it away"),
]


def at_once(days: Sequence[Day]) -> Day:
    """Of different files."""
    return Day("; ".join(map(str, days)), lambda place: [day.happen(place) for day in days])


# Each day alone takes a start: `make test` has several in one, `make test-long` all.
DAYS = [
    *(at_once(STARTS[first::4]) for first in range(4)),
    *STAYS,
    *(pytest.param(day, marks=pytest.mark.long) for day in STARTS),
]


@pytest.mark.parametrize("day", DAYS, ids=str)
def test_the_server_starts_or_says_what_to_do(made: Path, home: Path, day: Day) -> None:
    day.happen(copied(made, home))
    server = EmbeddedPostgres(home)
    try:
        if day.told is None:
            server.start()
            assert server.is_running
        else:
            with pytest.raises(EmbeddedPostgresError, match=day.told) as told:
                server.start()
            assert "\n" not in str(told.value)
    finally:
        server.stop()
        if (home / "postgres").is_file():
            (home / "postgres").unlink()


def test_a_machine_without_the_memory_for_the_server_is_told_so(made: Path, home: Path) -> None:
    copied(made, home)
    done = subprocess.run([sys.executable, "-c", CRAMPED, str(home)], capture_output=True, text=True)
    assert "Cannot allocate memory: free some memory" in done.stderr.splitlines()[-1], done.stderr


@root_only
def test_on_a_disk_that_is_too_small_for_a_database_the_reason_is_told(home: Path) -> None:
    told = pytest.raises(EmbeddedPostgresError, match=r"No space left on device.*Fix that")
    with small_disk(home, 16), told:
        EmbeddedPostgres(home).start()


@root_only
def test_on_a_disk_that_ran_full_it_is_told_to_free_space_and_with_space_the_server_is_back(
    made: Path, home: Path
) -> None:
    with small_disk(home, 128):
        copied(made, home)
        filler = fill(home)
        with pytest.raises(EmbeddedPostgresError, match="free some space there"):
            EmbeddedPostgres(home).start()
        filler.unlink()
        with EmbeddedPostgres(home) as server:
            assert server.is_running


def test_a_server_that_does_not_start_where_little_room_is_left_is_told_to_get_more(
    made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system keeps some room for root, in which a server of another account may not even write its log."""
    writes("pg18/postgresql.conf")(copied(made, home))
    monkeypatch.setattr("migrations.embedded.server.SPACE_BYTES_MIN", 2**62)
    with pytest.raises(EmbeddedPostgresError, match=r"Only \d+ MB are free in .*: free some space there"):
        EmbeddedPostgres(home).start()


@root_only
def test_a_server_whose_disk_ran_full_stops_in_time_and_starts_again(made: Path, home: Path) -> None:
    with small_disk(home, 128):
        place = copied(made, home)
        server = EmbeddedPostgres(home)
        server.start()
        filler = fill(home)
        server.stop()
        assert not is_listening(place)
        filler.unlink()
        with EmbeddedPostgres(home) as again:
            assert again.is_running


@root_only
def test_a_home_that_is_read_only_is_said_to_be(made: Path, home: Path) -> None:
    copied(made, home)
    told = pytest.raises(EmbeddedPostgresError, match=r"Read-only file system.*mount it writable")
    with mounted(home, "--bind", "-o", "ro", str(home)), told:
        EmbeddedPostgres(home).start()


def test_a_stop_ends_a_start_that_waits_for_its_turn(home: Path) -> None:
    other = FileLock(home / "postgres.lock")
    assert other.hold()
    server, told = EmbeddedPostgres(home), list[BaseException | None]()
    starter = threading.Thread(target=lambda: told.append(_failure(server.start)))
    starter.start()
    server.stop()
    starter.join(60)
    assert isinstance(told[0], StartInterrupted)
    other.release()


def test_a_stop_during_a_start_leaves_no_server_behind(made: Path, home: Path) -> None:
    place = copied(made, home)
    server = EmbeddedPostgres(home)
    starter = threading.Thread(target=_failure, args=(server.start,))
    starter.start()
    while PidFile.read(place.data) is None and starter.is_alive():  # the server is there, perhaps not ready yet
        time.sleep(0.001)
    server.stop()
    starter.join(60)
    assert not starter.is_alive() and not is_listening(place)
    assert PidFile.read(place.data) is None


MOMENTS = [
    "init.*/base",
    "pg18/postmaster.pid",
    *(pytest.param(moment, marks=pytest.mark.long) for moment in ("init.*/PG_VERSION", "pg18")),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_first_start_that_is_killed_is_made_good_by_the_next(moment: str, home: Path) -> None:
    starter = Holder(home)
    while not list(home.glob(f"postgres/{moment}")):
        time.sleep(0.001)
    starter.kill()
    with EmbeddedPostgres(home) as server:
        assert server.is_running


def test_a_server_that_lost_its_pid_file_is_stopped_by_who_started_it(made: Path, home: Path) -> None:
    place = copied(made, home)
    server = EmbeddedPostgres(home)
    server.start()
    (place.data / "postmaster.pid").write_bytes(b"")
    server.stop()
    assert not is_listening(place)


def test_an_adopted_server_that_crashes_while_it_stops_is_not_waited_for(made: Path, home: Path) -> None:
    """Its pid file stays, and its pid is nobody's."""
    place = copied(made, home)
    owner = Holder(home)
    owner.wait_ready()
    heir = EmbeddedPostgres(home)
    heir.start()
    owner.kill()
    file = PidFile.read(place.data)
    assert file is not None
    os.kill(file.pid, signal.SIGSTOP)
    while not _is_stopped(file.pid):  # until then it would still take the other signal first
        time.sleep(0.005)
    stopper = threading.Thread(target=heir.stop)
    stopper.start()
    while not _is_asked_to(signal.SIGINT, file.pid):
        time.sleep(0.005)
    os.kill(file.pid, signal.SIGKILL)
    stopper.join(60)
    assert not stopper.is_alive()
    assert PidFile.read(place.data) == file


def test_an_adopted_server_that_crashes_as_it_is_asked_to_stop_has_stopped(
    made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copied(made, home)
    owner = Holder(home)
    owner.wait_ready()
    heir = EmbeddedPostgres(home)
    heir.start()
    owner.kill()
    file = PidFile.read(place.data)
    assert file is not None

    def crashing(place: Placement) -> bool:
        listens = is_listening(place)
        os.kill(file.pid, signal.SIGKILL)
        while is_alive(file.pid):
            time.sleep(0.005)
        return listens

    monkeypatch.setattr(server_module, "is_listening", crashing)
    heir.stop()
    assert not is_listening(place)


def checkpointer_of(pid: int) -> int:
    """Without it a fast shutdown never ends."""
    while True:  # other children come and go
        with suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found = [child for child in children if b"checkpointer" in Path(f"/proc/{child}/cmdline").read_bytes()]
            if found:
                return int(found[0])
        time.sleep(0.01)


@contextmanager
def held_until_told_to_quit(pid: int) -> Iterator[None]:
    """This process of a server stands still meanwhile. Nobody waits for the server to kill what does not quit: that
    takes it five seconds."""

    def go_on() -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # it was killed all the same
            while not _is_asked_to(signal.SIGQUIT, pid):
                time.sleep(0.005)
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    told = threading.Thread(target=go_on)
    told.start()
    yield
    told.join(60)
    assert not told.is_alive()


def test_a_server_whose_fast_shutdown_does_not_end_is_ended(
    made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FAST_STOP_S", 0.2)
    place = copied(made, home)
    server = EmbeddedPostgres(home)
    server.start()
    with held_until_told_to_quit(checkpointer_of(postmaster_pid(home))):
        server.stop()
    assert not is_listening(place)
    with EmbeddedPostgres(home) as server:
        assert server.is_running


def test_a_server_that_was_left_in_the_middle_of_its_stop_is_ended_by_the_next_start(
    made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FAST_STOP_S", 0.2)
    place = copied(made, home)
    owner = Holder(home)
    owner.wait_ready()
    left = postmaster_pid(home)
    server = EmbeddedPostgres(home)
    with held_until_told_to_quit(checkpointer_of(left)):
        os.kill(left, signal.SIGINT)
        while not _says_that_it_stops(place):  # until then a start takes it for one that goes on
            time.sleep(0.005)
        owner.kill()
        server.start()
    with server:
        assert server.is_running
        assert postmaster_pid(home) != left


def test_a_dead_process_whose_parent_has_not_asked_about_it_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not is_alive(process.pid)


def _says_that_it_stops(place: Placement) -> bool:
    file = PidFile.read(place.data)
    return file is not None and file.is_stopping


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_asked_to(signal_number: int, pid: int) -> bool:
    """Whether a process that stands still has such a signal before it."""
    [pending] = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) & 1 << signal_number - 1)


def _failure(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except EmbeddedPostgresError as error:
        return error
    return None
