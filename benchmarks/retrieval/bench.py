"""A private database to fill and search, and what all measurements share."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tqdm import tqdm

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from retrieval.ingest import IngestReport, Progress, ingest
from retrieval.quality.questions import Line, Question, resolve
from retrieval.store import PassageStore
from worker.auth.keys import Keys
from worker.auth.secret_file import read_secret
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
