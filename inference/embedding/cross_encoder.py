"""A cross-encoder: one encoder reads a query and a text together, and its head scores how well they fit. Runs on its
own thread.

Models of the BERT and XLM-R families with a head of one output, such as bge-reranker. Their pairs are
`[CLS] query [SEP] text [SEP]`, with two separators in between for XLM-R. llama.cpp supports no second segment, so
models that were trained to tell query and text apart by it lose some accuracy. A file is tried in a separate process
first, because native code reading a file of unknown origin must not crash the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from inference.embedding.embedder import QUERY_CHARS_MAX, try_isolated
from inference.errors import ModelNotLoaded
from inference.llama import LlamaModel, RankContext, batches

PAIR_TOKENS_MAX = 512  # what most of them were trained on; the rest of a longer text is ignored
QUERY_TOKENS_MAX = 128  # longer questions are truncated, so that space for the text remains
ROWS_MAX = 2048
SEQUENCES_MAX = 64
SMOOTHING = 0.3  # weight of the newest batch in the measured cost
# Scored while loading, to know the cost of a token before the first query.
SAMPLE = ["the quick brown fox jumps over the lazy dog " * 8] * 4


class CrossEncoder:
    """Create with `load`, which blocks for a second or two while the file is tried."""

    def __init__(self, model: LlamaModel, threads: int) -> None:
        self.name = model.name
        self._model = model
        self._pair_max = min(PAIR_TOKENS_MAX, model.context_length)
        self._context = RankContext(model, rows_max=ROWS_MAX, sequences_max=SEQUENCES_MAX, threads=threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cross-encoder")
        self._token_s = 0.0
        self._score("which animal jumps", SAMPLE, budget_ms=1.0)

    @classmethod
    def load(cls, path: Path, threads: int = 1) -> CrossEncoder:
        """Raises ModelNotLoaded, saying what the model lacks for ranking."""
        model = _checked(path)
        try:
            try_isolated(path, _rank_something, "rank")
        except ModelNotLoaded:
            model.close()
            raise
        return cls(model, threads)

    def close(self) -> None:
        """Waits for the batch in flight, then frees the model."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._context.close()
        self._model.close()

    async def score(self, query: str, texts: Sequence[str], budget_ms: float) -> NDArray[np.float64]:
        """Logits of as many of the texts, from the first on, as fit the budget at the cost measured so far."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, query, texts, budget_ms)

    def _score(self, query: str, texts: Sequence[str], budget_ms: float) -> NDArray[np.float64]:
        pairs = self._pairs(query, texts)
        pairs = pairs[: self._affordable([len(pair) for pair in pairs], budget_ms)]
        began, scores = perf_counter(), np.empty(len(pairs))
        for batch in batches([*map(len, pairs)], ROWS_MAX, SEQUENCES_MAX):
            scores[batch] = self._context.rank([pairs[index] for index in batch])
        if pairs:
            self._learn(perf_counter() - began, sum(map(len, pairs)))
        return scores

    def _affordable(self, lengths: Sequence[int], budget_ms: float) -> int:
        """At least one: a model that was slow once must get the chance to be measured again."""
        seconds = np.cumsum(lengths) * self._token_s
        return max(1, int(np.searchsorted(seconds, budget_ms / 1000, side="right")))

    def _learn(self, seconds: float, tokens: int) -> None:
        token_s = seconds / tokens
        self._token_s += (SMOOTHING if self._token_s else 1.0) * (token_s - self._token_s)

    def _pairs(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        """Untrusted text stays text: the only special tokens are those added here."""
        begin, end = self._model.ends
        asked = self._ids(query[:QUERY_CHARS_MAX])[: min(QUERY_TOKENS_MAX, self._pair_max // 2)]
        head = [*begin, *asked, *(end * self._model.between_texts)]
        room = self._pair_max - len(head) - len(end)
        return [[*head, *self._ids(text[:QUERY_CHARS_MAX])[:room], *end] for text in texts]

    def _ids(self, text: str) -> list[int]:
        return self._model.tokenize(text, parse_special=False)


def _checked(path: Path) -> LlamaModel:
    model = LlamaModel.load(path)
    scores, architecture = model.scores, model.architecture
    if scores == 1 and "bert" in architecture:
        return model
    model.close()
    if "bert" not in architecture:
        raise ModelNotLoaded(
            f"{path.name} is not an encoder of the BERT family: {architecture} models are not supported as rerankers"
        )
    raise ModelNotLoaded(f"{path.name} has no head for ranking with one output")


def _rank_something(path: Path) -> None:
    encoder = CrossEncoder(_checked(path), threads=1)
    scores = encoder._score("a query", SAMPLE, budget_ms=1.0)
    encoder.close()
    if not np.isfinite(scores).all():
        raise ModelNotLoaded("its scores are not numbers")
