"""Which loader reads which file, by the end of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders import code, docx, html, markdown, pdf, table, text
from retrieval.loaders.document import Document, clipped
from retrieval.loaders.source import FILE_BYTES_MAX

PACKED_BYTES_MAX = 64 * 1024 * 1024  # the text in them has limits of its own

Loader = Callable[[bytes, str], Document]

LOADERS: dict[str, Loader] = {
    ".md": markdown.load,
    ".markdown": markdown.load,
    ".mdx": markdown.load,
    ".html": html.load,
    ".htm": html.load,
    ".xhtml": html.load,
    ".txt": text.load,
    ".text": text.load,
    ".rst": text.load,
    ".adoc": text.load,
    ".org": text.load,
    ".csv": table.load,
    ".tsv": table.load,
    ".pdf": pdf.load,
    ".docx": docx.load,
    **dict.fromkeys(code.SUFFIXES, code.load),
}

# What a web server calls them; anything else is known by the end of its address.
MEDIA_TYPES = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/csv": ".csv",
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
}
PACKED = frozenset({".pdf", ".docx"})  # hold pictures beside their text, so they may be larger


def readable(path: Path) -> bool:
    return path.suffix.lower() in LOADERS


def load(path: Path, data: bytes) -> Document:
    """Raises UnreadableFile, also for kinds of file that no loader reads."""
    if not readable(path):
        known = " ".join(sorted(LOADERS))
        raise UnreadableFile(f"files named *{path.suffix or path.name} cannot be read; these can: {known}")
    loader = LOADERS[path.suffix.lower()]
    return loader(data, path.name if loader is code.load else named_after(path))


def bytes_max(path: Path) -> int:
    """How large a file of this kind may be."""
    return PACKED_BYTES_MAX if path.suffix.lower() in PACKED else FILE_BYTES_MAX


def named_after(path: Path) -> str:
    """A title for a document that has none: "getting-started.txt" is "getting started"."""
    return clipped(path.stem.replace("-", " ").replace("_", " ")) or path.name
