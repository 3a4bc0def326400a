"""GET /v1/models: what this worker serves."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from worker.errors import ApiError
from worker.reply import reply
from worker.services import SERVICES, Services


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/models", list_models), web.get("/v1/models/{id:.+}", get_model)]


async def list_models(request: web.Request) -> web.Response:
    return reply({"object": "list", "data": _models(request.app[SERVICES])})


async def get_model(request: web.Request) -> web.Response:
    id = request.match_info["id"]
    models = _models(request.app[SERVICES])
    found = next((model for model in models if model["id"] == id), None)
    if found is None:
        names = ", ".join(model["id"] for model in models)
        raise ApiError(
            404,
            f"There is no model '{id}' on this worker. Available: {names}.",
            type="not_found_error",
            code="model_not_found",
        )
    return reply(found)


def _models(services: Services) -> list[dict[str, Any]]:
    rerankers = [services.reranker.name] if services.reranker else []
    names = (services.model.name, *services.embedders.names, *rerankers, *services.roster.models)
    created = int(services.started_at)
    return [{"id": name, "object": "model", "created": created, "owned_by": "firsttoken"} for name in names]
