"""Items and responses as clients see them. Pure."""

from __future__ import annotations

from typing import Any

from agents.call_payload import CALLS
from agents.message import Item
from agents.payload import to_payload
from worker.wire.dialect import Dialect


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
