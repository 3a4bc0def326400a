"""The HTTP application: every route of the worker behind the same middlewares."""

from __future__ import annotations

import asyncio

from aiohttp import web

from worker.auth.sign_in import sign_in
from worker.middleware import add_headers, identify, trace_request
from worker.routes import (
    chat_completions,
    compaction,
    conversations,
    embeddings,
    files,
    health,
    metrics,
    models,
    ops,
    pages,
    rerank,
    response_parts,
    responses,
    store_files,
    vector_stores,
    warm,
)
from worker.runs.event_stream import PULSE, Pulse
from worker.runs.manager import RUNS, Runs
from worker.services import DRAINING, SERVICES, Services
from worker.sockets import connection
from worker.sockets.register import SOCKETS, Sockets

RESOURCES = (
    responses,
    response_parts,
    compaction,
    connection,
    warm,
    conversations,
    chat_completions,
    embeddings,
    rerank,
    models,
    files,
    vector_stores,
    store_files,
    ops,
    metrics,
    health,
    pages,
)


def build_app(services: Services, runs: Runs) -> web.Application:
    app = web.Application(middlewares=[trace_request, sign_in, identify], client_max_size=services.config.body_bytes)
    app[SERVICES] = services
    app[RUNS] = runs
    for resource in RESOURCES:
        app.add_routes(resource.routes())
    app[DRAINING] = asyncio.Event()
    app[SOCKETS] = Sockets()
    app[PULSE] = Pulse()
    app.on_response_prepare.append(add_headers)
    return app
