"""The tools that come with the server."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.search import search_documents
from agents.tool import ToolContext, ToolError
from agents.tools import builtin_toolbox
from agents.tools.calculator import evaluate
from agents.tools.convert_units import UNITS, convert_units, find_unit
from agents.tools.current_time import current_time, find_zone
from tests.agents.turns import TENANT, ShelfSearcher, passage


def convert(value: float, from_unit: str, to_unit: str) -> Any:
    return convert_units.function(value, from_unit, to_unit)["result"]


def test_the_toolbox_has_all_four() -> None:
    assert builtin_toolbox(ShelfSearcher([])).names == (
        "calculator",
        "current_time",
        "convert_units",
        "search_documents",
    )
    assert "search_documents" not in builtin_toolbox(None).names


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 7", 84),
        ("2 * (3 + 4)", 14),
        ("0.1 + 0.2", 0.3),
        ("7 / 2", 3.5),
        ("8 / 2", 4),
        ("7 // 2 + 7 % 4", 6),
        ("-2 ** 2", -4),
        ("2 ^ 10", 1024),
        ("2 ** -1", 0.5),
        ("6 × 7 ÷ 2 − 1", 20),
        ("15 / 100 * 80", 12),
        ("sqrt(2) * sqrt(2)", 2),
        ("max(1, 2, 3) + round(2.567, 1)", 5.6),
        ("round(cos(pi), 3)", -1),
        ("12345678901234567890 * 3", 37037036703703703670),
        ("2 ** 200", 1.6069380442589903e60),
        ("1 / 3", 0.333333333333),
    ],
)
def test_the_calculator_calculates(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9",
        "(9**999)**999",
        "10 ** 10 ** 10",
        "2 ** 3000",
        "1e308 * 10",
        "1 / 0",
        "0 ** -1",
        "(-8) ** 0.5",
        "round(5, -999999999)",
        "exp(1000)",
        "sqrt(-1)",
        "-" * 400 + "1",
        "(" * 240 + "1" + ")" * 240,
        "1 + " * 200 + "1",
        "[1] * 10**9",
        "'a' * 1000000000",
        "__import__('os').system('true')",
        "(1).__class__",
        "lambda: 1",
        "1 if 1 else 2",
        "f(1)",
        "max(*[1])",
        "round(2.5, digits=1)",
        "True + 1",
        "1j",
        "x",
        "",
        "12 *",
        "\0",
    ],
)
def test_the_calculator_refuses_at_once(expression: str) -> None:
    started = time.thread_time()
    with pytest.raises(ToolError):
        evaluate(expression)
    assert time.thread_time() - started < 0.1


@given(st.text("0123456789.+-*/%^() eE,round", max_size=40))
def test_no_expression_does_worse_than_be_refused(expression: str) -> None:
    with suppress(ToolError):
        assert isinstance(evaluate(expression), int | float)


def test_a_refusal_names_the_reason() -> None:
    with pytest.raises(ToolError, match="division by zero"):
        evaluate("1 / 0")
    with pytest.raises(ToolError, match="too large"):
        evaluate("9**9**9")
    with pytest.raises(ToolError, match=r"'x\.y' is not allowed"):
        evaluate("1 + x.y")


@pytest.mark.parametrize(
    ("place", "zone"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("new_york", "America/New_York"),
        ("Munich", "Europe/Berlin"),
        ("America/Lagos", "Africa/Lagos"),
        ("Australia/Mumbai", "Asia/Kolkata"),
        ("Paris, France", "Europe/Paris"),
        ("India", "Asia/Kolkata"),
        ("UTC", "UTC"),
    ],
)
def test_zones_are_found_by_name_city_or_country(place: str, zone: str) -> None:
    assert find_zone(place) == zone


@pytest.mark.parametrize("place", ["", "Atlantis", "../../etc/passwd", "/etc/localtime", "\0"])
def test_an_unknown_place_is_an_error(place: str) -> None:
    with pytest.raises(ToolError, match="unknown time zone"):
        find_zone(place)


def test_the_time_is_that_of_the_zone() -> None:
    told = current_time.function("Asia/Tokyo")
    there = datetime.fromisoformat(f"{told['date']}T{told['time']}").replace(tzinfo=ZoneInfo(told["timezone"]))
    assert timedelta() <= datetime.now(UTC) - there < timedelta(minutes=2)


@pytest.mark.parametrize(
    ("value", "from_unit", "to_unit", "result"),
    [
        (5, "miles", "kilometers", 8.04672),
        (100, "celsius", "F", 212),
        (-40, "°F", "°C", -40),
        (0, "kelvin", "degrees Celsius", -273.15),
        (1, "stone", "kg", 6.35029),
        (2.5, "Hours", "min", 150),
        (1, "GB", "MiB", 953.674),
        (90, "km/h", "m/s", 25),
        (1, "square mile", "acres", 640),
        (3, "fl oz", "ml", 88.7206),
        (1, "MW", "mW", 1_000_000_000),
        (1_234_567.891, "m", "m", 1_234_567.891),
        (12, "inches", "foot", 1),
    ],
)
def test_units_are_converted(value: float, from_unit: str, to_unit: str, result: float) -> None:
    assert convert(value, from_unit, to_unit) == result


@given(st.sampled_from(sorted(UNITS)), st.floats(-1e6, 1e6))
def test_a_conversion_and_back_is_where_it_began(unit: str, value: float) -> None:
    base = next(name for name, each in UNITS.items() if each.dimension == UNITS[unit].dimension)
    to_base, back = UNITS[unit], UNITS[base]
    middle = (value * to_base.factor + to_base.offset - back.offset) / back.factor
    assert (middle * back.factor + back.offset - to_base.offset) / to_base.factor == pytest.approx(value, abs=1e-6)


def test_every_spelling_is_found_as_it_is_written() -> None:
    assert {name: find_unit(name) for name in UNITS} == UNITS


@pytest.mark.parametrize(
    ("from_unit", "to_unit", "told"),
    [("miles", "kg", "length"), ("furlongs", "m", "unknown unit"), ("", "m", "unknown unit")],
)
def test_what_cannot_be_converted_says_why(from_unit: str, to_unit: str, told: str) -> None:
    with pytest.raises(ToolError, match=told):
        convert(1, from_unit, to_unit)


@pytest.mark.parametrize("value", [1e308, float("inf"), float("nan")])
def test_a_value_beyond_all_numbers_is_refused(value: float) -> None:
    with pytest.raises(ToolError, match="too large"):
        convert(value, "km", "nm")


async def test_a_search_returns_numbered_passages_that_can_be_cited() -> None:
    context = ToolContext(TENANT, sources=[passage(9)])
    found = await search_documents(ShelfSearcher([passage(1), passage(2)])).run('{"query": "x"}', context)
    assert found == "[2] Title 1: Fact 1.\n[3] Title 2: Fact 2."
    assert context.sources == [passage(9), passage(1), passage(2)]


async def test_a_search_without_success_says_so() -> None:
    tool = search_documents(ShelfSearcher([]))
    assert await tool.run('{"query": "x"}', ToolContext(TENANT)) == "No passages found."


async def test_a_search_uses_the_stores_of_the_request() -> None:
    tool = search_documents(ShelfSearcher([], store="mine"))
    assert await tool.run('{"query": "x"}', ToolContext(TENANT, stores=("mine",))) == "No passages found."
    with pytest.raises(ToolError, match="no vector store 'docs'"):
        await tool.run('{"query": "x"}', ToolContext(TENANT))
