"""What the store keeps, as Python sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from inference.windows import PassageVectors
from retrieval.filter import Attributes
from retrieval.split import Chunk


@dataclass(frozen=True, slots=True)
class VectorStore:
    id: str
    name: str
    embedding_model: str
    dimensions: int
    metadata: Mapping[str, Any]
    created_at: datetime
    files: int
    chunks: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`content` is the extracted text that the offsets of passages and citations point into."""

    id: str
    filename: str
    title: str
    media_type: str
    content: str
    created_at: datetime


class SourceSpan(NamedTuple):
    """The characters [start, end) of a file's content."""

    file_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file ready to be written: `path` says which earlier version it replaces."""

    path: str
    filename: str
    title: str
    media_type: str
    size: int  # in bytes, as it was read
    sha256: bytes
    content: str
    chunks: Sequence[tuple[Chunk, PassageVectors]]
    attributes: Attributes = field(default_factory=dict)  # what a search may filter by
