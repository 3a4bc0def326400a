"""A query to vector stores, the passages that it finds, and the interface of what answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol
from uuid import UUID

from inference.trace import Trace
from retrieval.config import SCORE_THRESHOLD
from retrieval.filter import Filter


@dataclass(frozen=True, slots=True)
class Query:
    """`stores` are ids or names; `filters` restricts the files, by attribute, from which passages may come."""

    tenant_id: UUID
    text: str
    stores: tuple[str, ...]
    limit: int
    score_threshold: float = SCORE_THRESHOLD
    filters: Filter | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """The span [start_char, end_char) of a file's extracted text; `score` is the fused, reranked score."""

    vector_store_id: str
    file_id: str
    filename: str
    title: str  # the document's title, with the heading of the span
    text: str
    start_char: int
    end_char: int
    tokens: int  # by the embedder's tokenizer
    score: float
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file, as its owner set them


class Searcher(Protocol):
    """Implemented by `retrieval.retriever.Retriever`."""

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        """Relevant passages, best first, with scores from 0 to 1; after `budget_ms`, what was found by then.

        Raises StoreNotFound, EmbeddingModelMissing, EmbeddingModelChanged.
        """
        ...
