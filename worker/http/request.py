"""A request as handlers see it: what the middlewares store in it, and the ids in its path. Responses in JSON. And what
a route declares where it is registered: who may call it, which is checked before the body is read, and what the OpenAPI
description needs besides its path and the docstring of its handler.

TRACE, REQUEST_ID and IGNORED are set in every handler, and so are PRINCIPAL and BODY where credentials are required; on
the pages `request.get(PRINCIPAL)` is the signed-in user or None. BODY is decompressed; uploads are read as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import signature
from typing import Any, TypeAlias, TypeVar

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from pydantic import BaseModel

from agents.errors import AgentError
from inference.errors import InferenceError
from inference.trace import Trace
from migrations.pool import Also
from worker.auth.audit import Act, Actor, note
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.http.query import ID, Query, parse_query
from worker.wire.strict import Ignored, Strict, parsed

TRACE: web.RequestKey[Trace] = web.RequestKey("trace", Trace)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
IGNORED: web.RequestKey[Ignored] = web.RequestKey("ignored", Ignored)
BODY: web.RequestKey[bytes] = web.RequestKey("body", bytes)

MESSAGES = "/v1/messages"
ANTHROPIC_HEADER = "Anthropic-Version"  # in every request of Anthropic's clients, in no other's


def speaks_anthropic(request: web.BaseRequest) -> bool:
    """Whether errors have the form of Anthropic's API, and also the objects that both APIs have at the same address."""
    path = request.path
    return path == MESSAGES or path.startswith(f"{MESSAGES}/") or ANTHROPIC_HEADER in request.headers


def actor_of(request: web.Request) -> Actor:
    """The caller, as recorded in the audit log."""
    principal = request[PRINCIPAL]
    return Actor(principal.via, principal.subject, request.remote)


def noted(request: web.Request, act: Act, object: str, **detail: Any) -> Also:
    """Writes the act of this request to the audit log, in the transaction that performs it."""
    tenant_id, actor = request[PRINCIPAL].tenant_id, actor_of(request)
    return lambda connection: note(connection, tenant_id, actor, act, object, **detail)


@contextmanager
def in_param(name: str, of: str = "input") -> Iterator[None]:
    """Attributes errors to this parameter, where lower layers name another: the prompt is `input` to them, and tokens
    are those of a `logit_bias`."""
    try:
        yield
    except (InferenceError, AgentError) as error:
        error.param = name if error.param == of else error.param
        raise


def path_id(request: web.Request, kind: str, name: str = "id") -> str:
    """An id from the path. Text that cannot be an id never reaches a query. Raises ApiError 404."""
    id = request.match_info[name]
    if not ID.fullmatch(id):
        raise ApiError(404, f"There is no {kind} with this id.", code="not_found")
    return id


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


Handler = TypeVar("Handler", bound=Callable[..., Any])
Json: TypeAlias = dict[str, Any]
Schema: TypeAlias = dict[str, Any]

JSON, EVENTS, BYTES, PLAIN, HTML = (
    "application/json",
    "text/event-stream",
    "application/octet-stream",
    "text/plain",
    "text/html",
)


@dataclass(frozen=True, slots=True)
class Access:
    """Any one of the `scopes` grants access. Without scopes the route is public: for visitors, who may be signed in, or
    for everybody alike.
    """

    scopes: frozenset[Scope] = frozenset()
    visitors: bool = False

    @classmethod
    def of(cls, granted: Granted) -> Access:
        """For callers with one of the scopes."""
        if isinstance(granted, Access):
            return granted
        return cls(frozenset([granted] if isinstance(granted, Scope) else granted))

    def check(self, principal: Principal) -> None:
        """Raises ApiError 403 naming the missing scope."""
        if not self.scopes or self.scopes & principal.scopes:
            return
        names = " or ".join(scope for scope in Scope if scope in self.scopes)
        message = f"This needs the scope {names}, which these credentials do not have."
        raise ApiError(403, message, code="missing_scope")


EVERYBODY, VISITORS = Access(), Access(visitors=True)
Granted: TypeAlias = Access | Scope | Iterable[Scope]


def access_of(handler: Any) -> Access | None:
    """The access that the route of a handler declares; None if it declares none, which denies everybody."""
    access: Access | None = getattr(handler, "access", None)
    return access


@dataclass(frozen=True, slots=True)
class RouteDocs:
    """`takes` is the model of a JSON body: to be said only where the handler parses it itself, as a part of what it
    measures, or behind other checks; so is `query`, that of the parameters. `form` has the fields of a multipart body,
    `tells` the media types of a response with this `status`.
    """

    takes: type[BaseModel] | None = None
    form: Mapping[str, Schema] = field(default_factory=dict)
    query: type[Query] | None = None
    tells: tuple[str, ...] = (JSON,)
    status: int = 200


class Routes(list[web.RouteDef]):
    """Those of a resource. Its methods decorate handlers: `@routes.post("/v1/things", Scope.CHAT)`, with more that
    RouteDocs says. A handler may have several paths. If it has a second parameter, it gets the body, or the parameters
    of the address where that is a Query, as the model that it names. What it returns is sent as JSON, unless it is a
    response.
    """

    def get(self, path: str, access: Granted, *, allow_head: bool = True, **docs: Any) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.get, path, allow_head=allow_head), access, RouteDocs(**docs))

    def post(self, path: str, access: Granted, **docs: Any) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.post, path), access, RouteDocs(**docs))

    def delete(self, path: str, access: Granted) -> Callable[[Handler], Handler]:
        return self._declared(partial(web.delete, path), access, RouteDocs())

    def _declared(
        self, route: Callable[[Any], web.RouteDef], access: Granted, docs: RouteDocs
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            query, body = _read_by(handler)

            @wraps(handler)
            async def answer(request: web.Request) -> web.StreamResponse:
                if query is not None:
                    told = await handler(request, parse_query(query, request))
                elif body is not None:
                    told = await handler(request, await parsed(body, request[BODY], request[IGNORED]))
                else:
                    told = await handler(request)
                return told if isinstance(told, web.StreamResponse) else json_response(told, status=docs.status)

            answer.access = Access.of(access)  # type: ignore[attr-defined]
            described = replace(docs, takes=docs.takes or body, query=docs.query or query)
            answer.described = described  # type: ignore[attr-defined]
            self.append(route(answer))
            return handler

        return declare


def _read_by(handler: Callable[..., Any]) -> tuple[type[Query] | None, type[Strict] | None]:
    """The model of the parameters, or of the body, that a handler takes."""
    _, *more = signature(handler, eval_str=True).parameters.values()
    model = more[0].annotation if more else None
    return (model, None) if model is not None and issubclass(model, Query) else (None, model)
