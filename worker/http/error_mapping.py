"""Maps exceptions to error responses of the public contract, and of the Messages API, whose errors have a shape
of their own. Pure, but for the log of what nobody foresaw."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from logging import Logger
from typing import Any

import asyncpg
from aiohttp import web

from agents.errors import AgentError
from agents.message import storable
from inference.errors import InferenceError
from migrations.pool import DATABASE_AWAY
from retrieval.errors import RetrievalError
from worker.errors import BROKE, ApiError

API = "/v1"
COMPARED_CHARS_MAX = 80  # paths longer than any route are not compared, which would take time
TOLD_CHARS_MAX = 200
DISK_RETRY_S = 10.0  # somebody has to make room first
WITHOUT_BODY = frozenset({"HEAD", "OPTIONS"})  # accepted wherever GET is, or sent by browsers themselves


def unknown_path(method: str, path: str, known: Collection[str]) -> ApiError:
    """`known` are the paths of the routes, with {names} for their variable parts."""
    meant = _meant(path, known)
    hint = f"Did you mean {meant}?" if meant else "The addresses of the API are listed in /openapi.json."
    shown = path if len(path) <= TOLD_CHARS_MAX else f"{path[:TOLD_CHARS_MAX]}…"
    return ApiError(404, f"The address {method} {shown} does not exist. {hint}")


def method_not_allowed(method: str, allowed: Iterable[str]) -> ApiError:
    methods = sorted(allowed)
    takes = " or ".join(each for each in methods if each not in WITHOUT_BODY) or "no requests"
    return ApiError(405, f"This address takes {takes}, not {method}.", headers={"Allow": ", ".join(methods)})


def _meant(path: str, known: Collection[str]) -> str | None:
    """The usual mistake is a base URL without /v1, or with it twice; then an extra or missing letter."""
    heads = {_head(each.removeprefix(API)) for each in known if each.startswith(f"{API}/")}
    bare = path
    while bare.startswith(f"{API}/"):
        bare = bare.removeprefix(API)
    if len(bare) > COMPARED_CHARS_MAX:
        return None
    if (corrected := f"{API}{bare}") != path and _head(bare) in heads:
        return corrected
    # The beginning that they all have is no likeness: the moderations of other servers are not our conversations.
    plain = {each.removeprefix(API)[1:]: each for each in known if "{" not in each and each != "/"}
    return next((plain[each] for each in get_close_matches(bare[1:], plain, n=1, cutoff=0.8)), None)


def _head(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


PLAIN_WORD = re.compile(r"[a-z]+ ")
# Postgres stores no NUL in texts, so a value with one cannot name anything stored.
UNSTORABLE = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


def to_api_error(error: BaseException) -> ApiError | None:
    """The error response for an exception; None for an unexpected one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, web.HTTPException):
        return _from_http(error)
    if isinstance(error, DOMAIN):
        return _from_domain(error)
    if isinstance(error, UNSTORABLE):
        return ApiError(400, "Text must not contain the character U+0000: it cannot be stored.", code="invalid_text")
    if isinstance(error, UnicodeEncodeError):  # lone surrogates, as which invalid UTF-8 bytes are decoded
        return ApiError(400, "The request has text that is not UTF-8.", code="invalid_text")
    if isinstance(error, asyncpg.DiskFullError):
        message = "The disk of the database is full: nothing can be stored until its operator has freed some space."
        return ApiError(503, message, retry_after_s=DISK_RETRY_S)
    if isinstance(error, DATABASE_AWAY):
        return ApiError(503, "The database is not responding. Try again in a moment.", retry_after_s=1.0)
    return None


def explained(error: Exception, log: Logger, what: str, *of: object) -> ApiError:
    """The answer to what failed with this error. Nobody but the log is told of an unexpected one; `what` failed `of`
    these."""
    answer = to_api_error(error)
    if answer is None:
        log.error(f"{what} failed", *of, exc_info=error)
        answer = ApiError(500, BROKE, code="server_error")
    return answer


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
    return ApiError(error.status, messages.get(error.status, error.reason))


def _from_domain(error: InferenceError | AgentError | RetrievalError) -> ApiError:
    return ApiError(
        error.status,
        _sentence(str(error)),
        param=error.param,
        code=error.code,
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def _sentence(message: str) -> str:
    """Capitalise messages of the packages below, which are written for log lines. A leading name is kept as it is."""
    began = message[:1].upper() + message[1:] if PLAIN_WORD.match(message) else message
    return began if began.endswith((".", "!", "?")) else f"{began}."


DOMAIN = (InferenceError, AgentError, RetrievalError)

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
TOO_LONG = "prompt is too long"  # coding agents look for these words, and then shorten the conversation

THREAD = "thread"
# This tells the tool loops of Anthropic's clients, which ask the server to keep the conversation, that they must send
# it in full.
UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": [THREAD]}


def error_body(error: ApiError) -> dict[str, Any]:
    """The message includes the parameter's name: clients of this API read nothing else."""
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"{TOO_LONG}: {message}"
    elif error.param and error.param not in message:
        message = f"{error.param}: {message}"
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told = {**error.body["error"], "type": kind, "message": storable(message)}
    return {"type": "error", "error": {**told, "details": UNTHREADED} if error.param == THREAD else told}
