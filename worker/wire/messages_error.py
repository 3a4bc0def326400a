"""Errors in the format of the Messages API."""

from __future__ import annotations

from typing import Any

from agents.message import storable
from worker.errors import ApiError

PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
TOO_LONG = "prompt is too long"  # coding agents look for these words, and then shorten the conversation

THREAD = "thread"
# This tells the tool loops of Anthropic's clients, which ask the server to keep the conversation, that they must send
# it in full.
UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": [THREAD]}


def is_for(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def type_of(status: int) -> str:
    return TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def body(error: ApiError) -> dict[str, Any]:
    """The message includes the parameter's name: clients of this API read nothing else."""
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"{TOO_LONG}: {message}"
    elif error.param and error.param not in message:
        message = f"{error.param}: {message}"
    told = {**error.body["error"], "type": type_of(error.status), "message": storable(message)}
    return {"type": "error", "error": {**told, "details": UNTHREADED} if error.param == THREAD else told}


def event(message: str) -> dict[str, Any]:
    """Of an answer that was interrupted."""
    return {"type": "error", "error": {"type": "api_error", "message": message}}
