"""The handbook tells what it says it tells, and answers are judged by hand-made examples."""

from __future__ import annotations

import pytest

from benchmarks.answers.handbook import Case, handbook
from benchmarks.answers.judge import Answer, Share, judge, shares

CASE = Case("How many passengers does the Belosta ferry carry?", "belosta-ferry.md", "12")
OTHER = "corwixen-ferry.md"


def test_what_can_be_answered_is_told_and_the_rest_is_not() -> None:
    book = handbook(120)
    assert len(book.answerable) == len(book.unanswerable) == 120
    told = {(case.question, case.file) for case in book.answerable}
    for case in book.answerable:
        assert case.value is not None and case.value in book.documents[case.file]
    for case in book.unanswerable:
        assert case.value is None and case.file in book.documents
        assert (case.question, case.file) not in told
    titles = [text.splitlines()[0] for text in book.documents.values()]
    assert len(set(titles)) == len(titles)


def test_a_seed_gives_the_same_handbook_and_another_one_another() -> None:
    assert handbook(20, seed=1) == handbook(20, seed=1) != handbook(20, seed=2)


def test_a_right_answer() -> None:
    answer = Answer("It carries 12 passengers [1].", (CASE.file,), ((CASE.file, "It carries 12 passengers."),))
    verdict = judge(CASE, answer)
    assert (verdict.given, verdict.value, verdict.cited, verdict.declined, verdict.unknown) == (
        *(True, True, True),
        *(False, 0),
    )


def test_a_wrong_value_and_a_wrong_document() -> None:
    answer = Answer("It carries 125 [1], or 312 [2] [9].", (CASE.file, OTHER), ((OTHER, "12"),))
    verdict = judge(CASE, answer)
    assert not (verdict.given or verdict.value or verdict.cited or verdict.declined)
    assert verdict.unknown == 1


@pytest.mark.parametrize(
    ("text", "declined"),
    [
        ("I could not find that in the documents.", True),
        ("The passages do not mention its captain.", True),
        ("That isn't stated anywhere.", True),
        ("There is no information on that.", True),
        ("The ferry does not sail on Friday.", False),
        ("Its captain is Agda Belosta [1].", False),
        ("", False),
    ],
)
def test_declining_is_recognised(text: str, declined: bool) -> None:
    assert judge(CASE, Answer(text, (), ())).declined is declined


def test_shares_are_of_those_that_they_speak_of() -> None:
    right = judge(CASE, Answer("12 [1]", (CASE.file,), ((CASE.file, "12"),)))
    lost = judge(CASE, Answer("I could not find that.", (), ((OTHER, "13"),)))
    found = shares([right, right, lost, lost], [lost, right])
    assert {name: (share.count, share.of) for name, share in found.items()} == {
        "the passage that tells it was given": (2, 4),
        "right value": (2, 4),
        "right citation": (2, 4),
        "right value and citation": (2, 4),
        "right value, where the passage was given": (2, 2),
        "declined although there is an answer": (2, 4),
        "declined where there is none": (1, 2),
        "cites what was not given": (0, 6),
    }


def test_intervals_are_wilsons() -> None:
    assert Share(50, 100).interval == pytest.approx((0.404, 0.596), abs=1e-3)
    low, high = Share(0, 100).interval
    assert low == pytest.approx(0, abs=1e-9) and high == pytest.approx(0.037, abs=1e-3)
    assert str(Share(50, 100)) == "50% (40% to 60%)"
