"""Calls of hosted tools in earlier answers, and their results, as text that any model can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import StringConstraints

from agents.call_shape import qualified
from agents.message import FunctionCall, FunctionCallOutput
from worker.wire.mcp import Label, ToolName
from worker.wire.messages_tool_changes import ToolChanges
from worker.wire.strict import CallId, Echoed

SEARCHED, ERROR = "tool_search_tool_result", "Error"
# Keys whose values only their server can read, or that say what the other keys say.
UNREADABLE = ("type", "id", "file_id", "tool_use_id", "media_type", "cache_control", "citations")
ResultType: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}_tool_result$")]


class ServerToolUseBlock(Echoed):
    type: Literal["server_tool_use", "mcp_tool_use"]
    id: CallId
    name: ToolName
    input: dict[str, Any]
    server_name: Label | None = None

    def item(self) -> FunctionCall:
        """Under the name by which the model knows it."""
        name = qualified(self.server_name or "", self.name)
        return FunctionCall(self.id, name, json.dumps(self.input, ensure_ascii=False))


class ServerToolResultBlock(Echoed):
    """The result of any hosted tool: of a web search, of code, of an MCP server."""

    type: ResultType
    tool_use_id: CallId
    content: Any = None
    is_error: bool | None = None

    def item(self, changes: ToolChanges) -> FunctionCallOutput:
        if self.type == SEARCHED and (names := _references(self.content)) is not None:
            added = changes.referred(names)
            return FunctionCallOutput(self.tool_use_id, added.text, tools=added.tools)
        text = "\n".join(_readable(self.content))
        if self.is_error and not text.startswith(ERROR):
            text = f"{ERROR}: {text}"
        return FunctionCallOutput(self.tool_use_id, text)


def _references(content: Any) -> list[str] | None:
    """The names of the tools that a search found; None: it failed."""
    match content:
        case {"tool_references": [*references]}:
            names = (each.get("tool_name") for each in references if isinstance(each, dict))
            return [name for name in names if isinstance(name, str)]
    return None


def _readable(value: Any, key: str = "") -> Iterator[str]:
    """The lines of a value: texts as they are, other values with their key. Encrypted ones are left out."""
    if key in UNREADABLE or key.startswith("encrypted"):
        return
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _readable(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _readable(each, key)
    elif value not in (None, ""):
        text = value if isinstance(value, str) else json.dumps(value)
        yield text if key in ("", "text", "content", "data", "title", "stdout") else f"{key}: {text}"
