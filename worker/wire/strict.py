"""The bases of all request models: exact types, unknown keys refused or named, a message for what has no effect. And
how the bytes of a request become one of them, or a 400 that names the field.

Parameters without effect are accepted if the answer means the same without them; a response header names them. Every
other unsupported parameter is rejected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from worker.errors import ApiError
from worker.wire import limits

IGNORED_HEADER = "X-Firsttoken-Ignored"
UNSUPPORTED, UNSUPPORTED_IMAGE = "unsupported_parameter", "unsupported_image"
SPELLABLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may be quoted in a header


class Ignored(dict[str, None]):
    """Names of parameters as the client wrote them, without duplicates, in order of occurrence."""

    def add(self, *names: str) -> None:
        self.update(dict.fromkeys(names))

    @property
    def header(self) -> str:
        return ",".join(self)


def note(info: ValidationInfo, name: str) -> None:
    """Record that a part of the request is ignored; outside of a request, such as in the queue, there is nobody to
    tell.
    """
    if isinstance(info.context, Ignored):
        info.context.add(name)


def without_effect(name: str, *neutral: object) -> AfterValidator:
    """A parameter that is accepted without effect. `name` is its full path in the body; `neutral` values request what
    happens anyway, so they are not reported."""

    def noted(value: Any, info: ValidationInfo) -> Any:
        if value is not None and value not in neutral:
            note(info, name)
        return value

    return AfterValidator(noted)


class Strict(BaseModel):
    """A part of a request body. Nothing is coerced: "5" is not a number, 1 is not a boolean."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())
    # Of a body: a parameter with many values, which the model limits itself and which is not stored.
    BULK: ClassVar[str | None] = None
    # Of a body: parameters of other APIs, and which of this one does the same.
    SYNONYMS: ClassVar[Mapping[str, str]] = {}

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
        choices = {tag: handler.generate_schema(model) for model in get_args(source) for tag in _tags(model)}

        def tag_of(value: Any) -> str | None:
            tag = self.tag_of(value)
            return (tag if tag in choices else _unlike_a_key(tag)) if isinstance(tag, str) else None

        return core_schema.tagged_union_schema(
            choices, tag_of, custom_error_type=self.error, custom_error_message=self.advice
        )


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    tag: str | None = getattr(model, "TAG", None)
    if tag is not None:
        return (tag,)
    return tuple(map(_unlike_a_key, get_args(model.model_fields["type"].annotation)))


def _unlike_a_key(type: str) -> str:
    """Where an error is located, a type must not look like a key of the object (`function`): a NUL is in no body. A TAG
    may, of a model whose values are one level deeper in one API (`file`).
    """
    return f"\0{type}"


def only(*neutral: object, instead: str | None = None) -> AfterValidator:
    """A parameter of the contract that this server does not support: only values that request nothing are accepted.
    `instead`: a sentence that says what to send in its place."""
    named = [repr(value) for value in neutral if value is not None]
    advice = f"leave it out or send {' or '.join(named)}." if named else "leave it out."
    told = instead or f"This server does not support it yet: {advice}"

    def check(value: Any) -> Any:
        if any(value is accepted or (type(value) is type(accepted) and value == accepted) for accepted in neutral):
            return value
        raise PydanticCustomError(UNSUPPORTED, "{advice}", {"advice": told})

    return AfterValidator(check)


def short_for(make: Callable[[str], Any]) -> BeforeValidator:
    """A bare string stands for what is made of it."""
    return BeforeValidator(lambda value: make(value) if isinstance(value, str) else value)


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
ModelName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=limits.MODEL_CHARS_MAX)]
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


Ttl: TypeAlias = Literal["30m", "12h"]


