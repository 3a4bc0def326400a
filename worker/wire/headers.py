"""What a request says in headers of ours, for programs whose client writes its body for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from worker.errors import ApiError
from worker.wire.chat_request import ChatRequest
from worker.wire.metadata import DETERMINISTIC
from worker.wire.response_request import ResponseRequest

SAME_BYTES = "X-Firsttoken-Deterministic"
Body = TypeVar("Body", ChatRequest, ResponseRequest)


def with_headers(body: Body, headers: Mapping[str, str]) -> Body:
    """The body as if it said so itself: what is stored and told back is the same. Raises ApiError 400."""
    value = headers.get(SAME_BYTES)
    if value is None:
        return body
    if value not in ("true", "false"):
        message = f"Invalid '{SAME_BYTES}': it is true or false."
        raise ApiError(400, message, param=SAME_BYTES, code="invalid_value")
    return body.model_copy(update={"metadata": {**(body.metadata or {}), DETERMINISTIC: value}})
