"""The bases of all request models: exact types, unknown keys refused or named, a message for what has no effect.

Parameters without effect are accepted if the answer means the same without them; a response header names them. Every
other unsupported parameter is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from worker.wire import limits

IGNORED_HEADER = "X-Firsttoken-Ignored"
UNSUPPORTED = "unsupported_parameter"
SPELLABLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may be quoted in a header


class Ignored:
    """Names of parameters as the client wrote them, without duplicates, in order of occurrence."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, *names: str) -> None:
        self._names.update(dict.fromkeys(names))

    @property
    def header(self) -> str:
        return ",".join(self._names)


def note(info: ValidationInfo, name: str) -> None:
    """Record that a part of the request is ignored; outside of a request, such as in the queue, there is nobody to
    tell.
    """
    if isinstance(info.context, Ignored):
        info.context.add(name)


def without_effect(name: str, *neutral: object) -> AfterValidator:
    """A parameter that is accepted without effect. `name` is its full path in the body; `neutral` values request what
    happens anyway, so they are not reported."""

    def told(value: Any, info: ValidationInfo) -> Any:
        if value is not None and value not in neutral:
            note(info, name)
        return value

    return AfterValidator(told)


class Strict(BaseModel):
    """A part of a request body. Nothing is coerced: "5" is not a number, 1 is not a boolean."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, value: Any) -> Any:
        """A null requests nothing, whatever its key: some clients send every key that they know."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: each for key, each in value.items() if each is not None or key in known}


class Echoed(Strict):
    """A part of an earlier answer that comes back. Clients keep notes of their own in it, which nobody here reads."""

    model_config = ConfigDict(extra="ignore")


def key_of(value: Any, name: str, usual: str | None = None) -> Any:
    """Of an object as the client wrote it, or of the model that was made of it. `usual`: where it is left out."""
    return value.get(name, usual) if isinstance(value, dict) else getattr(value, name, None)


def type_of(value: Any) -> Any:
    return key_of(value, "type")


@dataclass(frozen=True)
class Tagged:
    """Tells the models of a union apart by their types, or by the TAG of those that have one; of two with the same type
    the last one counts. `tag_of` finds the tag of a value; `advice` is for clients that send another one.
    """

    advice: str
    tag_of: Callable[[Any], Any] = type_of
    error: str = UNSUPPORTED

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A NUL is in no body: where an error is located, a tag must not look like a key of the object (`function`).
        choices = {f"\0{tag}": handler.generate_schema(model) for model in get_args(source) for tag in _tags(model)}
        return core_schema.tagged_union_schema(
            choices, self._tag, custom_error_type=self.error, custom_error_message=self.advice
        )

    def _tag(self, value: Any) -> str | None:
        tag = self.tag_of(value)
        return f"\0{tag}" if isinstance(tag, str) else None


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    tag: str | None = getattr(model, "TAG", None)
    return get_args(model.model_fields["type"].annotation) if tag is None else (tag,)


def only(*neutral: object) -> AfterValidator:
    """A parameter of the contract that this server does not support: only values that request nothing are accepted."""
    named = [repr(value) for value in neutral if value is not None]
    advice = f"leave it out or send {' or '.join(named)}." if named else "leave it out."

    def check(value: Any) -> Any:
        if any(value is accepted or (type(value) is type(accepted) and value == accepted) for accepted in neutral):
            return value
        raise PydanticCustomError(UNSUPPORTED, "This server does not support it yet: {advice}", {"advice": advice})

    return AfterValidator(check)


def up_to(count: int, least: int = 0) -> Any:
    """The length of a list. The first of its values that is wrong is described, the others are not looked at."""
    return Field(min_length=least, max_length=count, fail_fast=True)


Unsupported: TypeAlias = Annotated[Any, only(None)]
# Calls are the model's own here, never a program's.
Caller: TypeAlias = Annotated[Any, only(None, {"type": "direct"})]
AllowedCallers: TypeAlias = Annotated[Any, only(None, ["direct"])]

Name: TypeAlias = Annotated[str, StringConstraints(pattern=limits.NAME_PATTERN)]  # of a function
CallId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"] | None
Id: TypeAlias = Annotated[str, StringConstraints(pattern=limits.ID_PATTERN)]
Text: TypeAlias = Annotated[str, StringConstraints(max_length=limits.TEXT_CHARS_MAX)]


class Lenient(Strict):
    """A part of a request body whose unknown keys have no effect and are named."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _name_unknown(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for key in value:
            if key in known:
                continue
            if not SPELLABLE.fullmatch(key):
                raise ValueError("a key must have 1 to 64 letters, digits, '_', '.' and '-'")
            if value[key] is not None:
                note(info, key)
        return value


class Cached(Lenient):
    """What may mark the end of a prefix to cache. Caching is automatic here."""

    cache_control: Annotated[Any, without_effect("cache_control")] = None
