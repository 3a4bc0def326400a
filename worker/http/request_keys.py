"""What the middlewares store in a request.

TRACE, REQUEST_ID and IGNORED are set in every handler, and so are PRINCIPAL and BODY where credentials are required; on
the pages `request.get(PRINCIPAL)` is the signed-in user or None. BODY is decompressed; uploads are read as they arrive.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from inference.trace import Trace
from migrations.pool import Also
from worker.auth.audit import Act, Actor, note
from worker.auth.principal import Principal
from worker.wire.strict import Ignored

TRACE: web.RequestKey[Trace] = web.RequestKey("trace", Trace)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
IGNORED: web.RequestKey[Ignored] = web.RequestKey("ignored", Ignored)
BODY: web.RequestKey[bytes] = web.RequestKey("body", bytes)


def actor_of(request: web.Request) -> Actor:
    """The caller, as recorded in the audit log."""
    principal = request[PRINCIPAL]
    return Actor(principal.via, principal.subject, request.remote)


def noted(request: web.Request, act: Act, object: str, **detail: Any) -> Also:
    """Writes the act of this request to the audit log, in the transaction that performs it."""
    tenant_id, actor = request[PRINCIPAL].tenant_id, actor_of(request)
    return lambda connection: note(connection, tenant_id, actor, act, object, **detail)
