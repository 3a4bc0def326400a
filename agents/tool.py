"""Tools: those that the caller runs, what a model reads of one that is added to a conversation, and how a call is told
to the caller. Ours are Python functions, whose schema comes from the type hints and the docstring.

    @tool
    def dice(sides: int = 6) -> int:
        '''Roll a die.

        Args:
            sides: How many sides it has
        '''

A parameter annotated `ToolContext` is filled in by the agent and hidden from the model. A tool that is marked
`@tool(idempotent=True)` is retried when it fails; `@tool(cache_s=60)` marks a pure function, whose results are cached
for 60 seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_type_hints, overload
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from inference.trace import now_ns
from retrieval.passage import Passage

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

    @property
    def schema(self) -> dict[str, Any]:
        return function_schema(self.name, "\n".join((*filter(None, [self.description]), *self._rules)), self.parameters)

    @property
    def _rules(self) -> tuple[str, ...]:
        """A model writes what a grammar allows more sensibly if it knows the grammar."""
        rules = self.grammar
        return (f"The input must match this {rules.syntax} grammar:", rules.definition) if rules else ()


def custom_tool(
    name: str, description: str, grammar: InputGrammar | None, namespace: str = "", *, deferred: bool = False
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


# A parameter in the "Args:" part of a docstring, with the lines that continue it.
_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


class ToolError(Exception):
    """A tool cannot do what the call requests; the message is written for the model."""


class TryAgain(ToolError):
    """A transient failure: an idempotent tool is retried."""


@dataclass(slots=True)
class ToolContext:
    """The data of the turn that tools may use. `sources[i]` is cited as [i + 1] in the answer."""

    tenant_id: UUID
    stores: tuple[str, ...] = ()
    sources: list[Passage] = field(default_factory=list)
    deadline_ns: int | None = None  # when this call is stopped, on the monotonic clock

    @property
    def remaining_s(self) -> float:
        """Seconds until the call is stopped; to be used as the timeout of its own requests."""
        return math.inf if self.deadline_ns is None else (self.deadline_ns - now_ns()) / 1e9

    def cite(self, passage: Passage) -> int:
        """The number under which the answer cites a passage; a passage found twice keeps its number."""
        if passage not in self.sources:
            self.sources.append(passage)
        return self.sources.index(passage) + 1


class ServerTool(Protocol):
    """The interface of a tool to the toolbox, wherever it runs."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> dict[str, Any]: ...

    @property
    def idempotent(self) -> bool: ...

    @property
    def cache_s(self) -> float: ...

    async def run(self, arguments: str, context: ToolContext) -> str:
        """The result as text. Raises ToolError, or anything at all."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    function: Callable[..., Any]
    arguments: type[BaseModel]
    context_parameter: str | None = None
    idempotent: bool = False  # running it twice does what running it once does
    cache_s: float = 0.0  # how long a result is cached for the same arguments

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the shape of the OpenAI convention, keys in the order that models are trained on."""
        parameters = _plain(self.arguments.model_json_schema())
        shape = {"type": "object", "properties": {}, "required": [], **parameters}
        return function_schema(self.name, self.description, shape)

    async def run(self, arguments: str, context: ToolContext) -> str:
        """Validate the JSON `arguments`, call the function, write its result as text.

        A plain function runs in a thread that nothing can stop: it must bound its own work. Raises ToolError for
        wrong arguments; whatever the function raises passes through.
        """
        try:
            parsed = self.arguments.model_validate_json(arguments)
        except ValidationError as error:
            raise ToolError(f"invalid arguments: {_explain(error)}") from None
        values = {name: getattr(parsed, name) for name in type(parsed).model_fields}
        if self.context_parameter:
            values[self.context_parameter] = context
        if inspect.iscoroutinefunction(self.function):
            return _text(await self.function(**values))
        return _text(await asyncio.to_thread(self.function, **values))


@overload
def tool(function: Callable[..., Any]) -> Tool: ...


@overload
def tool(*, idempotent: bool = False, cache_s: float = 0.0) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, *, idempotent: bool = False, cache_s: float = 0.0
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Create a tool from a function. Raises TypeError for a signature without a schema, or one that is not pure."""

    def make(function: Callable[..., Any]) -> Tool:
        made = replace(_tool(function), idempotent=idempotent or cache_s > 0, cache_s=cache_s)
        if made.cache_s and made.context_parameter:
            raise TypeError(f"{made.name}: a tool that depends on the turn is not pure, so it cannot have cache_s")
        return made

    return make if function is None else make(function)


def _tool(function: Callable[..., Any]) -> Tool:
    hints = get_type_hints(function, include_extras=True)
    description, descriptions = _docstring(function)
    fields: dict[str, Any] = {}
    context_parameter = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or name not in hints:
            raise TypeError(f"{function.__name__}: parameter '{name}' needs a plain name and a type hint")
        if hints[name] is ToolContext:
            context_parameter = name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], Field(default, description=descriptions.get(name)))
    arguments = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(function.__name__, description, function, arguments, context_parameter)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the description of each argument."""
    text = inspect.getdoc(function) or ""
    if not text:
        raise TypeError(f"{function.__name__}: a tool needs a docstring, which tells the model when to call it")
    _, _, arguments = text.partition("\nArgs:\n")
    description = " ".join(text.split("\n\n")[0].split())
    return description, {name: " ".join(said.split()) for name, said in _ARGUMENT.findall(arguments)}


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without pydantic's titles and closed-world marks, which only cost prompt tokens; `type` comes first."""
    plain = {key: schema[key] for key in ("type", *schema) if key in schema}
    plain.pop("title", None)
    plain.pop("additionalProperties", None)
    for key in ("properties", "$defs"):
        if key in plain:
            plain[key] = {name: _plain(inner) for name, inner in plain[key].items()}
    if isinstance(plain.get("items"), dict):
        plain["items"] = _plain(plain["items"])
    return plain


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'JSON'}: {problem['msg']}" for problem in problems)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value), ensure_ascii=False)
