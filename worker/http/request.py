"""A request as handlers see it: what the middlewares store in it, and the parameters in its address. Responses in JSON,
among them pages of lists. And what a route declares where it is registered: who may call it, which is checked before
the body is read, and what the OpenAPI description needs besides its path and the docstring of its handler.

TRACE, REQUEST_ID and IGNORED are set in every handler, and so are PRINCIPAL and BODY where credentials are required; on
the pages `request.get(PRINCIPAL)` is the signed-in user or None. BODY is decompressed; uploads are read as they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import signature
from typing import Any, Literal, TypeAlias, TypeVar

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from pydantic import BaseModel

from agents.errors import AgentError, NotFound
from inference.errors import InferenceError
from inference.trace import Trace
from migrations.pool import Also
from retrieval.errors import FileNotFound
from worker.auth.audit import Act, Actor, note
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.errors import ApiError, invalid
from worker.wire import limits
from worker.wire.options import INCLUDABLE
from worker.wire.strict import Ignored, Strict, parsed

ID = re.compile(limits.ID_PATTERN)
DIGITS_MAX = 9  # checked before parsing a number; leading zeros count
Order = Literal["asc", "desc"]
# As in the OpenAPI description.
PAGE: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "pattern": limits.ID_PATTERN},
    "limit": {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX, "default": limits.PAGE_DEFAULT},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
}
# Of the lists that Anthropic's API has too, at the same address.
ANTHROPIC_PAGE: dict[str, dict[str, Any]] = {
    "after_id": {"type": "string"},
    "before_id": {"type": "string"},
    "limit": PAGE["limit"] | {"maximum": limits.ANTHROPIC_PAGE_MAX},
}


@dataclass(frozen=True, slots=True)
class PageQuery:
    after: str | None
    limit: int
    order: Order

    @classmethod
    def parse(
        cls, query: Mapping[str, str], *, usual: int = limits.PAGE_DEFAULT, most: int = limits.PAGE_MAX
    ) -> PageQuery:
        """Parse the query string of a URL. Raises ApiError 400 naming the parameter."""
        if query.get("before"):  # who pages backwards would get the first page again and again
            raise invalid("before", "lists are paged forwards here: use `after`, with the order asc or desc.")
        return cls(
            _after(query.get("after")), _limit(query.get("limit"), usual, most), _order(query.get("order", "desc"))
        )

    async def check(self, page: Sequence[object], find: Callable[[str], Awaitable[object]]) -> None:
        """An empty page ends the list only if the entry before it is still there: who deletes the entries of each page
        would miss the rest. Raises ApiError 400."""
        if page or self.after is None:
            return
        try:
            await find(self.after)
        except (NotFound, FileNotFound):
            raise _unknown_after() from None


def search_words(query: Mapping[str, str]) -> str:
    """The query of a search. Raises ApiError 400 naming the parameter."""
    text = query.get("query", "").strip()
    if not 1 <= len(text) <= limits.SEARCH_CHARS_MAX or "\0" in text:
        raise invalid("query", f"it must have 1 to {limits.SEARCH_CHARS_MAX} characters.")
    return text


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _unknown_after() -> ApiError:
    return invalid("after", "use the id of the last entry received.")


def _after(value: str | None) -> str | None:
    if value is not None and not ID.fullmatch(value):
        raise _unknown_after()
    return value


def _limit(value: str | None, usual: int, most: int) -> int:
    if value is None:
        return usual
    if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX and 1 <= int(value) <= most):
        raise invalid("limit", f"it must be a number from 1 to {most}.")
    return int(value)


def _order(value: str) -> Order:
    if value == "asc":
        return "asc"
    if value == "desc":
        return "desc"
    raise invalid("order", "it must be asc or desc.")


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


@dataclass(frozen=True, slots=True)
class InParam:
    """Attributes errors of the prompt to this parameter; lower layers call it `input`."""

    name: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, (InferenceError, AgentError)) and error.param == "input":
            error.param = self.name


def path_id(request: web.Request, kind: str, name: str = "id") -> str:
    """An id from the path. Text that cannot be an id never reaches a query. Raises ApiError 404."""
    id = request.match_info[name]
    if not ID.fullmatch(id):
        raise ApiError(404, f"There is no {kind} with this id.", code="not_found")
    return id


def included_from(known: Collection[str] = INCLUDABLE) -> dict[str, dict[str, Any]]:
    """As in the OpenAPI description: what may be included."""
    return {"include": {"type": "array", "items": {"enum": sorted(known)}}}


def is_asked(request: web.Request, name: str) -> bool:
    """The value of a switch in the query string. Raises ApiError 400."""
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise invalid(name, "it must be true or false.")
    return value == "true"


def included(request: web.Request, known: Collection[str] = INCLUDABLE) -> frozenset[str]:
    """What the query string asks for too. Clients send `include` or `include[]`. Raises ApiError 400 for values that
    are not `known`."""
    values = (*request.query.getall("include", ()), *request.query.getall("include[]", ()))
    if any(value not in known for value in values):
        raise invalid("include", f"it must be one of {', '.join(sorted(known))}.")
    return frozenset(values)


PIECE_BYTES = 256 * 1024  # given to the transport at once; 16 MB take it a twentieth of a second


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response; UUIDs and times are written as text."""
    return json_bytes(orjson.dumps(content), status=status, headers=headers)


