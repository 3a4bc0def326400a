"""The bundled embedder, a store in the real database, and chunks to rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from inference.bundled import EMBEDDER
from inference.embedder import Embedder
from migrations.database import Database
from retrieval.candidate import Candidate, ChunkKey
from retrieval.store import PassageStore


@pytest.fixture(scope="session")
def embedder() -> Iterator[Embedder]:
    embedder = Embedder.load(EMBEDDER)
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def store(database: Database) -> PassageStore:
    return PassageStore(database)


@pytest.fixture
def make_candidate() -> Callable[..., Candidate]:
    """Candidates that differ in what the test names."""

    def make(
        ordinal: int = 0, *, text: str = "", file_id: str = "file", start: int | None = None, tokens: int = 10
    ) -> Candidate:
        text = text or f"passage {ordinal}"
        begin = ordinal * 100 if start is None else start
        return Candidate(
            key=ChunkKey("store", file_id, ordinal),
            filename="a.md",
            title="A",
            heading="",
            text=text,
            start=begin,
            end=begin + len(text),
            tokens=tokens,
            cosine=0.5,
            coverage=0.5,
        )

    return make
