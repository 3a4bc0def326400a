"""The real application on a real Postgres, with the parts that these tests do not use left out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from agents.router import ModelRegistry
from agents.store import ConversationSearch, ConversationStore, ShareStore
from inference.embedding.embedder import Embedder
from inference.embedding.registry import Embedders
from migrations.pool import Database
from retrieval.loaders.pool import LoaderPool
from retrieval.store import FileQueue, UploadStore
from tests.scripted import ScriptedModel
from worker.app import build_app
from worker.auth.audit import AuditLog
from worker.auth.authenticator import Authenticator
from worker.auth.jwt import Tokens
from worker.auth.keys import LOCAL_TENANT, Keys
from worker.auth.provider import Provider
from worker.auth.scope import Scope
from worker.auth.secret import Seals, Secret
from worker.auth.session import Sessions
from worker.config import Config
from worker.edge.limit_settings import WAIT
from worker.edge.listener import Listener
from worker.http.request import Access, Granted
from worker.lifecycle.supervisor import Supervisor
from worker.runs.admission import Admission, DailyBudgets
from worker.runs.attachments import Attachments
from worker.runs.batches.batch_store import BatchStore
from worker.runs.batches.batch_worker import BatchWorker
from worker.runs.batches.line_answer import answer_body
from worker.runs.idempotency import IdempotencyKeys
from worker.runs.manager import Runs
from worker.runs.presence import Presence
from worker.runs.queue_store import QueueStore
from worker.runs.record import Targets
from worker.runs.run_services import caps_of
from worker.runs.running_store import RunningStore
from worker.runs.steering_store import SteeringStore
from worker.services import Services
from worker.telemetry.canaries import Canaries, CanaryStore
from worker.telemetry.prometheus import Metrics
from worker.telemetry.telemetry import Telemetry, Traces

SECRET = Secret(b"the secret of the tests")
UNUSED: Any = cast(Any, None)  # a part that no handler under test touches

Client = TestClient[web.Request, web.Application]


@dataclass(frozen=True)
class NamedEmbedder:
    """All that an embedding model is where nothing is embedded."""

    name: str = "embedder"
    dimensions: int = 3

    async def count_all(self, texts: Sequence[str]) -> int:
        return sum(map(len, texts))


@dataclass
class Engine:
    """What the engine says of itself, to be changed by a test."""

    stats: dict[str, Any]

    def __call__(self) -> dict[str, Any]:
        return self.stats


def make_services(database: Database, config: Config | None = None) -> Services:
    config = config or Config()
    loaders, seals, keys = LoaderPool(), Seals(SECRET), Keys(database, SECRET)
    uploads = UploadStore(database, tenant_bytes_max=config.tenant_files_mb * 2**20)
    supervisor, presence = Supervisor(), Presence(database)
    engine = Engine({"running": 2, "steps_total": 7, "device": "cpu", "failed": None})
    telemetry = Telemetry(Traces(database), Metrics(engine, supervisor), trace_days=config.trace_days)
    return Services(
        config=config,
        database=database,
        model_registry=ModelRegistry.of(ScriptedModel(["Hello."])),
        engine_stats=engine,
        embedders=Embedders(cast(Embedder, NamedEmbedder())),
        retriever=UNUSED,
        passages=UNUSED,
        uploads=uploads,
        file_queue=FileQueue(database),
        ingest_worker=UNUSED,
        batches=BatchStore(database),
        agent=UNUSED,
        conversations=UNUSED,
        search=ConversationSearch(database),
        shares=ShareStore(database),
        responses=UNUSED,
        running=RunningStore(database),
        steering=SteeringStore(database),
        queue=QueueStore(database),
        idempotency_keys=IdempotencyKeys(database, presence.worker),
        presence=presence,
        attachments=Attachments(ConversationStore(database), uploads, UNUSED, loaders, seals),
        authenticator=Authenticator(
            *(keys, Sessions(database, SECRET), Tokens(config), SECRET, AuditLog(database)),
            audit_days=config.audit_days,
            provider=Provider.of(config),
        ),
        seals=seals,
        loaders=loaders,
        admission=Admission(config.turns, config.tenant_turns),
        telemetry=telemetry,
        daily_budgets=DailyBudgets(telemetry.traces.spending.of_key, telemetry.flush),
        canaries=Canaries(CanaryStore(database), partial(keys.tenant, LOCAL_TENANT)),
        targets=Targets.parse(config.targets),
        caps=caps_of(config),
        waits=config.late == WAIT,
        supervisor=supervisor,
    )


class EdgeServer(TestServer):
    """Serves as a worker does: behind the same guards, with the same bounds."""

    def __init__(self, app: web.Application, config: Config) -> None:
        super().__init__(app)
        self.listener = Listener(app, config)

    async def start_server(self, loop: asyncio.AbstractEventLoop | None = None, **_options: Any) -> None:
        if self._root is None:
            bound = socket.create_server(("127.0.0.1", 0))
            self.host, self.port = bound.getsockname()
            self._root = URL(f"http://{self.host}:{self.port}")
            await self.listener.start(bound)

    async def close(self) -> None:
        await self.listener.close()


def declared(granted: Granted, *routes: web.RouteDef) -> Sequence[web.RouteDef]:
    """The routes, for callers with this access. Their handlers may be methods, which take no attributes."""
    return [web.RouteDef(each.method, each.path, _declared(each.handler, granted), each.kwargs) for each in routes]


def _declared(handler: Any, granted: Granted) -> Any:
    async def declared(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        return response

    declared.access = Access.of(granted)  # type: ignore[attr-defined]
    return declared


@asynccontextmanager
async def serving(services: Services, *extra: web.RouteDef) -> AsyncIterator[Client]:
    """A client of the application; `extra` are further handlers behind the same middlewares, for any credential unless
    they declare otherwise."""
    config = services.config
    runs = Runs(services, background=config.background)
    batch_worker = BatchWorker(services, config.batch_lines, answer_body)
    app = build_app(services, runs, batch_worker)
    for route in extra:
        app.add_routes([route] if hasattr(route.handler, "access") else declared(Scope, route))
    await services.authenticator.start(services.supervisor)
    services.telemetry.start(services.supervisor)
    batch_worker.start()
    await runs.start()
    try:
        async with TestClient(EdgeServer(app, config)) as client:
            yield client
    finally:
        services.loaders.close()
        await batch_worker.stop()
        await runs.close()
        await services.telemetry.close()
        await services.authenticator.close()
