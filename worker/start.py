"""Opens the services of a worker concurrently, and closes them in the reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from agents.agent import Agent
from agents.roster import Roster
from agents.store import ConversationSearch, ConversationStore, ItemStore, ResponseStore, ShareStore
from agents.surface import USUAL as SURFACES
from agents.tools import builtin_toolbox
from inference.bundled import EMBEDDER
from inference.embedding.cross_encoder import CrossEncoder
from inference.embedding.registry import Embedders
from inference.errors import InvalidTemplate, ModelNotLoaded
from inference.llama import model_name
from inference.model import ChatModel
from inference.provisioning.calibration import Calibrations
from inference.provisioning.catalogue import find
from inference.provisioning.fit import here
from inference.remote.remote_model import RemoteModel
from migrations.embedded import EmbeddedPostgres, EmbeddedPostgresError
from migrations.pool import Database, Login
from migrations.runner import migrate
from retrieval.config import RetrievalConfig
from retrieval.ingest_worker import IngestWorker
from retrieval.loaders.pool import LoaderPool
from retrieval.retriever import Retriever
from retrieval.store import FileQueue, PassageStore, UploadStore
from worker.aliases import Aliases
from worker.attachments import Attachments
from worker.auth.audit import AuditLog
from worker.auth.authenticator import Authenticator
from worker.auth.day_budget import DayBudgets
from worker.auth.jwt import Tokens
from worker.auth.keys import Keys
from worker.auth.provider import Provider
from worker.auth.seals import Seals
from worker.auth.secret import Secret
from worker.auth.secret_file import SecretFile
from worker.auth.session import Sessions
from worker.batches.batch_store import BatchStore
from worker.batches.batch_worker import BatchWorker
from worker.batches.line_answer import answer_body
from worker.calibrator import Calibrator
from worker.config import VERSION, Config, ConfigError
from worker.engine_config import engine_config
from worker.engines.address import engines_in
from worker.engines.exchange import EngineTransport
from worker.engines.shared_token import read_token
from worker.errors import StartError
from worker.goodput import WAIT, Targets
from worker.home import Home
from worker.latency.minutes import Minutes
from worker.loading import Loading
from worker.otlp.exporter import Exporter, SdkMissing
from worker.prometheus import Metrics
from worker.roster import read_roster
from worker.runs.admission import Admission
from worker.runs.claims import Claims
from worker.runs.idempotency_store import IdempotencyStore
from worker.runs.manager import Runs
from worker.runs.presence import Presence
from worker.runs.queue_store import QueueStore
from worker.runs.running_store import RunningStore
from worker.services import Services
from worker.supervisor import Supervisor, Well
from worker.telemetry import Telemetry
from worker.tool_servers import ToolServers, open_tool_servers
from worker.traces import Traces
from worker.warmth import read_beginnings

Served: TypeAlias = ChatModel | RemoteModel  # the model of a worker, wherever its tokens are computed
T = TypeVar("T")
Loaded = TypeVar("Loaded")

APP_ROLE = "firsttoken_app"  # whom a DATABASE_URL with more rights serves as
CLOSE_TIMEOUT_S = 5.0
WATCH_S = 0.5  # between two looks at the embedded server; a look costs some microseconds

log = logging.getLogger("firsttoken.start")


def read_secret(config: Config, home: Home) -> Secret:
    """That of the settings, which a restart changes, or that of the home folder, which a worker reads again."""
    if config.secret:
        return Secret(*(secret.encode() for secret in (config.secret, config.secret_before) if secret))
    file = SecretFile(home)
    return Secret(*file.read(), source=file.read)


@asynccontextmanager
async def open_owner_dsn(config: Config, supervisor: Supervisor | None = None) -> AsyncIterator[tuple[str, str | None]]:
    """A running server: the DSN of the tables' owner, and that of the plain role where it has one of its own."""
    if config.database_url:
        yield config.database_direct_url or config.database_url, None
        return
    postgres = EmbeddedPostgres(config.home)
    try:
        await asyncio.to_thread(postgres.start)
        watch = (supervisor or Supervisor()).start(
            "postgres", partial(_keep_running, postgres), expected=(EmbeddedPostgresError,)
        )
        try:
            yield postgres.owner_dsn, postgres.app_dsn
        finally:
            await watch.stop()
    finally:
        await asyncio.to_thread(postgres.stop)


