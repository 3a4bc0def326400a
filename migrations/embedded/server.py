"""One embedded server, shared by every process that uses the same home folder."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from migrations.embedded.binaries import binaries_for, packaged_binaries
from migrations.embedded.cluster import SUPERUSER, ensure_cluster
from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.lock import FileLock
from migrations.embedded.placement import Placement, make_socket_folder, placement_of, remove_socket_folder
from migrations.embedded.postmaster import PidFile, failure_in_log, is_listening, launch, log_size

READY_TIMEOUT_S = 120.0  # crash recovery replays at most max_wal_size
STOP_TIMEOUT_S = 30.0
TURN_TIMEOUT_S = READY_TIMEOUT_S + STOP_TIMEOUT_S
# A killed server's backends need a moment to notice; a starter killed at the wrong one leaves a server half-way.
CONTEST_TIMEOUT_S = 10.0
CONTESTED = ("lock file", "shared memory")
POLL_S = 0.02


class EmbeddedPostgres:
    """Starts the server of `home` or joins the one that runs; the last process to stop takes it down.

    Every call blocks. A server that outlived its owner is adopted; one that crashed is recovered.
    Raises EmbeddedPostgresError.
    """

    def __init__(self, home: Path) -> None:
        self._home = Path(os.path.abspath(home.expanduser()))
        self._turns = FileLock(self._home / "postgres.lock")
        self._users = FileLock(self._home / "postgres.users")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def owner_dsn(self) -> str:
        """The owner of the tables: for migrations and administration."""
        return self._dsn(SUPERUSER)

    @property
    def app_dsn(self) -> str:
        """The plain role that the worker serves as; the first migration makes it."""
        return self._dsn("firsttoken_app")

    @property
    def is_running(self) -> bool:
        """Whether the server takes connections."""
        return is_listening(placement_of(self._home))

    def start(self) -> None:
        """Return when the server answers. Also brings a server back that died since."""
        try:
            self._home.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
            with self._turns.turn(TURN_TIMEOUT_S):
                self._users.share()
                try:
                    self._run()
                except BaseException:
                    self._users.release()
                    raise
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The database folder cannot be used: {error.strerror or error} ({error.filename or self._home}). "
                "Choose another one with --home, or set DATABASE_URL."
            ) from error

    def stop(self) -> None:
        """Release the server; shut it down when no other worker uses it."""
        if not self._users.held:
            return
        with self._turns.turn(TURN_TIMEOUT_S):
            if self._users.hold():
                try:
                    self._shut_down()
                finally:
                    self._users.release()

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _dsn(self, user: str) -> str:
        folder = placement_of(self._home).socket_folder
        # Port and sslmode are spelled out so that PGPORT and PGSSLMODE of the environment cannot change them.
        return f"postgresql://{user}@/postgres?host={folder}&port=5432&sslmode=disable"

    def _run(self) -> None:
        place = placement_of(self._home)
        if is_listening(place) and self._becomes_ready(place, None):
            return
        if not place.account.can_enter(place.root):
            raise EmbeddedPostgresError(
                f"Postgres runs as {place.account.name}, which has no access to {place.root}: move that folder "
                "to a place that other users may enter, and leave a link to it."
            )
        binaries = binaries_for(place.account, packaged_binaries())
        ensure_cluster(place, binaries)
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
                raise EmbeddedPostgresError(f"Postgres did not start: {reason} (full log: {place.log})")
            time.sleep(5 * POLL_S)

    def _becomes_ready(self, place: Placement, process: subprocess.Popen[bytes] | None) -> bool:
        """Wait until the server (the one we launched, or whichever listens) takes queries; False when it went away."""
        give_up_at = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < give_up_at:
            listening = is_listening(place)
            file = PidFile.read(place.data)
            if listening and file and file.is_ready and (process is None or file.pid == process.pid):
                return True
            gone = process.poll() is not None if process else not listening
            if gone:
                return False
            time.sleep(POLL_S)
        raise EmbeddedPostgresError(
            f"Postgres is still recovering after {READY_TIMEOUT_S:.0f} s and continues: try again later "
            f"(log: {place.log})."
        )

    def _shut_down(self) -> None:
        place = placement_of(self._home)
        file = PidFile.read(place.data)
        if file is not None and is_listening(place):
            os.kill(file.pid, signal.SIGINT)  # a fast shutdown: sessions end, nothing is lost
            self._wait_until_gone(place, file.pid)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None
        remove_socket_folder(place)

    def _wait_until_gone(self, place: Placement, pid: int) -> None:
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        while (file := PidFile.read(place.data)) and file.pid == pid:
            if self._process is not None and self._process.poll() is not None:
                return
            if time.monotonic() > give_up_at:
                raise EmbeddedPostgresError(
                    f"Postgres (process {pid}) is still stopping after {STOP_TIMEOUT_S:.0f} s (log: {place.log})."
                )
            time.sleep(POLL_S)