class Breakpoint(Strict):
    """Marks the end of a reusable prefix."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


PromptCacheBreakpoint: TypeAlias = Annotated[Breakpoint | None, without_effect("prompt_cache_breakpoint")]


T = TypeVar("T")
M = TypeVar("M", bound=Strict)

# The public contract's codes for invalid values, by the validator's error types.
CODES = {
    UNSUPPORTED: UNSUPPORTED,
    UNSUPPORTED_IMAGE: UNSUPPORTED_IMAGE,
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "string_too_long": "string_above_max_length",
    "string_too_short": "string_below_min_length",
    "too_long": "array_above_max_length",
    "too_short": "array_below_min_length",
    "less_than_equal": "above_max_value",
    "greater_than_equal": "below_min_value",
}
SHORT_BYTES_MAX = 16 * 1024  # parsed in 5 ms, whatever is in it
FEW_ENTRIES_MAX = 200  # become items in 5 ms
CONTAINERS = (dict, list)
# What a value should be, by the validator's error types, whose own messages name types of Python.
KINDS = {
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
QUOTING = ("literal_error", "string_pattern_mismatch")  # after which what was given is quoted
QUOTED_CHARS_MAX = 100
SECRETS = frozenset({"authorization", "authorization_token", "headers"})  # parameters whose values are never quoted
ERRORS_MAX = 50  # that are looked at, for those of one parameter with several kinds of values
TYPE_CODE = "invalid_type"
VALUE_CODE = "invalid_value"


def parse(model: type[M], raw: bytes, ignored: Ignored | None = None) -> M:
    """Validate a JSON body; an empty one means {}. `ignored` collects the names of parameters without effect. Raises
    ApiError 400 with `param` and `code`."""
    body = _load(raw)
    if not _is_modest(raw):
        survey({name: value for name, value in body.items() if name != model.BULK} if model.BULK else body)
    try:
        return model.model_validate(body, context=ignored)
    except ValidationError as error:
        raise refusal(error, body, model.SYNONYMS) from None


async def parsed(model: type[M], raw: bytes, ignored: Ignored | None = None) -> M:
    """`parse`, in a thread where the body is long: 100 KB of small values take 30 ms, and others wait for tokens."""
    if len(raw) <= SHORT_BYTES_MAX:
        return parse(model, raw, ignored)
    return await asyncio.to_thread(parse, model, raw, ignored)


async def converted(entries: int, work: Callable[[], T]) -> T:
    """The result of work on so many entries of a body, in a thread where there are many: 10,000 take 0.3 s."""
    return work() if entries <= FEW_ENTRIES_MAX else await asyncio.to_thread(work)


def _load(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return body


def _is_modest(raw: bytes) -> bool:
    """Whether `survey` finds nothing, as is plain from the text: it is short, has fewer brackets than levels are
    allowed, and no escape of a NUL character."""
    brackets = raw.count(b"{") + raw.count(b"[")
    return len(raw) <= SHORT_BYTES_MAX and brackets <= limits.LEVELS_MAX and rb"\u0000" not in raw


def survey(body: dict[str, Any]) -> None:
    """Reject bodies that would be too expensive to validate, and what the database cannot store: NUL characters.

    Iterative, without recursion: the JSON parser accepts a thousand levels.
    """
    pending: list[tuple[int, str | None, Any]] = [(0, None, body)]
    values = 0
    while pending:
        level, param, value = pending.pop()
        values += len(value)
        if values > limits.VALUES_MAX:
            message = f"The body has more than {limits.VALUES_MAX} values; most of them in '{param}'."
            raise ApiError(400, message, param=param, code="array_above_max_length")
        if isinstance(value, dict) and len(value) > limits.KEYS_MAX:
            message = f"An object has more than {limits.KEYS_MAX} keys."
            raise ApiError(400, message, param=param, code=VALUE_CODE)
        if level >= limits.LEVELS_MAX:
            message = f"The body nests more than {limits.LEVELS_MAX} levels deep."
            raise ApiError(400, message, param=param, code=VALUE_CODE)
        for part, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, str) and "\0" in part:
                raise _has_nul(param)
            if isinstance(child, str):
                if "\0" in child:
                    raise _has_nul(_join(param, part))
            elif isinstance(child, CONTAINERS):
                pending.append((level + 1, _join(param, part), child))


def _has_nul(param: str | None) -> ApiError:
    return ApiError(400, "Text must not contain the NUL character.", param=param, code=VALUE_CODE)


def refusal(error: ValidationError, body: Mapping[str, Any], synonyms: Mapping[str, str] = {}) -> ApiError:
    """The first error, in the public contract's words."""
    first, *others = error.errors(include_url=False)[:ERRORS_MAX]
    param = _param(first["loc"], body, missing=first["type"] == "missing")
    alternatives = [first, *(each for each in others if _param(each["loc"], body, missing=False) == param)]
    # Of the kinds of values that a parameter takes, the one that was given, if it is of one of them.
    details = next((each for each in alternatives if each["type"] not in KINDS), first)
    code = _code(details["type"])
    if code == "unknown_parameter":
        meant = synonyms.get(param or "")
        message = f"Unknown parameter: '{param}'." + (f" In this API it is '{meant}'." if meant else "")
    elif code == "missing_required_parameter":
        message = f"Missing required parameter: '{param}'."
    elif code == UNSUPPORTED:
        asked = type_of(details["input"]) if isinstance(details["input"], dict) else None
        told = f" Its type is '{asked}'." if isinstance(asked, str) and len(asked) <= QUOTED_CHARS_MAX else ""
        message = f"Unsupported parameter: '{param}'. {details['msg']}{told}"
    elif details["type"] == "int_type" and isinstance(details["input"], float) and abs(details["input"]) >= 2**63:
        # The JSON parser returns integers beyond 64 bits as floats.
        message, code = f"Invalid '{param}': the number has more than 64 bits.", VALUE_CODE
    else:
        sentence = _sentence(details, alternatives)
        message = f"Invalid '{param}': {sentence}" if param else sentence
    return ApiError(400, message, param=param, code=code)


