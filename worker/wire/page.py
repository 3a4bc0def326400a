"""Lists: a page of a collection, and how one asks for the next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from worker.errors import ApiError
from worker.wire import limits

ID = re.compile(limits.ID_PATTERN)
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class PageQuery:
    after: str | None
    limit: int
    order: Order

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> PageQuery:
        """From the query part of an address. Raises ApiError 400 naming the parameter."""
        return cls(_after(query.get("after")), _limit(query.get("limit")), _order(query.get("order", "desc")))


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _after(value: str | None) -> str | None:
    if value is not None and not ID.fullmatch(value):
        raise ApiError(
            400, "Invalid 'after': it is the id of the last entry seen.", param="after", code="invalid_value"
        )
    return value


def _limit(value: str | None) -> int:
    if value is None:
        return limits.PAGE_DEFAULT
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= limits.PAGE_MAX):
        message = f"Invalid 'limit': it is a number from 1 to {limits.PAGE_MAX}."
        raise ApiError(400, message, param="limit", code="invalid_value")
    return int(value)


def _order(value: str) -> Order:
    if value == "asc":
        return "asc"
    if value == "desc":
        return "desc"
    raise ApiError(400, "Invalid 'order': it is asc or desc.", param="order", code="invalid_value")
