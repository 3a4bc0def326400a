"""The tools that the model may call in a turn: server tools by name, and functions that the caller runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from agents.errors import InvalidTurn
from agents.parser.choose import HERMES, Dialect, Format
from agents.tool import function_schema
from agents.toolbox import Toolbox
from agents.turn import FunctionTool, Turn


@dataclass(frozen=True, slots=True)
class AvailableTools:
    """`schemas` are in the prompt, the same at every step of the turn. `server` and `functions` are the names of those
    that may be called.
    """

    server: frozenset[str]
    functions: frozenset[str]
    schemas: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, turn: Turn, toolbox: Toolbox, dialect: Dialect = HERMES) -> AvailableTools:
        """Where a grammar can keep the model from calling a tool in the prompt, tools that are not allowed stay in it,
        and the prompt is the same as without the restriction. Raises InvalidTurn naming the parameter to change.
        """
        chosen = _chosen(turn, _distinct(turn, toolbox))
        allowed = frozenset(chosen if turn.allowed_tools is None else turn.allowed_tools.intersection(chosen))
        shown = set(chosen if dialect.format is Format.HERMES else allowed)
        if shown and not dialect.calls:
            raise InvalidTurn("The chat template of this model shows no tools: leave them out.", param="tools")
        functions = [function for function in turn.functions if function.name in shown]
        return cls(
            allowed.intersection(turn.server_tools),
            frozenset(function.name for function in functions if function.name in allowed),
            (*toolbox.schemas([name for name in turn.server_tools if name in shown]), *map(_schema, functions)),
        )

    @property
    def callable(self) -> frozenset[str]:
        return self.server | self.functions

    @property
    def limited(self) -> bool:
        """Whether the prompt contains tools that may not be called."""
        return len(self.callable) < len(self.schemas)


def _distinct(turn: Turn, toolbox: Toolbox) -> list[str]:
    names = [*turn.server_tools, *(function.name for function in turn.functions)]
    for name in turn.server_tools:
        if name not in toolbox.names:
            available = ", ".join(toolbox.names) or "none"
            raise InvalidTurn(f"There is no server tool '{name}'. Available: {available}.", param="tools")
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidTurn(f"Two tools are named '{name}'.", param="tools")
    return names


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


def _schema(function: FunctionTool) -> dict[str, Any]:
    return function_schema(function.name, function.description, function.parameters)
