"""How many turns may be in progress: a cap for the worker and a smaller one for each tenant.

Requests over a cap are refused at once with a time to retry, instead of waiting in an invisible queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from worker.errors import ApiError

RETRY_AFTER_S = 1.0  # about the length of a short answer: when the next turn is likely to end


class Admission:
    """Counts turns in progress. Not thread-safe: for the event loop only."""

    def __init__(self, turns_max: int, tenant_turns_max: int) -> None:
        self._turns_max = turns_max
        self._tenant_turns_max = tenant_turns_max
        self._turns: Counter[UUID] = Counter()

    def __repr__(self) -> str:
        return f"<Admission {self.active} of {self._turns_max} turns | {len(self._turns)} tenants>"

    @property
    def active(self) -> int:
        return self._turns.total()

    @contextmanager
    def turn(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place while the answer streams. Raises ApiError(429) when none is free."""
        if self.active >= self._turns_max:
            raise _refused(f"The worker is busy with {self.active} turns.")
        if self._turns.get(tenant_id, 0) >= self._tenant_turns_max:
            raise _refused(f"You already have {self._tenant_turns_max} turns in progress, which is the limit.")
        self._turns[tenant_id] += 1
        try:
            yield
        finally:
            self._turns[tenant_id] -= 1
            if not self._turns[tenant_id]:
                del self._turns[tenant_id]


def _refused(message: str) -> ApiError:
    return ApiError(
        429,
        f"{message} Try again in a moment.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_s=RETRY_AFTER_S,
    )
