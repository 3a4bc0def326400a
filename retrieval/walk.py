"""Which files an ingest reads: named files as they are, and below named folders those that a loader knows."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from retrieval.loaders import formats

FILES_MAX = 100_000  # beyond it somebody named the wrong folder
MACHINE_MADE = frozenset({"node_modules", "__pycache__", "site-packages"})  # beside source code; nobody asks about it


@dataclass(frozen=True, slots=True)
class FileError:
    """`reason` completes the sentence that begins with the path."""

    path: str
    reason: str


@dataclass(slots=True)
class Listing:
    """`files` maps a file's path to its name for people, relative to the folder that was named."""

    files: dict[Path, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    skipped: int = 0  # files of kinds that no loader reads
    errors: list[FileError] = field(default_factory=list)

    def gone(self, known: Sequence[str]) -> list[str]:
        """Those of the known paths that stood in a folder that was read, and stand there no more.

        What lies in a folder that could not be read is not gone.
        """
        present = {stored_path(path) for path in self.files}
        folders = [stored_path(folder) for folder in self.folders]
        unread = [error.path for error in self.errors]
        return [
            path
            for path in known
            if path not in present and _below(path, folders) and not _below(path, unread) and path not in unread
        ]


def stored_path(path: Path) -> str:
    """As the database keeps it: names that are not UTF-8 lose their odd bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def walk(paths: Sequence[Path], *, exclude: Collection[str] = (), files_max: int = FILES_MAX) -> Listing:
    """Hidden files and folders below a named folder are left out, and files of the names in `exclude`; links to folders
    are not followed."""
    listing = Listing()
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
    """A pattern that the shell did not expand; "**" goes through folders."""
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
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in MACHINE_MADE)
        for name in sorted(name for name in names if not name.startswith(".") and name not in exclude):
            path = Path(folder, name)
            if not formats.readable(path):
                listing.skipped += 1
            elif len(listing.files) == files_max:
                listing.errors.append(
                    FileError(stored_path(root), f"holds more than {files_max} files: name a part of it")
                )
                return
            else:
                listing.files.setdefault(path, stored_path(path.relative_to(root)))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
