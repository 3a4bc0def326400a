"""A chunk found by search, with the evidence for its relevance: ranked by that, and read if it is among the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar


class ChunkKey(NamedTuple):
    vector_store_id: str
    file_id: str
    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Without its text: otherwise a search would read a hundred texts for the sake of five."""

    key: ChunkKey
    start: int
    end: int
    cosine: float | None  # to the query; None if the query was not embedded
    coverage: float  # share of the query's words that the chunk contains, weighted by how rare they are; 0 to 1
    exact: float = (
        0.0  # the same for its identifiers and phrases alone; more than its share where the chunk defines them
    )
    model: str = ""  # the model of its vector: cosines of different models are not comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Hit):
    """A hit with its text."""

    filename: str
    title: str
    heading: str
    text: str
    tokens: int
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file, as its owner set them


Found = TypeVar("Found", bound=Hit, covariant=True)


class Scored(NamedTuple, Generic[Found]):
    score: float
    candidate: Found
