"""The home folder: what a worker keeps between two starts besides the database."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrations.embedded.errors import remedy
from worker.errors import StartError

KEY_CHARS_MAX = 1024  # many times as long as a key
PRIVATE_FILE = 0o600
LOCK_TIMEOUT_S, LOCK_POLL_S = 10.0, 0.01  # what must exist once is made in milliseconds
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
    def is_new(self) -> bool:
        """Whether no worker was ever ready here."""
        return not self.key_file.exists()

    @property
    def agents_file(self) -> Path:
        """The agents of this machine, if somebody wrote them down."""
        return self.path / "agents.toml"

    @property
    def models_file(self) -> Path:
        """The models of this machine, if somebody wrote them down."""
        return self.path / "models.toml"

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

    def kv_of(self, model: str) -> Path:
        """Of one of several."""
        return self.kv / "models" / model

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
                f"the home folder {self.path} cannot be used: {error.strerror}; "
                f"{remedy(error, 'choose another with --home')}"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this while making something that must exist once. Blocks, usually for milliseconds. Raises StartError
        when another process keeps it."""
        path, give_up_at = self.path / "lock", time.monotonic() + LOCK_TIMEOUT_S
        with path.open("w") as file:
            while not _taken(file.fileno()):
                if time.monotonic() > give_up_at:
                    raise StartError(
                        f"another process has been starting for {LOCK_TIMEOUT_S:.0f} s (it holds {path}): stop it, "
                        "then try again"
                    )
                time.sleep(LOCK_POLL_S)
            yield

    def read_key(self) -> str:
        """What stands in the file of the API key; empty without one, or when it cannot be a key."""
        try:
            with self.key_file.open(encoding="ascii") as file:
                return file.read(KEY_CHARS_MAX).strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the whole new one, also after a power cut, and only this user sees either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # the system names no file when a disk is full
        raise


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
