"""The parameters of an address, and the pages of lists that they ask for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from aiohttp import web
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema

from agents.errors import NotFound
from retrieval.errors import FileNotFound
from worker.errors import ApiError, invalid
from worker.wire import limits
from worker.wire.options import INCLUDABLE, RESULTS
from worker.wire.strict import Id, only, refusal


class Query(BaseModel):
    """Values are texts in an address, so they are converted. Parameters that are not declared are ignored."""

    model_config = ConfigDict(frozen=True)


Asked = TypeVar("Asked", bound=Query)
DIGITS = re.compile("[0-9]{1,9}")
ID = re.compile(limits.ID_PATTERN)
PAGED_FORWARDS = "Lists are paged forwards here: use `after`, with the order asc or desc."


def parse_query(model: type[Asked], request: web.Request) -> Asked:
    """Clients send `include` several times, or `include[]`. Raises ApiError 400 as `parse` does."""
    query, given = request.query, dict[str, Any](request.query)
    if several := [*query.getall("include", ()), *query.getall("include[]", ())]:
        given["include"] = several
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise refusal(error, given) from None


def whole(least: int, most: int) -> tuple[Any, BeforeValidator]:
    """Not what Python reads as a number besides: signs, fractions, other digits, and zeros without end."""

    def number(text: str) -> int:
        if not (DIGITS.fullmatch(text) and least <= int(text) <= most):
            raise ValueError(f"it must be a number from {least} to {most}")
        return int(text)

    return Field(ge=least, le=most), BeforeValidator(number)


def _switched(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text == "true"


def _received(text: str) -> str:
    if not ID.fullmatch(text):
        raise ValueError("use the id of the last entry received")
    return text


Switch: TypeAlias = Annotated[bool, BeforeValidator(_switched)]
EntryId: TypeAlias = Annotated[Id, BeforeValidator(_received)]


def some_of(known: Collection[str]) -> tuple[AfterValidator, WithJsonSchema]:
    """A list of these values."""

    def check(values: list[str]) -> list[str]:
        if not {*values}.issubset(known):
            raise ValueError(f"it must be one of {', '.join(sorted(known))}")
        return values

    return AfterValidator(check), WithJsonSchema({"type": "array", "items": {"enum": sorted(known)}})


class Including(Query):
    """What is told only where it is asked for."""

    include: Annotated[list[str], *some_of(INCLUDABLE)] = Field(default_factory=list)

    @property
    def with_results(self) -> bool:
        return RESULTS in self.include


class PageQuery(Query):
    after: EntryId | None = None
    limit: Annotated[int, *whole(1, limits.PAGE_MAX)] = limits.PAGE_DEFAULT
    order: Literal["asc", "desc"] = "desc"
    # Who pages backwards would get the first page again and again.
    before: SkipJsonSchema[Annotated[str | None, only(None, "", instead=PAGED_FORWARDS)]] = None

    async def check(self, page: Sequence[object], find: Callable[[str], Awaitable[object]]) -> None:
        """An empty page ends the list only if the entry before it is still there: who deletes the entries of each page
        would miss the rest. Raises ApiError 400."""
        if page or self.after is None:
            return
        try:
            await find(self.after)
        except (NotFound, FileNotFound):
            raise _unknown("after") from None

    def of(self, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """This page of a list that is complete in memory, oldest first. Raises ApiError 400."""
        ordered = data if self.order == "asc" else data[::-1]
        start = 0 if self.after is None else _place(ordered, "after", self.after) + 1
        return list_object(ordered[start : start + self.limit], len(ordered) > start + self.limit)


class AnthropicPage(Query):
    """A page behind an entry or before one, of the lists that Anthropic's API has too, at the same address."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, *whole(1, limits.ANTHROPIC_PAGE_MAX)] = limits.PAGE_DEFAULT

    def of(self, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """This page of a list that is complete in memory. Raises ApiError 400."""
        if self.after_id and self.before_id:
            raise invalid("before_id", "give either after_id or before_id.")
        if self.before_id:
            end = _place(data, "before_id", self.before_id)
            return list_object(data[max(0, end - self.limit) : end], end > self.limit)
        start = _place(data, "after_id", self.after_id) + 1 if self.after_id else 0
        return list_object(data[start : start + self.limit], len(data) > start + self.limit)


def list_object(data: Sequence[Mapping[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def _place(data: Sequence[Mapping[str, Any]], name: str, id: str) -> int:
    """Raises ApiError 400."""
    found = next((index for index, entry in enumerate(data) if entry["id"] == id), None)
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> ApiError:
    return invalid(name, "use the id of the first or the last entry received.")
