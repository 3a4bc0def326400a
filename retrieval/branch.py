"""One question against the stores of one embedding model, up to the ranking by its vectors: embed, search, fuse and
rerank. Stages over their budget are skipped and never fail the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar
from uuid import UUID

import numpy as np

from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from inference.embedding.windows import QueryVectors
from inference.errors import EmbedderNotLoaded
from inference.trace import Attribute, Span, Trace, now_ns
from retrieval.candidate import Hit, Scored
from retrieval.compress import Cut, whole
from retrieval.config import RetrievalConfig
from retrieval.cut import Cutter
from retrieval.embedding import check_likeness
from retrieval.filter import Filter
from retrieval.rank import Scores, fuse, window_similarity
from retrieval.records import VectorStore
from retrieval.store import PassageStore, SearchResult

LANE = "retrieval"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """`parent` is the span of its stages; all of them end by `until_ns`, on the monotonic clock."""

    tenant_id: UUID
    text: str
    filters: Filter | None
    trace: Trace
    parent: int | None
    until_ns: float = inf

    @property
    def salt(self) -> str:
        """The tenant, as used in cache keys."""
        return str(self.tenant_id)

    def span(self, stage: str, **attributes: Attribute) -> Span:
        return self.trace.span(stage, lane=LANE, parent=self.parent, **attributes)

    def allowed_ms(self, stage_ms: float, *, last: bool = False) -> float:
        """The budget of a stage: its own, but at most half of the time left, so that later stages have their turn."""
        left_ms = max(0.0, (self.until_ns - now_ns()) / 1e6)
        return min(stage_ms, left_ms if last else left_ms / 2)

    async def within(self, stage_ms: float, work: Awaitable[T], span: Span, *, last: bool = False) -> T | None:
        """The result of a stage; None if it took longer than it may: it is then cancelled, and its span says so."""
        span.attributes["budget_ms"] = budget_ms = self.allowed_ms(stage_ms, last=last)
        try:
            async with asyncio.timeout(budget_ms / 1000):
                return await work
        except TimeoutError:
            span.attributes["skipped"] = "over budget"
            return None


@dataclass(frozen=True, slots=True)
class Found:
    """Lists are best first; `cut` can shorten the candidates in them."""

    candidates: list[Hit]  # of the search, in no order
    fused: list[Scored[Hit]]
    reranked: list[Scored[Hit]]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Branch:
    """All `stores` are of one model, which is one of `embedders`; there is at least one store."""

    question: Question
    stores: Sequence[VectorStore]
    passages: PassageStore
    embedders: Embedders
    config: RetrievalConfig

    @property
    def model(self) -> str:
        return self.stores[0].embedding_model

    async def run(self) -> Found:
        """Raises EmbeddingModelChanged."""
        embedded = await self._embed()
        candidates = await self._find(embedded)
        fused = self._fuse(candidates)
        if embedded is None:
            return Found(candidates, fused, fused, whole)
        reranked, cut = await self._rerank(fused, *embedded)
        return Found(candidates, fused, reranked, cut)

    async def _embed(self) -> tuple[Embedder, QueryVectors] | None:
        """A model that is still loading when the time is up serves the next question."""
        question = self.question
        cached = self.embedders.knows(self.model, question.text, salt=question.salt)
        with question.span("embed", model=self.model, cached=cached) as span:
            try:
                return await question.within(self.config.embed_ms, self._vectors(), span)
            except EmbedderNotLoaded:
                span.attributes["skipped"] = "no model"
                return None

    async def _vectors(self) -> tuple[Embedder, QueryVectors]:
        embedder = await self.embedders.get(self.model)
        for store in self.stores:
            check_likeness(store, embedder)
        return embedder, await embedder.embed_query(self.question.text, salt=self.question.salt)

    async def _find(self, embedded: tuple[Embedder, QueryVectors] | None) -> list[Hit]:
        question = self.question
        with question.span("search", model=self.model) as span:
            search = self.passages.search(
                question.tenant_id,
                self.stores,
                query=question.text,
                vector=None if embedded is None else embedded[1].vector,
                limit=self.config.candidates,
                filters=question.filters,
            )
            found = await question.within(self.config.search_ms, search, span) or SearchResult([], 0, False)
            span.attributes |= {
                "chunks": found.chunks,
                "method": "index" if found.by_index else "exact",
                "candidates": len(found.candidates),
            }
            return found.candidates

    def _fuse(self, candidates: list[Hit]) -> list[Scored[Hit]]:
        with self.question.span("fuse", candidates=len(candidates)):
            return self._ranked(candidates, _cosines(candidates))[: self.config.candidates]

    async def _rerank(
        self, ranked: list[Scored[Hit]], embedder: Embedder, vectors: QueryVectors
    ) -> tuple[list[Scored[Hit]], Cut]:
        """The windows that rank the passages also rank the sentences within a passage."""
        question, config = self.question, self.config
        with question.span("rerank", candidates=len(ranked)) as span:
            keys = [candidate.key for _, candidate in ranked]
            windows = await question.within(config.rerank_ms, self.passages.windows(question.tenant_id, keys), span)
            if windows is None:
                return ranked, whole
            present = [candidate for _, candidate in ranked if candidate.key in windows]
            nearness = window_similarity(vectors.tokens, [windows[candidate.key] for candidate in present])
            weight = config.window_weight
            cosines = _cosines(present)
            similarity = None if cosines is None else (1 - weight) * cosines + weight * nearness
            cutter = Cutter(question.text, vectors.tokens, windows, embedder.count, config.sentence_share_min)
            return self._ranked(present, similarity), cutter

    def _ranked(self, candidates: list[Hit], similarity: Scores | None) -> list[Scored[Hit]]:
        config = self.config
        scores = fuse(
            similarity,
            np.array([candidate.coverage for candidate in candidates], np.float64),
            np.array([candidate.exact for candidate in candidates], np.float64),
            lexical_weight=config.lexical_weight,
            exact_weight=config.exact_weight,
        )
        scored = [Scored(score, hit) for score, hit in zip(scores.tolist(), candidates, strict=True)]
        return sorted(scored, key=lambda s: (-s.score, s.candidate.key))


def _cosines(candidates: list[Hit]) -> Scores | None:
    """None if the query was not embedded."""
    cosines = [candidate.cosine for candidate in candidates if candidate.cosine is not None]
    return np.array(cosines, np.float64) if len(cosines) == len(candidates) else None
