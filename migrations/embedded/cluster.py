"""Creates the data folder, once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from migrations.embedded.account import Account
from migrations.embedded.errors import EmbeddedPostgresError, reason_in
from migrations.embedded.placement import POSTGRES_MAJOR, Placement

SUPERUSER = "postgres"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C"}
INITDB_TIMEOUT_S = 120.0  # half a second on a good disk


def ensure_cluster(place: Placement, binaries: Path) -> None:
    """Create the cluster if there is none. It is created next to its place and renamed: an incomplete one is never
    used."""
    if place.data.exists():
        _check(place.data)
        return
    account = place.account
    if not account.has_entry:
        raise EmbeddedPostgresError(
            f"This process runs as {account.name}, which has no entry in /etc/passwd, so initdb refuses it: "
            "add an entry, or set DATABASE_URL."
        )
    scratch = place.root / "init.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    account.own(scratch)
    _initdb(scratch, account, binaries)
    scratch.rename(place.data)


def _check(data: Path) -> None:
    try:
        found = f"Postgres {(data / 'PG_VERSION').read_text().strip()}"
    except OSError:
        found = "no database"
    if found != f"Postgres {POSTGRES_MAJOR}":
        raise EmbeddedPostgresError(
            f"{data} holds {found} where Postgres {POSTGRES_MAJOR} was expected: restore it from a backup, or move it "
            "away to start with an empty database."
        )


def _initdb(data: Path, account: Account, binaries: Path) -> None:
    """Local connections are trusted: the socket's folder keeps other accounts out. The server flushes at its start."""
    options = ["-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    try:
        done = subprocess.run(
            [binaries / "initdb", "-D", data, *options],
            capture_output=True,
            text=True,
            errors="replace",
            env=ENVIRONMENT,
            cwd="/",
            timeout=INITDB_TIMEOUT_S,
            **account.switch,
        )
    except subprocess.TimeoutExpired:
        raise EmbeddedPostgresError(
            f"Creating the database in {data.parent} took more than {INITDB_TIMEOUT_S:.0f} s: "
            "put the home on a faster disk with --home, or set DATABASE_URL."
        ) from None
    if done.returncode != 0:
        raise EmbeddedPostgresError(f"The database could not be created in {data.parent}: {reason_in(done.stderr)}")
