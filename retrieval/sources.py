"""Where an ingest reads from: files of this machine and addresses of the web, each under the name it is kept by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from retrieval.loaders import formats
from retrieval.loaders.source import checked, read_bytes
from retrieval.loaders.web import fetch
from retrieval.walk import stored_path


class Content(NamedTuple):
    """`path` says by its end how the data is to be read."""

    path: Path
    data: bytes


class Source(Protocol):
    @property
    def place(self) -> str:
        """What it is kept by: reading from the same place again replaces what was read before."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def size(self) -> int:
        """In bytes, as far as it is known before reading."""

    def read(self) -> Content:
        """Blocks. Raises UnreadableFile."""


@dataclass(frozen=True, slots=True)
class FileSource:
    path: Path
    name: str

    @property
    def place(self) -> str:
        return stored_path(self.path)

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def read(self) -> Content:
        return Content(self.path, read_bytes(self.path, formats.bytes_max(self.path)))


@dataclass(frozen=True, slots=True)
class WebSource:
    url: str
    allow_private: bool = False  # addresses of this machine and its networks

    @property
    def place(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url

    @property
    def size(self) -> int:
        return 0

    def read(self) -> Content:
        fetched = fetch(self.url, allow_private=self.allow_private)
        path = Path(fetched.name)
        return Content(path, checked(fetched.data, formats.bytes_max(path)))
