"""The HTTP application: every route of the worker behind the same middlewares."""

from __future__ import annotations

import asyncio

from aiohttp import web

from worker.middleware import add_headers, begin, identify
from worker.routes import embeddings, health, metrics, models, ops
from worker.routes.health import DRAINING
from worker.services import SERVICES, Services
from worker.sign_in import sign_in


def build_app(services: Services) -> web.Application:
    app = web.Application(middlewares=[begin, sign_in, identify], client_max_size=services.config.body_bytes)
    app[SERVICES] = services
    for resource in (models, embeddings, health, metrics, ops):
        app.add_routes(resource.routes())
    app[DRAINING] = asyncio.Event()
    app.on_response_prepare.append(add_headers)
    return app
