"""Options in headers of ours, for programs whose client library controls the body."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from worker.errors import invalid
from worker.telemetry.goodput import REFUSE, WAIT
from worker.wire.chat_request import ChatRequest
from worker.wire.completion_request import CompletionRequest
from worker.wire.limits import METADATA_PAIRS_MAX
from worker.wire.messages_request import MessagesRequest
from worker.wire.options import DETERMINISTIC, HINTS, LATE, SURFACE
from worker.wire.response_request import ResponseRequest

IN_METADATA = {
    "X-Firsttoken-Deterministic": DETERMINISTIC,
    "X-Firsttoken-Surface": SURFACE,
    "X-Firsttoken-Late": LATE,
    "X-Firsttoken-Hints": HINTS,
}
Body = TypeVar("Body", ChatRequest, CompletionRequest, MessagesRequest, ResponseRequest)


def with_headers(body: Body, headers: Mapping[str, str], surfaces: Collection[str]) -> Body:
    """The body as if it contained the options: they are stored and returned in the same way. `surfaces` are the allowed
    names. Raises ApiError 400."""
    allowed: dict[str, Collection[str]] = {
        DETERMINISTIC: ("true", "false"),
        SURFACE: surfaces,
        LATE: (REFUSE, WAIT),
        HINTS: ("true", "false"),
    }
    said: dict[str, str] = {}
    for header, pair in IN_METADATA.items():
        value = headers.get(header)
        if value is None:
            continue
        if value not in allowed[pair]:
            raise invalid(header, f"it must be one of {', '.join(allowed[pair])}.")
        said[pair] = value
    pairs = {**(body.metadata or {}), **said}
    if len(pairs) > METADATA_PAIRS_MAX:
        raise invalid("metadata", f"with the headers it has more than {METADATA_PAIRS_MAX} pairs.")
    return body.model_copy(update={"metadata": pairs}) if said else body
