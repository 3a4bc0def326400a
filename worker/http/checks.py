"""Checks of a request that need the running worker: whether the model or object it names exists, and whether its prompt
is valid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from agents.errors import AgentError
from inference.errors import InferenceError
from worker.errors import ApiError
from worker.runs.run_services import RunServices
from worker.wire.page import ID

# As in the OpenAPI description.
INCLUDE: dict[str, dict[str, Any]] = {"include": {"type": "array", "items": {"type": "string"}}}


def check_model(name: str | None, services: RunServices) -> str:
    """The name of what serves the request: a model of this worker, or one of its routes or agents; the default is the
    first.

    Raises ApiError 404 for anything else.
    """
    served = [*services.model_registry.names, *services.agent_registry.models]
    model = services.model_registry.default if name is None else services.aliases.model_of(name)
    if model not in served:
        available = ", ".join([*served, *services.aliases.of(served)])
        message = f"The model '{name}' is not available on this worker. Available: {available}."
        raise ApiError(404, message, param="model", code="model_not_found")
    return model


@contextmanager
def in_param(name: str) -> Iterator[None]:
    """Attribute errors of the prompt to this parameter; lower layers call it `input`."""
    try:
        yield
    except (InferenceError, AgentError) as error:
        if error.param == "input":
            error.param = name
        raise


def path_id(request: web.Request, kind: str, name: str = "id") -> str:
    """An id from the path. Text that cannot be an id never reaches a query. Raises ApiError 404."""
    id = request.match_info[name]
    if not ID.fullmatch(id):
        raise ApiError(404, f"There is no {kind} with this id.", code="not_found")
    return id


def includes(request: web.Request, value: str) -> bool:
    """Whether the query string asks for this too. Clients send `include` or `include[]`."""
    return value in (*request.query.getall("include", ()), *request.query.getall("include[]", ()))
