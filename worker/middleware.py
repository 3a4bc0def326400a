"""What every request passes through: an id, a trace, an answer for every error, and the question who is asking."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import orjson
from aiohttp import web

from inference.trace import Trace, now_ns
from worker.errors import ApiError
from worker.failures import to_api_error
from worker.request_keys import PRINCIPAL, REQUEST_ID, TRACE
from worker.services import SERVICES

log = logging.getLogger("firsttoken.http")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_SHAPE = re.compile(r"[A-Za-z0-9._-]{1,64}")  # an id of the caller's goes into logs and headers as it is
TRACEPARENT_SHAPE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
# Everything else demands credentials. The pages are told who asks, and show how to sign in when it is nobody.
PAGES = frozenset({"/", "/ops"})
UPLOADS = "/v1/files"  # whose body is read as it arrives, and may be larger than memory should hold
FOR_EVERYBODY = re.compile(r"/healthz|/readyz|/static/.*")
PREPARED: web.RequestKey[bool] = web.RequestKey("prepared", bool)
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def join_trace(traceparent: str | None) -> Trace:
    """A new trace, inside the caller's when a valid W3C `traceparent` names one.

    Several turns may share the caller's trace id; `span_id` tells them apart.
    """
    trace = Trace(attributes={"span_id": secrets.token_hex(8)})
    match = TRACEPARENT_SHAPE.fullmatch(traceparent or "")
    if match and int(match[1], 16) and int(match[2], 16) and not (traceparent or "").startswith("ff"):
        trace.id = match[1]
        trace.attributes["parent_id"] = match[2]
    return trace


@web.middleware
async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: the request's id and trace, the answer for whatever was raised, and the count of requests."""
    arrived_ns = now_ns()
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if REQUEST_ID_SHAPE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
    trace = request[TRACE] = join_trace(request.headers.get("Traceparent"))
    trace.start_ns = arrived_ns
    status = 499  # unless an answer goes out: the client is gone
    try:
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as error:
        if error.status < 400:  # a redirect is an answer, not a failure
            status = error.status
            raise
        response = _answer(request, error)
        status = response.status
        return response
    except Exception as error:  # the boundary: whatever happens inside, the caller gets the error shape
        response = _answer(request, error)
        status = response.status
        return response
    finally:
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "none"
        request.app[SERVICES].telemetry.metrics.count_request(request.method, route, status)


def _answer(request: web.Request, error: Exception) -> web.Response:
    answer = to_api_error(error)
    if answer is None or answer.status >= 500:
        log.error("%s %s failed, request %s", request.method, request.path, request[REQUEST_ID], exc_info=error)
    if request.get(PREPARED):  # the answer has begun: all that is left is to break the connection
        raise error
    if answer is None:
        message = f"Something went wrong on our side. The log tells more under request {request[REQUEST_ID]}."
        answer = ApiError(500, message, type="server_error", code="server_error")
    return error_response(answer)


def error_response(error: ApiError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After-Ms"] = str(round(error.retry_after_s * 1000))
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=error.status, body=orjson.dumps(error.body), content_type="application/json", headers=headers
    )


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who is asking. Adds the spans edge (arrival until here), auth, and edge again while the body arrives."""
    if request.match_info.http_exception is not None or FOR_EVERYBODY.fullmatch(request.path):
        return await handler(request)  # also when there is no such address: the same answer for everybody
    services, trace = request.app[SERVICES], request[TRACE]
    trace.add("edge", trace.start_ns, now_ns())
    with trace.span("auth") as span:
        principal = await services.authenticator.identify(request.headers, request.cookies, request.method, trace)
        if principal is not None:
            request[PRINCIPAL] = principal
            span.attributes["via"] = principal.via
        elif request.path not in PAGES:
            raise ApiError(
                401,
                "No credentials were given. Send `Authorization: Bearer <api key>`.",
                type="authentication_error",
                code="missing_api_key",
            )
    if request.body_exists and request.path not in PAGES and request.path != UPLOADS:
        with trace.span("edge"):
            await request.read()
    return await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams included, in the moment before its headers go out."""
    request[PREPARED] = True
    response.headers["X-Request-Id"] = request[REQUEST_ID]
    trace = request[TRACE]
    response.headers["Traceparent"] = f"00-{trace.id}-{trace.attributes['span_id']}-01"
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
