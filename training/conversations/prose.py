"""Real sentences as passages: what they are about is asked in their own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from training.conversations import lexicon
from training.conversations.names import Names

WORDS_MAX = 20  # longer sentences cost more to read than they teach
TEST_SHARE = 20  # one document in so many is for the evaluation

_IS = re.compile(r"^(The [a-z][\w -]{3,40}?|[A-Z][\w-]+) (is|are|can|must|should|may|will|was) (.+)$")
_DOES = re.compile(r"^(The [a-z][\w -]{3,40}?) (\w+s) (.+)$")
_ABOUT = (
    "What does it say about {}",
    "What is said about {}",
    "What do the documents say about {}",
    "Tell me about {}",
    "What about {}",
    "Explain {}",
    "What do I need to know about {}",
    "How about {}",
)


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    sentences: tuple[str, ...]  # without their full stops


def documents(mined: Sequence[tuple[str, Sequence[str]]], *, test: bool) -> list[Document]:
    """Those of the split, with their shorter sentences."""
    chosen = [
        Document(title, tuple(s.rstrip(".") for s in sentences if len(s.split()) <= WORDS_MAX))
        for i, (title, sentences) in enumerate(mined)
        if (i % TEST_SHARE == 0) == test
    ]
    return [document for document in chosen if document.sentences]


def question(names: Names, sentence: str, others: Sequence[str]) -> str | None:
    """A question that this sentence answers and none of the others; None when there is no such."""
    pointing = sentence.split()[0] in lexicon.POINTING
    match = None if pointing else _IS.match(sentence)
    if match and names.chance(0.5):
        subject, verb = _lowered(match[1]), match[2]
        form = f"What {verb} {subject}" if verb in ("is", "are", "was") else f"What {verb} {subject} do"
        asked = names.pick((form, f"What do we know about {subject}", f"Tell me about {subject}"))
        return None if any(subject.lower() in other.lower() for other in others) else asked
    match = None if pointing else _DOES.match(sentence)
    if match and names.chance(0.5):
        subject = _lowered(match[1])
        asked = names.pick((f"What does {subject} do", f"Tell me about {subject}", f"What is said about {subject}"))
        return None if any(subject.lower() in other.lower() for other in others) else asked
    return _about(names, sentence, others)


def _about(names: Names, sentence: str, others: Sequence[str]) -> str | None:
    words = sentence.split()
    start = names.random.randint(0, max(0, len(words) - 4))
    span = words[start : start + names.random.randint(2, 5)]
    while span and _bare(span[0]) in lexicon.STOP:
        span, start = span[1:], start + 1
    while span and _bare(span[-1]) in lexicon.STOP:
        span = span[:-1]
    telling = [word for word in span if _bare(word) not in lexicon.STOP]
    text = " ".join(span).strip(",;:")
    if len(telling) < 2 or "(" in text or ")" in text:
        return None
    if any(all(word.lower() in other.lower() for word in telling) for other in others):
        return None
    return names.pick(_ABOUT).format(_lowered(text) if start == 0 else text)


def _bare(word: str) -> str:
    return word.lower().strip(",;:()")


def _lowered(subject: str) -> str:
    return subject[0].lower() + subject[1:] if subject.startswith("The ") else subject
