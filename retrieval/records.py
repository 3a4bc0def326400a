"""The records of the store as Python objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from inference.embedding.windows import PassageVectors
from retrieval.chunking import Chunk
from retrieval.filter import Attributes

EmbeddedChunk: TypeAlias = tuple[Chunk, PassageVectors]


@dataclass(frozen=True, slots=True)
class VectorStore:
    id: str
    name: str
    embedding_model: str
    dimensions: int
    metadata: Mapping[str, Any]
    created_at: datetime
    chunks: int
    likeness: bytes | None  # of the model that wrote to it; None until something is written


@dataclass(frozen=True, slots=True)
class CountedStore(VectorStore):
    """With counts of its files."""

    files: int  # completed, so search covers them
    waiting: int  # not ingested yet
    failed: int
    cancelled: int
    bytes: int  # of completed files


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`content` is the extracted text to which the offsets of passages and citations refer."""

    id: str
    filename: str
    title: str
    media_type: str
    content: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as its client sees it; those `uploaded` through the API can be read back byte for byte."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: datetime
    uploaded: bool


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file in a vector store; `error` says why it failed: {"code", "message"}."""

    id: str
    vector_store_id: str
    status: str  # in_progress, completed, failed or cancelled
    error: Mapping[str, str] | None
    attributes: Mapping[str, Any]
    created_at: datetime
    bytes: int
    filename: str
    chunks: int


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were added to a store together. `files` counts them by how they ended in this batch."""

    id: str
    vector_store_id: str
    created_at: datetime
    files: Mapping[str, int]


class SourceSpan(NamedTuple):
    """The characters [start, end) of a file's content."""

    file_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file ready to be written; it replaces the earlier version with the same `path`."""

    path: str
    filename: str
    title: str
    media_type: str
    size: int  # of the source, in bytes
    sha256: bytes
    content: str
    chunks: Sequence[EmbeddedChunk]
    attributes: Attributes = field(default_factory=dict)  # for the filters of searches