def _code(kind: str) -> str:
    return CODES.get(kind) or (TYPE_CODE if kind.endswith("_type") else VALUE_CODE)


def _sentence(details: ErrorDetails, alternatives: Sequence[ErrorDetails]) -> str:
    kind, value = details["type"], details["input"]
    message = details["msg"].removeprefix("Value error, ").replace(" after validation", "")
    if kind in KINDS:
        kinds = dict.fromkeys(KINDS[each["type"]] for each in alternatives if each["type"] in KINDS)
        return f"Input should be {_listed(list(kinds))}, not {_kind_of(value)}."
    is_secret = SECRETS.intersection(details["loc"])
    if kind in QUOTING and isinstance(value, str) and len(value) <= QUOTED_CHARS_MAX and not is_secret:
        return f"{message.removesuffix('.')}, not '{value}'."
    return message if message.endswith(".") else message + "."


def _listed(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _kind_of(value: Any) -> str:
    """Of a JSON value, in words."""
    kinds = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        dict: "an object",
        list: "a list",
    }
    return kinds.get(type(value), "null" if value is None else "another value")


def _param(location: Sequence[int | str], body: Any, missing: bool) -> str | None:
    """The path of an invalid value as the client wrote it: the validator's own steps (union tags) are left out."""
    param: str | None = None
    for part in location:
        if _holds(body, part):
            param, body = _join(param, part), body[part]
    return _join(param, location[-1]) if missing else param


def _holds(body: Any, part: int | str) -> bool:
    if isinstance(body, list):
        return isinstance(part, int) and part < len(body)
    return isinstance(body, dict) and part in body


def _join(param: str | None, part: int | str) -> str:
    if isinstance(part, int):
        return f"{param or ''}[{part}]"
    shown = part if len(part) <= 64 else part[:64] + "…"
    return f"{param}.{shown}" if param else shown