async def _keep_running(postgres: EmbeddedPostgres, well: Well) -> None:
    """Restart the embedded server when it dies; the pool reconnects automatically. Raises EmbeddedPostgresError."""
    while True:
        if not await asyncio.to_thread(lambda: postgres.is_running):
            log.warning("Postgres stopped; restarting it")
            await asyncio.to_thread(postgres.start)
        well()
        await asyncio.sleep(WATCH_S)


@asynccontextmanager
async def open_database(config: Config, supervisor: Supervisor | None = None) -> AsyncIterator[Database]:
    """The migrated database as the worker may see it."""
    async with open_owner_dsn(config, supervisor) as (owner_dsn, app_dsn):
        await migrate(owner_dsn)
        database = await _connect(config, owner_dsn, app_dsn)
        try:
            yield database
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await database.close()
            except TimeoutError:
                pass  # a query that hangs must not keep the worker alive; the pool was cut off


async def _connect(config: Config, owner_dsn: str, app_dsn: str | None) -> Database:
    """Behind a pooler, the login must be the plain role itself: no role that is set there would stay."""
    size_max = config.database_connections
    if config.database_url and config.database_direct_url:
        direct = Login(config.database_direct_url, APP_ROLE)
        return await Database.connect(config.database_url, size_max=size_max, direct=direct)
    return await Database.connect(app_dsn or owner_dsn, role=None if app_dsn else APP_ROLE, size_max=size_max)


@asynccontextmanager
async def open_chat_model(
    config: Config, secret: Secret, supervisor: Supervisor, loading: Loading | None = None
) -> AsyncIterator[Served]:
    opened = (
        open_model(config, supervisor, loading) if config.engines is None else open_remote(config, secret, supervisor)
    )
    async with opened as model:
        yield model


@asynccontextmanager
async def open_remote(config: Config, secret: Secret, supervisor: Supervisor) -> AsyncIterator[RemoteModel]:
    """The model of engines elsewhere. They are told tenants by digests that say nothing without the secret."""

    def digest(salt: str) -> str:
        return secret.cache_key("engine", salt).hex()

    def load(path: Path) -> RemoteModel:
        transport = EngineTransport(read_token(config))
        return RemoteModel.load(path, engines_in(config.engines or ""), transport, digest, config.context)

    path = await asyncio.to_thread(_load, "--model", partial(find, folder=Home(config.home).models), config.model)
    model = await asyncio.to_thread(_load, "--model", load, path)
    watch = None
    try:
        await model.start()
        if model.failed:
            log.warning("none of the engines answers yet: turns are refused until one does")
        watch = supervisor.start("engines", model.watch)
        yield model
    finally:
        if watch is not None:
            await watch.stop()
        await model.close()


@asynccontextmanager
async def open_model(
    config: Config, supervisor: Supervisor, loading: Loading | None = None
) -> AsyncIterator[ChatModel]:
    loading = loading or Loading()
    wanted = await asyncio.to_thread(_load, "--model", engine_config, config)
    allowance = await asyncio.to_thread(_load, "--model", here, wanted)
    if allowance.is_less:
        print(f"There is memory for {allowance}: {allowance.reason}", flush=True)
    engine = allowance.config
    with loading.shown():
        load = partial(ChatModel.load, progress=loading.tell)
        model = await asyncio.to_thread(_load, "--model", load, engine)
    calibrator = Calibrator(engine, Calibrations(Home(config.home).calibrations), lambda: model.steps)
    try:
        await model.start()
        calibrator.start(supervisor)
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
async def open_services(
    config: Config, home: Home, loading: Loading | None = None
) -> AsyncIterator[tuple[Services, Runs, BatchWorker]]:
    """Database and models start concurrently: the slowest of them determines the start time."""
    roster, secret, supervisor = read_roster(config), read_secret(config, home), Supervisor()
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(
            stack.enter_async_context(open_database(config, supervisor)),
            stack.enter_async_context(open_chat_model(config, secret, supervisor, loading)),
            stack.enter_async_context(open_embedders(config)),
            stack.enter_async_context(open_reranker(config)),
            stack.enter_async_context(open_tool_servers(roster, supervisor)),
            return_exceptions=True,
        )
        failed = next((failure for failure in opened if isinstance(failure, BaseException)), None)
        if failed is not None:
            raise failed
        database, model, embedders, reranker, servers = cast(
            tuple[Database, Served, Embedders, CrossEncoder | None, ToolServers], opened
        )
        parts = (database, model, embedders, reranker, servers)
        exporter = _exporter(config)
        services = _assemble(config, roster, secret, supervisor, *parts, exporter)
        stack.callback(services.loaders.close)
        services.loaders.start()
        stack.push_async_callback(services.authenticator.close)
        await services.authenticator.start(supervisor)
        if exporter is not None:
            stack.push_async_callback(exporter.close)
            exporter.start(supervisor)
        stack.push_async_callback(services.telemetry.close)
        services.telemetry.start(supervisor)
        minutes = Minutes(database, services.presence.worker, services.engine_stats)
        stack.push_async_callback(minutes.start(supervisor).stop)
        runs = Runs(services, event_days=config.event_days, background=config.background)
        stack.push_async_callback(runs.close)
        batch_worker = BatchWorker(services, config.batch_lines, answer_body)
        stack.push_async_callback(batch_worker.stop)
        batch_worker.start()
        await runs.start()
        stack.push_async_callback(supervisor.start("intake", services.ingest_worker.run).stop)
        await asyncio.gather(read_beginnings(services.agent, roster), services.retriever.warm_up())
        yield services, runs, batch_worker


