"""A tool that the caller runs, what a model reads of one that is added to a conversation, and how a call is told to the
caller: as a function call, or as an item of a built-in tool of the public APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

# Of functions. `mcp__server__tool`, as coding agents name the tools of their servers, is often longer than 64. 128 is
# the limit of Anthropic's API.
NAME_CHARS_MAX = 128

CallForm: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "mcp", "mcp_approval", "hosted"
]
ADDED = "These tools can be called from here on:"
INPUT = "input"  # the argument of a custom tool
NOTHING = "No tool was found."


class CallShape(NamedTuple):
    """To the model every tool is a function. Its name begins with the `namespace`, if there is one: that of a tool of
    an MCP server with the label of its server. A call that needs approval is the caller's, who approves it. A `hosted`
    one was run by another server, in an earlier answer."""

    form: CallForm = "function"
    namespace: str = ""
    by_server: bool = False  # the server runs it, not the caller


PLAIN = CallShape()
SERVER_SEARCH = CallShape("tool_search", by_server=True)


def qualified(namespace: str, name: str) -> str:
    """The name by which a model calls a tool of a namespace. Those of MCP servers end with the separator already."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def bare(namespace: str, name: str) -> str:
    """The inverse of `qualified`."""
    return name.removeprefix(qualified(namespace, "")) if namespace else name


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


class InputGrammar(NamedTuple):
    """What the input of a custom tool must match."""

    syntax: Literal["lark", "regex"]
    definition: str


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """The turn ends with its calls, and the caller sends the outputs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False  # a grammar enforces that the arguments fit the parameters
    shape: CallShape = PLAIN
    deferred: bool = False  # not in the prompt, and not callable before an item of the conversation adds it
    grammar: InputGrammar | None = None  # of a custom tool
    # As models see it. It is made with the tool, which for thousands of them is done off the event loop.
    schema: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        description = "\n".join((*filter(None, [self.description]), *self._rules))
        object.__setattr__(self, "schema", function_schema(self.name, description, self.parameters))

    @property
    def _rules(self) -> tuple[str, ...]:
        """A model writes what a grammar allows more sensibly if it knows the grammar."""
        rules = self.grammar
        return (f"The input must match this {rules.syntax} grammar:", rules.definition) if rules else ()


def custom_tool(
    name: str, description: str, grammar: InputGrammar | None, namespace: str, *, deferred: bool
) -> FunctionTool:
    """A tool whose input is a text: to the model a function with one argument."""
    text = {"type": "string"}
    if grammar and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return FunctionTool(name, description, parameters, True, CallShape("custom", namespace), deferred, grammar)


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
