"""The beginning of a turn: it is checked, and passages are searched while the model reads what precedes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from agents.budget import Budget, Prices
from agents.checkpoint import Checkpoint
from agents.message import Item, ToolListing
from agents.model_registry import Candidate
from agents.prefetch import Prefetch
from agents.progress import Progress
from agents.prompt import question
from agents.prompt_builder import PromptBuilder
from agents.router import Router
from agents.search import Rewriting, best_within, passage_tokens_max, rewritten, search
from agents.tool import ToolContext
from agents.turn import Turn
from inference.errors import TextTooLong
from inference.trace import Trace, now_ns
from retrieval.passage import Passage
from retrieval.query import Searcher
from retrieval.speculative_search import READ_TOKENS


class TurnOpener:
    def __init__(self, prompts: PromptBuilder, router: Router, retriever: Searcher | None, prices: Prices) -> None:
        self._prompts, self._router, self._retriever, self._prices = prompts, router, retriever, prices

    async def open(
        self, turn: Turn, trace: Trace, ahead: Prefetch, likely: Candidate, passages: Sequence[Passage] | None = None
    ) -> Progress:
        """`likely` is the model that probably runs its first step; `passages` are those of a search that was made
        before. Raises InvalidTurn, StoreNotFound."""
        offer = self._prompts.offer(turn, likely)
        budget = Budget(turn.limits, now_ns(), self._prices)
        asked, sources = None, list(passages or ())
        if turn.file_search and passages is None:
            asked, sources = await self._search(turn, likely, trace, ahead)
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        progress = Progress(
            turn,
            trace,
            offer,
            budget,
            ToolContext(turn.tenant_id, stores, sources),
            ahead,
            in_prompt=len(sources),
            concluding=budget.spent(now_ns()) if offer.server else None,
            output=_listed(turn),
        )
        if asked is not None:
            progress.add_rewriting(asked)
        return progress

    def reopen(
        self, turn: Turn, trace: Trace, checkpoint: Checkpoint, candidate: Candidate, ahead: Prefetch
    ) -> Progress:
        """The turn as its checkpoint has it, before its newest step. Raises InvalidTurn."""
        budget = Budget(turn.limits, now_ns(), self._prices)
        budget.spend(checkpoint.budget, now_ns())
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        output = checkpoint.output[: checkpoint.before]
        return Progress(
            turn,
            trace,
            self._prompts.offer(turn, candidate, output),
            budget,
            ToolContext(turn.tenant_id, stores, list(checkpoint.sources)),
            ahead,
            in_prompt=checkpoint.in_prompt,
            concluding=checkpoint.concluding,
            output=output,
            usage=checkpoint.usage,
            needs_another_step=True,
        )

    async def _search(
        self, turn: Turn, likely: Candidate, trace: Trace, ahead: Prefetch
    ) -> tuple[Rewriting, list[Passage]]:
        """Search while the model prefills what precedes the passages. The search starts first: the database works while
        the prompt is built.
        """
        searching = asyncio.create_task(self._find(turn, trace))
        try:
            await asyncio.sleep(0)  # lets the search send its first query
            if self._retriever and question(turn):
                with suppress(TextTooLong):  # it may be shortened
                    prefix = await self._prompts.prefix(turn, likely)
                    ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)
            asked, passages = await searching
            return asked, _affordable(turn, trace, likely, passages)
        finally:
            searching.cancel()

    async def _find(self, turn: Turn, trace: Trace) -> tuple[Rewriting, list[Passage]]:
        asked = await rewritten(turn, self._router.rewriter(turn), trace)
        return asked, await search(turn, self._retriever, trace, asked.query, after_ms=asked.took_ms)


def _affordable(turn: Turn, trace: Trace, candidate: Candidate, passages: list[Passage]) -> list[Passage]:
    """Those that this model can read in time: all that it has read already. The span of the search tells how many are
    left out, and why."""
    if any(READ_TOKENS in span.attributes for span in trace.spans):
        return passages
    tokens_max = passage_tokens_max(turn, trace.start_ns, candidate.model.prefill_token_s)
    kept = best_within(passages, tokens_max)
    if len(kept) < len(passages):
        for span in trace.spans:
            if span.name == "retrieve":
                span.attributes |= {"in_prompt": len(kept), "prompt_tokens_max": tokens_max}
    return kept


def _listed(turn: Turn) -> list[Item]:
    """The tools of its servers, as far as the conversation does not show them yet."""
    known = {item.label: item for item in (*turn.history, *turn.input) if isinstance(item, ToolListing)}
    listings = (server.listing for server in turn.servers)
    return [each for each in listings if not (each.label in known and _same(known[each.label], each))]


def _same(one: ToolListing, other: ToolListing) -> bool:
    return (one.tools, one.error) == (other.tools, other.error)
