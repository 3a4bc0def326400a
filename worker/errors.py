"""Errors as the public contract spells them."""

from __future__ import annotations

from typing import Any

BROKE = "Internal error while generating the answer. Please try again."


class ApiError(Exception):
    """Answered as {"error": {"message", "type", "param", "code"}} with this status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ClientGone(Exception):
    """The client closed the connection or stopped reading: its answer has no reader."""


class StartError(Exception):
    """The worker cannot start or a command cannot be done; the message is one line that says what to do."""
