"""A file lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from migrations.embedded.errors import EmbeddedPostgresError

POLL_S = 0.02


class FileLock:
    """Shared by many or held exclusively. Every instance counts separately, even within one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def share(self) -> bool:
        return self._lock(fcntl.LOCK_SH)

    def hold(self) -> bool:
        """Take it exclusively, or upgrade a shared hold; False if another holds it (a shared hold is then lost)."""
        return self._lock(fcntl.LOCK_EX)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def turn(self, timeout_s: float, pause: Callable[[], None] = lambda: time.sleep(POLL_S)) -> Iterator[None]:
        """Wait to hold it exclusively within a block; `pause` is called between attempts."""
        give_up_at = time.monotonic() + timeout_s
        while not self.hold():
            if time.monotonic() > give_up_at:
                raise EmbeddedPostgresError(
                    f"Another process has been starting or stopping the database for {timeout_s:.0f} s "
                    f"(it holds {self._path}): stop it, then try again."
                )
            pause()
        try:
            yield
        finally:
            self.release()

    def _lock(self, kind: int) -> bool:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True
