"""A request as handlers see it: what the middlewares store in it, and checks that need the running worker. And
responses in JSON.

TRACE, REQUEST_ID and IGNORED are set in every handler, and so are PRINCIPAL and BODY where credentials are required; on
the pages `request.get(PRINCIPAL)` is the signed-in user or None. BODY is decompressed; uploads are read as they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from agents.errors import AgentError
from inference.errors import InferenceError
from inference.trace import Trace
from migrations.pool import Also
from worker.auth.audit import Act, Actor, note
from worker.auth.principal import Principal
from worker.errors import ApiError
from worker.runs.run_services import RunServices
from worker.wire.page import ID
from worker.wire.strict import Ignored

TRACE: web.RequestKey[Trace] = web.RequestKey("trace", Trace)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
IGNORED: web.RequestKey[Ignored] = web.RequestKey("ignored", Ignored)
BODY: web.RequestKey[bytes] = web.RequestKey("body", bytes)
# As in the OpenAPI description.
INCLUDE: dict[str, dict[str, Any]] = {"include": {"type": "array", "items": {"type": "string"}}}


def actor_of(request: web.Request) -> Actor:
    """The caller, as recorded in the audit log."""
    principal = request[PRINCIPAL]
    return Actor(principal.via, principal.subject, request.remote)


def noted(request: web.Request, act: Act, object: str, **detail: Any) -> Also:
    """Writes the act of this request to the audit log, in the transaction that performs it."""
    tenant_id, actor = request[PRINCIPAL].tenant_id, actor_of(request)
    return lambda connection: note(connection, tenant_id, actor, act, object, **detail)


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


PIECE_BYTES = 256 * 1024  # given to the transport at once; 16 MB take it a twentieth of a second


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response; UUIDs and times are written as text."""
    return json_bytes(orjson.dumps(content), status=status, headers=headers)


def json_bytes(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response whose JSON is written already."""
    sent = body if len(body) <= PIECE_BYTES else Pieces(body)
    return web.Response(status=status, body=sent, content_type="application/json", headers=headers)


class Pieces(Payload):
    """A long body, of which the client takes a piece before the next one is copied."""

    _value: bytes
    _autoclose = True  # nothing is open

    def __init__(self, body: bytes) -> None:
        super().__init__(body, content_type="application/json")
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for begin in range(0, len(self._value), PIECE_BYTES):
            await writer.write(self._value[begin : begin + PIECE_BYTES])
