"""One embedded server, shared by every process that uses the same home folder."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from migrations.embedded.cluster import SUPERUSER, ensure_cluster, leave_shared_account
from migrations.embedded.errors import EmbeddedPostgresError, StartInterrupted, remedy
from migrations.embedded.lock import FileLock
from migrations.embedded.placement import (
    Placement,
    binaries_for,
    make_socket_folder,
    packaged_binaries,
    placement_of,
    remove_socket_folder,
)
from migrations.embedded.postmaster import PidFile, failure_in_log, is_alive, is_listening, launch, log_size

READY_TIMEOUT_S = 120.0  # crash recovery replays at most max_wal_size
STOP_TIMEOUT_S = 30.0
# For a fast shutdown, which flushes everything. If requested during crash recovery it may never end (seen in Postgres
# 18.4); an immediate shutdown does, and leaves recovery to the next start.
FAST_STOP_S = 10.0
TURN_TIMEOUT_S = READY_TIMEOUT_S + STOP_TIMEOUT_S
# Backends of a killed server need a moment to notice; a starter killed at a bad moment leaves a half-started server.
CONTEST_TIMEOUT_S = 10.0
CONTESTED = ("lock file", "shared memory block")  # memory that there is not enough of is another matter
POLL_S = 0.02
SPACE_BYTES_MIN = 16 * 2**20  # a WAL segment; with less, even the server's log stays empty
# Servers that this process started and others still use: Python warns about a child that is no longer referenced.
_LEFT: list[subprocess.Popen[bytes]] = []


@atexit.register
def _forget_left() -> None:
    """They outlive this process; whichever process inherits them reaps them."""
    for process in _LEFT:
        if process.poll() is None:
            process.returncode = 0


class EmbeddedPostgres:
    """Starts the server of `home` or joins a running one; the last process to stop shuts it down.

    Every call blocks. A server that outlived its owner is adopted; one that crashed is recovered.
    Raises EmbeddedPostgresError.
    """

    def __init__(self, home: Path) -> None:
        self._home = Path(os.path.abspath(os.path.expanduser(home)))
        self._turns = FileLock(self._home / "postgres.lock")
        self._users = FileLock(self._home / "postgres.users")
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Lock()  # file locks exclude processes, not threads
        self._stopping = threading.Event()

    @property
    def owner_dsn(self) -> str:
        """For the owner of the tables: migrations and administration."""
        return self._dsn(SUPERUSER)

    @property
    def app_dsn(self) -> str:
        """For the plain role that the worker serves as; the first migration creates it."""
        return self._dsn("firsttoken_app")

    @property
    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        return is_listening(placement_of(self._home))

    def start(self) -> None:
        """Return once the server responds. Also restarts a server that died meanwhile. Raises StartInterrupted after
        `stop`, which another thread may call meanwhile."""
        with self._thread, self._explained():
            self._home.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
            with self._turns.turn(TURN_TIMEOUT_S, self._pause):
                self._users.share()
                try:
                    self._run()
                except StartInterrupted:
                    self._leave()
                    raise
                except BaseException:
                    self._users.release()
                    raise

    def stop(self) -> None:
        """Release the server; shut it down if no other worker uses it. It stays stopped."""
        self._stopping.set()
        with self._thread, self._explained():
            if self._users.held:
                with self._turns.turn(TURN_TIMEOUT_S):
                    self._leave()

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _dsn(self, user: str) -> str:
        folder = placement_of(self._home).socket_folder
        # Port and sslmode are explicit so that PGPORT and PGSSLMODE in the environment cannot change them.
        return f"postgresql://{user}@/postgres?host={folder}&port=5432&sslmode=disable"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            todo = remedy(error, "choose another folder with --home")
            raise EmbeddedPostgresError(
                f"The database folder cannot be used: {error.strerror or error} ({error.filename or self._home}): "
                f"{todo}, or set DATABASE_URL."
            ) from error

    def _pause(self) -> None:
        if self._stopping.wait(POLL_S):
            raise StartInterrupted("The start of the database was interrupted.")

    def _run(self) -> None:
        place = placement_of(self._home)
        if is_listening(place) and self._becomes_ready(place, None):
            return
        if not place.account.can_enter(place.root):
            raise EmbeddedPostgresError(
                f"Postgres runs as {place.account.name}, which has no access to {place.root}: move that folder "
                "to a place that other users may enter, and leave a link to it."
            )
        if place.account.is_ours and place.account.entry is None:
            raise EmbeddedPostgresError(
                f"This process runs as {place.account.name}, which has no entry in /etc/passwd, so Postgres refuses "
                "it: add an entry, or set DATABASE_URL."
            )
        binaries = binaries_for(place.account, packaged_binaries())
        ensure_cluster(place, binaries, self._pause)
        leave_shared_account(place)
        make_socket_folder(place)
        self._start_server(place, binaries)

    def _start_server(self, place: Placement, binaries: Path) -> None:
        contest_ends_at = time.monotonic() + CONTEST_TIMEOUT_S
        while True:
            if self._process is not None:
                self._process.poll()  # a dead child keeps its pid until it is polled
            said = log_size(place)
            self._process = launch(place, binaries)
            if self._becomes_ready(place, self._process):
                return
            reason = failure_in_log(place, said)
            if is_listening(place) and self._becomes_ready(place, None):
                return
            if time.monotonic() > contest_ends_at or not any(words in reason for words in CONTESTED):
                raise EmbeddedPostgresError(f"Postgres did not start: {_explained(reason, place)}")
            self._pause()

    def _becomes_ready(self, place: Placement, process: subprocess.Popen[bytes] | None) -> bool:
        """Wait until the server (the one we launched, or whichever listens) accepts queries; False if it went away.

        One that is stuck in shutdown was left that way by a process that was killed: it is ended.
        """
        began_at = time.monotonic()
        while time.monotonic() < began_at + READY_TIMEOUT_S:
            listening = is_listening(place)
            file = PidFile.read(place.data)
            if listening and file and file.is_stopping and time.monotonic() > began_at + FAST_STOP_S:
                with suppress(ProcessLookupError):
                    os.kill(file.pid, signal.SIGQUIT)
            if listening and file and file.is_ready and (process is None or file.pid == process.pid):
                return True
            gone = process.poll() is not None if process else not listening
            if gone:
                return False
            self._pause()
        raise EmbeddedPostgresError(
            f"Postgres is still recovering after {READY_TIMEOUT_S:.0f} s and continues: try again later "
            f"(log: {place.log})."
        )

    def _leave(self) -> None:
        """Shut the server down unless another process uses it."""
        if self._users.hold():
            try:
                self._shut_down(placement_of(self._home))
            finally:
                self._users.release()
        elif self._process is not None:
            _LEFT[:] = [each for each in (*_LEFT, self._process) if each.poll() is None]
            self._process = None

    def _shut_down(self, place: Placement) -> None:
        """A fast shutdown: sessions end, nothing is lost."""
        if self._process is not None and self._process.poll() is None:
            pid = self._process.pid  # takes precedence over the pid file
        elif (file := PidFile.read(place.data)) is not None and is_listening(place):
            pid = file.pid
        else:
            pid = None
        if pid is not None:
            self._end(place, pid)
        self._process = None
        remove_socket_folder(place)

    def _end(self, place: Placement, pid: int) -> None:
        for how, within_s in ((signal.SIGINT, FAST_STOP_S), (signal.SIGQUIT, STOP_TIMEOUT_S - FAST_STOP_S)):
            with suppress(ProcessLookupError):  # it crashed at this moment
                os.kill(pid, how)
            give_up_at = time.monotonic() + within_s
            while time.monotonic() < give_up_at:
                if not (self._process.poll() is None if self._process else _is_there(place, pid)):
                    return
                time.sleep(POLL_S)
        raise EmbeddedPostgresError(
            f"Postgres (process {pid}) is still stopping after {STOP_TIMEOUT_S:.0f} s (log: {place.log})."
        )


def _is_there(place: Placement, pid: int) -> bool:
    """Whether a server started by another process is running: it removes its pid file at its end, unless it crashes."""
    file = PidFile.read(place.data)
    return file is not None and file.pid == pid and is_alive(pid)


def _explained(reason: str, place: Placement) -> str:
    """What the server reported, and what to do."""
    said, free = reason or "it said nothing", shutil.disk_usage(place.root).free
    if free < SPACE_BYTES_MIN:
        return f"{said}. Only {free // 2**20} MB are free in {place.root}: free some space there."
    if os.strerror(errno.ENOMEM) in said:
        return f"{said}: free some memory, or allow this process more."
    return (
        f"{said} (full log: {place.log}). If its files are damaged, restore {place.data} from a backup, or move it "
        "away to start with an empty database."
    )
