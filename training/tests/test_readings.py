from __future__ import annotations

import re

import pytest

from training import questions
from training.passages import Passage, readings
from training.values import MIXTURE, POOLS, Chooser

EXACT = re.compile(r"\d[\d.,:]*\d|\d|`[^`]+`")  # numbers and code, which nobody may say in other words
REFUSALS = POOLS["refusal"]


@pytest.fixture
def choose() -> Chooser:
    return Chooser("readings")


def shown(reading: Passage) -> str:
    return " ".join(f"{reading.title}\n{reading.text}".split())


def stems(text: str) -> set[str]:
    return set(re.findall(r"(?<![a-z])[a-z]{4}", text.lower()))


def test_an_answer_says_what_its_passage_says() -> None:
    for reading in readings():
        text = shown(reading)
        for fact in reading.facts:
            assert all(each.strip("`") in text for each in EXACT.findall(fact.answer)), fact.answer
            own = stems(fact.answer) - stems(text)
            assert len(own) <= max(1, 0.3 * len(stems(fact.answer))), (fact.answer, own)
            assert not fact.answer.endswith((".", "!", "?"))


def test_a_passage_has_questions_and_none_of_them_twice() -> None:
    for reading in readings():
        assert reading.text
        assert len(reading.facts) > 1 and reading.open, reading.title
        asked = [*reading.open, *(question for fact in reading.facts for question in fact.questions)]
        assert all(question.strip() == question != "" for question in asked), reading.title
        assert len(set(asked)) == len(asked), reading.title


def test_the_citation_names_the_passage_of_the_question(choose: Chooser) -> None:
    for _ in range(400):
        told, _, answer = questions.about_reading(choose)
        if answer not in REFUSALS:
            (number,) = set(re.findall(r" \[(\d)\]\.", answer))
            answers = [fact.answer for fact in told[int(number) - 1].facts]
            assert all(part in answers for part in re.split(r" \[\d\]\. ?", answer) if part)


def test_a_cut_passage_still_answers(choose: Chooser) -> None:
    facts = [(reading, fact) for reading in readings() for fact in reading.facts]
    cut = [
        (less, fact)
        for reading, fact in facts
        if (less := reading.window(choose, fact, (0, 1, 2), (0, 1, 2))) != reading
    ]
    assert len(cut) > 20
    assert all(fact.answer in less.text for less, fact in cut)


def test_what_a_passage_leaves_open_or_whose_passage_is_absent_is_declined(choose: Chooser) -> None:
    declined = []
    for _ in range(600):
        told, question, answer = questions.about_reading(choose)
        assert told
        if answer in REFUSALS:
            declined.append(any(question in reading.open for reading in told))
            assert question not in {each for reading in told for fact in reading.facts for each in fact.questions}
    assert 0.18 * 600 < len(declined) < 0.32 * 600
    assert any(declined) and not all(declined)


def test_questions_about_documents_are_asked_with_their_passages(
    choose: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIXTURE, "readings", 1)
    asked = questions.ask(choose)
    assert re.match(r"Passages:\n\[1\] ", asked.text)
    assert (
        asked.question
        in {way for each in readings() for way in (*each.open, *(way for fact in each.facts for way in fact.questions))}
        or " and " in asked.question
    )
