"""The real application on a real Postgres, with the parts that these tests do not use left out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from inference.testing import ScriptedModel
from migrations.pool import Database
from retrieval.loaders.pool import LoaderPool
from retrieval.store import FileQueue, UploadStore
from worker.app import build_app
from worker.attachments import Attachments
from worker.auth.authenticator import Authenticator
from worker.auth.jwt import Tokens
from worker.auth.keys import Keys
from worker.auth.seals import Seals
from worker.auth.secret import Secret
from worker.auth.session import Sessions
from worker.config import Config
from worker.goodput import Targets
from worker.prometheus import Metrics
from worker.runs.admission import Admission
from worker.runs.idempotency_store import IdempotencyStore
from worker.runs.manager import Runs
from worker.runs.presence import Presence
from worker.runs.queue_store import QueueStore
from worker.runs.running_store import RunningStore
from worker.services import Services
from worker.telemetry import Telemetry
from worker.traces import Traces

SECRET = Secret(b"the secret of the tests")
UNUSED: Any = cast(Any, None)  # a part that no handler under test touches

Client = TestClient[web.Request, web.Application]


@dataclass(frozen=True)
class NamedEmbedder:
    """All that an embedding model is where nothing is embedded."""

    name: str = "embedder"
    dimensions: int = 3

    def count(self, text: str) -> int:
        return len(text)


@dataclass
class Engine:
    """What the engine says of itself, to be changed by a test."""

    stats: dict[str, Any]

    def __call__(self) -> dict[str, Any]:
        return self.stats


def make_services(database: Database, config: Config | None = None) -> Services:
    config = config or Config()
    loaders, seals = LoaderPool(), Seals(SECRET)
    uploads = UploadStore(database, tenant_bytes_max=config.tenant_files_mb * 2**20)
    engine = Engine({"running": 2, "steps_total": 7, "device": "cpu", "failed": None})
    return Services(
        config=config,
        database=database,
        model=ScriptedModel(["Hello."]),
        engine_stats=engine,
        embedders=Embedders(cast(Embedder, NamedEmbedder())),
        retriever=UNUSED,
        passages=UNUSED,
        uploads=uploads,
        file_queue=FileQueue(database),
        ingest_worker=UNUSED,
        agent=UNUSED,
        conversations=UNUSED,
        responses=UNUSED,
        running=RunningStore(database),
        queue=QueueStore(database),
        idempotency=IdempotencyStore(database),
        presence=Presence(database),
        attachments=Attachments(uploads, UNUSED, loaders, seals),
        authenticator=Authenticator(Keys(database, SECRET), Sessions(SECRET), Tokens(config), SECRET),
        seals=seals,
        loaders=loaders,
        admission=Admission(config.turns, config.tenant_turns),
        telemetry=Telemetry(Traces(database), Metrics(engine), trace_days=config.trace_days),
        targets=Targets.parse(config.targets),
    )


@asynccontextmanager
async def serving(services: Services, *extra: web.RouteDef) -> AsyncIterator[Client]:
    """A client of the application; `extra` are further handlers behind the same middlewares."""
    config = services.config
    runs = Runs(services, event_days=config.event_days, background=config.background)
    app = build_app(services, runs)
    app.add_routes(extra)
    await services.authenticator.start()
    services.telemetry.start()
    await runs.start()
    try:
        async with TestClient(TestServer(app)) as client:
            yield client
    finally:
        services.loaders.close()
        await runs.close()
        await services.telemetry.close()
        await services.authenticator.close()
