"""A tool: a Python function that the model may call. Its schema comes from the type hints and the docstring.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, get_type_hints, overload
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_jsonable_python

from agents.function_tool import function_schema
from inference.trace import now_ns
from retrieval.passage import Passage

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


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    function: Callable[..., Any]
    arguments: type[BaseModel]
    context_parameter: str | None = None
    idempotent: bool = False  # running it twice does what running it once does
    cache_s: float = 0.0  # how long a result is cached for the same arguments

    @cached_property
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
    described, descriptions = _docstring(function)
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
    return Tool(function.__name__, described, function, arguments, context_parameter)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the description of each argument."""
    text = inspect.getdoc(function) or ""
    if not text:
        raise TypeError(f"{function.__name__}: a tool needs a docstring, which tells the model when to call it")
    _, _, arguments = text.partition("\nArgs:\n")
    described = " ".join(text.split("\n\n")[0].split())
    return described, {name: " ".join(said.split()) for name, said in _ARGUMENT.findall(arguments)}


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
