"""The account that Postgres runs as: our own, except under root, which Postgres refuses.

Under root it is a user id that belongs to no account. Any process with the same id owns the data and controls the
server, so it must not be `nobody`, which a machine's services share; and adding an account would change the system.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrations.embedded.errors import EmbeddedPostgresError

ROOT = 0
# Unused in systemd's table of user ids, so neither distributions nor useradd assign them, and below 65,536, which is
# all that a container usually has.
FREE_IDS = range(60_578, 61_184)
SHARED = "nobody"  # exists on Linux and macOS: runs initdb, which needs a named account, and formerly ran the server


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def entry(self) -> str | None:
        """Its name, or None if the system has none for it."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return None

    @property
    def name(self) -> str:
        return self.entry or f"user id {self.uid}"

    @property
    def switch(self) -> dict[str, Any]:
        """Arguments for subprocess that run the child as this account."""
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, folder: Path) -> bool:
        """Whether the account may use files below `folder`. Tried out, because only the kernel knows about ACLs and
        mounts."""
        return self._succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])

    def can_run(self, program: Path) -> bool:
        return self._succeeds([str(program), "--version"])

    def _succeeds(self, command: list[str]) -> bool:
        try:
            return subprocess.run(command, capture_output=True, cwd="/", **self.switch).returncode == 0
        except PermissionError:
            return False

    def own(self, path: Path) -> None:
        if not self.is_ours:
            os.chown(path, self.uid, self.gid)

    def take_over(self, folder: Path, giver: Account) -> None:
        """Take ownership of everything in the folder that is the giver's; the folder itself comes last, as a sign of
        completion. The rest is left alone: the giver may have put links to others' files there."""
        if self == giver:
            return
        for _, folders, files, descriptor in os.fwalk(folder, topdown=False):
            for name in (*folders, *files):
                if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == giver.uid:
                    os.chown(name, self.uid, self.gid, dir_fd=descriptor, follow_symlinks=False)
        self.own(folder)


def account_for(data: Path) -> Account:
    """The account for the server of this data folder: ours; under root its owner, or a user id of its own for a new
    folder."""
    if os.geteuid() != ROOT:
        return Account(os.geteuid(), os.getegid())
    if not data.exists():
        return separate_account()
    owner = data.stat()
    if owner.st_uid == ROOT:
        number = separate_account().uid
        raise EmbeddedPostgresError(
            f"{data} belongs to root, and Postgres refuses to run as root: chown -R {number}:{number} {data}"
        )
    return Account(owner.st_uid, owner.st_gid)


def separate_account() -> Account:
    """A user id that belongs to no account."""
    for number in FREE_IDS:
        if (account := Account(number, number)).entry is None:
            return account
    raise EmbeddedPostgresError(
        f"Postgres refuses to run as root, and all user ids from {FREE_IDS[0]} to {FREE_IDS[-1]} are taken: run "
        "Firsttoken as a plain user, or set DATABASE_URL."
    )


def shared_account() -> Account:
    try:
        entry = pwd.getpwnam(SHARED)
    except KeyError:
        raise EmbeddedPostgresError(
            f"Postgres refuses to run as root and there is no account '{SHARED}': run Firsttoken as a plain "
            "user, or set DATABASE_URL."
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)
