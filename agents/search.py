"""Retrieval before the answer, for the file_search tool of a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from agents.errors import InvalidTurn
from agents.message import FileSearchCall, SearchResult
from agents.prompt import question
from agents.turn import Turn
from inference.trace import Trace
from retrieval.passage import Passage
from retrieval.query import Query, Searcher

# Of the time from the request to its first token; the search, the question and what is not cached take the rest.
PASSAGE_SHARE = 0.5


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


def passage_tokens_max(turn: Turn, began_ns: int, token_s: float | None) -> int | None:
    """Tokens of passages that a model which reads one in `token_s` has read in time for the first token; None: no
    limit. A deterministic turn has none, as its passages must not depend on how fast the machine was."""
    due_ns = turn.due.at_ns
    if due_ns is None or not token_s or turn.sampling.deterministic:
        return None
    return max(0, int(PASSAGE_SHARE * (due_ns - began_ns) / 1e9 / token_s))


def best_within(passages: Sequence[Passage], tokens_max: int | None) -> list[Passage]:
    """The best passages of at most so many tokens, and always the very best one: without it, the search was in vain."""
    if tokens_max is None:
        return list(passages)
    fitting = sum(tokens <= tokens_max for tokens in accumulate(passage.tokens for passage in passages))
    return list(passages[: max(1, fitting)])


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
