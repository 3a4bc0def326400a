"""Grades citations: whether an answer cites the expected passages, and whether these support it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agents.citations import MARK
from retrieval.quality.measures import RANKS_MAX
from worker.evals.answer import Answer, Found
from worker.evals.case import ExpectedCitation, Place

BORNE_OUT = 0.6  # of the words of a sentence that carry its meaning; paraphrases keep about two thirds
WORD_CHARS_MIN = 4
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?\n]?(?: ?\[\d{1,3}\])*")
_WORD = re.compile(r"\w+(?:[.,:]\d+)*")


def cites(expected: Sequence[ExpectedCitation], answer: Answer) -> float:
    """The share of expected citations that the answer has. 0 if it also cites something that it was not given."""
    numbers = [int(mark[1]) for mark in MARK.finditer(answer.text)]
    if any(not 1 <= number <= len(answer.found) for number in numbers):
        return 0.0
    return sum(_cited(each, answer) for each in expected) / len(expected)


def rank(places: Sequence[Place], found: Sequence[Found]) -> float:
    """The reciprocal rank: that of the first result at one of the places; 0 beyond RANKS_MAX."""
    for number, passage in enumerate(found[:RANKS_MAX], 1):
        if any(_is_at(place.file, passage) and _holds(passage.text, place.text or "") for place in places):
            return 1 / number
    return 0.0


def _cited(expected: ExpectedCitation, answer: Answer) -> bool:
    passages = [
        (sentence, answer.found[int(mark[1]) - 1])
        for sentence in _sentences(answer.text)
        for mark in MARK.finditer(sentence)
    ]
    own = [(sentence, passage) for sentence, passage in passages if _is_at(expected.file, passage)]
    if not expected.says:
        return any(_bears_out(passage.text, MARK.sub("", sentence)) for sentence, passage in own)
    return all(
        _holds(answer.text, text) and any(_holds(passage.text, text) for _, passage in own) for text in expected.says
    )


def _sentences(text: str) -> list[str]:
    return [match[0] for match in _SENTENCE.finditer(text) if match[0].strip()]


def _bears_out(passage: str, sentence: str) -> bool:
    """All its numbers, and most of its longer words, are in the passage."""
    told, words = set(_words(passage)), _words(sentence)
    numbers = [word for word in words if word[0].isdigit()]
    longer = [word for word in words if len(word) >= WORD_CHARS_MIN and not word[0].isdigit()]
    if any(number not in told for number in numbers):
        return False
    return not longer or sum(word in told for word in longer) >= BORNE_OUT * len(longer)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _is_at(file: str, passage: Found) -> bool:
    """A file matches by its name, or by the end of its path."""
    return passage.file == file or passage.file.endswith(f"/{file}")


def _holds(text: str, part: str) -> bool:
    """As whole words: 12 is not in 125."""
    wanted, there = " ".join(part.casefold().split()), " ".join(text.casefold().split())
    return not wanted or re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", there) is not None
