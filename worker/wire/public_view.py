"""Items, responses and events as clients see them, in two dialects: OpenAI's own and that of the Open Responses
specification.

The header `OpenResponses-Version` of the request that creates a response selects the second; the default is the first.
They differ only in this: reasoning has another name, an error is an event before the response fails, and citations are
identified by their URL alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from agents.call_payload import CALLS
from agents.message import Item
from agents.payload import to_payload
from worker.wire.events import WireEvent, error

DIALECT_HEADER = "OpenResponses-Version"
RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


class Dialect(Enum):
    OPENAI = "openai"
    OPEN_RESPONSES = "open_responses"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Dialect:
        return cls.OPEN_RESPONSES if DIALECT_HEADER in headers else cls.OPENAI

    def spelled(self, event: WireEvent) -> list[WireEvent]:
        """An event of the first dialect in this one."""
        if self is Dialect.OPENAI:
            return [event]
        renamed = {**event, "type": RENAMED.get(event["type"], event["type"])}
        return [error(_complaint(event["response"])), renamed] if event["type"] == "response.failed" else [renamed]

    def cited(self, item: dict[str, Any]) -> dict[str, Any]:
        """An item of the first dialect, with its citations in this one."""
        if self is Dialect.OPENAI or item["type"] != "message":
            return item
        return {**item, "content": [_with_urls(part) for part in item["content"]]}


def _with_urls(part: dict[str, Any]) -> dict[str, Any]:
    notes = part.get("annotations")
    return {**part, "annotations": [{**note, "type": "url_citation"} for note in notes]} if notes else part


def _complaint(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "server_error", "param": None, **(response["error"] or {})}


def public_item(item: Item, with_results: bool = False, dialect: Dialect = Dialect.OPENAI) -> dict[str, Any]:
    """An item as clients see it: search results only on request."""
    return dialect.cited(_public(to_payload(item), with_results))


def public_response(body: dict[str, Any], with_results: bool = False) -> dict[str, Any]:
    """A stored response as clients see it."""
    return {**body, "output": [_public(item, with_results) for item in body["output"]]}


def _public(payload: dict[str, Any], with_results: bool) -> dict[str, Any]:
    match payload:
        case {"type": "file_search_call"} if not with_results:
            return {**payload, "results": None}
        case {"type": type, "status": "failed"} if type in CALLS and type != "mcp_call":  # others do not fail
            return {**payload, "status": "incomplete"}
    return payload
