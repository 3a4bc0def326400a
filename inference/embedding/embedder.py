"""Texts to vectors with a small encoder of the BERT family, in this process, on its own thread.

A context belongs to one thread. Bulk work is submitted to it one batch at a time, so that the query of a waiting user
runs between two batches of an ingest (at most a tenth of a second on one core) instead of after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.embedding.windows import (
    REFERENCE_TEXT,
    PassageVectors,
    Pool,
    QueryVectors,
    first_vector,
    likeness,
    mean_vector,
    passage_vectors,
    query_vectors,
)
from inference.errors import EngineStopped, ForeignTokens, ModelNotLoaded, UnknownToken
from inference.llama import EmbeddingContext, LlamaModel, batches
from inference.lru_cache import LruCache
from inference.provisioning.isolated_process import Isolated, RunFailed

TOKENS_MAX = 256  # what MiniLM was trained on, or less if a model has less; the rest of a longer text is ignored
ROWS_MAX = 256  # attention scans the mask of the whole batch: in 512 rows a text takes a sixth longer
SEQUENCES_MAX = 8
# Flash attention is tiled from 64 rows on; a query has fewer, for which it takes a seventh longer than without.
SHORT_ROWS_MAX = 63
TEXTS_CLIPPED_MAX = 64  # tokenised at once: takes the thread as long as a batch, for texts of QUERY_CHARS_MAX
QUERIES_BYTES_MAX = 16 * 2**20  # about 1000 typical questions; a query of TOKENS_MAX tokens takes 400 KB
QUERY_BYTES = 1000  # of a cached query, besides its vectors and its text
QUERY_CHARS_MAX = 8000  # far beyond TOKENS_MAX tokens of any language; bounds the tokenizer's work

TRIAL_S = 60.0
POOLS: dict[int | None, Pool] = {None: mean_vector, 1: mean_vector, 2: first_vector}  # by GGUF's numbers

T = TypeVar("T")


class Query(NamedTuple):
    """The cache key of a query's vectors."""

    salt: str
    text: str

    @classmethod
    def of(cls, text: str, salt: str) -> Query:
        """White space means nothing to an encoder, nor does the text beyond its limit."""
        return cls(salt, " ".join(text[:QUERY_CHARS_MAX].split()))


