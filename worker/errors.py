"""Errors as the public contract spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.message import storable
from inference.errors import OVERLOADED

BUSY = frozenset({429, 503})  # not the fault of what was asked: it may be asked elsewhere, or later
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
        """What it quotes of the request may be text that no JSON holds."""
        param = None if self.param is None else storable(self.param)
        return {"error": {"message": storable(self.message), "type": self.type, "param": param, "code": self.code}}


def rate_limited(message: str, retry_after_s: float | None = None) -> ApiError:
    """429, for whoever has too much in progress."""
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry_after_s)


def overloaded(message: str, retry_after_s: float) -> ApiError:
    """503, for what everybody together has in progress."""
    return ApiError(503, message, type="server_error", code=OVERLOADED, retry_after_s=retry_after_s)


class ClientGone(Exception):
    """The client closed the connection or stopped reading: its answer has no reader."""


class StartError(Exception):
    """The worker cannot start or a command cannot be done; the message is one line that says what to do."""
