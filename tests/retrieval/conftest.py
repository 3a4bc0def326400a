"""Real embedding models, a store in the real database, and chunks to rank."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from migrations.pool import Database
from retrieval.candidate import Candidate, ChunkKey
from retrieval.loaders.pool import LoaderPool
from retrieval.store import PassageStore
from tests.inference.encoders import write_encoder


@pytest.fixture(scope="session")
async def embedders(words: Path) -> AsyncIterator[Embedders]:
    """The bundled embedder by default, and another one of other dimensions."""
    embedders = Embedders.load(EMBEDDER, [words])
    yield embedders
    await embedders.close()


@pytest.fixture(scope="session")
def embedder(embedders: Embedders) -> Embedder:
    return embedders.default


@pytest.fixture(scope="session")
def loaders() -> Iterator[LoaderPool]:
    with closing(LoaderPool()) as pool:
        yield pool


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 64 dimensions that knows words alone."""
    return write_encoder(tmp_path_factory.mktemp("models") / "words-64-f32.gguf", 64)


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
