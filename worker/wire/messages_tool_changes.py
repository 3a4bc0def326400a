"""Tools that messages add to a conversation, or remove from it: deferred ones, which no prompt shows before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Tag

from agents.function_tool import Addition, FunctionTool, addition
from worker.wire import limits
from worker.wire.ignored import without_effect
from worker.wire.messages_tools import CustomTool, ToolName
from worker.wire.strict import UNSUPPORTED, Lenient


class ToolReferenceBlock(Lenient):
    """Part of a tool result: a deferred tool that a search of the client found."""

    type: Literal["tool_reference"]
    tool_name: ToolName
    cache_control: Annotated[Any, without_effect("cache_control")] = None


class NamedTool(Lenient):
    type: Literal["tool_reference"]
    name: ToolName


class DefinedTool(Lenient):
    type: Literal["tool_definition"]
    definition: CustomTool


def _kind(tool: Any) -> str | None:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in ("tool_reference", "tool_definition") else None


ChangedTool: TypeAlias = Annotated[
    Annotated[NamedTool, Tag("tool_reference")] | Annotated[DefinedTool, Tag("tool_definition")],
    Discriminator(
        _kind,
        custom_error_type=UNSUPPORTED,
        custom_error_message="A tool must have the type tool_reference or tool_definition.",
    ),
]


class ToolAdditionBlock(Lenient):
    type: Literal["tool_addition"]
    tool: ChangedTool
    cache_control: Annotated[Any, without_effect("cache_control")] = None


class ToolRemovalBlock(Lenient):
    type: Literal["tool_removal"]
    tool: NamedTool
    cache_control: Annotated[Any, without_effect("cache_control")] = None


class ToolChanges:
    """Follows the changes of a request from its first message to its last."""

    def __init__(self, tools: Iterable[FunctionTool]) -> None:
        self._given = {tool.name: tool for tool in tools}
        self._removed: set[str] = set()
        self._chars = 0  # of the definitions so far

    @property
    def allowed(self) -> frozenset[str] | None:
        """The tools that may be called in the end; None: all that are known."""
        return frozenset(self._given.keys() - self._removed) if self._removed else None

    def referred(self, names: Sequence[str]) -> Addition:
        """What the model reads of tools that are named. Past a limit, no definitions: a request could name a long one a
        thousand times."""
        self._removed.difference_update(names)
        if self._chars > limits.TEXT_CHARS_MAX:
            known = tuple(self._given[name] for name in names if name in self._given)
            return Addition("\n".join(f"The tool {tool.name} can be called." for tool in known), known)
        added = addition(names, self._given)
        self._chars += len(added.text)
        return added

    def made(self, block: ToolAdditionBlock | ToolRemovalBlock) -> Addition:
        """What the model reads of a change."""
        tool = block.tool
        if isinstance(tool, DefinedTool):
            self._given.setdefault(tool.definition.name, tool.definition.definition)
            return self.referred([tool.definition.name])
        if isinstance(block, ToolAdditionBlock):
            return self.referred([tool.name])
        self._removed.add(tool.name)
        return Addition(f"The tool {tool.name} can no longer be called.", ())
