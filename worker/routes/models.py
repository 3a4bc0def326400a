"""GET /v1/models: what this worker serves, and what each of them is for, in the spellings that programs read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from agents.parser.dialect import Format, choose
from inference.language_model import LanguageModel
from inference.message_fitting import Capabilities
from inference.prompt import have_effort
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.http.query import AnthropicPage, parse_query
from worker.http.request import Json, Routes, speaks_anthropic
from worker.services import SERVICES, Services

VISION = "vision"


def abilities(template: str, can: Capabilities, switches: frozenset[str], *, sees: bool) -> list[str]:
    """What a chat model offers, according to its template, and whether it sees."""
    dialect = choose(template, can)
    reasons = dialect.thoughts is not None or dialect.format is Format.HARMONY or have_effort(switches)
    return [
        "chat",
        *(["tools"] if dialect.calls else []),
        *(["reasoning"] if reasons else []),
        *([VISION] if sees else []),
    ]


def chat_card(abilities: Collection[str], context: int, measures: Mapping[str, int]) -> dict[str, Any]:
    """`measures` are those of the file. `max_model_len` is vLLM's name, `meta` llama-server's."""
    sees = VISION in abilities
    return {
        "capabilities": list(abilities),
        "context_length": context,
        "max_model_len": context,
        "architecture": {"input_modalities": ["text", *["image"] * sees], "output_modalities": ["text"]},
        "meta": {"n_ctx": context, **measures},
    }


def embedding_card(dimensions: int) -> dict[str, Any]:
    return {"capabilities": ["embeddings"], "dimensions": dimensions, "meta": {"n_embd": dimensions}}


RERANK_CARD: Mapping[str, Any] = {"capabilities": ["rerank"]}


def model_object(id: str, root: str, created: int, card: Mapping[str, Any]) -> dict[str, Any]:
    """`root` is the model behind the name. `created` is in seconds; `type` and what follows are Anthropic's names."""
    names = {"id": id, "object": "model", "created": created, "owned_by": "firsttoken", "root": root}
    began = datetime.fromtimestamp(created, UTC).isoformat()
    return {**names, "type": "model", "display_name": id, "created_at": began, **card}


def anthropic_card(model: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields of Anthropic's API say where they are no others by the same name: what a request may contain
    without being refused, or without a part of it being ignored."""
    abilities, context = model["capabilities"], model.get("context_length")
    card = {"lifecycle": "active", "max_input_tokens": context, "max_tokens": context}
    if "chat" not in abilities:
        return {**model, **card, "capabilities": None}
    yes, no, reasons = {"supported": True}, {"supported": False}, {"supported": "reasoning" in abilities}
    efforts = dict.fromkeys(("low", "medium", "high", "xhigh", "max"), reasons)
    switches = {"enabled": reasons, "adaptive": reasons, "between_tools": yes, "disabled": yes}
    capabilities = {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**reasons, **efforts},
        "image_input": {"supported": VISION in abilities},
        "pdf_input": yes,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {**reasons, "types": switches},
    }
    return {**model, **card, "capabilities": capabilities}


routes = Routes()


@routes.get("/v1/models", Scope, query=AnthropicPage)
async def list_models(request: web.Request) -> Json:
    """All of them; in pages for clients of Anthropic's API."""
    models = _models(request.app[SERVICES])
    if not speaks_anthropic(request):
        return {"object": "list", "data": models}
    return parse_query(AnthropicPage, request).of([anthropic_card(model) for model in models])


@routes.get("/v1/models/{id:.+}", Scope)
async def get_model(request: web.Request) -> Json:
    id = request.match_info["id"]
    services = request.app[SERVICES]
    models = {model["id"]: model for model in _models(services)}
    found = models.get(id) or models.get(services.aliases.model_of(id))
    if found is None:
        message = f"There is no model '{id}' on this worker. Available: {', '.join(models)}."
        raise ApiError(404, message, code="model_not_found")
    return anthropic_card(found) if speaks_anthropic(request) else found


def _models(services: Services) -> list[dict[str, Any]]:
    """What generates first, for programs that offer the first one of the list; further names last."""
    chat = {name: _card(services, services.model_of(name)) for name in services.model_registry.candidates}
    named = (*services.model_registry.names, *services.agent_registry.models)
    cards: dict[str, Mapping[str, Any]] = {name: chat[services.model_of(name).name] for name in named}
    cards |= {name: {**card, "aliases": services.aliases.besides(name)} for name, card in chat.items()}
    cards |= {name: {**cards[name], "firsttoken_agent": True} for name in services.agent_registry.models}
    for name in services.embedders.names:
        cards[name] = embedding_card(services.embedders.dimensions(name))
    if services.reranker:
        cards[services.reranker.name] = RERANK_CARD
    created, aliases = int(services.started_at), services.aliases
    models = [model_object(name, name, created, card) for name, card in cards.items()]
    for name, root in aliases.by_name.items():
        models.append(model_object(name, root, created, cards[root]))
    return models


def _card(services: Services, model: LanguageModel) -> dict[str, Any]:
    """Of a chat model; where there are several, with what its engine does."""
    card = chat_card(
        abilities(model.chat_template, model.capabilities, model.switches, sees=model.sees),
        model.context_length,
        model.measures,
    )
    card["firsttoken_tools"] = "of_template" if model.capabilities.tools else "described"
    if parameters := model.measures.get("n_params"):
        card["firsttoken_parameters"] = parameters
    if model.adapters:
        card["firsttoken_lora"] = [adapter.card for adapter in model.adapters]
    engines = services.engines
    if engines is not None and len(engines.states) > 1:
        card["firsttoken_state"] = engines.states[model.name]
        if start := engines.starts.get(model.name):
            card["firsttoken_start_ms"] = {span.name: round(span.duration_ms, 1) for span in start.spans}
    return card
