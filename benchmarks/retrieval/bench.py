"""A private database to fill and search, what all measurements share, and the cost of each side of a hybrid search."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import UUID

from tqdm import tqdm

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from retrieval.config import RetrievalConfig
from retrieval.ingest import IngestReport, Progress, ingest
from retrieval.quality.evaluate import markdown, percentiles
from retrieval.quality.questions import Line, Question, resolve
from retrieval.store import PassageStore
from worker.auth.keys import Keys
from worker.auth.secret import read_secret
from worker.config import load
from worker.database import open_database
from worker.home import Home

TENANT = "benchmark"  # has one store per collection


@dataclass(frozen=True, slots=True)
class Bench:
    database: Database
    embedders: Embedders
    keys: Keys
    owner_dsn: str
    folder: Path  # of documents: unchanged ones are not embedded again in the next run

    @property
    def embedder(self) -> Embedder:
        return self.embedders.default

    @property
    def store(self) -> PassageStore:
        return PassageStore(self.database)

    async def tenant(self, name: str) -> UUID:
        return await self.keys.tenant(name)

    async def ingest(self, folder: Path, tenant_id: UUID, store_name: str) -> IngestReport:
        with tqdm(desc=f"{store_name}: ingest", unit=" passages", disable=None, leave=False) as bar:

            def show(progress: Progress) -> None:
                bar.update(progress.chunks - bar.n)

            return await ingest(
                [folder],
                store_name=store_name,
                tenant_id=tenant_id,
                store=self.store,
                embedders=self.embedders,
                progress=show,
            )

    async def questions(self, lines: Sequence[Line], tenant_id: UUID, store_id: str) -> list[Question]:
        resolved = await resolve(lines, tenant_id=tenant_id, store=self.store, store_id=store_id)
        for error in resolved.errors:
            print(error, file=sys.stderr)
        return resolved.questions


@contextmanager
def kept_or_not(home: Path | None) -> Iterator[Path]:
    if home is not None:
        yield home
        return
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # Postgres does not run as root and needs access
        yield Path(folder)


@asynccontextmanager
async def opened(home: Path | None) -> AsyncIterator[Bench]:
    """Open a benchmark in this home, or in a temporary one."""
    with kept_or_not(home) as folder:
        config = load({"home": str(folder)})
        place = Home(config.home)
        place.prepare()
        async with open_database(config) as database:
            # Without a query cache, so that a question in two collections costs the same in both.
            embedders = Embedders(await asyncio.to_thread(Embedder.load, EMBEDDER, queries_bytes_max=0))
            keys = Keys(database, read_secret(config, place))
            try:
                yield Bench(database, embedders, keys, EmbeddedPostgres(folder).owner_dsn, folder / "documents")
            finally:
                await embedders.close()


SIDES = {"vectors alone": (True, False), "words alone": (False, True), "both": (True, True)}


async def sides(bench: Bench, questions: Sequence[Question], tenant_id: UUID, store: str) -> str:
    """A table of the durations of the SQL statement in milliseconds."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for question in questions:
        vector = (await bench.embedder.embed_query(question.text, salt="")).vector
        for side, (by_vectors, by_words) in SIDES.items():
            started = perf_counter()
            await bench.store.search(
                tenant_id,
                await bench.store.named(tenant_id, [store]),
                query=question.text if by_words else "",
                vector=vector if by_vectors else None,
                limit=RetrievalConfig().candidates,
            )
            times[side].append((perf_counter() - started) * 1000)
    rows = [["search by", "p50 ms", "p95 ms"]]
    for side, ms in ((side, percentiles(values)) for side, values in times.items()):
        rows.append([side, f"{ms.p50:.1f}", f"{ms.p95:.1f}"])
    return markdown(rows)
