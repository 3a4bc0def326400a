"""Where the cluster of a home folder and its socket are.

HOME/postgres holds everything, unless we are root and the account that runs Postgres cannot reach it (below /root, or
in a private temporary folder). We do not open the permissions of other folders: the cluster then goes below /var/lib,
and HOME/postgres is a link to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from migrations.embedded.account import Account, account_for, separate_account
from migrations.embedded.errors import EmbeddedPostgresError

POSTGRES_MAJOR = 18
FALLBACK_FOLDER = Path("/var/lib")
# Not TMPDIR: two processes with different environments must find the same socket.
SHORT_FOLDER = Path("/tmp")
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_BYTES_MAX = 103  # sun_path of macOS; Linux allows four more
# Postgres and the drivers parse commas, spaces and colons in the name of a socket folder.
PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """Folders and files of one cluster; others may enter `root`, but not its data and socket folders."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / f"pg{POSTGRES_MAJOR}"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def rules(self) -> Path:
        """Who may log in by which method."""
        return self.root / "pg_hba.conf"

    @property
    def names(self) -> Path:
        """Which system accounts may act as which role."""
        return self.root / "pg_ident.conf"

    @property
    def account(self) -> Account:
        """The account that runs the server."""
        return account_for(self.data)

    @property
    def socket_folder(self) -> Path:
        inside = self.root / "run"
        if PLAIN_PATH.fullmatch(str(inside)) and len(os.fsencode(inside / SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX:
            return inside
        return SHORT_FOLDER / f"firsttoken-{self.account.uid}-{_digest(self.root)}"


def placement_of(home: Path) -> Placement:
    """Find the cluster's place; the first start decides it. `home` exists."""
    place = home / "postgres"
    if place.is_symlink() and not place.exists():
        raise EmbeddedPostgresError(
            f"The database folder {place.readlink()} is gone: restore it, or remove the link {place} to start with an "
            "empty database."
        )
    if not place.exists():
        _make(place, home)
    if not place.is_dir():
        raise EmbeddedPostgresError(f"{place} is not a folder: move it away to start with an empty database.")
    return Placement(place.resolve())


def make_socket_folder(place: Placement) -> None:
    """A folder that only the account can enter: a process that reaches the socket is a superuser of the database."""
    folder, account = place.socket_folder, place.account
    if not folder.exists():
        folder.mkdir(mode=0o700)
    if not folder.is_symlink() and folder.lstat().st_uid == os.geteuid():
        account.own(folder)  # new, or left by a start that was killed before this
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != account.uid or status.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"{folder} must belong to {account.name} alone (mode 0700) to hold the database's socket: remove it."
        )


def remove_socket_folder(place: Placement) -> None:
    """Remove the empty socket folder of a stopped server, if it is outside of ours."""
    if place.socket_folder.parent == SHORT_FOLDER:
        with contextlib.suppress(OSError):  # it does not exist, or still has a crashed server's socket
            place.socket_folder.rmdir()


def _make(place: Path, home: Path) -> None:
    if os.geteuid() != 0:
        place.mkdir(mode=0o700)
    elif separate_account().can_enter(home):
        place.mkdir(mode=0o711)
        place.chmod(0o711)  # whatever the umask
    else:
        elsewhere = FALLBACK_FOLDER / f"firsttoken-{os.geteuid()}-{_digest(home)}"
        elsewhere.mkdir(mode=0o711, exist_ok=True)
        elsewhere.chmod(0o711)
        (elsewhere / "README").write_text(f"The database of the Firsttoken home {home}, which links here.\n")
        place.symlink_to(elsewhere)


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