class Embedder:
    """Create with `load`, which blocks for a fifth of a second."""

    def __init__(self, model: LlamaModel, threads: int = 1, *, queries_bytes_max: int = QUERIES_BYTES_MAX) -> None:
        """Takes ownership of the model. Raises ModelNotLoaded."""
        self.name = model.name
        self.dimensions = model.dimensions
        self._pool = pool_of(model)
        self._model = model
        self._context = EmbeddingContext(model, rows_max=ROWS_MAX, sequences_max=SEQUENCES_MAX, threads=threads)
        self._short = EmbeddingContext(
            model, rows_max=SHORT_ROWS_MAX, sequences_max=SEQUENCES_MAX, threads=threads, flash=False
        )
        self._tokens_max = min(TOKENS_MAX, model.context_length)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._queries: LruCache[Query, QueryVectors] = LruCache(queries_bytes_max, _bytes)
        self._asked: dict[Query, asyncio.Task[QueryVectors]] = {}  # queries being embedded
        # An ingest cancelled at shutdown may leave a thread that is still counting: it must not use a freed model.
        self._counting = Lock()
        self._closed = False
        self.likeness = likeness(self._encode([self._clipped(REFERENCE_TEXT)], self._pool)[0])

    @classmethod
    def load(cls, path: Path, threads: int = 1, *, queries_bytes_max: int = QUERIES_BYTES_MAX) -> Embedder:
        """Raises ModelNotLoaded. More than one thread only pays off if cores are idle."""
        model = LlamaModel.load(path)
        try:
            return cls(model, threads, queries_bytes_max=queries_bytes_max)
        except ModelNotLoaded:
            model.close()
            raise

    def close(self) -> None:
        """Waits for the batch in flight, then frees the model."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        with self._counting:
            self._closed = True
            self._context.close()
            self._short.close()
            self._model.close()

    def count(self, text: str) -> int:
        """Tokens of a text as it would be embedded, without the limit. Thread-safe. Raises EngineStopped."""
        with self._counting:
            if self._closed:
                raise EngineStopped("the embedder is closed")
            return len(self._ids(text))

    async def count_all(self, texts: Sequence[str]) -> int:
        """Total tokens of the texts, counted on a thread: megabytes take a second. Raises EngineStopped."""
        return await asyncio.to_thread(lambda: sum(map(self.count, texts)))

    async def count_embedded(self, texts: Sequence[str]) -> int:
        """The same, of what `embed` reads of them."""
        return await asyncio.to_thread(lambda: sum(min(self.count(text), self._tokens_max) for text in texts))

    async def texts(self, inputs: Sequence[str | Sequence[int]]) -> list[str]:
        """Each input as a text; some are ids from the model's own tokenizer, with its special tokens at both ends.

        These special tokens show whose ids they are: most ids of another vocabulary exist here too, as other words.
        Raises EngineStopped and ForeignTokens.
        """
        return await asyncio.to_thread(lambda: [each if isinstance(each, str) else self._text(each) for each in inputs])

    def _text(self, ids: Sequence[int]) -> str:
        with self._counting:
            if self._closed:
                raise EngineStopped("the embedder is closed")
            try:
                text = self._model.detokenize(ids[1:-1])
            except UnknownToken:
                raise ForeignTokens(self.name) from None
            if self._ids(text) != list(ids):
                raise ForeignTokens(self.name)
            return text

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit rows, [texts, dimensions]. Texts are truncated to TOKENS_MAX tokens."""
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        async for index, vector in self._each(texts, self._pool):
            vectors[index] = vector
        return vectors

    async def embed_windows(self, texts: Sequence[str]) -> list[PassageVectors]:
        """What the store keeps of each text: for search (one vector) and for reranking (its windows)."""
        reduce = partial(passage_vectors, pool=self._pool)
        found = {index: vectors async for index, vectors in self._each(texts, reduce)}
        return [found[index] for index in range(len(texts))]

    @property
    def kept_bytes(self) -> int:
        """Size of the cached queries."""
        return self._queries.size

    def knows(self, text: str, *, salt: str) -> bool:
        """Whether the vectors of this query are cached."""
        return Query.of(text, salt) in self._queries

    async def embed_query(self, text: str, *, salt: str) -> QueryVectors:
        """The vectors of recent queries are cached, and concurrent calls with the same query embed it once.

        `salt` names the tenant: the time that a query takes reveals nothing about another tenant's queries. A cancelled
        caller does not affect the others.
        """
        query = Query.of(text, salt)
        if (known := self._queries.get(query)) is not None:
            return known
        if query not in self._asked:
            task = self._asked[query] = asyncio.create_task(self._embed_query(query), name="embed query")
            task.add_done_callback(lambda _: self._asked.pop(query))
        return await asyncio.shield(self._asked[query])

    async def _embed_query(self, query: Query) -> QueryVectors:
        def work() -> QueryVectors:
            [vectors] = self._encode([self._clipped(query.text)], partial(query_vectors, pool=self._pool))
            return vectors

        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._queries.put(query, vectors)
        return vectors

    async def _each(
        self, texts: Sequence[str], reduce: Callable[[NDArray[np.float32]], T]
    ) -> AsyncIterator[tuple[int, T]]:
        """Yields (index, reduced token vectors), in any order."""
        loop = asyncio.get_running_loop()
        for begin in range(0, len(texts), TEXTS_CLIPPED_MAX):
            some = texts[begin : begin + TEXTS_CLIPPED_MAX]
            sequences = await loop.run_in_executor(self._thread, list, map(self._clipped, some))
            for batch in batches([*map(len, sequences)], ROWS_MAX, SEQUENCES_MAX):
                rows = [sequences[index] for index in batch]
                values = await loop.run_in_executor(self._thread, self._encode, rows, reduce)
                for index, value in zip(batch, values, strict=True):
                    yield begin + index, value

    def _encode(self, sequences: list[list[int]], reduce: Callable[[NDArray[np.float32]], T]) -> list[T]:
        context = self._short if sum(map(len, sequences)) <= SHORT_ROWS_MAX else self._context
        return [reduce(tokens) for tokens in context.encode(sequences)]

    def _clipped(self, text: str) -> list[int]:
        ids = self._ids(text[:QUERY_CHARS_MAX])
        return ids if len(ids) <= self._tokens_max else [*ids[: self._tokens_max - 1], ids[-1]]

    def _ids(self, text: str) -> list[int]:
        return self._model.tokenize(text, parse_special=False, add_special=True)


def pool_of(model: LlamaModel) -> Pool:
    """Raises ModelNotLoaded for a model that is not an encoder of the BERT family, or not one for embeddings."""
    if "bert" not in model.architecture:
        raise ModelNotLoaded(f"{model.path.name} is not an encoder of the BERT family but {model.architecture}")
    if model.pooling not in POOLS:
        raise ModelNotLoaded(f"{model.path.name} uses neither mean nor first-token pooling")
    return POOLS[model.pooling]


def _bytes(query: Query, vectors: QueryVectors) -> int:
    return QUERY_BYTES + 4 * len(query.text) + vectors.vector.nbytes + vectors.tokens.nbytes


def try_isolated(path: Path, use: Callable[[Path], None], what: str) -> None:
    """Use a file in a separate process: native code reading an untrusted file must not crash this one. Blocks for a
    second. Raises ModelNotLoaded: it cannot do `what`."""
    try:
        Isolated(use, timeout_s=TRIAL_S)(path)
    except RunFailed as error:
        raise ModelNotLoaded(f"{path.name} cannot {what}: {error}") from error


def embed_something(path: Path) -> None:
    """Raises ModelNotLoaded."""
    embedder = Embedder.load(path, queries_bytes_max=0)
    vectors = asyncio.run(embedder.embed(["a text", "many words in a text " * TOKENS_MAX]))
    embedder.close()
    if not np.isfinite(vectors).all():
        raise ModelNotLoaded("its vectors are not numbers")
