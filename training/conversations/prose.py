"""Real sentences as passages: what they are about is asked in their own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from training.conversations import lexicon
from training.conversations.names import Names

WORDS_MAX = 20  # longer sentences cost more to read than they teach
ASKED_SHARE = 0.5  # of the questions without a form of their own are a few of the sentence's words
BENT_SHARE = 0.3  # of such words are asked for in another form
TEST_SHARE = 20  # one document in so many is for the evaluation

_THING = r"(?:The|A|An|Each|Every) (?:[\w`.-]+ ){0,2}?[\w`.-]+|(?:The )?[\w`.-]+ of the \w+|[A-Z][\w-]+"
_IS = re.compile(rf"^({_THING}|The [a-z][\w -]{{3,40}}?) (is|are|can|must|should|may|will|was) (.+)$")
_ACTS = re.compile(r"^((?:The|A|An|Each|Every) (?:[\w`.-]+ ){0,2}?[\w`.-]+) (\w\w+s) (.+)$")
_DONE = re.compile(
    rf"^({_THING}) (is|are) (\w+ed|kept|made|set|given|shown|sent|written|told|found)"
    r" (for|in|at|on|by|with|from|when|until|before|after|if) (.+)$"
)
_NO_VERBS = frozenset(("is", "its", "was", "this", "as", "does", "always", "sometimes", "also", "plus"))
_ASKED_BY = {
    "for": "How long",
    "in": "Where",
    "at": "Where",
    "on": "Where",
    "when": "When",
    "if": "When",
    "until": "Until when",
    "before": "When",
    "after": "When",
}
_HISSING = ("sses", "shes", "ches", "xes", "zes")
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
# Words of a sentence, made into what people ask without having read it.
_BY_ONE = (
    "How do I use {}",
    "Can I use {}",
    "What is {}",
    "What are {}",
    "How does {} work",
    "What does {} do",
    "Where do I find {}",
    "Is there a {}",
)
_BY_TWO = (
    "How do I {} {}",
    "How can I {} the {}",
    "How do I {} my own {}",
    "Can I {} {}",
    "Does it {} {}",
    "Which {} does the {} have",
    "What is the {} of the {}",
    "Is {} {}",
    "Are {} {}",
    "What happens to {} with {}",
    "How many {} does {} take",
    "When is {} {}",
    "Why {} {}",
)
_WORD = re.compile(r"[`A-Za-z][\w`.-]*")
_TELLING_LETTERS = 4


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    sentences: tuple[str, ...]  # without their full stops


def documents(mined: Sequence[tuple[str, Sequence[str]]], *, test: bool) -> list[Document]:
    """Those of the split."""
    return whole([document for i, document in enumerate(mined) if (i % TEST_SHARE == 0) == test])


def whole(mined: Sequence[tuple[str, Sequence[str]]]) -> list[Document]:
    """With their shorter sentences; without those that have none."""
    shorter = (
        Document(title, tuple(s.rstrip(".") for s in sentences if len(s.split()) <= WORDS_MAX))
        for title, sentences in mined
    )
    return [document for document in shorter if document.sentences]


def question(names: Names, sentence: str, others: Sequence[str]) -> str | None:
    """A question that this sentence answers and none of the others; None when there is no such."""
    if sentence.split()[0] not in lexicon.POINTING and names.chance(0.65):
        for forms in (_of_doing, _of_being, _of_acting):
            if found := forms(names, sentence):
                subject, asked = found
                return None if any(subject.lower() in other.lower() for other in others) else asked
    if names.chance(ASKED_SHARE):
        return _asked(names, sentence, others)
    return _about(names, sentence, others)


def _of_doing(names: Names, sentence: str) -> tuple[str, str] | None:
    """`Traces are kept for 7 days` is asked by how it goes on. -> the subject and the question."""
    match = _DONE.match(sentence)
    if not match:
        return None
    subject, verb, done, link, rest = match.groups()
    subject = _lowered(subject)
    if link == "for" and not rest[0].isdigit():
        return subject, f"What {verb} {subject} {done} for"
    if link in ("by", "with", "from"):
        return subject, f"What {verb} {subject} {done} {link}"
    return subject, f"{_ASKED_BY[link]} {verb} {subject} {done}"


def _of_being(names: Names, sentence: str) -> tuple[str, str] | None:
    match = _IS.match(sentence)
    if not match:
        return None
    subject, verb = _lowered(match[1]), match[2]
    form = f"What {verb} {subject}" if verb in ("is", "are", "was") else f"What {verb} {subject} do"
    return subject, names.pick((form, form, f"What do we know about {subject}", f"Tell me about {subject}"))


def _of_acting(names: Names, sentence: str) -> tuple[str, str] | None:
    match = _ACTS.match(sentence)
    if not match:
        return None
    subject, verb = _lowered(match[1]), match[2]
    if verb in _NO_VERBS:
        return None
    base = (
        "have"
        if verb == "has"
        else f"{verb[:-3]}y"
        if verb.endswith("ies")
        else verb[:-2]
        if verb.endswith(_HISSING)
        else verb[:-1]
    )
    form = f"What does {subject} {base}"
    return subject, names.pick((form, form, f"What does {subject} do", f"Tell me about {subject}"))


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


def _asked(names: Names, sentence: str, others: Sequence[str]) -> str | None:
    """One or two of its words in a question that somebody asks who has not read it."""
    telling = list(dict.fromkeys(word for word in _WORD.findall(sentence) if _tells(word)))
    count = names.pick((1, 2, 2))
    if len(telling) < count:
        return None
    chosen = names.random.sample(telling, count)
    if any(all(_stem(word) in other.lower() for word in chosen) for other in others):
        return None
    words = [_bent(names, word) for word in chosen]
    return names.pick(_BY_ONE if count == 1 else _BY_TWO).format(*words)


def _tells(word: str) -> bool:
    bare = _bare(word)
    long = len(word) >= _TELLING_LETTERS or word.startswith("`")
    return long and bare not in lexicon.STOP and bare not in lexicon.VAGUE


def _stem(word: str) -> str:
    word = word.lower().strip("`.")
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= _TELLING_LETTERS - 1:
            return word.removesuffix(ending)
    return word


def _bent(names: Names, word: str) -> str:
    """As it stands, or as its stem: `kept` stays, `keys` becomes `key`."""
    word = word.strip(".")
    plain = word.isalpha() and not word.isupper()
    bent = _stem(word) if plain and names.chance(BENT_SHARE) else word.lower() if plain else word
    return bent.strip("`") if names.chance(0.8) else bent


def _bare(word: str) -> str:
    return word.lower().strip(",;:()")


def _lowered(subject: str) -> str:
    article = subject.split()[0] in ("The", "A", "An", "Each", "Every")
    return subject[0].lower() + subject[1:] if article else subject
