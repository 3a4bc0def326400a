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

KEY_CHARS_MAX = 1024  # many times the length of a key
PRIVATE_FILE = 0o600
LOCK_TIMEOUT_S, LOCK_POLL_S = 10.0, 0.01  # what is created once under the lock takes milliseconds
# Under root the embedded Postgres runs as another user, who must traverse this folder; all files in it are private.
FOLDER, FOLDER_OF_ROOT = 0o700, 0o711


class Home:
    """A private folder. Call `prepare` first; several workers may share it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key_file = path / "local.key"  # the API key of the person who runs this worker
        self.agents_file = path / "agents.toml"  # the agents of this machine; optional, as the next one
        self.models_file = path / "models.toml"  # its models
        self.ready_file = path / "worker.json"  # how to reach the worker that started last
        self.models = path / "models"  # that were pulled, or copied there; the folder is created with the first
        self.kv = path / "kv"  # KV caches of conversations, saved by the chat model; may be removed
        self.calibrations = path / "calibrations.json"  # the fastest settings here; measured again when it is removed

    @property
    def is_new(self) -> bool:
        """Whether no worker was ever ready here."""
        return not self.key_file.exists()

    @property
    def has_database(self) -> bool:
        """Of its own, the embedded one. Whoever may not look is told so by `prepare`."""
        try:
            return (self.path / "postgres").exists()
        except PermissionError:
            return True

    def kv_of(self, model: str) -> Path:
        """KV caches of one of several models."""
        return self.kv / "models" / model

    def prepare(self) -> None:
        """Create the folder. Raises StartError when it cannot be used."""
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
        """Hold this while creating something that must exist once. Blocks, usually for milliseconds. Raises StartError
        if another process keeps the lock."""
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
        """The content of the API key's file; empty if there is none, or if it cannot be a key."""
        try:
            with self.key_file.open(encoding="ascii") as file:
                return file.read(KEY_CHARS_MAX).strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the complete new one, also after a power failure; only this user can read either."""
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
