"""A tool that the caller runs, and what a model reads of one that is added to a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agents.call_shape import PLAIN, CallShape
from agents.tool import function_schema

ADDED = "These tools can be called from here on:"
NOTHING = "No tool was found."


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """The turn ends with its calls, and the caller sends the outputs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False  # a grammar enforces that the arguments fit the parameters
    shape: CallShape = PLAIN
    deferred: bool = False  # not in the prompt, and not callable before an item of the conversation adds it

    @property
    def schema(self) -> dict[str, Any]:
        return function_schema(self.name, self.description, self.parameters)


class Addition(NamedTuple):
    """The text that adds tools to a conversation, and these tools."""

    text: str
    tools: tuple[FunctionTool, ...]


def described(functions: Sequence[FunctionTool]) -> str:
    """The definitions in the form in which most templates list tools: one line of JSON each."""
    if not functions:
        return NOTHING
    return "\n".join((ADDED, *(json.dumps(function.schema, ensure_ascii=False) for function in functions)))


def addition(names: Iterable[str], given: Mapping[str, FunctionTool]) -> Addition:
    """The tools of these names among the `given`."""
    unique = list(dict.fromkeys(names))
    found = tuple(given[name] for name in unique if name in given)
    missing = [f"There is no tool {name} any more." for name in unique if name not in given]
    return Addition("\n".join([*missing, *([described(found)] if found or not missing else [])]), found)
