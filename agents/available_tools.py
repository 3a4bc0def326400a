"""The tools that the model may call in a turn: server tools by name, and functions that the caller runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.errors import InvalidTurn
from agents.function_tool import SERVER_SEARCH, CallShape, FunctionTool
from agents.message import FunctionCallOutput, Item, Message
from agents.parser.choose import HERMES, Dialect, Format
from agents.toolbox import Toolbox
from agents.turn import Turn


@dataclass(frozen=True, slots=True)
class AvailableTools:
    """`shown` are in the prompt, the same at every step of the turn; `schemas` are those and the ones that the items of
    the conversation add. `server` and `functions` are the names of those that may be called, `definitions` all
    functions of the caller among the schemas, `shapes` those of calls that are not told as plain function calls.
    """

    server: frozenset[str]
    functions: frozenset[str]
    schemas: tuple[dict[str, Any], ...]
    shown: tuple[dict[str, Any], ...]
    definitions: tuple[FunctionTool, ...]
    shapes: Mapping[str, CallShape]

    @classmethod
    def of(cls, turn: Turn, toolbox: Toolbox, dialect: Dialect = HERMES, output: Sequence[Item] = ()) -> AvailableTools:
        """`output`: what the turn has produced so far.

        Where a grammar can keep the model from calling a tool in the prompt, tools that are not allowed stay in it,
        and the prompt is the same as without the restriction. Raises InvalidTurn naming the parameter to change.
        """
        added = _added((*turn.history, *turn.input, *output))
        asks = turn.functions or turn.server_tools or turn.tool_searches or turn.tool_choice not in ("auto", "none")
        if not (asks or added):  # nearly always
            return NO_TOOLS
        given = [each for each in turn.functions if not each.deferred or _is_forced(turn, each, added)]
        server = [*turn.server_tools, *(search.name for search in turn.tool_searches)]
        _check_known(server, toolbox)
        names = _distinct([*server, *(each.name for each in given)])
        for name in names:
            added.pop(name, None)
        chosen = _chosen(turn, [*names, *added])
        if not names and not added:
            return NO_TOOLS
        allowed = frozenset(chosen if turn.allowed_tools is None else turn.allowed_tools.intersection(chosen))
        shown = set(chosen if dialect.format is Format.HERMES else allowed) - added.keys()
        if (shown or added.keys() & allowed) and not dialect.calls:
            raise InvalidTurn("The chat template of this model shows no tools: leave them out.", param="tools")
        functions = [each for each in given if each.name in shown]
        shapes = {each.name: each.shape for each in turn.functions}  # items do not say who runs a tool
        definitions = (*functions, *(replace(each, shape=shapes.get(name, each.shape)) for name, each in added.items()))
        prompted = (
            *toolbox.schemas([name for name in server if name in shown]),
            *(each.schema for each in functions),
        )
        callable = [each for each in definitions if each.name in allowed]
        return cls(
            allowed.intersection([*server, *(each.name for each in callable if each.shape.by_server)]),
            frozenset(each.name for each in callable if not each.shape.by_server),
            (*prompted, *(each.schema for each in added.values())),
            prompted,
            definitions,
            {each.name: each.shape for each in definitions}
            | {search.name: SERVER_SEARCH for search in turn.tool_searches},
        )

    @property
    def callable(self) -> frozenset[str]:
        return self.server | self.functions

    @property
    def limited(self) -> bool:
        """Whether the model knows tools that may not be called."""
        return len(self.callable) < len(self.schemas)


NO_TOOLS = AvailableTools(frozenset(), frozenset(), (), (), (), {})


def _added(items: Sequence[Item]) -> dict[str, FunctionTool]:
    """The functions that items add, by name. The first definition of a name holds: the model has read it first."""
    added: dict[str, FunctionTool] = {}
    for item in items:
        if isinstance(item, (Message, FunctionCallOutput)) and item.tools:  # a union would be made anew for each
            for tool in item.tools:
                added.setdefault(tool.name, tool)
    return added


def _is_forced(turn: Turn, function: FunctionTool, added: Mapping[str, FunctionTool]) -> bool:
    """A deferred function that must be called now is in the prompt, unless the conversation has added it."""
    return function.name == turn.tool_choice and function.name not in added


def _distinct(names: list[str]) -> list[str]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidTurn(f"Two tools are named '{twice}'.", param="tools")
    return names


def _check_known(names: Sequence[str], toolbox: Toolbox) -> None:
    for name in names:
        if name not in toolbox.names:
            available = ", ".join(toolbox.names) or "none"
            raise InvalidTurn(f"There is no server tool '{name}'. Available: {available}.", param="tools")


def _chosen(turn: Turn, names: list[str]) -> list[str]:
    """A named choice offers only that tool. The grammar in `constraint` forces the call."""
    match turn.tool_choice:
        case "none":
            return []
        case "auto":
            return names
        case "required" if names:
            return names
        case name if name in names:
            return [name]
    raise InvalidTurn(f"The tool choice '{turn.tool_choice}' needs a tool that is not in `tools`.", param="tool_choice")
