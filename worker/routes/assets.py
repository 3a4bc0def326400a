"""The static files of the pages, read once, each with what a browser needs to keep it.

Every file is addressed as /static/<version>/<path>, where the version is a hash over all of them: such an address never
changes its content, so browsers keep it for good, and modules importing each other by relative paths stay one release.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
COMPRESS_BYTES_MIN = 512  # below this the gzip header costs more than it saves
VERSION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    compressed: bytes | None
    media_type: str

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:VERSION_DIGITS]

    @classmethod
    def of(cls, path: str, body: bytes) -> Asset:
        """Raises KeyError for a kind of file that the pages do not use."""
        compressed = gzip.compress(body, mtime=0) if len(body) >= COMPRESS_BYTES_MIN else None
        return cls(body, compressed, MEDIA_TYPES[PurePosixPath(path).suffix])


@dataclass(frozen=True, slots=True)
class Assets:
    """Files by their path below static/, with "/" between the parts."""

    files: Mapping[str, Asset]
    version: str

    @classmethod
    def read(cls, folder: Path) -> Assets:
        """Load every file below `folder`; HTML gets its /static/ addresses pinned to this version."""
        bodies = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        version = _version(bodies)
        pinned = f"/static/{version}/".encode()
        files = {
            path: Asset.of(path, body.replace(b"/static/", pinned) if path.endswith(".html") else body)
            for path, body in bodies.items()
        }
        return cls(files, version)

    def addresses(self, *folders: str) -> list[str]:
        """The versioned addresses of the scripts in these folders."""
        prefixes = tuple(f"{folder}/" for folder in folders)
        return [f"/static/{self.version}/{path}" for path in self.files if path.startswith(prefixes)]


def _version(bodies: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, body in bodies.items():
        digest.update(f"{path}\0{len(body)}\0".encode())
        digest.update(body)
    return digest.hexdigest()[:VERSION_DIGITS]
