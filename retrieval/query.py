"""A query to vector stores, and the interface of what answers it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol
from uuid import UUID

from inference.trace import Trace
from retrieval.config import SCORE_THRESHOLD
from retrieval.filter import Filter
from retrieval.passage import Passage


@dataclass(frozen=True, slots=True)
class Query:
    """`stores` are ids or names; `filters` restricts the files, by attribute, from which passages may come."""

    tenant_id: UUID
    text: str
    stores: tuple[str, ...]
    limit: int
    score_threshold: float = SCORE_THRESHOLD
    filters: Filter | None = None


class Searcher(Protocol):
    """Implemented by `retrieval.retriever.Retriever`."""

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        """Relevant passages, best first, with scores from 0 to 1; after `budget_ms`, what was found by then.

        Raises StoreNotFound, EmbeddingModelMissing, EmbeddingModelChanged.
        """
        ...
