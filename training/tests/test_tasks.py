from __future__ import annotations

import json

import pytest

from training import builtin, tasks
from training.passages import readings
from training.values import POOLS, Chooser


@pytest.fixture
def choose() -> Chooser:
    return Chooser("tests")


def test_nothing_in_braces_is_left_unfilled(choose: Chooser) -> None:
    for kind in {*tasks.KINDS} - {tasks.objects, tasks.pasted}:
        for text, answer in (each for _ in range(80) for each in kind(choose)):
            assert "{" not in text + answer, kind.__name__


def test_a_list_is_sorted_as_it_was_asked(choose: Chooser) -> None:
    for _ in range(200):
        (text, answer), *following = tasks.sorting(choose)
        items = answer.split(", ")
        assert all(item in text for item in items)
        keys = [int(item) for item in items] if items[0].isdigit() else [item.lower() for item in items]
        assert keys in (sorted(keys), sorted(keys, reverse=True))
        for asked, told in following:
            if asked in POOLS["as array"]:
                assert [str(each) for each in json.loads(told)] == items
            if asked in POOLS["last"]:
                assert told.lower() == items[-1].lower()


def test_an_object_has_what_was_said_and_then_one_field_more(choose: Chooser) -> None:
    made = [[json.loads(answer) for _, answer in tasks.objects(choose)] for _ in range(100)]
    for first, *rest in made:
        assert all(first.items() <= more.items() and len(more) == len(first) + 1 for more in rest)
    assert {len(each) for each in made} == {1, 2}


def test_a_letter_says_what_was_asked_for_in_each_of_its_forms(choose: Chooser) -> None:
    matters = [POOLS["ask"], POOLS["that"]]
    plain = {each for pool in matters for each in pool if "{" not in each}
    for _ in range(200):
        (text, answer), *following = tasks.letter(choose)
        for matter in (each for each in plain if each in text):
            told = [answer, *(said for asked, said in following if asked not in POOLS["translated"])]
            assert all(matter in each for each in told)


def test_a_pasted_text_is_answered_without_a_citation(choose: Chooser) -> None:
    answers = {f"{fact.answer}." for each in readings() for fact in each.facts} | set(POOLS["not told"])
    for _ in range(200):
        said = tasks.pasted(choose)
        assert any(each.text in said[0][0] for each in readings())
        assert all("[" not in answer or answer in answers for _, answer in said)
        assert said[-1][1] in answers or len(said) == 1


def test_what_was_told_is_remembered(choose: Chooser) -> None:
    for _ in range(200):
        said = tasks.remembering(choose)
        told = " ".join(text for text, answer in said if answer in POOLS["noted"])
        asked = [answer for _, answer in said if answer not in POOLS["noted"]]
        assert asked
        assert all(answer.rstrip(".").split()[-1] in told for answer in asked)


def test_another_percentage_is_of_the_same_number(choose: Chooser) -> None:
    made = [builtin._share(choose, "240") for _ in range(20)]
    assert all(each and each.call["arguments"]["expression"].startswith("240 * ") for each in made)
    before = builtin._calculated("15% of 240?", "240 * 15 / 100", "{r}", "15% of 240")
    assert before is not None
    again = [before.again(choose).call["arguments"]["expression"] for _ in range(40)]
    assert 10 < sum(each.startswith("240 * ") for each in again) < 40


def test_tomorrow_is_the_day_after_today(choose: Chooser) -> None:
    asked = builtin.time(choose, kind="tomorrow")
    today = json.loads(asked.result)["date"]
    assert asked.answer.split()[2] > today
    assert asked.again(choose).answer.startswith("Tomorrow is 20")