def _exporter(config: Config) -> Exporter | None:
    """Raises ConfigError where its packages are missing."""
    if config.otlp_endpoint is None:
        return None
    try:
        return Exporter(config.otlp_endpoint, config.otlp_header_map, VERSION)
    except SdkMissing as error:
        raise ConfigError(f"--otlp-endpoint needs the package {error}: pip install 'firsttoken[otlp]'") from error


def _assemble(
    config: Config,
    roster: Roster,
    secret: Secret,
    supervisor: Supervisor,
    database: Database,
    model: Served,
    embedders: Embedders,
    reranker: CrossEncoder | None,
    servers: ToolServers,
    exporter: Exporter | None,
) -> Services:
    def engine_stats() -> dict[str, Any]:
        return {**model.stats(), "failed": model.failed, "query_cache_bytes": embedders.kept_bytes}

    surfaces = {**SURFACES, **roster.surfaces}
    passages, file_queue, loaders = PassageStore(database), FileQueue(database), LoaderPool()
    presence, seals = Presence(database), Seals(secret)
    uploads = UploadStore(database, tenant_bytes_max=config.tenant_files_mb * 2**20)
    retriever = Retriever(passages, embedders, RetrievalConfig(), reranker)
    toolbox = builtin_toolbox(retriever)
    if problems := roster.problems(toolbox.names, model.name):
        raise StartError(" ".join(problems))
    servers.attach(toolbox, roster)
    aliases = Aliases.parse(config.alias or "")
    served = [model.name, *roster.models, *embedders.names, *([reranker.name] if reranker else [])]
    if problems := aliases.problems(served):
        raise StartError(" ".join(problems))
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
        batches=BatchStore(database),
        agent=Agent(model, retriever, toolbox, roster.prices),
        conversations=ConversationStore(database),
        search=ConversationSearch(database),
        shares=ShareStore(database),
        responses=ResponseStore(database),
        running=RunningStore(database),
        queue=QueueStore(database),
        idempotency=(idempotency := IdempotencyStore(database)),
        claims=Claims(idempotency),
        presence=presence,
        attachments=Attachments(ItemStore(database), uploads, passages, loaders, seals),
        authenticator=Authenticator(
            *(Keys(database, secret), Sessions(database, secret), Tokens(config), secret, AuditLog(database)),
            audit_days=config.audit_days,
            provider=Provider.of(config),
        ),
        seals=seals,
        loaders=loaders,
        admission=Admission(config.turns, config.tenant_turns),
        telemetry=(
            telemetry := Telemetry(
                *(Traces(database), Metrics(engine_stats, supervisor, config.objective)),
                trace_days=config.trace_days,
                tenant_traces=config.tenant_traces,
                export=exporter.offer if exporter else None,
            )
        ),
        day_budgets=DayBudgets(telemetry.traces.spending.of_key, telemetry.flush),
        targets=Targets.parse(config.targets).with_those_of(surfaces),
        surfaces=surfaces,
        waits=config.late == WAIT,
        roster=roster,
        aliases=aliases,
        supervisor=supervisor,
        reranker=reranker,
    )
