"""Creates the data folder, once, and says who may log in: the kernel identifies the peer, so no password can be stored,
lost or seen in a process list.

The files of access are next to the data folder, where the server's account cannot write, and are rewritten at each
start. Those inside the data folder, which once trusted everybody, are not used.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from migrations.embedded.account import ROOT, SHARED, Account, separate_account, shared_account
from migrations.embedded.errors import EmbeddedPostgresError, reason_in
from migrations.embedded.placement import POSTGRES_MAJOR, Placement

SUPERUSER = "postgres"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C"}
SCRATCH = "init."
INITDB_TIMEOUT_S = 120.0  # takes half a second on a good disk


def ensure_cluster(place: Placement, binaries: Path, pause: Callable[[], None]) -> None:
    """Create the cluster if there is none. It is created next to its place and renamed: an incomplete one is never
    used, and the next start removes it. Each attempt has its own name, because an initdb outlives a killed worker.
    `pause` is called while it is made, and may raise to give it up."""
    for left in place.root.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    if place.data.exists():
        _check(place.data)
        return
    account = place.account
    maker = account if account.is_ours else shared_account()
    scratch = Path(tempfile.mkdtemp(dir=place.root, prefix=SCRATCH))
    maker.own(scratch)
    try:
        _initdb(scratch, maker, binaries, pause)
        account.take_over(scratch, maker)
        scratch.rename(place.data)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def leave_shared_account(place: Placement) -> None:
    """Move a cluster whose server ran as an account shared with others to an id of its own. No server is running."""
    shared = place.account
    if not shared.is_ours and shared.entry == SHARED:
        shutil.rmtree(place.root / "run", ignore_errors=True)  # the socket's folder is created anew
        separate_account().take_over(place.data, shared)


def _check(data: Path) -> None:
    try:
        version = (data / "PG_VERSION").read_bytes().strip()
        found = f"Postgres {version.decode()}" if version.isdigit() else "a damaged database (PG_VERSION)"
    except FileNotFoundError:
        found = "no database"
    if found != f"Postgres {POSTGRES_MAJOR}":
        raise EmbeddedPostgresError(
            f"{data} holds {found} where Postgres {POSTGRES_MAJOR} was expected: restore it from a backup, or move it "
            "away to start with an empty database."
        )


def _initdb(data: Path, account: Account, binaries: Path, pause: Callable[[], None]) -> None:
    """Login rules are written at each start: see `write_access`. It runs in a session of its own, so that Ctrl-C at the
    terminal reaches it by way of `pause` only, and it ends with the servers that it starts."""
    methods = ["--auth-local=peer", "--auth-host=reject"]
    options = ["-U", SUPERUSER, *methods, "--encoding=UTF8", "--locale=C.UTF-8", "--sync-method=syncfs"]
    give_up_at = time.monotonic() + INITDB_TIMEOUT_S
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [binaries / "initdb", "-D", data, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            **account.switch,
        ) as made,
    ):
        try:
            while made.poll() is None:
                pause()
                if time.monotonic() > give_up_at:
                    raise EmbeddedPostgresError(
                        f"Creating the database in {data.parent} took more than {INITDB_TIMEOUT_S:.0f} s: "
                        "put the home on a faster disk with --home, or set DATABASE_URL."
                    )
        except BaseException:
            os.killpg(made.pid, signal.SIGKILL)
            raise
        said.seek(0)
        reason = reason_in(said.read().decode(errors="replace")) or f"initdb ended with status {made.returncode}"
    if made.returncode != 0:
        raise EmbeddedPostgresError(
            f"The database could not be created in {data.parent}: {reason}. Fix that, choose another folder with "
            "--home, or set DATABASE_URL."
        )


MAP = "firsttoken"
RULES = f"local all all peer map={MAP}\n"
READABLE = 0o644  # for the server; they contain no secrets


def names_for(account: Account) -> list[str]:
    """The system accounts that may log in: root, which could anyway, and the owner of the data, unless that is an
    account shared with others."""
    names = {Account(ROOT, ROOT).name, *filter(None, [account.entry])}
    return sorted(names - {SHARED})


def write_access(place: Placement) -> dict[str, str]:
    """Writes the rules, and returns the settings that make the server use them."""
    _write(place.rules, RULES)
    _write(place.names, "".join(f'{MAP} "{name}" all\n' for name in names_for(place.account)))
    return {"hba_file": str(place.rules), "ident_file": str(place.names)}


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        new.write_text(text)
        new.chmod(READABLE)  # whatever the umask
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
