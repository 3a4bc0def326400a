"""The account that Postgres runs as: our own, except under root, which Postgres refuses."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrations.embedded.errors import EmbeddedPostgresError

UNPRIVILEGED = "nobody"  # exists on every Linux and macOS; making an account of our own would change the system


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"user id {self.uid}"

    @property
    def has_entry(self) -> bool:
        """Whether the system knows the account by name, which initdb insists on."""
        return not self.name.startswith("user id ")

    @property
    def switch(self) -> dict[str, Any]:
        """Arguments for subprocess that make the child run as this account."""
        return {} if self.is_ours else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, folder: Path) -> bool:
        """Whether the account may use files below `folder`; a question to the kernel, which knows about ACLs and
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


def account_for(data: Path) -> Account:
    """Who runs the server of this data folder: us, or when we are root its owner, or `nobody` for a new one."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    if not data.exists():
        return unprivileged()
    owner = data.stat()
    if owner.st_uid == 0:
        raise EmbeddedPostgresError(
            f"{data} belongs to root, and Postgres refuses to run as root: chown -R {UNPRIVILEGED} {data}"
        )
    return Account(owner.st_uid, owner.st_gid)


def unprivileged() -> Account:
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise EmbeddedPostgresError(
            f"Postgres refuses to run as root and there is no account '{UNPRIVILEGED}': run Firsttoken as a plain "
            "user, or set DATABASE_URL."
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)
