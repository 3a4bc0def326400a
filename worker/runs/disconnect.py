"""What happens to an answer when its last reader leaves: the header `x-firsttoken-on-disconnect`."""

from __future__ import annotations

from dataclasses import dataclass

from worker.errors import ApiError

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
        message = f"Invalid '{HEADER}': it must be cancel, continue or a number of seconds up to {GRACE_MAX_S:.0f}."
        raise ApiError(400, message, param=HEADER, code="invalid_value")


STOP = Disconnect(0.0)
GO_ON = Disconnect(float("inf"))
