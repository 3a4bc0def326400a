"""Opens the services of a worker concurrently, and closes them in the reverse order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from socket import gethostname
from typing import Any, cast

from agents.agent import Agent
from agents.answer_cache import AnswerCache
from agents.definition import USUAL as SURFACES
from agents.definition import AgentRegistry
from agents.origin import origins_of
from agents.router import Candidate
from agents.store import ConversationSearch, ConversationStore, ResponseStore, ShareStore
from agents.tools import builtin_toolbox
from inference.embedding.cross_encoder import CrossEncoder
from inference.embedding.registry import Embedders
from inference.provisioning.catalogue import SMOL_CHAT, find
from migrations.pool import Database
from retrieval.config import RetrievalConfig
from retrieval.ingest_worker import IngestWorker
from retrieval.loaders.pool import LoaderPool
from retrieval.rank import Reranker
from retrieval.retriever import Retriever
from retrieval.speculative_search import SpeculativeSearch
from retrieval.store import FileQueue, PassageStore, UploadStore
from worker.auth.audit import AuditLog
from worker.auth.authenticator import Authenticator
from worker.auth.jwt import Tokens
from worker.auth.keys import LOCAL_TENANT, Keys
from worker.auth.provider import Provider
from worker.auth.secret import Seals, Secret, read_secret
from worker.auth.session import Sessions
from worker.cli.download import make, named, shown
from worker.config import VERSION, Config
from worker.database import open_replica
from worker.edge.limit_settings import WAIT
from worker.engines.active_engines import ActiveEngines, Reloader, files_of, open_engines
from worker.engines.engine_config import open_reranker
from worker.engines.local_model import phases
from worker.engines.model_file import ModelFile
from worker.engines.model_names import check_files, names_at_work
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.agent_files import read_agents
from worker.lifecycle.prewarm import prefill_shared_prefixes, read_answered_questions
from worker.lifecycle.process import LoadProgress, say
from worker.lifecycle.supervisor import Supervisor, all_of
from worker.lifecycle.tool_servers import ToolServers, open_tool_servers
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
from worker.runs.run_services import McpServers, caps_of
from worker.runs.running_store import RunningStore
from worker.runs.steering_store import SteeringStore
from worker.serve import Parts
from worker.services import Services
from worker.setting import ConfigError
from worker.telemetry.canaries import Canaries, CanaryStore
from worker.telemetry.latency.rollups import LoadSampler
from worker.telemetry.otlp.exporter import Exporter, SdkMissing
from worker.telemetry.prometheus import Metrics
from worker.telemetry.telemetry import Telemetry, Traces

log = logging.getLogger("firsttoken.start")


@asynccontextmanager
async def open_services(
    config: Config, home: Home, parts: Parts, member: str = ""
) -> AsyncIterator[tuple[Services, Runs, BatchWorker]]:
    """Open the other parts as well: the slowest of all determines the start time. What a model is made of may have to
    be fetched before. The first failure ends the start: nobody waits for a large model to learn of a small mistake.
    `member` is the name within the crew, if there is one."""
    check_files(config)
    agent_registry, secret, supervisor = read_agents(config), read_secret(config, home), parts.supervisor
    start, exporter = parts.trace, _exporter(config)
    async with AsyncExitStack() as stack:
        on_request = bool(config.mcp_origins or config.mcp_private_origins)

        async def models() -> ActiveEngines:
            if parts.model is not None:
                return ActiveEngines.of_one(await parts.model, find(config.model, home.models), parts.model_trace)
            if not member:
                await _fetch_weights(config, home, parts.loading)
            opening = open_engines(config, secret, supervisor, parts.loading.report)
            return await parts.begin("models", opening, parts.loading.shown())

        reranking = parts.begin("reranker", open_reranker(config))

        async def searching() -> Retriever:
            """Warm by the time that the model is there."""
            held = await asyncio.gather(parts.database, parts.embedders, reranking)
            retriever = Retriever(PassageStore(held[0]), held[1], RetrievalConfig(), held[2])
            with start.span("search", lane="search"):
                await retriever.warm_up()
            return retriever

        async def replicated() -> Database:
            return await parts.begin("replica", open_replica(config, await parts.database, supervisor))

        opened = await all_of(
            parts.database,
            models(),
            parts.embedders,
            reranking,
            searching(),
            parts.begin("tool_servers", open_tool_servers(agent_registry, supervisor, on_request=on_request)),
            replicated(),
        )
        database, engines, embedders, reranker, retriever, servers, replica = cast(
            tuple[Database, ActiveEngines, Embedders, CrossEncoder | None, Retriever, ToolServers, Database], opened
        )
        name = "/".join(filter(None, (gethostname(), member)))
        held = (database, engines, embedders, reranker, retriever, servers)
        services = _assemble(config, agent_registry, secret, supervisor, *held, exporter, replica, name)
        reloader = _reloader(services, engines)
        services = replace(services, reload=reloader.ask)
        stack.callback(services.loaders.close)
        services.loaders.start()
        stack.push_async_callback(services.authenticator.close)
        await services.authenticator.start(supervisor)
        if exporter is not None:
            stack.push_async_callback(exporter.close)
            exporter.start(supervisor, services.telemetry.metrics.collect)
        stack.push_async_callback(services.telemetry.close)
        services.telemetry.start(supervisor)
        minutes = LoadSampler(database, services.presence.worker, engines.stats)
        stack.push_async_callback(minutes.start(supervisor).stop)
        stack.push_async_callback(services.canaries.close)
        services.canaries.start(supervisor)
        runs = Runs(services, background=config.background)
        stack.push_async_callback(runs.close)
        batch_worker = BatchWorker(services, config.batch_lines, answer_body)
        stack.push_async_callback(batch_worker.stop)
        batch_worker.start()
        await runs.start()
        stack.push_async_callback(supervisor.start("intake", services.ingest_worker.run).stop)
        answered = partial(read_answered_questions, services.agent)
        stack.push_async_callback(supervisor.start("answered", answered).stop)
        with start.span("prompts"):
            begins = agent_registry.beside(engines.model_registry.names[1:])
            await prefill_shared_prefixes(services.agent, begins)
        stack.push_async_callback(reloader.close)
        start.finish()
        log.info("started in %.2f s: %s", start.duration_ms / 1e3, phases(start))
        services.telemetry.started(start, engines.starts)
        services.telemetry.metrics.watch_models(lambda: engines.each)
        yield services, runs, batch_worker


async def _fetch_weights(config: Config, home: Home, loading: LoadProgress) -> None:
    """Those that the default model is made of, if they are not here and the operator says where they are. Without them
    the bundled one answers. Raises StartError if nothing but the default will do."""
    if config.weights is None or config.engines or not (chosen := named(config)) & {None, SMOL_CHAT.name}:
        return
    with shown(SMOL_CHAT.base.name) as report:

        def progress(here: int, total: int | None) -> None:
            report(here, total)
            loading.share = here / total if total else 0.0

        try:
            await make(SMOL_CHAT, home.models, progress, source=config.weights)
        except (StartError, OSError) as error:
            if SMOL_CHAT.name in chosen:
                raise
            say(f"\nThe small demo-chat answers instead of {SMOL_CHAT.name}: {error}")
    loading.share = 0.0


def _reloader(services: Services, engines: ActiveEngines) -> Reloader:
    """The reloader of models.toml, whose names agents, surfaces and aliases refer to."""
    agent_registry, found = services.agent_registry, services.aliases
    beside = _beside(services.embedders, services.reranker)

    def check(file: ModelFile) -> None:
        nonlocal found
        config, files = services.config, files_of(file, services.config)
        found = names_at_work(config, agent_registry, file.aliases, file.names, beside, files=files)

    async def warm(candidate: Candidate) -> None:
        begins = agent_registry.beside(services.model_registry.names[1:])
        await prefill_shared_prefixes(services.agent, begins, only=candidate)

    return Reloader(engines.reload, check, warm, lambda: services.aliases.replace(found))


def _beside(embedders: Embedders, reranker: Reranker | None) -> list[str]:
    """The models that never run a turn."""
    return [*embedders.names, *([reranker.name] if reranker else [])]


def _exporter(config: Config) -> Exporter | None:
    """Raises ConfigError if its packages are missing."""
    if config.otlp_endpoint is None:
        return None
    try:
        return Exporter(config.otlp_endpoint, config.otlp_header_map, VERSION)
    except SdkMissing as error:
        raise ConfigError(f"--otlp-endpoint needs the package {error}: pip install 'firsttoken[otlp]'") from error


def _assemble(
    config: Config,
    agent_registry: AgentRegistry,
    secret: Secret,
    supervisor: Supervisor,
    database: Database,
    engines: ActiveEngines,
    embedders: Embedders,
    reranker: CrossEncoder | None,
    retriever: Retriever,
    servers: ToolServers,
    exporter: Exporter | None,
    replica: Database,
    name: str,
) -> Services:
    def engine_stats() -> dict[str, Any]:
        kept = answers.stats() if answers else {}
        ahead = {f"retrieval_ahead_{came}_total": count for came, count in speculative_search.counts.items()}
        read = {f"draft_prefill_{came}_seconds_total": s for came, s in speculative_search.engine_s.items()}
        return {**engines.stats(), **kept, "query_cache_bytes": embedders.kept_bytes, **ahead, **read}

    def chatting() -> bool:
        return int(engine_stats().get("running", 0)) > 0

    answers = AnswerCache(config.answer_cache_mb * 2**20) if config.answer_cache_mb else None
    surfaces = {**SURFACES, **agent_registry.surfaces}
    passages, file_queue, loaders = PassageStore(database), FileQueue(database), LoaderPool()
    presence, seals, keys = Presence(database), Seals(secret), Keys(database, secret)
    uploads = UploadStore(database, tenant_bytes_max=config.tenant_files_mb * 2**20)
    speculative_search = SpeculativeSearch(retriever, is_free=engines.is_free)
    toolbox = builtin_toolbox(retriever)
    model_registry = engines.model_registry
    aliases = names_at_work(
        *(config, agent_registry, engines.aliases, model_registry.names, _beside(embedders, reranker)),
        files=engines.files,
        tools=toolbox.names,
    )
    servers.attach(toolbox, agent_registry)
    mcp_servers = McpServers(
        servers.requested, origins_of(config.mcp_origins or ""), origins_of(config.mcp_private_origins or "")
    )
    return Services(
        config=config,
        database=database,
        model_registry=model_registry,
        engines=engines,
        engine_stats=engine_stats,
        embedders=embedders,
        retriever=retriever,
        speculative_search=speculative_search,
        passages=passages,
        uploads=uploads,
        file_queue=file_queue,
        ingest_worker=IngestWorker(
            *(file_queue, uploads, passages, embedders, loaders, presence.worker),
            chatting=chatting,
        ),
        chatting=chatting,
        batches=BatchStore(database),
        agent=Agent(
            model_registry,
            speculative_search,
            toolbox,
            agent_registry.prices,
            answers,
            loaders.pixels,
            is_free=engines.is_free,
        ),
        conversations=ConversationStore(database),
        search=ConversationSearch(replica),
        shares=ShareStore(database),
        responses=ResponseStore(database),
        running=RunningStore(database),
        steering=SteeringStore(database),
        queue=QueueStore(database),
        idempotency_keys=IdempotencyKeys(database, presence.worker),
        presence=presence,
        attachments=Attachments(
            ConversationStore(database), uploads, passages, loaders, seals, lambda: model_registry.sees
        ),
        authenticator=Authenticator(
            *(keys, Sessions(database, secret), Tokens(config), secret, AuditLog(database)),
            audit_days=config.audit_days,
            provider=Provider.of(config),
        ),
        seals=seals,
        loaders=loaders,
        admission=Admission(config.turns, config.tenant_turns),
        telemetry=(
            telemetry := Telemetry(
                *(Traces(database, replica, worker=name), Metrics(engine_stats, supervisor, config.objective)),
                trace_days=config.trace_days,
                export=exporter.offer if exporter else None,
            )
        ),
        daily_budgets=DailyBudgets(telemetry.traces.spending.of_key, telemetry.flush),
        targets=Targets.parse(config.targets).with_those_of(surfaces),
        surfaces=surfaces,
        caps=caps_of(config),
        waits=config.late == WAIT,
        agent_registry=agent_registry,
        canaries=Canaries(CanaryStore(database), partial(keys.tenant, LOCAL_TENANT)),
        aliases=aliases,
        supervisor=supervisor,
        mcp_servers=mcp_servers,
        reranker=reranker,
    )
