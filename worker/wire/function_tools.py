"""Tools that the client runs, by names of its own: functions, custom tools whose input is text, namespaces of both. And
the JSON schemas of clients: limits on their size, and whether a grammar can enforce them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import (
    AfterValidator,
    Discriminator,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agents.function_tool import NAME_CHARS_MAX, CallShape, FunctionTool, InputGrammar, bare, custom_tool, qualified
from inference.errors import InvalidSchema
from inference.grammar.lark import escaped
from inference.grammar.pattern import translated
from inference.grammar.schema import restated
from worker.wire import limits
from worker.wire.strict import AllowedCallers, Name, Strict, up_to, without_effect

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
# Names of types in descriptions of Python functions, and in JSON schemas, which models and grammars know.
JSON_TYPES = {"dict": "object", "list": "array", "tuple": "array", "str": "string", "int": "integer"}
JSON_TYPES |= {"float": "number", "bool": "boolean", "None": "null"}
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
NO_SCHEMAS = ("enum", "const", "default", "example", "examples")


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for a schema that is too large for a prompt."""
    level: list[Any] = [schema]
    for _ in range(limits.SCHEMA_DEPTH_MAX):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
    if level:
        raise ValueError(f"a schema may be nested at most {limits.SCHEMA_DEPTH_MAX} levels deep")
    if len(orjson.dumps(schema)) > limits.SCHEMA_BYTES_MAX:
        raise ValueError(f"a schema may be at most {limits.SCHEMA_BYTES_MAX} bytes long")
    return schema


def json_typed(schema: Any) -> Any:
    """The schema with JSON's names of types in place of Python's. `any` is no type."""
    if isinstance(schema, list):
        return [json_typed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    typed: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            typed[keyword] = {name: json_typed(each) for name, each in value.items()}
        elif keyword == "type" and isinstance(value, str):
            typed |= {} if value == "any" else {"type": JSON_TYPES.get(value, value)}
        else:
            typed[keyword] = value if keyword in NO_SCHEMAS else json_typed(value)
    return typed


def fits(schema: Mapping[str, Any]) -> bool:
    """Whether it is small enough for a prompt."""
    try:
        bounded(dict(schema))
    except ValueError:
        return False
    return True


def constrainable(schema: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Raises ValueError for a schema that no grammar can enforce, naming the place that prevents it.

    The check is linear in the schema. A schema that passes is compiled later, off the request path, and may be rejected
    then.
    """
    try:
        restated(schema)
    except InvalidSchema as error:
        path = ".".join(part for part in (where, error.path) if part)
        raise ValueError(f"{path}: {error.reason}" if path else error.reason) from None
    return schema


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    if schema and schema.get("type", "object") != "object":
        raise ValueError("the schema of parameters must have the type object")
    return schema


Schema: TypeAlias = Annotated[
    dict[str, Any], AfterValidator(bounded), AfterValidator(json_typed), AfterValidator(_of_an_object)
]
Description: TypeAlias = Annotated[str, StringConstraints(max_length=limits.DESCRIPTION_CHARS_MAX)]


def enforces(parameters: str) -> AfterValidator:
    """Of `strict`: refuses it with a schema of parameters, in the field of this name, that no grammar can enforce."""

    def check(strict: bool | None, info: ValidationInfo) -> bool | None:
        if strict:
            constrainable(info.data.get(parameters) or NO_PARAMETERS, parameters)
        return strict

    return AfterValidator(check)


class _GivenTool(Strict):
    """A tool that the caller runs, under a name of its own."""

    name: Name
    description: Description | None = None
    allowed_callers: AllowedCallers = None
    defer_loading: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        return (self.of(""),)

    def of(self, namespace: str, about: str = "") -> FunctionTool:
        """The function as the model knows it; `about` precedes its description."""
        raise NotImplementedError

    def _described(self, about: str) -> str:
        return "\n".join(filter(None, (about, self.description)))

    def _echo(self, type: str, **more: Any) -> dict[str, Any]:
        deferred = {"defer_loading": True} if self.defer_loading else {}
        return {"type": type, "name": self.name, "description": self.description, **more, **deferred}


class FunctionToolParam(_GivenTool):
    """A function that the caller runs. With `strict`, its arguments always match the schema."""

    type: Literal["function"]
    parameters: Schema | None = None
    strict: Annotated[bool | None, enforces("parameters")] = None
    output_schema: Annotated[Any, without_effect("tools.output_schema")] = None

    def of(self, namespace: str, about: str = "") -> FunctionTool:
        return FunctionTool(
            qualified(namespace, self.name),
            self._described(about),
            self.parameters or NO_PARAMETERS,
            bool(self.strict),
            CallShape(namespace=namespace),
            bool(self.defer_loading),
        )

    def echo(self) -> dict[str, Any]:
        return self._echo("function", parameters=self.parameters, strict=bool(self.strict))


class AnyText(Strict):
    type: Literal["text"]


class GrammarParam(Strict):
    """What the input of a custom tool must match."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, StringConstraints(min_length=1, max_length=limits.GRAMMAR_CHARS_MAX)]

    @field_validator("definition")
    @classmethod
    def _can_be_held(cls, value: str, info: ValidationInfo) -> str:
        try:
            if info.data.get("syntax") == "regex":
                translated(f"^(?:{value})$", "")
            else:
                escaped(value)
        except InvalidSchema as error:
            raise ValueError(error.reason) from None
        return value


class CustomTool(_GivenTool):
    """A tool of the caller whose input is a text. To the model it is a function with one argument."""

    type: Literal["custom"]
    format: Annotated[AnyText | GrammarParam, Discriminator("type")] | None = None

    def of(self, namespace: str, about: str = "") -> FunctionTool:
        form = self.format
        held = InputGrammar(form.syntax, form.definition) if isinstance(form, GrammarParam) else None
        name = qualified(namespace, self.name)
        return custom_tool(name, self._described(about), held, namespace, deferred=bool(self.defer_loading))

    def echo(self) -> dict[str, Any]:
        return self._echo("custom", format=self.format.model_dump() if self.format else {"type": "text"})


class NamespaceTool(Strict):
    """Tools of one origin, such as an MCP server. The model calls them by `<namespace>__<name>`; to the client, their
    calls have the names that it gave."""

    type: Literal["namespace"]
    name: Name
    description: Description | None = None
    tools: Annotated[list[Annotated[FunctionToolParam | CustomTool, Discriminator("type")]], up_to(limits.TOOLS_MAX)]

    @model_validator(mode="after")
    def _has_callable_names(self) -> NamespaceTool:
        for name in self.names:
            if len(name) > NAME_CHARS_MAX:
                shown = bare(self.name, name)
                raise ValueError(f"'{shown}' and the name of its namespace have more than {NAME_CHARS_MAX} characters")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(qualified(self.name, tool.name) for tool in self.tools)

    @property
    def functions(self) -> tuple[FunctionTool, ...]:
        """The description of the namespace precedes that of its first tool: no template has a place for it."""
        about = [self.description or "", *([""] * len(self.tools))]
        return tuple(tool.of(self.name, before) for tool, before in zip(self.tools, about, strict=False))

    def echo(self) -> dict[str, Any]:
        return {
            "type": "namespace",
            "name": self.name,
            "description": self.description,
            "tools": [tool.echo() for tool in self.tools],
        }
