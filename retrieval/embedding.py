"""The embedding model of a vector store: the one that computed its vectors, which are meaningless to any other."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from inference.embedding.windows import alike
from retrieval.errors import EmbeddingModelChanged, EmbeddingModelMissing
from retrieval.records import VectorStore
from retrieval.store import PassageStore


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


def by_model(stores: Iterable[VectorStore]) -> list[list[VectorStore]]:
    """Stores grouped by model, in the order in which the models first occur."""
    groups: dict[str, list[VectorStore]] = {}
    for store in stores:
        groups.setdefault(store.embedding_model, []).append(store)
    return list(groups.values())
