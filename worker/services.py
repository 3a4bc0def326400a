"""Everything a handler may use, built once at start and never replaced; and what the middlewares know of a request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agents.roster import Roster
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.warmth import Warmth

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.store import ConversationStore, ResponseStore
    from inference.core import LanguageModel
    from inference.embedding.registry import Embedders
    from migrations.pool import Database
    from retrieval.ingest_worker import IngestWorker
    from retrieval.loaders.pool import LoaderPool
    from retrieval.rank import Reranker
    from retrieval.retriever import Retriever
    from retrieval.store import FileQueue, PassageStore, UploadStore
    from worker.auth.authenticator import Authenticator
    from worker.auth.seals import Seals
    from worker.config import Config
    from worker.file_reader import FileReader
    from worker.goodput import Targets
    from worker.runs.admission import Admission
    from worker.runs.manager import Runs
    from worker.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Services:
    """`engine_stats` is what the chat model says of itself right now: numbers, its name, and under "failed" why it
    cannot answer any more, if so. `started_at` is Unix seconds.
    """

    config: Config
    database: Database
    model: LanguageModel
    engine_stats: Callable[[], Mapping[str, Any]]
    embedders: Embedders
    retriever: Retriever
    passages: PassageStore
    uploads: UploadStore
    file_queue: FileQueue
    ingest_worker: IngestWorker
    agent: Agent
    conversations: ConversationStore
    responses: ResponseStore
    runs: Runs
    authenticator: Authenticator
    seals: Seals
    loaders: LoaderPool
    file_reader: FileReader
    admission: Admission
    telemetry: Telemetry
    targets: Targets
    roster: Roster = field(default_factory=Roster)
    reranker: Reranker | None = None
    warmth: Warmth = field(default_factory=Warmth)
    started_at: float = field(default_factory=time.time)


SERVICES: web.AppKey[Services] = web.AppKey("services")

# request[TRACE] and request[REQUEST_ID] are there in every handler, and so is request[PRINCIPAL] where credentials are
# demanded; on the pages request.get(PRINCIPAL) is somebody or None.
TRACE: web.RequestKey[Trace] = web.RequestKey("trace", Trace)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
