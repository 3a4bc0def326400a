"""Parses the bytes of a request to a model, or to a 400 that names the field."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from worker.errors import ApiError
from worker.wire import limits
from worker.wire.parts import UNSUPPORTED_IMAGE
from worker.wire.strict import UNSUPPORTED, Ignored, Strict

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
CONTAINERS = (dict, list)
TYPE_CODE = "invalid_type"
VALUE_CODE = "invalid_value"


def parse(model: type[M], raw: bytes, ignored: Ignored | None = None, *, bulk: str | None = None) -> M:
    """Validate a JSON body; an empty one means {}. Raises ApiError 400 with `param` and `code`.

    `ignored` collects the names of parameters without effect. `bulk` is a parameter with many values, which its model
    limits itself and which is not stored.
    """
    body = _load(raw)
    survey({name: value for name, value in body.items() if name != bulk} if bulk else body)
    try:
        return model.model_validate(body, context=ignored)
    except ValidationError as error:
        raise refusal(error, body) from None


async def parsed(model: type[M], raw: bytes, ignored: Ignored | None = None, *, bulk: str | None = None) -> M:
    """`parse`, in a thread where the body is long: 100 KB of small values take 30 ms, and others wait for tokens."""
    if len(raw) <= SHORT_BYTES_MAX:
        return parse(model, raw, ignored, bulk=bulk)
    return await asyncio.to_thread(parse, model, raw, ignored, bulk=bulk)


def _load(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return body


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


def refusal(error: ValidationError, body: Mapping[str, Any]) -> ApiError:
    """The first error, in the public contract's words."""
    details = error.errors(include_url=False, include_input=False)[0]
    param = _param(details["loc"], body, missing=details["type"] == "missing")
    code = _code(details["type"])
    if code == "unknown_parameter":
        message = f"Unknown parameter: '{param}'."
    elif code == "missing_required_parameter":
        message = f"Missing required parameter: '{param}'."
    elif code == UNSUPPORTED:
        message = f"Unsupported parameter: '{param}'. {details['msg']}"
    else:
        message = f"Invalid '{param}': {_sentence(details)}" if param else _sentence(details)
    return ApiError(400, message, param=param, code=code)


def _code(kind: str) -> str:
    return CODES.get(kind) or (TYPE_CODE if kind.endswith("_type") else VALUE_CODE)


def _sentence(details: ErrorDetails) -> str:
    message = details["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return message if message.endswith(".") else message + "."


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
