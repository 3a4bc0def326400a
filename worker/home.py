"""The home folder: what a worker keeps between two starts besides the database."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.errors import StartError

SECRET_BYTES = 32
PRIVATE_FILE = 0o600
# Under root the embedded Postgres runs as another user, who must get through this folder; all files in it are private.
FOLDER, FOLDER_OF_ROOT = 0o700, 0o711


class Home:
    """A private folder. `prepare` first; several workers may share it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def key_file(self) -> Path:
        """The API key of the person who runs this worker."""
        return self.path / "local.key"

    @property
    def agents_file(self) -> Path:
        """The agents of this machine, if somebody wrote them down."""
        return self.path / "agents.toml"

    @property
    def ready_file(self) -> Path:
        """How to reach the worker that started last."""
        return self.path / "worker.json"

    @property
    def models(self) -> Path:
        """Chat models that were pulled, or put there; the folder appears with the first."""
        return self.path / "models"

    @property
    def kv(self) -> Path:
        """Conversations as the chat model has read them; a cache that may be removed."""
        return self.path / "kv"

    @property
    def calibrations(self) -> Path:
        """What is fastest on this machine; measured again when it is gone."""
        return self.path / "calibrations.json"

    def prepare(self) -> None:
        """Raises StartError when the folder cannot be used."""
        try:
            mode = FOLDER if os.geteuid() else FOLDER_OF_ROOT
            self.path.mkdir(mode=mode, parents=True, exist_ok=True)
            with self.locked():
                pass
        except OSError as error:
            raise StartError(
                f"the home folder {self.path} cannot be used: {error.strerror}; choose another with --home"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this while making something that must exist once. Blocks, for milliseconds."""
        with (self.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read_secret(self) -> bytes:
        """The secret of this home, made on first use. Raises StartError when it was damaged."""
        path = self.path / "secret"
        with self.locked():
            if not path.exists():
                write_atomically(path, secrets.token_bytes(SECRET_BYTES))
            secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise StartError(f"{path} is damaged: restore it, or remove it and sign in again with new keys")
        return secret


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the whole new one, and only this user sees either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)
