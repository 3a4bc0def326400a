"""The middlewares of every request: its id, its trace, authentication, CORS, and a response for every error.

Credentials do more than identify a request: a one-time link (`/?token=…`) becomes a session cookie and a clean URL, and
a request ends when its credential is revoked while it is being answered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from agents.errors import Interrupted, Leaving
from agents.inflight import InFlight
from inference.errors import OVERLOADED
from inference.trace import Trace, now_ns, random_id
from worker.auth.audit import Actor
from worker.auth.auth_settings import Cors
from worker.edge.body import Budget, is_gone, read_body
from worker.edge.guard import guard_of, remote_of
from worker.errors import ApiError, ClientGone
from worker.http.error_mapping import error_body, to_api_error, unknown_path
from worker.http.request import (
    BODY,
    EVERYBODY,
    IGNORED,
    PRINCIPAL,
    REQUEST_ID,
    TRACE,
    VISITORS,
    access_of,
    json_response,
    speaks_anthropic,
)
from worker.services import Services
from worker.wire.strict import IGNORED_HEADER, Ignored

log = logging.getLogger("firsttoken.http")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_SHAPE = re.compile(r"[A-Za-z0-9._-]{1,64}")  # the caller's id is copied to logs and headers
TRACEPARENT_SHAPE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
UPLOADS = "/v1/files"  # its body is streamed to a file, as it may be too large for memory
LEFT = 499  # in the metrics: the client closed the connection before the response
PREPARED: web.RequestKey[bool] = web.RequestKey("prepared", bool)
SWITCHING_PROTOCOLS = 101  # to a WebSocket, which has a Connection header of its own
SERVER = "firsttoken"  # in place of aiohttp's own value, which tells the versions of it and of Python
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
LINK_REFUSED = "/#link"  # the id of that section
PREFLIGHT_AGE_S = 600  # how long a browser may cache a preflight response
METHODS = "GET, POST, DELETE"
# Response headers that a page may read.
EXPOSED = "Openai-Processing-Ms, Retry-After, Retry-After-Ms, Server-Timing, X-Firsttoken-Ignored, X-Request-Id"


def join_trace(traceparent: str | None) -> Trace:
    """A new trace, inside the caller's when a valid W3C `traceparent` names one.

    Several turns may share the caller's trace id; `span_id` tells them apart.
    """
    trace = Trace(attributes={"span_id": random_id(64)})
    match = TRACEPARENT_SHAPE.fullmatch(traceparent or "")
    if match and int(match[1], 16) and int(match[2], 16) and not (traceparent or "").startswith("ff"):
        trace.id = match[1]
        trace.attributes["parent_id"] = match[2]
    return trace


@dataclass(frozen=True, slots=True)
class Middlewares:
    """What every request passes, with what it needs of the worker. `draining`: the worker is to stop; `leaving`: other
    processes take new requests."""

    services: Services
    budget: Budget
    requests: InFlight
    draining: asyncio.Event
    leaving: asyncio.Event

    @property
    def all(self) -> list[Middleware]:
        """The outermost first."""
        return [self.trace_request, self.sign_in, self.identify, self.end_with_credential]

    @web.middleware
    async def trace_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Outermost: sets the id and the trace of the request, sends its response, and counts it."""
        arrived_ns = now_ns()
        given = request.headers.get("X-Request-Id", "")
        request[REQUEST_ID] = given if REQUEST_ID_SHAPE.fullmatch(given) else f"req_{random_id(128)}"
        request[IGNORED] = Ignored()
        trace = request[TRACE] = join_trace(request.headers.get("Traceparent"))
        trace.start_ns = arrived_ns
        status = LEFT
        guard = guard_of(request)
        if guard:
            guard.begin_serving()
        try:
            response = await self._respond(request, handler)
            status = response.status
            return response
        finally:
            if guard:
                guard.end_serving(request)
            resource = request.match_info.route.resource
            route = resource.canonical if resource else "none"
            self.services.telemetry.metrics.count_request(request.method, route, status)

    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The response of the handler, which has been sent, or that for the error it raised. A worker that is stopping
        refuses new requests.
        """
        if self.draining.is_set() and access_of(request.match_info.handler) != EVERYBODY:
            response: web.StreamResponse = _answer(request, Leaving())
            response.force_close()  # the client's next request goes to another worker
            return response
        try:
            with self.requests.track():
                response = await handler(request)
                await response.prepare(request)
                await response.write_eof()
                return response
        except web.HTTPRedirection as error:
            return web.Response(status=error.status, headers={"Location": error.headers["Location"]})
        except Exception as error:  # the boundary: every error becomes an error response
            return _answer(request, error)

    @web.middleware
    async def sign_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """An invalid link leads to `/` as well: to the chat if the user is signed in, else to the section of the page
        that says how to get another link.
        """
        token = request.query.get("token") if request.path == "/" and request.method == "GET" else None
        if token is None:
            return await handler(request)
        authenticator = self.services.authenticator
        response = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
        try:
            grant = await authenticator.redeem_link(token, remote_of(request))
        except ApiError as error:
            if error.status != 401:
                raise
            response.headers["Location"] = LINK_REFUSED
        else:
            browser, agent = Actor("link", grant.id, request.remote), request.headers.get("User-Agent", "")
            await authenticator.sessions.start(response, grant, browser, agent, secure=request.secure)
        return response

    @web.middleware
    async def identify(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authenticates and authorises the request, then reads its body. Adds the spans edge (arrival until here),
        auth, and edge again while the body arrives.
        """
        access = access_of(request.match_info.handler)
        if request.match_info.http_exception is not None or access == EVERYBODY:
            return await handler(request)  # also for unknown paths: the same response for everybody
        services, trace = self.services, request[TRACE]
        trace.add("edge", trace.start_ns, now_ns())
        with trace.span("auth") as span:
            principal = await services.authenticator.identify(
                request.headers, request.cookies, request.method, trace, remote_of(request)
            )
            if principal is not None:
                request[PRINCIPAL] = principal
                span.attributes["via"] = principal.via
                if principal.via == "api_key":  # so that the answers of a key can be found
                    trace.attributes["firsttoken.key"] = principal.subject
            elif access != VISITORS:
                message = "No credentials were given. Send `Authorization: Bearer <api key>`."
                raise ApiError(401, message, code="missing_api_key")
            if principal is not None and principal.bounds is not None:
                await services.daily_budgets.know(principal)
        if access is None:
            raise web.HTTPForbidden
        if principal is not None:
            access.check(principal)
        if principal is None or not request.body_exists or request.path == UPLOADS:
            request[BODY] = b""
            return await handler(request)
        with self.budget.reserve(principal.tenant_id) as holding:
            with trace.span("edge"):
                request[BODY] = await read_body(request, holding, bytes_max=services.config.body_bytes)
            return await handler(request)

    @web.middleware
    async def end_with_credential(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A response that has begun is aborted, as if its client had disconnected; one that has not becomes a 401."""
        principal, task, ended = request.get(PRINCIPAL), asyncio.current_task(), False
        if principal is None or task is None:
            return await handler(request)

        def end() -> None:
            nonlocal ended
            if task is not asyncio.current_task():  # a session that ends itself gets its response
                ended = True
                task.cancel()

        with self.services.authenticator.revocable(principal, end):
            try:
                return await handler(request)
            except asyncio.CancelledError:
                if not ended or request.get(PREPARED):
                    raise
                task.uncancel()
                message = "The credentials were revoked while this was being answered."
                raise ApiError(401, message, code="invalid_api_key") from None

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called for every response, streams included, just before its headers are sent."""
        request[PREPARED] = True
        headers, id, trace = response.headers, request[REQUEST_ID], request[TRACE]
        headers["Server"] = SERVER
        headers["X-Request-Id"] = id
        headers["Openai-Processing-Ms"] = str(round((now_ns() - trace.start_ns) / 1e6))
        if speaks_anthropic(request):
            headers["Request-Id"] = id  # where Anthropic's clients look for it
        headers["Traceparent"] = f"00-{trace.id}-{trace.attributes['span_id']}-01"
        if cut := trace.attributes.get("firsttoken.cut"):
            headers["X-Firsttoken-Cut"] = str(cut)
        if ignored := request[IGNORED]:
            headers[IGNORED_HEADER] = ignored.header
        if principal := request.get(PRINCIPAL):
            headers.update(self.services.rates.headers(principal, monotonic()))
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)
        if (self.leaving.is_set() or self.draining.is_set()) and response.status != SWITCHING_PROTOCOLS:
            response.force_close()  # the next request of this client goes to another worker
            headers["Connection"] = "close"  # aiohttp set the header before this


