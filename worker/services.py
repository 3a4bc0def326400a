"""Everything a handler may use, built once at start and never replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from worker.runs.run_services import RunServices
from worker.warmth import Warmth

if TYPE_CHECKING:
    from inference.embedding.registry import Embedders
    from migrations.pool import Database
    from retrieval.ingest_worker import IngestWorker
    from retrieval.loaders.pool import LoaderPool
    from retrieval.rank import Reranker
    from retrieval.retriever import Retriever
    from retrieval.store import FileQueue, PassageStore, UploadStore
    from worker.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(RunServices):
    """What turns need, and what only the routes use besides.

    `engine_stats` are the chat model's numbers right now, its name, and under "failed" the reason why it cannot answer
    any more, if there is one. `started_at` is Unix seconds.
    """

    config: Config
    database: Database
    engine_stats: Callable[[], Mapping[str, Any]]
    embedders: Embedders
    retriever: Retriever
    passages: PassageStore
    uploads: UploadStore
    file_queue: FileQueue
    ingest_worker: IngestWorker
    loaders: LoaderPool
    reranker: Reranker | None = None
    warmth: Warmth = field(default_factory=Warmth)
    started_at: float = field(default_factory=time.time)


SERVICES: web.AppKey[Services] = web.AppKey("services")
DRAINING: web.AppKey[asyncio.Event] = web.AppKey("draining", asyncio.Event)  # set when the worker is to stop
