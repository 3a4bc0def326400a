"""A request is ended when its credential is revoked while it is being answered."""

from __future__ import annotations

import asyncio

from aiohttp import web

from worker.errors import ApiError
from worker.middleware import PREPARED, Handler
from worker.request_keys import PRINCIPAL
from worker.services import SERVICES


@web.middleware
async def end_with_credential(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A response that has begun is aborted, as if its client had disconnected; one that has not becomes a 401."""
    principal, task, ended = request.get(PRINCIPAL), asyncio.current_task(), False
    if principal is None or task is None:
        return await handler(request)

    def end() -> None:
        nonlocal ended
        if task is not asyncio.current_task():  # a session that ends itself gets its response
            ended = True
            task.cancel()

    with request.app[SERVICES].authenticator.revocable(principal, end):
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if not ended or request.get(PREPARED):
                raise
            task.uncancel()
            message = "The credentials were revoked while this was being answered."
            raise ApiError(401, message, type="authentication_error", code="invalid_api_key") from None
