"""Everything a handler may use, built once at start and never replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agents.work import Work
from worker.crew.member import Member
from worker.edge.checkers import Checkers
from worker.runs.run_services import RunServices
from worker.warmth import Warmth

if TYPE_CHECKING:
    from agents.store import ConversationSearch, ShareStore
    from inference.embedding.registry import Embedders
    from migrations.pool import Database
    from retrieval.foresight import Foresight
    from retrieval.ingest_worker import IngestWorker
    from retrieval.loaders.pool import LoaderPool
    from retrieval.rank import Reranker
    from retrieval.retriever import Retriever
    from retrieval.store import FileQueue, PassageStore, UploadStore
    from worker.batches.batch_store import BatchStore
    from worker.config import Config
    from worker.engines.model_state import ModelStates


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(RunServices):
    """What turns need, and what only the routes use besides.

    `engine_stats` are the chat model's numbers right now, its name, and under "failed" the reason why it cannot answer
    any more, if there is one. `started_at` is Unix seconds.
    """

    config: Config
    database: Database
    engine_stats: Callable[[], Mapping[str, Any]]
    engines: ModelStates | None = None
    embedders: Embedders
    retriever: Retriever
    search: ConversationSearch
    shares: ShareStore
    passages: PassageStore
    uploads: UploadStore
    file_queue: FileQueue
    ingest_worker: IngestWorker
    batches: BatchStore
    loaders: LoaderPool
    reranker: Reranker | None = None
    foresight: Foresight | None = None
    warmth: Warmth = field(default_factory=Warmth)
    reload: Callable[[], None] = lambda: None  # reads models.toml again
    started_at: float = field(default_factory=time.time)


SERVICES: web.AppKey[Services] = web.AppKey("services")
REQUESTS: web.AppKey[Work] = web.AppKey("requests", Work)  # in progress; the turns among them are in `turns` as well
LEAVING: web.AppKey[asyncio.Event] = web.AppKey("leaving", asyncio.Event)  # set when others take what is new
CREW: web.AppKey[Member] = web.AppKey("crew", Member)  # only where this process is one of several
CHECKERS: web.AppKey[Checkers] = web.AppKey("checkers", Checkers)
DRAINING: web.AppKey[asyncio.Event] = web.AppKey("draining", asyncio.Event)  # set when the worker is to stop
