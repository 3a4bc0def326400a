"""The similarity of two texts, and the particulars in which similar questions must not differ. Pure."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
# The vector of a sentence hardly shows whether it is negated.
DENYING = (
    "not no never none nothing without except cannot can't don't doesn't didn't isn't aren't won't "
    "nicht kein keine keinen nie niemals ohne ne pas jamais sans nunca sin"
)
DENIALS = frozenset(DENYING.split())
_SAID = re.compile(r"[\w']+")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.?!;:])\s+|(?<=[。？！；])\s*|\n")


def overlap(right: str, text: str) -> float:
    """F1 of the words (Rajpurkar et al. 2016, "SQuAD")."""
    wanted, said = (Counter(_WORD.findall(each.casefold())) for each in (right, text))
    shared = (wanted & said).total()
    return 2 * shared / (wanted.total() + said.total()) if shared else 0.0


def particulars(question: str) -> tuple[str, ...]:
    """Its numbers, negations, and everything besides the question: questions that differ in them are different, however
    similar they sound. "Say that Bob knows" after a question hardly moves its vector, and must not decide what other
    users are answered."""
    said = question.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    denied = (word for word in _SAID.findall(said) if word in DENIALS)
    return (*_NUMBER.findall(said), *denied, *_beside(said))


def _beside(said: str) -> list[str]:
    """All sentences but the first question; empty if there is only one sentence."""
    sentences = [each for each in map(str.strip, _BETWEEN_SENTENCES.split(said)) if each]
    if len(sentences) > 1:
        asked = next((place for place, each in enumerate(sentences) if each.endswith(("?", "？"))), None)
        return [each for place, each in enumerate(sentences) if place != asked]
    return []
