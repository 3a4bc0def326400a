"""The server process: whether one is running, starting one, and the files in which it describes itself."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrations.embedded.cluster import ENVIRONMENT, write_access
from migrations.embedded.errors import reason_in
from migrations.embedded.placement import SOCKET_NAME, Placement

SETTINGS = {
    "listen_addresses": "",  # the socket is the only way in
    "unix_socket_permissions": "0700",
    "max_connections": "120",  # 100 for workers, the rest for migrations, commands and psql
    "shared_buffers": "512MB",  # what a search over 100,000 chunks reads; a small database uses little of it
    "maintenance_work_mem": "256MB",
    "max_wal_size": "1GB",
    "random_page_cost": "1.1",
    "jit": "off",  # the binaries do not include it
    "wal_level": "minimal",  # there are no replicas
    "max_wal_senders": "0",
    "io_method": "sync",  # saves three processes
    "recovery_init_sync_method": "syncfs",  # recovery in 0.2 s instead of 3.2 s
    "log_destination": "stderr",
    "log_checkpoints": "off",
    "log_min_error_statement": "panic",  # statements may contain what users wrote
    "max_parallel_maintenance_workers": "0",  # containers have 64 MB of /dev/shm, less than one worker needs
}
LOG_BYTES_MAX = 16 * 1024 * 1024  # then a new log is started, and one old file is kept
LOG_TAIL_BYTES = 16 * 1024
CONNECT_TIMEOUT_S = 2.0
PID_END = 2**22 + 1  # Linux assigns no higher ones


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of postmaster.pid. It may be stale: only the socket shows whether the server is alive."""

    pid: int
    state: str  # starting, ready, standby or stopping; empty if not written yet

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    @property
    def is_stopping(self) -> bool:
        return self.state == "stopping"

    @classmethod
    def read(cls, data: Path) -> PidFile | None:
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
        except (OSError, ValueError):
            return None
        pid = _pid_in(lines[0]) if lines else None
        return None if pid is None else cls(pid, lines[7].strip() if len(lines) > 7 else "")


def is_listening(place: Placement) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(str(place.socket_folder / SOCKET_NAME))
        except OSError:
            return False
        return True


def launch(place: Placement, binaries: Path) -> subprocess.Popen[bytes]:
    """Start the server in a session of its own, so that Ctrl-C at the terminal does not reach it."""
    for lock_file in (place.data / "postmaster.pid", place.socket_folder / f"{SOCKET_NAME}.lock"):
        _take_over_lock(lock_file, place.data)
    if place.log.exists() and place.log.stat().st_size > LOG_BYTES_MAX:
        place.log.replace(place.log.with_suffix(".log.1"))
    settings = {**SETTINGS, **write_access(place)}
    place.log.touch(mode=0o600)  # it may quote statements
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [binaries / "postgres", "-D", place.data, "-k", place.socket_folder, *_options(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
            **place.account.switch,
        )


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def log_size(place: Placement) -> int:
    return place.log.stat().st_size if place.log.exists() else 0


def failure_in_log(place: Placement, start: int) -> str:
    """Why the server failed, from its log after byte `start`."""
    with place.log.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start if start <= size else 0, size - LOG_TAIL_BYTES))
        return reason_in(log.read().decode(errors="replace"))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # a process of another account is alive
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Dead, but not yet reaped by its parent. Unknown without /proc."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]  # the name before it may have any character
    except OSError:
        return False
    return state.split()[:1] == [b"Z"]


def _take_over_lock(lock_file: Path, data: Path) -> None:
    """Replace the pid in a dead server's lock file by ours, since another process may have that pid by now.

    Postgres takes any live pid for a running server, except its parent's. The line about shared memory must stay,
    because it reveals backends that outlived their postmaster. A file that a crash left without a pid is removed, as
    Postgres advises: if there are such backends, the shared memory of the data folder still reveals them.
    """
    try:
        written, separator, rest = lock_file.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return
    pid = _pid_in(written.decode("ascii", "replace"))
    if pid is None:
        lock_file.unlink()
    elif not _works_in(pid, data):
        lock_file.write_bytes(b"%d%s%s" % (os.getpid(), separator, rest))


def _pid_in(text: str) -> int | None:
    """A pid that may be a server's: kill() treats 0 and negative numbers as groups, and 1 is never a server."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and 1 < int(text) < PID_END else None


def _works_in(pid: int, data: Path) -> bool:
    """Whether the process is this folder's server, not listening yet. Without /proc, shared memory has to suffice."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data
    except OSError:
        return False
