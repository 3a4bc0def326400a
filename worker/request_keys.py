"""What the middlewares know of a request.

TRACE and REQUEST_ID are set in every handler, and so is PRINCIPAL where credentials are required; on the pages
`request.get(PRINCIPAL)` is the signed-in user or None.
"""

from __future__ import annotations

from aiohttp import web

from inference.trace import Trace
from worker.auth.principal import Principal

TRACE: web.RequestKey[Trace] = web.RequestKey("trace", Trace)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
