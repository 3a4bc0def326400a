"""Opens the services of a worker concurrently, and closes them in the reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from agents.agent import Agent
from agents.definition import Definition
from agents.errors import InvalidTurn
from agents.roster import Roster
from agents.store import ConversationStore, ResponseStore
from agents.tools import builtin_toolbox
from agents.turn import Turn
from inference.bundled import EMBEDDER
from inference.embedding.cross_encoder import CrossEncoder
from inference.embedding.registry import Embedders
from inference.errors import InvalidTemplate, ModelNotLoaded
from inference.llama import model_name
from inference.model import ChatModel
from inference.provisioning.calibration import Calibrations
from inference.provisioning.catalogue import find
from inference.provisioning.fit import here
from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.pool import Database
from migrations.runner import migrate
from retrieval.config import RetrievalConfig
from retrieval.ingest_worker import IngestWorker
from retrieval.loaders.pool import LoaderPool
from retrieval.retriever import Retriever
from retrieval.store import FileQueue, PassageStore, UploadStore
from worker.attachments import Attachments
from worker.auth.authenticator import Authenticator
from worker.auth.jwt import Tokens
from worker.auth.keys import Keys
from worker.auth.seals import Seals
from worker.auth.secret import Secret
from worker.auth.session import Sessions
from worker.calibrator import Calibrator
from worker.config import Config
from worker.engine_config import engine_config
from worker.errors import StartError
from worker.goodput import Targets
from worker.home import Home
from worker.prometheus import Metrics
from worker.roster import read_roster
from worker.runs.admission import Admission
from worker.runs.idempotency_store import IdempotencyStore
from worker.runs.manager import Runs
from worker.runs.presence import Presence
from worker.runs.queue_store import QueueStore
from worker.runs.running_store import RunningStore
from worker.services import Services
from worker.telemetry import Telemetry
from worker.tool_servers import ToolServers, open_tool_servers
from worker.traces import Traces

T = TypeVar("T")
Loaded = TypeVar("Loaded")

APP_ROLE = "firsttoken_app"  # whom a DATABASE_URL with more rights serves as
CLOSE_TIMEOUT_S = 5.0
NOBODY = UUID(int=0)
WATCH_S = 0.5  # between two looks at the embedded server; a look costs some microseconds

log = logging.getLogger("firsttoken.start")


def read_secret(config: Config, home: Home) -> Secret:
    return Secret(config.secret.encode() if config.secret else home.read_secret())


@asynccontextmanager
async def open_owner_dsn(config: Config) -> AsyncIterator[tuple[str, str | None]]:
    """A running server: the DSN of the tables' owner, and that of the plain role where it has one of its own."""
    if config.database_url:
        yield config.database_url, None
        return
    postgres = EmbeddedPostgres(config.home)
    try:
        await asyncio.to_thread(postgres.start)
        watch = asyncio.create_task(_keep_running(postgres), name="postgres")
        try:
            yield postgres.owner_dsn, postgres.app_dsn
        finally:
            watch.cancel()
            await asyncio.wait([watch])
    finally:
        await asyncio.to_thread(postgres.stop)


async def _keep_running(postgres: EmbeddedPostgres) -> None:
    """Restart the embedded server when it dies; the pool reconnects automatically."""
    while True:
        await asyncio.sleep(WATCH_S)
        if await asyncio.to_thread(lambda: postgres.is_running):
            continue
        log.warning("Postgres stopped; restarting it")
        try:
            await asyncio.to_thread(postgres.start)
        except EmbeddedPostgresError as error:
            log.error("%s", error)


@asynccontextmanager
async def open_database(config: Config) -> AsyncIterator[Database]:
    """The migrated database as the worker may see it."""
    async with open_owner_dsn(config) as (owner_dsn, app_dsn):
        await migrate(owner_dsn)
        database = await Database.connect(app_dsn or owner_dsn, role=None if app_dsn else APP_ROLE)
        try:
            yield database
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await database.close()
            except TimeoutError:
                pass  # a query that hangs must not keep the worker alive; the pool was cut off


@asynccontextmanager
async def open_model(config: Config) -> AsyncIterator[ChatModel]:
    wanted = await asyncio.to_thread(_load, "--model", engine_config, config)
    allowance = await asyncio.to_thread(_load, "--model", here, wanted)
    if allowance.is_less:
        print(f"There is memory for {allowance}: {allowance.reason}", flush=True)
    engine = allowance.config
    model = await asyncio.to_thread(_load, "--model", ChatModel.load, engine)
    calibrator = Calibrator(engine, Calibrations(Home(config.home).calibrations), lambda: model.steps)
    try:
        await model.start()
        calibrator.start()
        yield model
    finally:
        await calibrator.close()
        await model.close()


def embedder_files(config: Config) -> list[Path]:
    """The default first. The bundled one is always among them: stores that were made with it stay readable.

    Raises StartError.
    """
    models = Home(config.home).models
    named = [Path(name.strip()) for name in (config.embedders or "").split(",") if name.strip()]
    default = _load("--embedder", partial(find, folder=models), config.embedder) if config.embedder else EMBEDDER
    further = [_load("--embedders", partial(find, folder=models), name) for name in named]
    files = list(dict.fromkeys([default, *further]))
    has_bundled = model_name(EMBEDDER) in map(model_name, files)
    return files if has_bundled else [*files, EMBEDDER]


