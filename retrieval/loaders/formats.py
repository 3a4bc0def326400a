"""Which loader reads which file, by the end of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders import html, markdown, text
from retrieval.loaders.document import Document, clipped

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
}


def readable(path: Path) -> bool:
    return path.suffix.lower() in LOADERS


def load(path: Path, data: bytes) -> Document:
    """Raises UnreadableFile, also for kinds of file that no loader reads."""
    if not readable(path):
        known = " ".join(sorted(LOADERS))
        raise UnreadableFile(f"files named *{path.suffix or path.name} cannot be read; these can: {known}")
    return LOADERS[path.suffix.lower()](data, named_after(path))


def named_after(path: Path) -> str:
    """A title for a document that has none: "getting-started.txt" is "getting started"."""
    return clipped(path.stem.replace("-", " ").replace("_", " ")) or path.name
