"""Lists: one page of a collection, and the parameters that select the next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from worker.errors import ApiError, invalid
from worker.wire import limits

ID = re.compile(limits.ID_PATTERN)
DIGITS_MAX = 9  # checked before parsing a number; leading zeros count
Order = Literal["asc", "desc"]
# As in the OpenAPI description.
PAGE: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "pattern": limits.ID_PATTERN},
    "limit": {"type": "integer", "minimum": 1, "maximum": limits.PAGE_MAX, "default": limits.PAGE_DEFAULT},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
}


@dataclass(frozen=True, slots=True)
class PageQuery:
    after: str | None
    limit: int
    order: Order

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> PageQuery:
        """Parse the query string of a URL. Raises ApiError 400 naming the parameter."""
        return cls(_after(query.get("after")), _limit(query.get("limit")), _order(query.get("order", "desc")))


def search_words(query: Mapping[str, str]) -> str:
    """The query of a search. Raises ApiError 400 naming the parameter."""
    text = query.get("query", "").strip()
    if not 1 <= len(text) <= limits.SEARCH_CHARS_MAX or "\0" in text:
        raise invalid("query", f"it must have 1 to {limits.SEARCH_CHARS_MAX} characters.")
    return text


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def page_of(data: Sequence[dict[str, Any]], query: PageQuery) -> tuple[list[dict[str, Any]], bool]:
    """The page of a list that is complete in memory, oldest first, and whether more follows it."""
    ordered = list(data) if query.order == "asc" else list(reversed(data))
    start = next((index for index, entry in enumerate(ordered, 1) if entry["id"] == query.after), 0)
    if query.after is not None and not start:
        raise _unknown_after()
    return ordered[start : start + query.limit], len(ordered) > start + query.limit


def _unknown_after() -> ApiError:
    return invalid("after", "use the id of the last entry received.")


def _after(value: str | None) -> str | None:
    if value is not None and not ID.fullmatch(value):
        raise _unknown_after()
    return value


def _limit(value: str | None) -> int:
    if value is None:
        return limits.PAGE_DEFAULT
    if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX and 1 <= int(value) <= limits.PAGE_MAX):
        raise invalid("limit", f"it must be a number from 1 to {limits.PAGE_MAX}.")
    return int(value)


def _order(value: str) -> Order:
    if value == "asc":
        return "asc"
    if value == "desc":
        return "desc"
    raise invalid("order", "it must be asc or desc.")
