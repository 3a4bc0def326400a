"""GET /v1/models: what this worker serves, and what each of them is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.reply import reply
from worker.services import SERVICES, Services
from worker.wire.models import RERANK_CARD, abilities, chat_card, embedding_card, model_object


def routes() -> list[web.RouteDef]:
    return needs(Scope, web.get("/v1/models", list_models), web.get("/v1/models/{id:.+}", get_model))


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
    """What generates first, for programs that offer the first one of the list; further names last."""
    model = services.model
    chat = chat_card(abilities(model.chat_template, model.switches), model.context_length, model.measures)
    cards: dict[str, Mapping[str, Any]] = dict.fromkeys((model.name, *services.roster.models), chat)
    for name in services.embedders.names:
        cards[name] = embedding_card(services.embedders.dimensions(name))
    if services.reranker:
        cards[services.reranker.name] = RERANK_CARD
    created, aliases = int(services.started_at), services.aliases
    models = [model_object(name, name, created, card) for name, card in cards.items()]
    for name, root in aliases.by_name.items():
        models.append(model_object(name, root, created, cards[root]))
    if (parameters := services.engine_stats().get("parameters")) is not None:
        models[0]["firsttoken_parameters"] = parameters  # the chat model is the first
    return models
