"""Which content of a file was read: one that was replaced since is another."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FileVersion(NamedTuple):
    path: Path  # without symbolic links
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        facts = path.stat()
        return cls(path.resolve(), facts.st_size, facts.st_mtime_ns)
