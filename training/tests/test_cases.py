"""What counts as right in the evaluation, and that its cases are what their names say."""

from __future__ import annotations

from itertools import islice

import pytest

from agents.message import FunctionCall
from inference.prompt import ChatMessage, ToolCall
from training.cases import CATEGORIES, Category, Reply, calls_right, cited, declined, error_told, told
from training.conversations.passages import NOT_FOUND
from training.tests.conftest import generator

BOTH = "The lamp is red [1]. The key is blue [3]."


def reply(text: str = "", *calls: tuple[str, str]) -> Reply:
    return Reply(text, tuple(FunctionCall(str(i), name, arguments) for i, (name, arguments) in enumerate(calls)))


def wanted(*calls: tuple[str, str]) -> ChatMessage:
    return ChatMessage("assistant", "", tuple(ToolCall(name, arguments) for name, arguments in calls))


def test_calls_are_right_by_name_order_and_value() -> None:
    expected = wanted(("get", '{"a": 1, "b": "x"}'), ("put", "{}"))
    right = calls_right(expected, reply("", ("get", '{"b": "x", "a": 1}'), ("put", "{}")))
    assert right == {"right tools": True, "names and arguments exact": True}
    wrong = calls_right(expected, reply("", ("get", '{"a": 2, "b": "x"}'), ("put", "{}")))
    assert wrong == {"right tools": True, "names and arguments exact": False}
    assert not any(calls_right(expected, reply("", ("put", "{}"), ("get", '{"a": 1, "b": "x"}'))).values())
    assert not any(calls_right(expected, reply("no call")).values())


def test_a_citation_counts_apart_from_the_value() -> None:
    expected = ChatMessage("assistant", BOTH)
    assert cited(expected, reply(BOTH)) == {"right value": True, "right citation": True, "both": True}
    assert cited(expected, reply(BOTH.replace("[3]", "[2]"))) == {
        "right value": True,
        "right citation": False,
        "both": False,
    }
    assert not cited(expected, reply("The lamp is red [1]. The key is green [3]."))["right value"]
    assert not any(cited(expected, reply(NOT_FOUND)).values())


def test_an_answer_with_a_call_is_not_told() -> None:
    expected = ChatMessage("assistant", "It is 12:00 in UTC.")
    assert told(expected, reply("It is 12:00 in UTC.")) == {"exact": True}
    assert told(expected, reply("It is 12:00 in UTC.", ("current_time", "{}"))) == {"exact": False}


def test_an_answer_has_the_right_values_whatever_it_calls_them() -> None:
    category = next(category for category in CATEGORIES if category.name == "answer after a result")
    case = next(case for case in category.cases(generator(split="test")) if len(case.values) > 1)
    at, content = case.at[-1], case.expected(case.at[-1]).content
    assert category.judged(case, at, reply(f"Here: {content}")) == {"right values": True, "exact": False}
    assert not category.judged(case, at, reply(content.replace(case.values[0], case.values[0] + "0")))["right values"]
    assert not category.judged(case, at, reply(content, ("current_time", "{}")))["right values"]


def test_an_error_counts_when_its_words_are_told() -> None:
    expected = ChatMessage("assistant", "Sorry, get_tide failed: no such harbour.")
    assert error_told(expected, reply("It did not work: no such harbour."))["reported"]
    assert not error_told(expected, reply("Sorry, get_tide failed."))["reported"]


def test_declining_is_recognised() -> None:
    expected = ChatMessage("assistant", NOT_FOUND)
    assert declined(expected, reply(NOT_FOUND))["declined"]
    assert not declined(expected, reply("The lamp is red [1]."))["declined"]


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda category: category.name)
def test_the_right_answer_is_judged_right(category: Category) -> None:
    for case in islice(category.cases(generator(split="test")), 10):
        for at in case.at:
            expected = case.expected(at)
            calls = [(call.name, call.arguments) for call in expected.tool_calls]
            assert all(category.judged(case, at, reply(expected.content, *calls)).values())
            assert case.prompt(at)[-1].role in ("user", "tool")


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda category: category.name)
def test_silence_is_judged_wrong(category: Category) -> None:
    (case,) = islice(category.cases(generator(split="test")), 1)
    assert not any(category.judged(case, case.at[-1], reply()).values())
