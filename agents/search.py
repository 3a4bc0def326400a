"""Retrieval before the answer, for the file_search tool of a request."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol
from uuid import UUID

from agents.errors import InvalidTurn
from agents.message import FileSearchCall, SearchResult
from agents.prompt import question
from agents.turn import Turn
from inference.trace import Trace
from retrieval.filter import Filter
from retrieval.passage import Passage


class Searcher(Protocol):
    """The interface of retrieval to the agent; `retrieval.retriever.Retriever` implements it."""

    async def retrieve(
        self,
        query: str,
        *,
        tenant_id: UUID,
        stores: Sequence[str],
        limit: int,
        score_threshold: float,
        trace: Trace,
        filters: Filter | None = None,
        budget_ms: float = inf,
    ) -> list[Passage]:
        """Relevant passages, best first; after `budget_ms`, what was found by then. Raises StoreNotFound."""
        ...


async def search(turn: Turn, searcher: Searcher | None, trace: Trace) -> list[Passage]:
    """Passages for the newest user message; none without a question, or when nothing is relevant enough.

    Raises InvalidTurn without a searcher, StoreNotFound for an unknown store.
    """
    query, asked = question(turn), turn.file_search
    if asked is None or not query:
        return []
    if searcher is None:
        raise InvalidTurn("file_search is not available here.", param="tools")
    return await searcher.retrieve(
        query,
        tenant_id=turn.tenant_id,
        stores=asked.vector_store_ids,
        limit=asked.max_num_results,
        score_threshold=asked.score_threshold,
        trace=trace,
        filters=asked.filters,
        budget_ms=turn.limits.retrieval_ms,
    )


def found(turn: Turn, passages: Sequence[Passage]) -> FileSearchCall:
    """The search as an item."""
    query = question(turn)
    return FileSearchCall((query,) if query else (), tuple(map(_result, passages)))


def _result(passage: Passage) -> SearchResult:
    return SearchResult(
        passage.file_id,
        passage.filename,
        passage.score,
        passage.text,
        passage.attributes,
        passage.title,
        passage.start_char,
        passage.end_char,
    )