@asynccontextmanager
async def open_embedders(config: Config) -> AsyncIterator[Embedders]:
    default, *further = await asyncio.to_thread(embedder_files, config)
    load = partial(Embedders.load, further=further)
    embedders = await asyncio.to_thread(_load, "--embedder, --embedders", load, default)
    try:
        yield embedders
    finally:
        await embedders.close()


@asynccontextmanager
async def open_reranker(config: Config) -> AsyncIterator[CrossEncoder | None]:
    if config.reranker is None:
        yield None
        return
    models = Home(config.home).models
    path = await asyncio.to_thread(_load, "--reranker", partial(find, folder=models), config.reranker)
    reranker = await asyncio.to_thread(_load, "--reranker", CrossEncoder.load, path)
    try:
        yield reranker
    finally:
        await asyncio.to_thread(reranker.close)


def _load(setting: str, load: Callable[[Loaded], T], what: Loaded) -> T:
    try:
        return load(what)
    except (ModelNotLoaded, InvalidTemplate) as error:
        raise StartError(f"{error} ({setting})") from error


@asynccontextmanager
async def open_services(config: Config, home: Home) -> AsyncIterator[tuple[Services, Runs]]:
    """Database and models start concurrently: the slowest of them determines the start time."""
    roster = read_roster(config)
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(
            stack.enter_async_context(open_database(config)),
            stack.enter_async_context(open_model(config)),
            stack.enter_async_context(open_embedders(config)),
            stack.enter_async_context(open_reranker(config)),
            stack.enter_async_context(open_tool_servers(roster)),
            return_exceptions=True,
        )
        failed = next((failure for failure in opened if isinstance(failure, BaseException)), None)
        if failed is not None:
            raise failed
        database, model, embedders, reranker, servers = cast(
            tuple[Database, ChatModel, Embedders, CrossEncoder | None, ToolServers], opened
        )
        services = _assemble(config, roster, read_secret(config, home), database, model, embedders, reranker, servers)
        stack.callback(services.loaders.close)
        services.loaders.start()
        stack.push_async_callback(services.authenticator.close)
        await services.authenticator.start()
        stack.push_async_callback(services.telemetry.close)
        services.telemetry.start()
        runs = Runs(services, event_days=config.event_days, background=config.background)
        stack.push_async_callback(runs.close)
        await runs.start()
        stack.push_async_callback(services.ingest_worker.close)
        services.ingest_worker.start()
        await asyncio.gather(_share_beginnings(services.agent, roster), services.passages.warm_up())
        yield services, runs


async def _share_beginnings(agent: Agent, roster: Roster) -> None:
    """The instructions and tools of the configuration are cached once for all tenants."""
    for name, definition in {**roster.agents, "": Definition()}.items():
        try:
            await agent.share(definition.applied(Turn(NOBODY, ())))
        except (InvalidTurn, InvalidTemplate) as error:  # its clients get this error
            log.warning("the prompt prefix of agent %s is not shared: %s", name, error)


def _assemble(
    config: Config,
    roster: Roster,
    secret: Secret,
    database: Database,
    model: ChatModel,
    embedders: Embedders,
    reranker: CrossEncoder | None,
    servers: ToolServers,
) -> Services:
    def engine_stats() -> dict[str, Any]:
        return {**model.stats(), "failed": model.failed}

    passages, file_queue, loaders = PassageStore(database), FileQueue(database), LoaderPool()
    presence, seals = Presence(database), Seals(secret)
    uploads = UploadStore(database, tenant_bytes_max=config.tenant_files_mb * 2**20)
    retriever = Retriever(passages, embedders, RetrievalConfig(), reranker)
    toolbox = builtin_toolbox(retriever)
    if problems := roster.problems(toolbox.names, model.name):
        raise StartError(" ".join(problems))
    servers.attach(toolbox, roster)
    return Services(
        config=config,
        database=database,
        model=model,
        engine_stats=engine_stats,
        embedders=embedders,
        retriever=retriever,
        passages=passages,
        uploads=uploads,
        file_queue=file_queue,
        ingest_worker=IngestWorker(
            *(file_queue, uploads, passages, embedders, loaders, presence.worker),
            chatting=lambda: int(model.stats()["running"]) > 0,
        ),
        agent=Agent(model, retriever, toolbox, roster.prices),
        conversations=ConversationStore(database),
        responses=ResponseStore(database),
        running=RunningStore(database),
        queue=QueueStore(database),
        idempotency=IdempotencyStore(database),
        presence=presence,
        attachments=Attachments(uploads, passages, loaders, seals),
        authenticator=Authenticator(Keys(database, secret), Sessions(secret), Tokens(config), secret),
        seals=seals,
        loaders=loaders,
        admission=Admission(config.turns, config.tenant_turns),
        telemetry=Telemetry(Traces(database), Metrics(engine_stats), trace_days=config.trace_days),
        targets=Targets.parse(config.targets),
        roster=roster,
        reranker=reranker,
    )
