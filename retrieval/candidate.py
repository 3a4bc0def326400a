"""A chunk that search found, with the evidence for it; what fusing and reranking put in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ChunkKey(NamedTuple):
    vector_store_id: str
    file_id: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Candidate:
    key: ChunkKey
    filename: str
    title: str
    heading: str
    text: str
    start: int
    end: int
    tokens: int
    cosine: float | None  # to the query; None when the query was not embedded
    coverage: float  # share of the query's words that the chunk holds, weighted by how rare they are; 0 to 1
    model: str = ""  # that embedded it: cosines of different models cannot be compared
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file, as its owner gave them
