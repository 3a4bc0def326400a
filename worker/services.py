"""Everything a handler may use, built once at start and never replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agents.inflight import InFlight
from worker.edge.health_probes import HealthProbes
from worker.lifecycle.crew.member import Member
from worker.lifecycle.prewarm import PrewarmLimits
from worker.runs.cache_diagnostics import RecentPrompts, recent_prompts
from worker.runs.run_services import RunServices

if TYPE_CHECKING:
    from agents.store import ConversationSearch, ShareStore
    from inference.embedding.registry import Embedders
    from migrations.pool import Database
    from retrieval.ingest_worker import IngestWorker
    from retrieval.loaders.pool import LoaderPool
    from retrieval.rank import Reranker
    from retrieval.retriever import Retriever
    from retrieval.speculative_search import SpeculativeSearch
    from retrieval.store import FileQueue, PassageStore, UploadStore
    from worker.config import Config
    from worker.engines.active_engines import ActiveEngines
    from worker.runs.batches.batch_store import BatchStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(RunServices):
    """What turns need, and what only the routes use besides.

    `engine_stats` returns the chat model's current statistics, its name, and under "failed" the reason if it can no
    longer answer. `started_at` is Unix seconds.
    """

    config: Config
    database: Database
    engine_stats: Callable[[], Mapping[str, Any]]
    engines: ActiveEngines | None = None
    embedders: Embedders
    retriever: Retriever
    search: ConversationSearch
    shares: ShareStore
    passages: PassageStore
    uploads: UploadStore
    file_queue: FileQueue
    ingest_worker: IngestWorker
    chatting: Callable[[], bool] = lambda: False  # whether a client waits for tokens: what computes beside it rests
    batches: BatchStore
    loaders: LoaderPool
    reranker: Reranker | None = None
    speculative_search: SpeculativeSearch | None = None
    prewarm_limits: PrewarmLimits = field(default_factory=PrewarmLimits)
    recent_prompts: RecentPrompts = field(default_factory=recent_prompts)
    reload: Callable[[], None] = lambda: None  # reload models.toml
    started_at: float = field(default_factory=time.time)


SERVICES: web.AppKey[Services] = web.AppKey("services")
REQUESTS: web.AppKey[InFlight] = web.AppKey(
    "requests", InFlight
)  # requests in progress; the turns among them are in `turns` as well
LEAVING: web.AppKey[asyncio.Event] = web.AppKey("leaving", asyncio.Event)  # set when other processes take new requests
CREW: web.AppKey[Member] = web.AppKey("crew", Member)  # only if this process is one of several
CHECKERS: web.AppKey[HealthProbes] = web.AppKey("checkers", HealthProbes)
DRAINING: web.AppKey[asyncio.Event] = web.AppKey("draining", asyncio.Event)  # set when the worker is to stop
