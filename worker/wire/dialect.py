"""The two dialects of streamed responses: OpenAI's own and that of the Open Responses specification.

The header `OpenResponses-Version` of the request that makes a response chooses the second; without it, it is the first.
They share all events but these: thoughts have another name, and an error is an event before the response has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from worker.wire.events import WireEvent, error

HEADER = "OpenResponses-Version"
RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


class Dialect(Enum):
    OPENAI = "openai"
    OPEN_RESPONSES = "open_responses"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Dialect:
        return cls.OPEN_RESPONSES if HEADER in headers else cls.OPENAI

    def spelled(self, event: WireEvent) -> list[WireEvent]:
        """An event of the first dialect as this one tells it."""
        if self is Dialect.OPENAI:
            return [event]
        renamed = {**event, "type": RENAMED.get(event["type"], event["type"])}
        return [error(_complaint(event["response"])), renamed] if event["type"] == "response.failed" else [renamed]


def _complaint(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "server_error", "param": None, **(response["error"] or {})}
