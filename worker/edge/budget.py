"""How many bytes of requests may be held in memory: per tenant, and in total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from aiohttp import web

from worker.errors import ApiError, rate_limited

RETRY_AFTER_S = 1.0  # about the duration of a short response, which frees its request


class Budget:
    """Counts the bytes of requests that have not been answered yet. For the event loop only."""

    def __init__(self, bytes_max: int, tenant_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tenant_bytes_max = tenant_bytes_max
        self._held: Counter[UUID] = Counter()

    def __repr__(self) -> str:
        return f"<Budget {self._held.total()} of {self._bytes_max} bytes | {len(self._held)} tenants>"

    @property
    def held_bytes(self) -> int:
        return self._held.total()

    @contextmanager
    def reserve(self, tenant_id: UUID) -> Iterator[Reservation]:
        """What is added to the reservation counts until the end of the block."""
        holding = Reservation(self, tenant_id)
        try:
            yield holding
        finally:
            holding.resize(0)

    def change(self, tenant_id: UUID, by: int) -> None:
        """Raises ApiError(429) if the tenant, or all of them together, would exceed the limit."""
        if by > 0:
            if self._held[tenant_id] + by > self._tenant_bytes_max:
                megabytes = self._tenant_bytes_max // 2**20
                raise _refused(f"Your requests in progress hold {megabytes} MB, which is the limit.")
            if self.held_bytes + by > self._bytes_max:
                raise _refused("The worker is busy with large requests.")
        self._held[tenant_id] += by
        if not self._held[tenant_id]:
            del self._held[tenant_id]


class Reservation:
    """The bytes of one request, or of one connection."""

    def __init__(self, budget: Budget, tenant_id: UUID) -> None:
        self._budget = budget
        self._tenant_id = tenant_id
        self.bytes = 0

    def resize(self, size: int) -> None:
        """Hold this many bytes from now on. Raises ApiError(429), which leaves the reservation unchanged."""
        self._budget.change(self._tenant_id, size - self.bytes)
        self.bytes = size


BUDGET: web.AppKey[Budget] = web.AppKey("budget", Budget)


def _refused(message: str) -> ApiError:
    return rate_limited(f"{message} Try again in a moment.", RETRY_AFTER_S)