def _answer(request: web.Request, error: Exception) -> web.Response:
    if isinstance(error, ClientGone | ConnectionError) and is_gone(request):
        raise ConnectionResetError("the client is gone") from None
    answer = _unrouted(request) or to_api_error(error)
    told = (request.method, request.path, request[REQUEST_ID])
    if answer is None or answer.status == 500:
        log.error("%s %s failed, request %s", *told, exc_info=error)
    elif (
        answer.status > 500 and answer.code != OVERLOADED and not isinstance(error, Interrupted)
    ):  # a dependency failed
        log.warning("%s %s was refused, request %s: %r", *told, error)
    if request.get(PREPARED):  # the response has begun: it can only be cut off
        raise ConnectionAbortedError("the answer broke off") from error
    if answer is None:
        message = f"Something went wrong on our side. See the log for request {request[REQUEST_ID]}."
        answer = ApiError(500, message, code="server_error")
    return error_response(answer, to_anthropic=speaks_anthropic(request))


def _unrouted(request: web.Request) -> ApiError | None:
    """The error for a path without a route."""
    if not isinstance(request.match_info.http_exception, web.HTTPNotFound):
        return None
    return unknown_path(request.method, request.path, [each.canonical for each in request.app.router.resources()])


def error_response(error: ApiError, *, to_anthropic: bool = False) -> web.Response:
    """The response for an error, for clients of OpenAI's API or of Anthropic's."""
    headers = {"Server": SERVER, **error.headers}
    if error.retry_after_s is not None:
        headers["Retry-After-Ms"] = str(round(error.retry_after_s * 1000))
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(error) if to_anthropic else error.body
    return json_response(body, status=error.status, headers=headers)


@dataclass(frozen=True, slots=True)
class CorsMiddleware:
    cors: Cors

    @web.middleware
    async def preflight(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the browser's preflight request, which carries no credentials."""
        if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
            return await handler(request)
        if self._allowed(request) is None:
            return await handler(request)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_AGE_S),
        }
        return web.Response(status=204, headers=headers)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """On every response, including errors and streams, right before its headers are sent."""
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin := self._allowed(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    def _allowed(self, request: web.Request) -> str | None:
        return self.cors.allowed(request.headers.get(hdrs.ORIGIN))
