"""What happens to an answer when its last reader leaves: the header `x-firsttoken-on-disconnect`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from worker.errors import invalid

HEADER = "X-Firsttoken-On-Disconnect"
DIGITS_MAX = 9  # before a number is read
GRACE_MAX_S = 600.0  # the longest a client may take to come back; `continue` has no such end


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Stop after `grace_s` seconds without a reader; never, when it is infinite."""

    grace_s: float

    @classmethod
    def parse(cls, value: str | None, usual: Disconnect | None = None) -> Disconnect:
        """cancel, continue, or seconds; without a value `usual`, which is to cancel. Raises ApiError 400."""
        if value is None:
            return usual or STOP
        if value == "cancel":
            return STOP
        if value == "continue":
            return GO_ON
        if value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX and int(value) <= GRACE_MAX_S:
            return cls(float(value))
        raise invalid(HEADER, f"it must be cancel, continue or a number of seconds up to {GRACE_MAX_S:.0f}.")


STOP = Disconnect(0.0)
GO_ON = Disconnect(float("inf"))
COME_BACK = Disconnect(30.0)  # of an answer with an Idempotency-Key: clients retry after at most 8 s


class Readers:
    """Counts the clients that read an answer. Once there are none, `policy` decides how long it goes on; then `stop` is
    called."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.policy = STOP
        self._stop = stop
        self._count = 0
        self._unread: asyncio.TimerHandle | None = None  # while there is no reader
        self._over = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """In the block, a client reads."""
        self._count += 1
        self._disarm()
        try:
            yield
        finally:
            self._count -= 1
            self.expect()

    def expect(self) -> None:
        """There may be no reader yet: the policy decides for how long."""
        self._disarm()
        if self.policy is not GO_ON and not self._count and not self._over:
            self._unread = asyncio.get_running_loop().call_later(self.policy.grace_s, self._stop)

    def close(self) -> None:
        """The answer has ended."""
        self._over = True
        self._disarm()

    def _disarm(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
