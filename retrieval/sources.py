"""The sources of an ingest: local files and URLs, each with the name it is stored under; and the files that a walk over
folders finds.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from retrieval.loaders import formats
from retrieval.loaders.source import checked, read_bytes
from retrieval.loaders.web import fetch

FILES_MAX = 100_000  # more than that means a wrong folder
GENERATED = frozenset({"node_modules", "__pycache__", "site-packages"})  # folders next to source code


class Content(NamedTuple):
    """The suffix of `path` decides which loader reads the data."""

    path: Path
    data: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """`place` is its key: reading the same place again replaces the earlier version. `name` is for display."""

    place: str
    name: str

    @property
    def size(self) -> int:
        """In bytes, as far as known before reading."""
        return 0

    def read(self) -> Content:
        """Blocks. Raises UnreadableFile."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    path: Path

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def read(self) -> Content:
        return Content(self.path, read_bytes(self.path, formats.bytes_max(self.path)))


@dataclass(frozen=True, slots=True)
class WebSource(Source):
    allow_private: bool = False  # whether addresses of this machine and its networks are allowed

    def read(self) -> Content:
        fetched = fetch(self.place, allow_private=self.allow_private)
        path = Path(fetched.name)
        return Content(path, checked(fetched.data, formats.bytes_max(path)))


@dataclass(frozen=True, slots=True)
class FileError:
    """`reason` completes the sentence that starts with the path."""

    path: str
    reason: str


@dataclass(slots=True)
class Listing:
    """`files` maps a file's path to its name for display, relative to the given folder.

    With `stored_below`, files are stored under that name and their own instead of their absolute path.
    """

    stored_below: str | None = None
    files: dict[Path, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    skipped: int = 0  # files of types that no loader reads
    errors: list[FileError] = field(default_factory=list)

    @property
    def sources(self) -> list[FileSource]:
        return [FileSource(self._place(path, name), name, path) for path, name in self.files.items()]

    def _place(self, path: Path, name: str) -> str:
        return stored_path(path) if self.stored_below is None else f"{self.stored_below}/{name}"

    def deleted(self, known: Sequence[str]) -> list[str]:
        """The known paths that are no longer in a folder that was read.

        Files in a folder that could not be read do not count as deleted.
        """
        present = {source.place for source in self.sources}
        folders = [stored_path(folder) for folder in self.folders]
        unread = [error.path for error in self.errors]
        if self.stored_below is not None and folders and not unread:
            folders.append(self.stored_below)
        return [
            path
            for path in known
            if path not in present and _below(path, folders) and not _below(path, unread) and path not in unread
        ]


def stored_path(path: Path) -> str:
    """The path as stored in the database: bytes of a name that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def walk(
    paths: Sequence[Path],
    *,
    exclude: Collection[str] = (),
    stored_below: str | None = None,
    files_max: int = FILES_MAX,
) -> Listing:
    """The named files, and below named folders the files that a loader can read.

    Hidden files and folders below a named folder are skipped, as are files with a name in `exclude`; symbolic links to
    folders are not followed. Finds at most `files_max` files.
    """
    listing = Listing(stored_below)
    for path in paths:
        place = Path(os.path.abspath(path))
        if place.is_dir():
            _walk_folder(place, listing, exclude, files_max)
        elif glob.has_magic(str(path)) and not place.exists():
            _match(place, listing, files_max)
        else:
            listing.files.setdefault(place, place.name)
    return listing


def _match(pattern: Path, listing: Listing, files_max: int) -> None:
    """Expand a pattern that the shell did not; "**" matches nested folders."""
    found = (Path(name) for name in sorted(glob.iglob(str(pattern), recursive=True)))
    files = [path for path in islice(found, files_max) if path.is_file()]
    if not files:
        listing.errors.append(FileError(stored_path(pattern), "matches no file"))
    for path in files:
        listing.files.setdefault(path, path.name)


def _walk_folder(root: Path, listing: Listing, exclude: Collection[str], files_max: int) -> None:
    def report(error: OSError) -> None:
        listing.errors.append(FileError(stored_path(Path(error.filename)), f"cannot be read: {error.strerror}"))

    listing.folders.append(root)
    for folder, folders, names in os.walk(root, onerror=report):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in GENERATED)
        for name in sorted(name for name in names if not name.startswith(".") and name not in exclude):
            path = Path(folder, name)
            if not formats.readable(path):
                listing.skipped += 1
            elif len(listing.files) == files_max:
                listing.errors.append(
                    FileError(stored_path(root), f"contains more than {files_max} files: choose a subfolder")
                )
                return
            else:
                listing.files.setdefault(path, stored_path(path.relative_to(root)))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
