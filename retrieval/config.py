"""Settings of retrieval. The defaults are the ones that were measured; see each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Between questions about the documents (best passage 0.47 and up, with few exceptions) and small talk, arithmetic and
# other topics (0.38 at most), on 311 chunks of technical notes with 46 questions and the bundled embedder. Scores
# without reranking keep the same distance from it.
SCORE_THRESHOLD = 0.42

PASSAGES_MAX = 50  # in one answer, whatever the caller asks for


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """Budgets are stops, not targets: on two busy cores the stages take 5, 5 and 5 ms over a thousand chunks.

    A stage over its budget is skipped: without the embedding only words count, without reranking the fused order
    stands, and without a search there are no passages. A cross-encoder rereads as many as fit its budget, the best
    first. The trace says which it was.
    """

    open_ms: float = 1000.0  # to look up the stores
    embed_ms: float = 1000.0  # a batch of an ingest may be in front of the query: 200 ms
    search_ms: float = 2000.0
    rerank_ms: float = 500.0
    reread_ms: float = 300.0  # of a cross-encoder, where there is one
    read_ms: float = 1000.0  # the texts of the best; without them there are no passages
    # So many times the passages that are wanted are read, and a few more: some repeat others or have no room.
    read_share: int = 3
    read_min: int = 12
    candidates: int = 50  # of each side of the search, and of the fused list that is reranked
    # "scores" is better by far where the vectors are the stronger side; "ranks" (reciprocal rank) is for corpora of
    # part numbers and names, and its scores mean nothing to a threshold.
    fusion: Literal["scores", "ranks"] = "scores"
    lexical_weight: float = 0.1  # of the words next to the cosine
    window_weight: float = 0.7  # of the late interaction in the reranked similarity
    # Less but better context: a passage far behind the best one costs its prefill and distracts the model. Questions
    # about two things keep both, as those score alike.
    best_share_min: float = 0.65
    # Of the best sentence's score; what precedes the first and after the last sentence as good as that is cut off.
    # It leaves 36 of 91 tokens a question over the project's documents, and the answer in 40 of 42 as before.
    sentence_share_min: float = 0.8
    join_ms: float = 100.0  # passages that follow each other are read from the source as one
    passage_tokens_max: int = 1200  # all passages together, by the embedder's count: every one of them is prefilled
