"""Errors of the public contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.message import storable
from inference.errors import OVERLOADED

BUSY = frozenset({429, 503})  # not the client's fault: it may retry elsewhere, or later
BROKE = "Internal error while generating the answer. Please try again."


class ApiError(Exception):
    """Sent as {"error": {"message", "type", "param", "code"}} with this status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The error body. Text quoted from the request may contain what JSON cannot represent."""
        param = None if self.param is None else storable(self.param)
        return {"error": {"message": storable(self.message), "type": self.type, "param": param, "code": self.code}}


def rate_limited(message: str, retry_after_s: float | None = None) -> ApiError:
    """429, for a caller with too much in progress."""
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry_after_s)


def overloaded(message: str, retry_after_s: float) -> ApiError:
    """503, when all callers together have too much in progress."""
    return ApiError(503, message, type="server_error", code=OVERLOADED, retry_after_s=retry_after_s)


class ClientGone(Exception):
    """The client closed the connection or stopped reading: nobody receives its response."""


class StartError(Exception):
    """The worker cannot start or a command cannot run; the message is one line that says what to do."""
