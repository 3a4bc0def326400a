"""The file of the secret in the home folder: 32 bytes, or 72 while it is being rotated.

    the secret 32
    the old one 32 | the new one 32 | Unix seconds from which the new one signs, a little-endian double 8

Between the rotation and that moment the new one only counts: no worker gets to see what another one signed with a
secret that it has not read yet.
"""

from __future__ import annotations

import secrets
import struct
import time
from pathlib import Path

from worker.auth.secret import Secret
from worker.config import Config
from worker.errors import StartError
from worker.home import Home, write_atomically

SECRET_BYTES = 32
SIGNS_AFTER_S = 30.0  # three times the interval at which a worker rereads the file
_BOTH = struct.Struct(f"<{SECRET_BYTES}s{SECRET_BYTES}sd")


class SecretFile:
    """Several workers and commands may use it at once."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def path(self) -> Path:
        return self._home.path / "secret"

    def read(self) -> tuple[bytes, ...]:
        """The accepted secrets, the signing one first; created on first use. Raises StartError if the file is
        damaged.
        """
        if not self.path.exists():
            with self._home.locked():
                if not self.path.exists():
                    write_atomically(self.path, secrets.token_bytes(SECRET_BYTES))
        return self._read()[0]

    def rotate(self) -> None:
        """Add a new secret. Raises StartError if there are already two."""
        with self._home.locked():
            (secret, *others), _ = self._read()
            if others:
                raise StartError("two secrets are already valid: drop the old one first with `firsttoken secret drop`")
            new = secrets.token_bytes(SECRET_BYTES)
            write_atomically(self.path, _BOTH.pack(secret, new, time.time() + SIGNS_AFTER_S))

    def drop(self) -> None:
        """Drop the old secret. Raises StartError if there is only one, or the new one does not sign yet."""
        with self._home.locked():
            found, signs_from = self._read()
            if len(found) == 1:
                raise StartError("there is only one secret: `firsttoken secret rotate` makes a new one")
            if signs_from > time.time():
                raise StartError(f"the new secret signs {SIGNS_AFTER_S:.0f} s after the rotation: wait for that")
            write_atomically(self.path, found[0])

    def _read(self) -> tuple[tuple[bytes, ...], float]:
        content = self.path.read_bytes()
        if len(content) == SECRET_BYTES:
            return (content,), 0.0
        if len(content) != _BOTH.size:
            raise StartError(f"{self.path} is damaged: restore it, or remove it and sign in again with new keys")
        old, new, signs_from = _BOTH.unpack(content)
        return ((new, old) if signs_from <= time.time() else (old, new)), signs_from


def read_secret(config: Config, home: Home) -> Secret:
    """The secret of the settings, which only a restart changes, or that of the home folder, which a worker rereads."""
    if config.secret:
        return Secret(*(secret.encode() for secret in (config.secret, config.secret_before) if secret))
    file = SecretFile(home)
    return Secret(*file.read(), source=file.read)