def page_object(request: web.Request, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The page that is asked for of a list that is complete in memory, oldest first."""
    query = PageQuery.parse(request.query)
    ordered = list(data) if query.order == "asc" else list(reversed(data))
    start = next((index for index, entry in enumerate(ordered, 1) if entry["id"] == query.after), 0)
    if query.after is not None and not start:
        raise _unknown_after()
    end = start + query.limit
    return list_object(ordered[start:end], len(ordered) > end)


def anthropic_page(request: web.Request, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The page that is asked for of a complete list, as Anthropic's clients ask: behind an entry, or before one."""
    size = _limit(request.query.get("limit"), limits.PAGE_DEFAULT, limits.ANTHROPIC_PAGE_MAX)
    at = {name: _place(data, name, id) for name in ("after_id", "before_id") if (id := request.query.get(name))}
    if len(at) == 2:
        raise invalid("before_id", "give either after_id or before_id.")
    if "before_id" in at:
        end = at["before_id"]
        return list_object(data[max(0, end - size) : end], end > size)
    start = at["after_id"] + 1 if at else 0
    return list_object(data[start : start + size], len(data) > start + size)


def _place(data: Sequence[dict[str, Any]], name: str, id: str) -> int:
    """Raises ApiError 400."""
    found = next((index for index, entry in enumerate(data) if entry["id"] == id), None)
    if found is None:
        raise invalid(name, "use the id of the first or the last entry received.")
    return found


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
    measures, or behind other checks. `form` has the fields of a multipart one, `query` the schemas of parameters,
    `tells` the media types of a response with this `status`.
    """

    takes: type[BaseModel] | None = None
    form: Mapping[str, Schema] = field(default_factory=dict)
    query: Mapping[str, Schema] = field(default_factory=dict)
    tells: tuple[str, ...] = (JSON,)
    status: int = 200


class Routes(list[web.RouteDef]):
    """Those of a resource. Its methods decorate handlers: `@routes.post("/v1/things", Scope.CHAT)`, with more that
    RouteDocs says. A handler may have several paths. If it has a second parameter, it gets the body, as the model that
    the parameter names. What it returns is sent as JSON, unless it is a response.
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
            model = _body_of(handler)

            @wraps(handler)
            async def answer(request: web.Request) -> web.StreamResponse:
                body = () if model is None else (await parsed(model, request[BODY], request[IGNORED]),)
                told = await handler(request, *body)
                return told if isinstance(told, web.StreamResponse) else json_response(told, status=docs.status)

            answer.access = Access.of(access)  # type: ignore[attr-defined]
            answer.described = replace(docs, takes=docs.takes or model)  # type: ignore[attr-defined]
            self.append(route(answer))
            return handler

        return declare


def _body_of(handler: Callable[..., Any]) -> type[Strict] | None:
    """The model of the body that a handler takes."""
    _, *more = signature(handler, eval_str=True).parameters.values()
    return more[0].annotation if more else None
