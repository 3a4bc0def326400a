"""What can go wrong in a turn before it starts. `status` is the HTTP status that the edge answers with."""

from __future__ import annotations


class AgentError(Exception):
    """The turn cannot be done as asked."""

    status = 400
    code: str | None = "invalid_request_error"
    param: str | None = None


class InvalidTurn(AgentError):
    """The turn contradicts itself; `param` names the part of the request to change."""

    def __init__(self, message: str, *, param: str = "input") -> None:
        super().__init__(message)
        self.param = param


class HistoryTooLong(AgentError):
    """More stands before this turn than any prompt holds."""

    code = "context_length_exceeded"
    param = "input"


class NotFound(AgentError):
    """No such conversation, response or item of this tenant."""

    status = 404
    code = "not_found"

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(f"There is no {kind} with the id '{id}'.")
        self.kind = kind
        self.id = id


class TooManyQueued(AgentError):
    """A tenant has as many responses in the queue as it may."""

    status = 429
    code = "rate_limit_exceeded"
    param = "background"
    retry_after_s = 10.0  # about the length of a long answer, after which there is likely a place

    def __init__(self, queued_max: int) -> None:
        super().__init__(f"{queued_max} of your responses wait in the queue, which is the most. Try again later.")
