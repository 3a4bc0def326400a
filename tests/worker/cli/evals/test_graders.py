"""What answers are worth."""

from __future__ import annotations

from time import thread_time
from typing import Any

import pytest

from worker.cli.evals.graders import grade, overlap, score
from worker.cli.evals.suite import Answer, Called, Case, Defaults, ExpectedCall, Found, Tool

WEATHER = Tool.model_validate(
    {
        "name": "get_weather",
        "parameters": {"properties": {"city": {}, "unit": {"default": "celsius"}, "days": {}, "deep": {}}},
    }
)
PASSAGES = (Found("manual/returns.md", "Goods may be sent back within 14 days."), Found("prices.md", "It costs 125."))


def case(tools: list[Tool] | None = None, **expect: Any) -> Case:
    asked = {"input": "?", "expect": expect, "stores": ["s"]}
    return Case.model_validate(asked).with_defaults(Defaults(tools=tools or []), "x")


def worth(answer: str | Answer, tools: list[Tool] | None = None, **expect: Any) -> float:
    given = Answer(answer) if isinstance(answer, str) else answer
    return score(grade(case(tools, **expect), given, judged=None))


def calling(*calls: tuple[str, str]) -> Answer:
    return Answer(calls=tuple(Called(name, arguments) for name, arguments in calls))


def test_exact_is_one_of_the_right_answers_and_no_call() -> None:
    assert worth(" Yes.\n", exact=["Yes.", "Sure."]) == 1
    assert worth("yes.", exact="Yes.") == 0
    assert worth(Answer("Yes.", (Called("f", "{}"),)), exact="Yes.") == 0


def test_a_pattern_is_found_anywhere_unless_it_is_anchored() -> None:
    assert worth("It is 14 days.", pattern=r"\b14 days\b") == 1
    assert worth("It is 14 days.", pattern=r"^14 days$") == 0


def test_a_pattern_takes_time_with_the_text_alone() -> None:
    began = thread_time()
    assert worth("a" * 200_000 + "b", pattern="^(a+)+$") == 0
    assert thread_time() - began < 5  # where it went back, the sun would be out first


def test_a_schema_is_kept_whatever_the_order_of_keys() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {}}}
    assert worth('{"b": 1, "a": 2}', schema=schema) == 1
    assert worth('{"a": "2"}', schema=schema) == 0
    assert worth("a: 2", schema=schema) == 0


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ('{"city": "Oslo", "days": 2}', True),
        ('{"days": 2.0, "city": " Oslo "}', True),
        ('{"city": "Oslo", "days": 2, "unit": "celsius"}', True),  # as if it had been left out
        ('{"city": "Oslo", "days": 2, "unit": "kelvin"}', False),
        ('{"city": "Bergen", "days": 2}', True),
        ('{"city": "Oslo", "days": true}', False),
        ('{"city": "Oslo", "days": "2"}', False),
        ('{"city": "oslo", "days": 2}', False),
        ('{"city": "Oslo"}', True),
        ('{"days": 2}', False),
        ('{"city": "Oslo", "days": 2, "colour": 1}', False),
        ('{"city": "Oslo"', False),
        ("[]", False),
        ("[" * 1000 + "]" * 1000, False),
    ],
)
def test_calls_are_compared_by_what_they_mean(arguments: str, right: bool) -> None:
    wanted = {
        "name": "get_weather",
        "arguments": {"city": "Oslo", "days": 2},
        "also": {"city": ["Bergen"]},
        "optional": ["days"],
    }
    assert worth(calling(("get_weather", arguments)), [WEATHER], calls=[wanted]) == right


def test_an_argument_may_be_left_out_where_its_default_is_wanted() -> None:
    wanted = {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}
    assert worth(calling(("get_weather", '{"city": "Oslo"}')), [WEATHER], calls=[wanted]) == 1
    wanted["arguments"]["unit"] = "kelvin"  # type: ignore[index]
    assert worth(calling(("get_weather", '{"city": "Oslo"}')), [WEATHER], calls=[wanted]) == 0


