"""The way from a question to passages, stage by stage: embed, search, fuse, rerank, compress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from inference.embedder import QUERY_CHARS_MAX, Embedder
from inference.trace import Span, Trace
from inference.windows import QueryVectors
from retrieval.budget import within
from retrieval.candidate import Candidate
from retrieval.compress import Cut, Scored, compress, neighbours, whole
from retrieval.config import PASSAGES_MAX, RetrievalConfig
from retrieval.cut import Cutter
from retrieval.filter import Filter
from retrieval.fuse import Scores, fuse
from retrieval.passage import Passage
from retrieval.records import SourceSpan
from retrieval.rerank import PLANNED_SHARE, Reranker, reordered, window_similarity
from retrieval.split import passage_title
from retrieval.store import PassageStore, SearchResult

LANE = "retrieval"


@dataclass(frozen=True, slots=True)
class Stages:
    """What came out of each stage for one question; lists are best first."""

    candidates: list[Candidate]  # of the search, in no order
    fused: list[Scored]
    reranked: list[Scored]
    passages: list[Passage]


class Retriever:
    """Finds passages for a tenant. Stages over their budget are skipped, never failed."""

    def __init__(
        self,
        store: PassageStore,
        embedder: Embedder,
        config: RetrievalConfig | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self._store = store
        self._reranker = reranker
        self._embedder = embedder
        self._config = config or RetrievalConfig()

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
    ) -> list[Passage]:
        """Passages of these vector stores (ids or names), best first, with scores from 0 to 1.

        `filters` names the files, by their attributes, that passages may come from.

        Raises StoreNotFound, EmbeddingModelChanged.
        """
        found = await self.stages(
            query,
            tenant_id=tenant_id,
            stores=stores,
            limit=limit,
            score_threshold=score_threshold,
            trace=trace,
            filters=filters,
        )
        return found.passages

    async def stages(
        self,
        query: str,
        *,
        tenant_id: UUID,
        stores: Sequence[str],
        limit: int,
        score_threshold: float,
        trace: Trace,
        filters: Filter | None = None,
    ) -> Stages:
        """As `retrieve`, with what came out of each stage on the way."""
        with trace.span("retrieve", stores=len(stores)) as span:
            text = _clean(query)
            found = Stages([], [], [], [])
            if text and stores:
                parent = trace.index(span)
                search = _Search(
                    self._store,
                    self._embedder,
                    self._reranker,
                    self._config,
                    trace,
                    parent,
                    tenant_id,
                    stores,
                    filters,
                    text,
                )
                found = await search.run(min(limit, PASSAGES_MAX), score_threshold)
            span.attributes["passages"] = len(found.passages)
            return found


@dataclass(frozen=True, slots=True)
class _Search:
    """One question on its way; `parent` is the span that its stages belong to."""

    store: PassageStore
    embedder: Embedder
    reranker: Reranker | None
    config: RetrievalConfig
    trace: Trace
    parent: int | None
    tenant_id: UUID
    stores: Sequence[str]
    filters: Filter | None
    query: str

    async def run(self, limit: int, score_threshold: float) -> Stages:
        vectors = await self._embed()
        cut: Cut = whole
        candidates = await self._find(vectors)
        fused = reranked = self._fuse(candidates)
        if vectors is not None:
            reranked, cut = await self._rerank(fused, vectors)
        if self.reranker is not None and reranked:
            reranked = await self._reread(self.reranker, reranked)
        return Stages(candidates, fused, reranked, await self._compress(reranked, limit, score_threshold, cut))

    async def _embed(self) -> QueryVectors | None:
        with self.trace.span("embed", lane=LANE, parent=self.parent, cached=self.embedder.knows(self.query)) as span:
            return await within(self.config.embed_ms, self.embedder.embed_query(self.query), span)

    async def _find(self, vectors: QueryVectors | None) -> list[Candidate]:
        with self.trace.span("search", lane=LANE, parent=self.parent) as span:
            search = self.store.search(
                self.tenant_id,
                self.stores,
                query=self.query,
                vector=None if vectors is None else vectors.vector,
                embedding_model=self.embedder.name,
                limit=self.config.candidates,
                filters=self.filters,
            )
            found = await within(self.config.search_ms, search, span) or SearchResult([], 0, False)
            span.attributes |= {
                "chunks": found.chunks,
                "method": "index" if found.by_index else "exact",
                "candidates": len(found.candidates),
            }
            return found.candidates

    def _fuse(self, candidates: list[Candidate]) -> list[Scored]:
        method = self.config.fusion
        with self.trace.span("fuse", lane=LANE, parent=self.parent, candidates=len(candidates), method=method):
            return self._ranked(candidates, _cosines(candidates))[: self.config.candidates]

    async def _rerank(self, ranked: list[Scored], vectors: QueryVectors) -> tuple[list[Scored], Cut]:
        """The windows that tell which passage is the best also tell which of its sentences are."""
        with self.trace.span("rerank", lane=LANE, parent=self.parent, candidates=len(ranked)) as span:
            keys = [candidate.key for _, candidate in ranked]
            windows = await within(self.config.rerank_ms, self.store.windows(self.tenant_id, keys), span)
            if windows is None:
                return ranked, whole
            present = [candidate for _, candidate in ranked if candidate.key in windows]
            nearness = window_similarity(vectors.tokens, [windows[candidate.key] for candidate in present])
            weight = self.config.window_weight
            cosines = _cosines(present)
            similarity = None if cosines is None else (1 - weight) * cosines + weight * nearness
            cutter = Cutter(self.query, vectors.tokens, windows, self.embedder.count, self.config.sentence_share_min)
            return self._ranked(present, similarity), cutter

    async def _reread(self, reranker: Reranker, ranked: list[Scored]) -> list[Scored]:
        """The best ones again, each together with the question, as far as the time goes."""
        with self.trace.span("reread", lane=LANE, parent=self.parent, candidates=len(ranked)) as span:
            budget_ms = self.config.reread_ms
            texts = [candidate.text for _, candidate in ranked]
            scores = await within(budget_ms, reranker.score(self.query, texts, PLANNED_SHARE * budget_ms), span)
            span.attributes |= {"model": reranker.name, "read": 0 if scores is None else len(scores)}
            return ranked if scores is None else reordered(ranked, scores)

    def _ranked(self, candidates: list[Candidate], similarity: Scores | None) -> list[Scored]:
        coverage = np.array([candidate.coverage for candidate in candidates], np.float64)
        config = self.config
        scores = fuse(similarity, coverage, method=config.fusion, lexical_weight=config.lexical_weight)
        scored = map(Scored, scores.tolist(), candidates)
        return sorted(scored, key=lambda s: (-s.score, s.candidate.key))

    async def _compress(self, ranked: list[Scored], limit: int, score_threshold: float, cut: Cut) -> list[Passage]:
        config = self.config
        if ranked and config.fusion == "scores":  # ranks say nothing about how far apart passages are
            score_threshold = max(score_threshold, config.best_share_min * ranked[0].score)
        with self.trace.span("compress", lane=LANE, parent=self.parent) as span:
            selection = compress(
                ranked, limit=limit, score_threshold=score_threshold, tokens_max=config.passage_tokens_max, cut=cut
            )
            span.attributes |= {
                "best_score": ranked[0].score if ranked else None,
                "tokens": selection.tokens,
                "cut": selection.cut,
                "below_threshold": selection.below_threshold,
                "repeated": selection.repeated,
                "over_tokens": selection.over_tokens,
            }
            passages = await self._passages(neighbours(selection.chosen), span)
            span.attributes |= {"passages": len(passages), "joined": len(selection.chosen) - len(passages)}
            return passages

    async def _passages(self, groups: list[list[Scored]], span: Span) -> list[Passage]:
        """Joined groups are read from the source, for the white space between them; if that fails they fall apart."""
        wide = [_source(group) for group in groups if len(group) > 1]
        texts = await within(self.config.join_ms, self.store.texts(self.tenant_id, wide), span) if wide else {}
        passages = []
        for group in groups:
            if len(group) > 1 and texts and _source(group) in texts:
                passages.append(_passage(group, texts[_source(group)]))
            else:
                passages += [_passage([scored], scored.candidate.text) for scored in group]
        return passages


def _source(group: Sequence[Scored]) -> SourceSpan:
    return SourceSpan(group[0].candidate.key.file_id, group[0].candidate.start, group[-1].candidate.end)


def _passage(group: Sequence[Scored], text: str) -> Passage:
    first, last = group[0].candidate, group[-1].candidate
    return Passage(
        vector_store_id=first.key.vector_store_id,
        file_id=first.key.file_id,
        filename=first.filename,
        title=passage_title(first.title, first.heading),
        text=text,
        start_char=first.start,
        end_char=last.end,
        tokens=sum(scored.candidate.tokens for scored in group),
        score=max(scored.score for scored in group),
        attributes=first.attributes,
    )


def _cosines(candidates: list[Candidate]) -> Scores | None:
    """None when the query was not embedded."""
    cosines = [candidate.cosine for candidate in candidates if candidate.cosine is not None]
    return np.array(cosines, np.float64) if len(cosines) == len(candidates) else None


def _clean(query: str) -> str:
    """What Postgres and the tokenizer can take: no zero bytes, no halves of characters, no novels."""
    return query[:QUERY_CHARS_MAX].replace("\0", " ").encode("utf-8", "replace").decode().strip()
