"""Errors that refuse a turn before it starts. `status` is the HTTP status of the response."""

from __future__ import annotations

STOPPED = "The worker that was generating this answer stopped. Please try again."


class AgentError(Exception):
    """The turn cannot run as requested."""

    status = 400
    code: str | None = "invalid_request_error"
    param: str | None = None


class InvalidTurn(AgentError):
    """The turn is inconsistent; `param` names the part of the request to change, unless it is none of its body."""

    def __init__(self, message: str, *, param: str | None = "input") -> None:
        super().__init__(message)
        self.param = param


class HistoryTooLong(AgentError):
    """The history of this turn is longer than any prompt."""

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


class ConversationBusy(AgentError):
    """An answer of this conversation is in progress."""

    status = 409
    code = "conversation_busy"

    def __init__(self) -> None:
        super().__init__("An answer is being generated in this conversation. Wait for it to finish, or cancel it.")


class Interrupted(AgentError):
    """The worker is stopping, and the drain time of this work is over."""

    status = 503
    code = "server_error"
    retry_after_s = 1.0  # another worker may be ready already

    def __init__(self, message: str = STOPPED) -> None:
        super().__init__(message)


class Leaving(Interrupted):
    """The worker is stopping, and accepts nothing new."""

    def __init__(self) -> None:
        super().__init__("This worker is stopping and accepts no new requests. Try again: another one may be ready.")


class TooManyQueued(AgentError):
    """The tenant has reached its limit of responses in the queue."""

    status = 429
    code = "rate_limit_exceeded"
    param = "background"
    retry_after_s = 10.0  # about the duration of a long answer, after which there is probably room

    def __init__(self, queued_max: int) -> None:
        super().__init__(
            f"{queued_max} of your responses are already in the queue, which is the limit. Try again later."
        )


class TurnOver(AgentError):
    """The response has ended: nothing can be said to it any more."""

    status = 409
    code = "response_already_completed"
    param = "previous_response_id"

    def __init__(self, id: str) -> None:
        super().__init__(f"The response '{id}' has ended: continue it with another request.")


class WaitsForCaller(AgentError):
    """The response has ended with calls of the caller's functions, whose outputs come first."""

    status = 409
    code = "response_not_active"

    def __init__(self) -> None:
        super().__init__("The response waits for the outputs of its calls: send them together with this input.")


class TooMuchSaid(AgentError):
    """More was said to a running response than its successor takes."""

    status = 429
    code = "too_many_pending_steers"
    param = "input"
    retry_after_s = 10.0  # about the duration of a long answer

    def __init__(self, messages: int, size: int) -> None:
        super().__init__(f"At most {messages} messages with {size} bytes may wait for the end of a response.")