def test_several_calls_may_come_in_any_order_unless_theirs_counts() -> None:
    wanted = [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]
    turned = calling(("g", ""), ("f", '{"a": 1}'))
    assert worth(turned, calls=wanted) == 1
    assert worth(turned, calls=wanted, ordered=True) == 0.5
    assert worth(calling(("g", "{}"), ("g", "{}"), ("f", '{"a": 1}')), calls=wanted) == pytest.approx(2 / 3)
    assert worth(calling(("g", "{}")), calls=wanted) == 0.5


def test_each_call_is_paired_once_in_the_way_that_pairs_the_most() -> None:
    wanted = [ExpectedCall(name="f", also={"a": [1, 2]}), ExpectedCall(name="f", arguments={"a": 1})]
    calls = [each.model_dump() for each in wanted]
    assert worth(calling(("f", '{"a": 1}'), ("f", '{"a": 2}')), calls=calls) == 1


def test_no_call_is_right_where_none_is_expected() -> None:
    assert worth("Hello!", calls=[]) == 1
    assert worth(calling(("f", "{}")), calls=[]) == 0


@pytest.mark.parametrize(
    ("text", "worth_it"),
    [
        ("Within 14 days [1].", True),
        ("You have 14 days. [1]", True),
        ("Within 14 days [2].", False),  # of another file
        ("Within 30 days [1].", False),
        ("Within 14 days.", False),
        ("Within 14 days [1], says the law [7].", False),  # of a passage that it was not given
        ("Within 14 days [1](link).", False),
    ],
)
def test_a_citation_says_what_it_cites(text: str, worth_it: bool) -> None:
    cites = [{"file": "returns.md", "says": ["14 days"]}]
    assert worth(Answer(text, found=PASSAGES), cites=cites) == worth_it


@pytest.mark.parametrize(
    ("text", "worth_it"),
    [
        ("Goods may be sent back within 14 days [1].", True),
        ("Goods can be sent back for 14 days. [1] Anything else?", True),
        ("Goods may be sent back within 15 days [1].", False),  # the number is not there
        ("Penguins march across frozen oceans [1].", False),
        ("Penguins march. Goods may be sent back within 14 days [1].", True),
    ],
)
def test_without_a_text_the_passage_must_bear_the_sentence_out(text: str, worth_it: bool) -> None:
    assert worth(Answer(text, found=PASSAGES), cites=[{"file": "returns.md"}]) == worth_it


def test_a_part_of_a_number_is_not_the_number() -> None:
    cites = [{"file": "prices.md", "says": ["12"]}]
    assert worth(Answer("It costs 12 [2].", found=PASSAGES), cites=cites) == 0


def test_what_is_found_counts_by_its_rank() -> None:
    assert worth(Answer(found=PASSAGES), finds=[{"file": "prices.md"}]) == 0.5
    assert worth(Answer(found=PASSAGES), finds=[{"file": "prices.md", "text": "costs  125"}]) == 0.5
    assert worth(Answer(found=PASSAGES), finds=[{"file": "prices.md", "text": "costs 12"}]) == 0
    assert worth(Answer(found=PASSAGES), finds=[{"file": "other.md"}, {"file": "returns.md"}]) == 1


def test_likeness_counts_shared_words() -> None:
    assert overlap("the lamp is red", "The lamp is red!") == 1
    assert overlap("the lamp is red", "the lamp is blue") == 0.75
    assert overlap("lamp", "key") == 0


def test_an_answer_is_worth_its_worst_grade_and_none_is_worth_nothing() -> None:
    assert worth(Answer("14 days [1].", found=PASSAGES), pattern="14", cites=[{"file": "prices.md"}]) == 0
    assert worth(Answer(error="status 500: it broke"), pattern=".*") == 0


def test_a_judge_has_the_last_word_on_its_own_grade_alone() -> None:
    asked = case(pattern="a", judge="It is polite.")
    assert grade(asked, Answer("a"), judged=1.0) == {"pattern": 1.0, "judge": 1.0}
    assert score(grade(asked, Answer("a"), judged=0.0)) == 0
