"""Maps exceptions to error responses of the public contract: one pure table for all of them."""

from __future__ import annotations

import re

import asyncpg
from aiohttp import web
from pydantic import ValidationError

from agents.errors import AgentError
from inference.errors import InferenceError
from migrations.pool import DATABASE_AWAY
from retrieval.errors import RetrievalError
from worker.errors import ApiError
from worker.not_found import method_not_allowed

PLAIN_WORD = re.compile(r"[a-z]+ ")
MESSAGE_CHARS_MAX = 1000  # a validation message may quote the input, which may be large
# Postgres stores no NUL in texts, so a value with one cannot name anything stored.
UNSTORABLE = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def type_of(status: int) -> str:
    return "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")


def to_api_error(error: BaseException) -> ApiError | None:
    """The error response for an exception; None for an unexpected one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, web.HTTPException):
        return _from_http(error)
    if isinstance(error, ValidationError):
        return _from_validation(error)
    if isinstance(error, DOMAIN):
        return _from_domain(error)
    if isinstance(error, UNSTORABLE):
        return ApiError(400, "Text must not contain the character U+0000: it cannot be stored.", code="invalid_text")
    if isinstance(error, UnicodeEncodeError):  # lone surrogates, as which invalid UTF-8 bytes are decoded
        return ApiError(400, "The request has text that is not UTF-8.", code="invalid_text")
    if isinstance(error, DATABASE_AWAY):
        return ApiError(
            503, "The database is not responding. Try again in a moment.", type="server_error", retry_after_s=1.0
        )
    return None


def refusal(error: Exception) -> str:
    """The status of a turn that did not start: `invalid` if the request is at fault, `refused` by the server."""
    answer = to_api_error(error)
    blames_request = answer is not None and answer.status < 500 and answer.status != 429
    return "invalid" if blames_request else "refused"


def _from_http(error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return method_not_allowed(error.method, error.allowed_methods)
    messages = {
        404: "This address does not exist.",
        413: "The request body is too large.",
    }
    return ApiError(error.status, messages.get(error.status, error.reason), type=type_of(error.status))


def _from_validation(error: ValidationError) -> ApiError:
    """The first validation error, with the field as the client writes it: input[0].content."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {message}"[:MESSAGE_CHARS_MAX] if param else message, param=param or None)


def _from_domain(error: InferenceError | AgentError | RetrievalError) -> ApiError:
    return ApiError(
        error.status,
        _sentence(str(error)),
        type=type_of(error.status),
        param=error.param,
        code=error.code,
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def _sentence(message: str) -> str:
    """Capitalise messages of the packages below, which are written for log lines. A leading name is kept as it is."""
    began = message[:1].upper() + message[1:] if PLAIN_WORD.match(message) else message
    return began if began.endswith((".", "!", "?")) else f"{began}."


DOMAIN = (InferenceError, AgentError, RetrievalError)
