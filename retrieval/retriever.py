"""From a question to passages, stage by stage: embed, search, fuse, rerank, compress.

The first four run separately and concurrently for each embedding model, one branch each; then the models' lists are
merged. Stages over their budget are skipped and never fail the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TypeVar
from uuid import UUID

import numpy as np

from inference.embedding.embedder import QUERY_CHARS_MAX, Embedder
from inference.embedding.registry import Embedders
from inference.embedding.windows import QueryVectors
from inference.errors import EmbedderNotLoaded
from inference.trace import Attribute, Span, Trace, now_ns
from retrieval.candidate import Candidate, Hit, Scored
from retrieval.chunking import passage_title
from retrieval.compress import Cut, Cutter, compress, neighbours, whole
from retrieval.config import PASSAGES_MAX, RetrievalConfig
from retrieval.embedding import by_model, check_likeness, check_model
from retrieval.errors import EmbeddingModelMissing, StoreNotFound
from retrieval.filter import Filter
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.rank import PLANNED_SHARE, Reranker, Scores, fuse, in_turns, reordered, window_similarity
from retrieval.records import SourceSpan, VectorStore
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


WARM_TEXT = "Where is it kept, and for how long?"  # of typical length


@dataclass(frozen=True, slots=True)
class Stages:
    """The output of each stage for one question; lists are best first."""

    candidates: list[Hit]  # of the search, in no order
    fused: list[Scored[Hit]]
    reranked: list[Scored[Hit]]
    passages: list[Passage]


class Retriever:
    """The `Searcher` of a worker. Stages over their budget are skipped and never fail the request."""

    def __init__(
        self,
        store: PassageStore,
        embedders: Embedders,
        config: RetrievalConfig | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        self._store = store
        self._reranker = reranker
        self._embedders = embedders
        self._config = config or RetrievalConfig()

    async def warm_up(self) -> None:
        """Do what the first question would otherwise wait for: plan the searches, and run each model once for its lazy
        initialisation. Raises what the models raise."""

        async def compute() -> None:
            await self._embedders.default.embed([WARM_TEXT])
            if self._reranker is not None:
                await self._reranker.score(WARM_TEXT, [WARM_TEXT], PLANNED_SHARE * self._config.reread_ms)

        await asyncio.gather(self._store.warm_up(), compute())

    async def prepare(self, *, tenant_id: UUID, stores: Sequence[str]) -> None:
        """Start loading the models of these stores, because a question is about to follow. Unknown stores and missing
        models are ignored."""
        with suppress(StoreNotFound, EmbeddingModelMissing):
            for store in await self._store.named(tenant_id, stores):
                check_model(store, self._embedders)
                self._embedders.prepare(store.embedding_model)

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        """Stores of different embedding models are interleaved, each with scores on its model's own scale."""
        return (await self.stages(query, trace, budget_ms)).passages

    async def stages(self, query: Query, trace: Trace, budget_ms: float = inf) -> Stages:
        """Like `retrieve`, but with the output of every stage."""
        with trace.span("retrieve", stores=len(query.stores)) as span:
            text = _clean(query.text)
            found = Stages([], [], [], [])
            if text and query.stores:
                until_ns = span.start_ns + budget_ms * 1e6
                question = Question(query.tenant_id, text, query.filters, trace, trace.index(span), until_ns)
                limit = min(query.limit, PASSAGES_MAX)
                found = await self._run(question, query.stores, limit, query.score_threshold)
            best = found.reranked[0].score if found.reranked else None
            span.attributes |= {"passages": len(found.passages), "best_score": best}
            return found

    async def _run(self, question: Question, names: Sequence[str], limit: int, score_threshold: float) -> Stages:
        groups = by_model(await self._open(question, names))
        branches = [Branch(question, stores, self._store, self._embedders, self._config) for stores in groups]
        found = await asyncio.gather(*(branch.run() for branch in branches))
        reranked = in_turns([each.reranked for each in found])
        # Small talk finds nothing that is relevant enough: its first token does not wait for texts that nobody reads.
        is_relevant = any(score >= score_threshold for score, _ in reranked)
        read = await self._read(question, reranked, limit) if is_relevant else []
        if self._reranker is not None and read:
            read = await self._reread(question, self._reranker, read)
        return Stages(
            [candidate for each in found for candidate in each.candidates],
            in_turns([each.fused for each in found]),
            [*read, *reranked[len(read) :]],
            await self._compress(question, read, limit, score_threshold, _cut(groups, found)) if read else [],
        )

    async def _open(self, question: Question, names: Sequence[str]) -> list[VectorStore]:
        """Look up the stores and check their models. Raises StoreNotFound, EmbeddingModelMissing."""
        with question.span("open") as span:
            looked_up = self._store.named(question.tenant_id, names)
            found = await question.within(self._config.open_ms, looked_up, span)
            for store in found or ():
                check_model(store, self._embedders)
            return found or []

    async def _read(self, question: Question, ranked: list[Scored[Hit]], limit: int) -> list[Scored[Candidate]]:
        """The best hits with their texts: as many as may become passages, or all if a cross-encoder follows."""
        config = self._config
        with question.span("read", candidates=len(ranked)) as span:
            count = len(ranked) if self._reranker else max(config.read_share * limit, config.read_min)
            hits = [hit for _, hit in ranked[:count]]
            reading = self._store.read(question.tenant_id, hits)
            found = await question.within(config.read_ms, reading, span, last=True) or {}
            span.attributes["read"] = len(found)
            return [Scored(score, found[hit.key]) for score, hit in ranked[:count] if hit.key in found]

    async def _reread(
        self, question: Question, reranker: Reranker, ranked: list[Scored[Candidate]]
    ) -> list[Scored[Candidate]]:
        """Rescore the best ones with the cross-encoder, as many as fit the budget."""
        with question.span("reread", candidates=len(ranked)) as span:
            texts = [candidate.text for _, candidate in ranked]
            reread_ms = self._config.reread_ms
            scoring = reranker.score(question.text, texts, PLANNED_SHARE * question.allowed_ms(reread_ms))
            scores = await question.within(reread_ms, scoring, span)
            span.attributes |= {"model": reranker.name, "read": 0 if scores is None else len(scores)}
            return ranked if scores is None else reordered(ranked, scores)

    async def _compress(
        self, question: Question, ranked: list[Scored[Candidate]], limit: int, score_threshold: float, cut: Cut
    ) -> list[Passage]:
        config = self._config
        with question.span("compress") as span:
            selection = compress(
                ranked,
                limit=limit,
                score_threshold=score_threshold,
                share_min=config.best_share_min,
                tokens_max=config.passage_tokens_max,
                cut=cut,
            )
            span.attributes |= {
                "tokens": selection.tokens,
                "cut": selection.cut,
                "below_threshold": selection.below_threshold,
                "repeated": selection.repeated,
                "over_tokens": selection.over_tokens,
            }
            passages = await self._passages(question, neighbours(selection.chosen), span)
            span.attributes |= {"passages": len(passages), "joined": len(selection.chosen) - len(passages)}
            return passages

    async def _passages(self, question: Question, groups: list[list[Scored[Candidate]]], span: Span) -> list[Passage]:
        """Joined groups are read from the source, for the white space between them; if that fails, they are split."""
        wide = [_source(group) for group in groups if len(group) > 1]
        texts, passages = dict[SourceSpan, str](), list[Passage]()
        if wide:
            joining = self._store.texts(question.tenant_id, wide)
            texts = await question.within(self._config.join_ms, joining, span, last=True) or {}
        for group in groups:
            if len(group) > 1 and _source(group) in texts:
                passages.append(_passage(group, texts[_source(group)]))
            else:
                passages += [_passage([scored], scored.candidate.text) for scored in group]
        return passages


def _cut(groups: Sequence[Sequence[VectorStore]], found: Sequence[Found]) -> Cut:
    """Cuts each candidate with the cutter of its embedding model."""
    cuts = {stores[0].embedding_model: each.cut for stores, each in zip(groups, found, strict=True)}
    return lambda candidate, tokens_max: cuts.get(candidate.model, whole)(candidate, tokens_max)


def _source(group: Sequence[Scored[Candidate]]) -> SourceSpan:
    return SourceSpan(group[0].candidate.key.file_id, group[0].candidate.start, group[-1].candidate.end)


def _passage(group: Sequence[Scored[Candidate]], text: str) -> Passage:
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


def _clean(query: str) -> str:
    """Limit a query to what Postgres and the tokenizer accept: no NUL, no lone surrogates, no excessive length."""
    return query[:QUERY_CHARS_MAX].replace("\0", " ").encode("utf-8", "replace").decode().strip()
