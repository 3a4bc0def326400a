"""Which embedding model reads a vector store: the one that made its vectors, as they mean nothing to another."""

from __future__ import annotations

from collections.abc import Iterable

from inference.embedder import Embedder
from inference.embedders import Embedders
from retrieval.errors import EmbeddingModelMissing
from retrieval.records import VectorStore


def check_model(store: VectorStore, embedders: Embedders) -> None:
    """Raises EmbeddingModelMissing, also when a model of that name has other dimensions."""
    model, known = store.embedding_model, embedders.names
    if model not in known or embedders.dimensions(model) != store.dimensions:
        raise EmbeddingModelMissing(store.name, model, store.dimensions, known)


async def embedder_of(store: VectorStore, embedders: Embedders) -> Embedder:
    """Loaded if need be. Raises EmbeddingModelMissing, EmbedderNotLoaded."""
    check_model(store, embedders)
    return await embedders.get(store.embedding_model)


def by_model(stores: Iterable[VectorStore]) -> list[list[VectorStore]]:
    """Those of one model together, in the order in which the models first occur."""
    groups: dict[str, list[VectorStore]] = {}
    for store in stores:
        groups.setdefault(store.embedding_model, []).append(store)
    return list(groups.values())
