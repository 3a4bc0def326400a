"""The open connections: limits in total and per tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from aiohttp import web

from worker.errors import rate_limited

OPEN_MAX = 1024  # an idle one costs some kilobytes and a ping every 15 seconds
TENANT_OPEN_MAX = 64
RETRY_AFTER_S = 5.0


class Sockets:
    def __init__(self) -> None:
        self._open: Counter[UUID] = Counter()

    def __repr__(self) -> str:
        return f"<Sockets {self._open.total()} open | {len(self._open)} tenants>"

    @contextmanager
    def open(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place for the duration of a connection. Raises ApiError(429) if there is none."""
        if self._open.total() >= OPEN_MAX or self._open[tenant_id] >= TENANT_OPEN_MAX:
            message = f"Too many connections are open; the limit per tenant is {TENANT_OPEN_MAX}."
            raise rate_limited(f"{message} Close one, or try again in a moment.", RETRY_AFTER_S)
        self._open[tenant_id] += 1
        try:
            yield
        finally:
            self._open[tenant_id] -= 1
            if not self._open[tenant_id]:
                del self._open[tenant_id]


SOCKETS: web.AppKey[Sockets] = web.AppKey("sockets", Sockets)
