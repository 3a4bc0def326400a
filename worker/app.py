"""The HTTP application: every route of the worker behind the same middlewares."""

from __future__ import annotations

import asyncio

from aiohttp import web

from agents.inflight import InFlight
from worker.auth.auth_settings import Cors
from worker.edge.body import BUDGET, Budget
from worker.edge.health_probes import HealthProbes
from worker.http.middleware import CorsMiddleware, Middlewares
from worker.routes import (
    batches,
    completions,
    conversations,
    embeddings,
    files,
    health,
    messages,
    models,
    openapi,
    ops,
    pages,
    responses,
    sessions,
    tokenize,
    vector_stores,
)
from worker.routes.sockets import connection
from worker.routes.sockets.connection import SOCKETS, Sockets
from worker.runs.batches.batch_worker import BATCHES, BatchWorker
from worker.runs.event_stream import HEARTBEAT, Heartbeat
from worker.runs.manager import RUNS, Runs
from worker.services import CHECKERS, DRAINING, LEAVING, REQUESTS, SERVICES, Services

RESOURCES = (
    responses,
    connection,
    conversations,
    completions,
    messages,
    tokenize,
    embeddings,
    batches,
    models,
    files,
    vector_stores,
    sessions,
    ops,
    health,
    openapi,
    pages,
)

# Clients build URLs from parts. They follow the redirect with method and body (status 308).
TIDY_PATHS = web.normalize_path_middleware(append_slash=False, remove_slash=True, merge_slashes=True)


def build_app(services: Services, runs: Runs, batch_worker: BatchWorker) -> web.Application:
    config = services.config
    # Half of the bytes: no tenant keeps out the others.
    budget = Budget(config.request_mb * 2**20, config.request_mb * 2**19)
    passed = Middlewares(services, budget, InFlight(), draining=asyncio.Event(), leaving=asyncio.Event())
    app = web.Application(middlewares=[*passed.all, TIDY_PATHS])
    app[SERVICES] = services
    app[RUNS] = runs
    app[BATCHES] = batch_worker
    for resource in RESOURCES:
        app.add_routes(resource.routes)
    app[DRAINING] = passed.draining
    app[LEAVING] = passed.leaving
    app[REQUESTS] = passed.requests
    app[CHECKERS] = HealthProbes()
    app[BUDGET] = budget
    app[SOCKETS] = Sockets()
    app[HEARTBEAT] = Heartbeat()
    app.on_response_prepare.append(passed.add_headers)
    cors = CorsMiddleware(Cors.parse(config.cors_origins))
    if cors.cors.origins:
        app.middlewares.insert(1, cors.preflight)  # which has no credentials
        app.on_response_prepare.append(cors.add_headers)
    return app
