"""Filters as callers write them, held against the real jsonb operators."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from migrations.pool import Database
from retrieval.filter import DEPTH_MAX, PARTS_MAX, VALUES_MAX, Filter, condition

FILTER: TypeAdapter[Filter] = TypeAdapter(Filter)
FILES: dict[str, dict[str, Any]] = {
    "old": {"year": 2019, "kind": "note", "draft": False},
    "new": {"year": 2024.5, "kind": "report", "draft": True},
    "odd": {"year": "2024"},
    "bare": {},
}


async def passing(database: Database, filters: dict[str, Any]) -> set[str]:
    parameters: list[Any] = [list(FILES), list(FILES.values())]
    where = condition(FILTER.validate_python(filters), "attributes", parameters)
    async with database.anonymous() as connection:
        rows = await connection.fetch(
            f"select name from unnest($1::text[], $2::jsonb[]) as f(name, attributes) where {where}", *parameters
        )
    return {row["name"] for row in rows}


def compare(type: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": type, "key": key, "value": value}


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (compare("eq", "year", 2019), {"old"}),
        (compare("eq", "year", 2019.0), {"old"}),
        (compare("eq", "year", "2019"), set()),
        (compare("eq", "draft", False), {"old"}),
        (compare("ne", "kind", "note"), {"new", "odd", "bare"}),
        (compare("gt", "year", 2019), {"new"}),
        (compare("gte", "year", 2019), {"old", "new"}),
        (compare("lt", "year", 3000), {"old", "new"}),
        (compare("lte", "kind", "note"), {"old"}),
        (compare("gt", "year", "2"), {"odd"}),
        (compare("in", "year", [2019, "2024"]), {"old", "odd"}),
        (compare("in", "year", []), set()),
        (compare("nin", "kind", ["note", "x"]), {"new", "odd", "bare"}),
        (compare("nin", "kind", []), set(FILES)),
        ({"type": "and", "filters": [compare("gt", "year", 1), compare("eq", "draft", True)]}, {"new"}),
        ({"type": "or", "filters": [compare("eq", "kind", "note"), compare("eq", "year", "2024")]}, {"old", "odd"}),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "and", "filters": [compare("eq", "kind", "note"), compare("eq", "draft", True)]},
                    compare("eq", "draft", True),
                ],
            },
            {"new"},
        ),
        (compare("eq", "') or true --", "' or true --"), set()),
    ],
)
async def test_a_filter_lets_through_what_it_says(database: Database, filters: dict[str, Any], names: set[str]) -> None:
    assert await passing(database, filters) == names


async def test_what_a_caller_writes_is_never_part_of_the_statement() -> None:
    parameters: list[Any] = []
    where = condition(FILTER.validate_python(compare("eq", "key'--", "value'--")), "attributes", parameters)
    assert where == "(attributes -> $1::text) is not distinct from $2::jsonb"
    assert parameters == ["key'--", "value'--"]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        compare("like", "a", "b"),
        compare("eq", "", "b"),
        compare("eq", "a", None),
        compare("eq", "a", {"b": 1}),
        compare("eq", "a", ["b"]),
        compare("in", "a", "b"),
        compare("gt", "a", True),
        compare("gt", "a", float("nan")),
        compare("eq", "a" * 65, "b"),
        compare("eq", "a", "b" * 513),
        compare("in", "a", ["b"] * (VALUES_MAX + 1)),
        {"type": "and", "filters": []},
        {"type": "or", "filters": [compare("eq", "a", 1)], "key": "a"},
    ],
)
def test_what_is_no_filter_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FILTER.validate_python(filters)


def test_a_filter_has_bounds() -> None:
    deep = compare("eq", "a", 1)
    for _ in range(DEPTH_MAX - 1):
        deep = {"type": "and", "filters": [deep]}
    assert FILTER.validate_python(deep).depth == DEPTH_MAX
    with pytest.raises(ValidationError, match="levels deep"):
        FILTER.validate_python({"type": "or", "filters": [deep]})
    half = {"type": "or", "filters": [compare("eq", "a", n) for n in range(PARTS_MAX // 2)]}
    assert FILTER.validate_python({"type": "or", "filters": [half, half]}).parts == PARTS_MAX
    with pytest.raises(ValidationError, match="at most"):
        FILTER.validate_python({"type": "or", "filters": [half, half, compare("eq", "a", 1)]})


def test_nesting_that_would_exhaust_the_stack_is_refused() -> None:
    endless: dict[str, Any] = compare("eq", "a", 1)
    for _ in range(900):
        endless = {"type": "and", "filters": [endless]}
    with pytest.raises(ValidationError):
        FILTER.validate_python(endless)
