"""The embedding model of a vector store: the one that computed its vectors, which are meaningless to any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from inference.embedding.windows import alike
from retrieval.chunking import Chunk, embedded_text
from retrieval.errors import EmbeddingModelChanged, EmbeddingModelMissing
from retrieval.records import EmbeddedChunk, VectorStore
from retrieval.store import PassageStore

BITE_CHUNKS = 8  # embedded at a time: about a fifth of a second on one core
REST_SHARE = 3.0  # pause relative to the time of a bite while a client waits for tokens: a quarter of one core is used


def check_model(store: VectorStore, embedders: Embedders) -> None:
    """Raises EmbeddingModelMissing, also if the model of that name has other dimensions."""
    model, known = store.embedding_model, embedders.names
    if model not in known or embedders.dimensions(model) != store.dimensions:
        raise EmbeddingModelMissing(store.name, model, store.dimensions, known)


def check_likeness(store: VectorStore, embedder: Embedder) -> None:
    """Raises EmbeddingModelChanged if this is another model of the same name."""
    if store.likeness is not None and not alike(store.likeness, embedder.likeness):
        raise EmbeddingModelChanged(store.name, embedder.name)


async def writer_of(tenant_id: UUID, store: VectorStore, passages: PassageStore, embedders: Embedders) -> Embedder:
    """The embedder for what is added to the store, loaded if needed; the store records its likeness.

    Raises EmbeddingModelMissing, EmbeddingModelChanged, EmbedderNotLoaded.
    """
    check_model(store, embedders)
    embedder = await embedders.get(store.embedding_model)
    check_likeness(store, embedder)
    if store.likeness is None:
        await passages.remember(tenant_id, store.id, embedder.likeness)
    return embedder


async def embedded(
    embedder: Embedder,
    title: str,
    chunks: Sequence[Chunk],
    *,
    chatting: Callable[[], bool],
    progress: Callable[[int], None] = lambda _: None,
) -> list[EmbeddedChunk]:
    """The chunks of a document with their vectors. `chatting` returns whether a client is waiting for tokens and would
    notice the use of a core; `progress` is called with the number of each bite's chunks.
    """
    found: list[EmbeddedChunk] = []
    for start in range(0, len(chunks), BITE_CHUNKS):
        part, began = chunks[start : start + BITE_CHUNKS], time.monotonic()
        vectors = await embedder.embed_windows([embedded_text(title, chunk) for chunk in part])
        found += zip(part, vectors, strict=True)
        progress(len(part))
        if chatting():
            await asyncio.sleep(REST_SHARE * (time.monotonic() - began))
    return found


def by_model(stores: Iterable[VectorStore]) -> list[list[VectorStore]]:
    """Stores grouped by model, in the order in which the models first occur."""
    groups: dict[str, list[VectorStore]] = {}
    for store in stores:
        groups.setdefault(store.embedding_model, []).append(store)
    return list(groups.values())
