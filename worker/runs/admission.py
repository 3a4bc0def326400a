"""How many turns may be in progress: a cap for the worker and a smaller one for each tenant.

Requests over a cap are refused at once with a time to retry, instead of waiting in an invisible queue. A tenant that
holds much leaves room for those that hold little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from inference.engine.fairness import within_share
from worker.errors import ApiError, overloaded, rate_limited

RESERVED_PART = 4  # one place of so many is reserved for turns that somebody waits for
RETRY_AFTER_S = 1.0  # about the length of a short answer: when the next turn is likely to end


class Admission:
    """Counts turns in progress. Not thread-safe: for the event loop only.

    Those that somebody waits for are counted apart from the others, of the class batch, which may be many and long: so
    who asks for much in the background is not refused what people ask for.
    """

    def __init__(self, turns_max: int, tenant_turns_max: int) -> None:
        self._turns_max = turns_max
        self._tenant_turns_max = tenant_turns_max
        self._unwaited_max = turns_max - turns_max // RESERVED_PART
        self._waited: Counter[UUID] = Counter()
        self._unwaited: Counter[UUID] = Counter()

    def __repr__(self) -> str:
        return f"<Admission {self.active} of {self._turns_max} turns | {self._unwaited.total()} unwaited>"

    @property
    def active(self) -> int:
        return self._waited.total() + self._unwaited.total()

    @contextmanager
    def turn(self, tenant_id: UUID, *, waited: bool = True) -> Iterator[None]:
        """Hold a place while the answer streams. Raises ApiError when none is free: 429 where the tenant holds its
        share, 503 where the others do."""
        turns, free, which = self._waited, self._turns_max - self.active, "turns in progress"
        if not waited:
            turns, free = self._unwaited, min(free, self._unwaited_max - self._unwaited.total())
            which = "turns of the class batch in progress"
        if (held := turns[tenant_id]) >= self._tenant_turns_max:
            raise _own(f"You already have {self._tenant_turns_max} {which}, which is the limit.")
        if free <= 0:
            raise overloaded(f"The worker is busy with {self.active} turns. Try again in a moment.", RETRY_AFTER_S)
        if not within_share(held, free):
            raise _own(f"You already have {held} {which}; what is free is left to others.")
        turns[tenant_id] += 1
        try:
            yield
        finally:
            turns[tenant_id] -= 1
            if not turns[tenant_id]:
                del turns[tenant_id]


def _own(message: str) -> ApiError:
    return rate_limited(f"{message} Try again in a moment.", RETRY_AFTER_S)
