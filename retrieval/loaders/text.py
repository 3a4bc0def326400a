"""Plain text: one section, named after its file."""

from __future__ import annotations

from retrieval.loaders.document import Document, sections
from retrieval.loaders.source import decode


def load(data: bytes, name: str) -> Document:
    """`name` is the title. Raises UnreadableFile."""
    text = decode(data)
    return Document(name, "text/plain", text, sections([], title=name, start=0, end=len(text)))
