"""Errors of the public contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.message import storable
from inference.errors import OVERLOADED, GrammarFailed

BUSY = frozenset({429, 503})  # not the client's fault: it may retry elsewhere, or later
PLATFORM = "server_error"  # the code of what is no fault of the request: the same one may succeed
BROKE = "Internal error while generating the answer. Please try again."
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def type_of(status: int) -> str:
    return "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")


class ApiError(Exception):
    """Sent as {"error": {"message", "type", "param", "code"}} with this status. The type follows from it, if none is
    given."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or type_of(status)
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The error body. Text quoted from the request may contain what JSON cannot represent."""
        param = None if self.param is None else storable(self.param)
        return {"error": {"message": storable(self.message), "type": self.type, "param": param, "code": self.code}}

    @property
    def failure(self) -> dict[str, str]:
        """The error of a response that failed with this."""
        return {"code": self.code or "server_error", "message": self.message}


def invalid(param: str, reason: str) -> ApiError:
    """400, for a parameter whose value is wrong. `reason` is a sentence that follows its name."""
    return ApiError(400, f"Invalid '{param}': {reason}", param=param, code="invalid_value")


def failed(failure: Mapping[str, str]) -> ApiError:
    """What ended an answer that had begun. 400 where its schema did: clients repeat a request that got 500."""
    status = GrammarFailed.status if failure["code"] == GrammarFailed.code else 500
    return ApiError(status, failure["message"], code=failure["code"])


def rate_limited(message: str, retry_after_s: float | None = None) -> ApiError:
    """429, for a caller with too much in progress."""
    return ApiError(429, message, code="rate_limit_exceeded", retry_after_s=retry_after_s)


def overloaded(message: str, retry_after_s: float) -> ApiError:
    """503, when all callers together have too much in progress."""
    return ApiError(503, message, code=OVERLOADED, retry_after_s=retry_after_s)


class ClientGone(Exception):
    """The client closed the connection or stopped reading: nobody receives its response."""


class StartError(Exception):
    """The worker cannot start or a command cannot run; the message is one line that says what to do."""
