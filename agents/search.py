"""Retrieval before the answer, for the file_search tool of a request."""

from __future__ import annotations

from collections.abc import Sequence

from agents.errors import InvalidTurn
from agents.message import FileSearchCall, SearchResult
from agents.prompt import question
from agents.turn import Turn
from inference.trace import Trace
from retrieval.passage import Passage
from retrieval.query import Query, Searcher


async def search(
    turn: Turn, searcher: Searcher | None, trace: Trace, query: str | None = None, *, after_ms: float = 0.0
) -> list[Passage]:
    """Passages for a query, by default the newest user message; none without a question, or if nothing is relevant
    enough. `after_ms` of the time budget have passed.

    Raises InvalidTurn without a searcher, StoreNotFound for an unknown store.
    """
    query, asked = question(turn) if query is None else query, turn.file_search
    if asked is None or not query:
        return []
    if searcher is None:
        raise InvalidTurn("file_search is not available here.", param="tools")
    wanted = Query(
        turn.tenant_id,
        query,
        asked.vector_store_ids,
        asked.max_num_results,
        asked.score_threshold,
        asked.filters,
    )
    return await searcher.retrieve(wanted, trace, turn.limits.retrieval_ms - after_ms)


def found(query: str, passages: Sequence[Passage]) -> FileSearchCall:
    """The search as an item."""
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
