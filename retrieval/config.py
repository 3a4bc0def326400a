"""Settings of retrieval. The defaults are the measured ones; see each."""

from __future__ import annotations

from dataclasses import dataclass

# Lies between questions about the documents (best passage 0.47 and up, with few exceptions) and small talk, arithmetic
# and other topics (0.38 at most), measured on 311 chunks of technical notes with 46 questions and the bundled embedder.
# Scores without reranking keep the same distance from it.
SCORE_THRESHOLD = 0.42

PASSAGES_MAX = 50  # per answer, whatever the caller requests


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """Budgets are limits, not targets: on two busy cores the stages take 5, 5 and 5 ms over a thousand chunks.

    A stage over its budget is skipped: without the embedding only words count, without reranking the fused order
    stands, and without a search there are no passages. A cross-encoder rescores as many as fit its budget, best first.
    The trace says what was skipped.
    """

    open_ms: float = 1000.0  # to look up the stores
    embed_ms: float = 1000.0  # a batch of an ingest may be ahead of the query: 200 ms
    search_ms: float = 2000.0
    rerank_ms: float = 500.0
    reread_ms: float = 300.0  # of a cross-encoder, if there is one
    read_ms: float = 1000.0  # to read the texts of the best; without them there are no passages
    # This many times the requested passages are read, and a few more: some are duplicates or do not fit.
    read_share: int = 3
    read_min: int = 12
    candidates: int = 50  # from each side of the search, and in the fused list that is reranked
    lexical_weight: float = 0.12  # of the words relative to the cosine
    exact_weight: float = 0.4  # of identifiers and quoted phrases, if the question is about nothing else
    window_weight: float = 0.7  # of late interaction in the reranked similarity
    # Less context is better: a passage far behind the best one costs its prefill and distracts the model. Questions
    # about two things keep both, since these score alike.
    best_share_min: float = 0.65
    # Relative to the best sentence's score; the text before the first and after the last sentence above it is cut. This
    # leaves 36 of 91 tokens per question over the project's documents, with the answer still there in 40 of 42.
    sentence_share_min: float = 0.8
    join_ms: float = 100.0  # to read consecutive passages from the source as one
    passage_tokens_max: int = 1200  # of all passages together, in the embedder's tokens: all of them are prefilled
