"""Errors for a path or method without a route, with a suggestion of what was meant. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from worker.errors import ApiError

API = "/v1"
COMPARED_CHARS_MAX = 80  # paths longer than any route are not compared, which would take time
TOLD_CHARS_MAX = 200
WITHOUT_BODY = frozenset({"HEAD", "OPTIONS"})  # accepted wherever GET is, or sent by browsers themselves


def unknown_path(method: str, path: str, known: Collection[str]) -> ApiError:
    """`known` are the paths of the routes, with {names} for their variable parts."""
    meant = _meant(path, known)
    hint = f"Did you mean {meant}?" if meant else "The addresses of the API are listed in /openapi.json."
    shown = path if len(path) <= TOLD_CHARS_MAX else f"{path[:TOLD_CHARS_MAX]}…"
    return ApiError(404, f"The address {method} {shown} does not exist. {hint}", type="not_found_error")


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
    plain = [each for each in known if "{" not in each]
    return next(iter(get_close_matches(path, plain, n=1, cutoff=0.8)), None)


def _head(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
