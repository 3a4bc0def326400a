"""Which loader reads which file, by the suffix of its name.

A loader is imported when it reads its first file: only the processes that parse files load a parser (loaders/child.py).
Their limits bound what a file may take, however it is nested, packed or repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders.code import SUFFIXES
from retrieval.loaders.document import Document, clipped
from retrieval.loaders.source import FILE_BYTES_MAX

PACKED_BYTES_MAX = 64 * 1024 * 1024  # of the file; the text in it has limits of its own

Loader = Callable[[bytes, str], Document]

LOADERS = {  # the module of this package whose `load` reads such files
    ".md": "markdown",
    ".markdown": "markdown",
    ".mdx": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".txt": "source",
    ".text": "source",
    ".rst": "source",
    ".adoc": "source",
    ".org": "source",
    ".csv": "table",
    ".tsv": "table",
    ".pdf": "pdf",
    ".docx": "docx",
    **dict.fromkeys(SUFFIXES, "code"),
}
# Of loaders that came to read other words from the same bytes: a higher number has the next ingest read them again.
VERSIONS = {"html": 2}

# Media types sent by web servers; any other file is identified by the suffix of its URL.
MEDIA_TYPES = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/csv": ".csv",
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
}
PACKED = frozenset({".pdf", ".docx"})  # contain images beside their text, so they may be larger


def readable(path: Path) -> bool:
    return path.suffix.lower() in LOADERS


def load(path: Path, data: bytes) -> Document:
    """Takes as long as the file makes it take: run it in a process that can be killed, unless the file is trusted.

    Raises UnreadableFile, also for kinds of file that no loader reads.
    """
    if not readable(path):
        known = " ".join(sorted(LOADERS))
        raise UnreadableFile(f"has the type *{path.suffix or path.name}, which cannot be read; supported are: {known}")
    module = LOADERS[path.suffix.lower()]
    loader: Loader = import_module(f"retrieval.loaders.{module}").load
    return loader(data, path.name if module == "code" else named_after(path))


def digest(path: Path, data: bytes) -> bytes:
    """Of the data and the version of its loader, 32 bytes: where neither changed, nor did the document."""
    version = VERSIONS.get(LOADERS.get(path.suffix.lower(), ""))
    return hashlib.sha256(data if version is None else b"%d\0%b" % (version, data)).digest()


def bytes_max(path: Path) -> int:
    """The size limit for files of this kind."""
    return PACKED_BYTES_MAX if path.suffix.lower() in PACKED else FILE_BYTES_MAX


def named_after(path: Path) -> str:
    """A title for a document without one: "getting-started.txt" becomes "getting started"."""
    return clipped(path.stem.replace("-", " ").replace("_", " ")) or path.name
