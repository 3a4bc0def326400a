"""Tools of the Messages API: functions that the client runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidationInfo, model_validator
from pydantic_core import PydanticOmit

from agents.turn import FunctionTool
from worker.wire import limits
from worker.wire.ignored import note, without_effect
from worker.wire.lenient import SPELLABLE, Lenient
from worker.wire.schemas import constrainable
from worker.wire.strict import only
from worker.wire.tools import Description, Schema

# Tools that run on Anthropic's own servers. Coding agents send them along with every request.
HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")
ToolName: TypeAlias = Annotated[str, StringConstraints(pattern=limits.NAME_PATTERN)]


def _enforceable(strict: bool | None, info: ValidationInfo) -> bool | None:
    if strict and "input_schema" in info.data:
        constrainable(info.data["input_schema"], "input_schema")
    return strict


class CustomTool(Lenient):
    """With `strict`, the arguments always match the schema."""

    name: ToolName
    description: Description | None = None
    input_schema: Schema
    type: Annotated[str | None, only(None, "custom")] = None  # others have schemas that only their models know
    strict: Annotated[bool | None, AfterValidator(_enforceable)] = None
    cache_control: Annotated[Any, without_effect("cache_control")] = None
    defer_loading: Annotated[Any, without_effect("tools.defer_loading")] = None
    input_examples: Annotated[Any, without_effect("tools.input_examples")] = None
    eager_input_streaming: bool | None = None  # arguments are always streamed

    @property
    def definition(self) -> FunctionTool:
        return FunctionTool(self.name, self.description or "", self.input_schema, bool(self.strict))


def _present(tool: Any, info: ValidationInfo) -> Any:
    """Hosted tools of other servers are not offered to the model. A request that requires one of them is rejected."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind.startswith(HOSTED) and SPELLABLE.fullmatch(kind):
        note(info, f"tools.{kind}")
        raise PydanticOmit
    return tool


MessagesTool: TypeAlias = Annotated[CustomTool, BeforeValidator(_present)]


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
