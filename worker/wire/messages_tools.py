"""Tools of the Messages API: functions that the client runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticOmit

from agents.function_tool import FunctionTool
from agents.turn import ToolSearch
from inference.grammar.tools import ANY_OBJECT
from worker.wire import limits
from worker.wire.function_tools import Description, Schema
from worker.wire.ignored import note, without_effect
from worker.wire.messages_mcp import McpToolset
from worker.wire.schemas import constrainable
from worker.wire.strict import SPELLABLE, Lenient, only

# Tools that run on Anthropic's own servers. Coding agents send them along with every request.
HOSTED = ("web_search_", "web_fetch_", "code_execution_")
ToolName: TypeAlias = Annotated[str, StringConstraints(pattern=limits.NAME_PATTERN)]


def _required(schema: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
    """A deferred tool without a schema takes any object."""
    if schema is None and not info.data.get("defer_loading"):
        raise PydanticCustomError("missing", "Field required")
    return schema


def _enforceable(strict: bool | None, info: ValidationInfo) -> bool | None:
    if strict and info.data.get("input_schema") is not None:
        constrainable(info.data["input_schema"], "input_schema")
    return strict


class CustomTool(Lenient):
    """With `strict`, the arguments always match the schema."""

    name: ToolName
    description: Description | None = None
    defer_loading: bool | None = None
    input_schema: Annotated[Schema | None, AfterValidator(_required), Field(validate_default=True)] = None
    type: Annotated[str | None, only(None, "custom")] = None  # others have schemas that only their models know
    strict: Annotated[bool | None, AfterValidator(_enforceable)] = None
    cache_control: Annotated[Any, without_effect("cache_control")] = None
    input_examples: Annotated[Any, without_effect("tools.input_examples")] = None
    eager_input_streaming: bool | None = None  # arguments are always streamed

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def definition(self) -> FunctionTool:
        schema = ANY_OBJECT if self.input_schema is None else self.input_schema
        return FunctionTool(
            self.name, self.description or "", schema, bool(self.strict), deferred=bool(self.defer_loading)
        )


class SearchTool(Lenient):
    """A search over the deferred tools, which this server runs."""

    type: Annotated[str, StringConstraints(pattern=r"^tool_search_tool_(bm25|regex)(_[0-9]{8})?$")]
    name: Literal["tool_search_tool_bm25", "tool_search_tool_regex"]
    cache_control: Annotated[Any, without_effect("cache_control")] = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def search(self) -> ToolSearch:
        return ToolSearch(self.name, "pattern" if "regex" in self.type else "words")


def _present(tool: Any, info: ValidationInfo) -> Any:
    """Hosted tools of other servers are not offered to the model. A request that requires one of them is rejected."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind.startswith(HOSTED) and SPELLABLE.fullmatch(kind):
        note(info, f"tools.{kind}")
        raise PydanticOmit
    return tool


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if kind == "mcp_toolset":
        return "mcp"
    return "search" if isinstance(kind, str) and kind.startswith("tool_search_tool_") else "custom"


MessagesTool: TypeAlias = Annotated[
    Annotated[CustomTool, Tag("custom")] | Annotated[SearchTool, Tag("search")] | Annotated[McpToolset, Tag("mcp")],
    Discriminator(_kind),
    BeforeValidator(_present),
]


class MessagesToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> MessagesToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name is given with the type tool, and only with it")
        return self

    @property
    def wanted(self) -> str:
        """auto, none or required, or the name of a tool."""
        return self.name or {"any": "required"}.get(self.type, self.type)
