"""Passages as retrieval gives them, with questions: invented things, and the project's own documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

from agents.prompt import numbered
from retrieval.chunking import passage_title, split
from retrieval.loaders import markdown
from retrieval.passage import Passage as Retrieved
from training.functions import typed
from training.values import POOLS, Chooser, capital, lines, lowered

DOCS = Path(__file__).parent.parent / "docs"
NOT_FOR_USERS = ("LOG", "HISTORY", "ARCHITECTURE")
PASSAGES = (1, 1, 2, 2, 3, 3, 4)
FOUND_SHARE = 0.4  # of the questions come with the passages that a worker found for them
UNDOCUMENTED_SHARE = 0.22  # of these have no answer in the documentation
OWN_SHARE = 0.25  # of the other questions are about passages of the documentation; the rest are invented
UNANSWERABLE_SHARE = 0.25
SECOND_SHARE = 0.12  # of these questions ask for two things
WINDOW_SHARE = 0.7  # of our own passages are cut to some sentences, as retrieval does
UNQUOTABLE = re.compile(r"\||```|^(?: {4}|\t)", re.MULTILINE)  # tables and code: no sentences to copy
SENTENCES = re.compile(r"(?<=[a-z`)])\. (?=[A-Z`])")
SETTING = re.compile(
    r"^\| `(?P<flag>--[a-z-]+)` \| `(?P<variable>\w+)` \| (?P<default>.*?) \| (?P<meaning>.*?) \|$", re.M
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence without its full stop, and questions that it answers."""

    sentence: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    title: str
    text: str
    facts: tuple[Fact, ...] = ()

    def tells(self, fact: Fact) -> bool:
        return fact.sentence in " ".join(self.text.split())

    @property
    def retrieved(self) -> Retrieved:
        return Retrieved("", "", "", self.title, self.text, 0, len(self.text), 0, 1.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """The user's message with its passages, and the answer with citations."""

    text: str
    answer: str
    question: str


def ask(choose: Chooser) -> Asked:
    """A question with its passages in any order: some answer it, or none does."""
    if choose.chance(FOUND_SHARE):
        return _found(choose)
    make = _own if choose.chance(OWN_SHARE) else invented
    about = make(choose)
    others = [each for _ in range(choose.pick(PASSAGES) - 1) if (each := make(choose)).text != about.text]
    fact = choose.pick(about.facts)
    rest = tuple(each for each in about.facts if each is not fact)
    question = choose.pick(fact.questions)
    if choose.chance(UNANSWERABLE_SHARE):
        if make is _own:  # others of the documentation may tell it in other words
            told = [invented(choose) for _ in (about, *others)]
        else:
            told = ([_thing(about.title, rest)] if rest else []) + (others or [invented(choose)])
        return Asked(prompt(told, typed(choose, question)), choose.pick(POOLS["refusal"]), question)
    told = choose.some([about, *others], len(others) + 1)
    source = f"[{told.index(about) + 1}]"
    answer = f"{fact.sentence} {source}."
    if rest and choose.chance(SECOND_SHARE):
        second = choose.pick(rest)
        question = f"{question.rstrip('?')} and {lowered(choose.pick(second.questions))}"
        answer += f" {second.sentence} {source}."
    return Asked(prompt(told, typed(choose, question)), answer, question)


def _found(choose: Chooser) -> Asked:
    """A question about the documentation with what a worker found for it, and now and then something beside it."""
    fact: Fact | None
    fact, question = choose.pick(answered_questions())
    if choose.chance(UNDOCUMENTED_SHARE):
        fact, question = None, choose.pick(undocumented())
    found = retrieved(question)
    about = next((each for each in found if fact and each.tells(fact)), None)
    others = [each for each in found if not (fact and each.tells(fact))]
    kept = choose.some(others, len(others) if choose.chance(0.6) else choose.between(0, len(others)))
    told = [each for each in found if each is about or each in kept]
    if not told and choose.chance(0.5):
        return Asked(question, choose.pick(POOLS["refusal"]), question)
    if not told or choose.chance(0.25):
        told.append(_any(choose))
    if choose.chance(0.4):
        choose.random.shuffle(told)
    answer = choose.pick(POOLS["refusal"])
    if fact and about:
        answer = f"{capital(fact.sentence)} [{told.index(about) + 1}]."
    return Asked(prompt(told, typed(choose, question)), answer, question)


def distracting(choose: Chooser, question: str) -> str:
    """A question for something else, with passages that say nothing of it: those that a worker finds, if any."""
    if found := retrieved(question):
        return prompt(choose.some(found, choose.pick((1, 2, 4))), question)
    return prompt([_any(choose) for _ in range(choose.pick((1, 1, 2)))], question)


def prompt(passages: Sequence[Passage], question: str) -> str:
    return f"Passages:\n{numbered(enumerate((each.retrieved for each in passages), 1))}\n\nQuestion: {question}"


def _any(choose: Chooser) -> Passage:
    return _own(choose) if choose.chance(OWN_SHARE) else invented(choose)


def invented(choose: Chooser) -> Passage:
    kind = choose.pick(list(_kinds()))
    name = choose.word("name")
    thing = choose.fill(choose.pick(POOLS[f"names of a {kind}"]), name=name)
    told = choose.some(_kinds()[kind], choose.pick((1, 2, 2, 3, 4)))
    facts = [_fact(choose.fill(line, thing=thing, slug=name.lower())) for line in told]
    title = choose.pick(POOLS["title of a passage"]).format(thing=thing, kind=capital(kind), slug=name.lower())
    return _thing(capital(title), [Fact(capital(fact.sentence), fact.questions) for fact in facts])


def _thing(title: str, facts: Iterable[Fact]) -> Passage:
    return Passage(title, f"{'. '.join(fact.sentence for fact in facts)}.", tuple(facts))


@cache
def _kinds() -> dict[str, list[str]]:
    """Of each kind of things, lines that `_fact` reads once their braces are filled."""
    parted = (line.split("|", 1) for line in sorted(lines("facts.txt")))
    return {kind: [line for _, line in of] for kind, of in groupby(parted, lambda two: two[0])}


def _fact(line: str) -> Fact:
    """A line is `sentence|question;;question`."""
    sentence, questions = line.rsplit("|", 1)
    return Fact(sentence, tuple(questions.split(";;")))


def _own(choose: Chooser) -> Passage:
    """Of the documentation: the sentence of a fact with some of its neighbours, or all of a chunk."""
    passage = choose.pick(_documented())
    sentences = SENTENCES.split(" ".join(passage.text.split()))
    fact = choose.pick(passage.facts).sentence
    at = next((i for i, sentence in enumerate(sentences) if fact in sentence), None)
    if at is None or UNQUOTABLE.search(passage.text) or not choose.chance(WINDOW_SHARE):
        return passage
    text = ". ".join(sentences[max(0, at - choose.between(0, 2)) : at + choose.between(1, 3)]).rstrip(".") + "."
    return Passage(passage.title, text, tuple(each for each in passage.facts if each.sentence in text))


@cache
def _documented() -> list[Passage]:
    return [passage for passage in documentation() if passage.facts]


def documentation() -> Iterator[Passage]:
    """The pages for users, in the chunks that retrieval finds, each with the questions that its text answers."""
    for path in sorted(each for each in DOCS.glob("*.md") if each.stem not in NOT_FOR_USERS):
        document = markdown.load(path.read_bytes(), path.name)
        for chunk in split(document, lambda text: len(text) // 4):
            passage = Passage(passage_title(document.title, chunk.heading), chunk.text)
            facts = [fact for fact in written_questions() if passage.tells(fact)]
            for setting in SETTING.finditer(chunk.text):
                facts += [_fact(line.format(**setting.groupdict())) for line in lines("settings.txt")]
            yield replace(passage, facts=tuple(facts))


@cache
def written_questions() -> list[Fact]:
    """Sentences of the documentation, with what people ask."""
    return list(map(_fact, lines("documentation.txt")))


@cache
def undocumented() -> list[str]:
    """Questions that the documentation does not answer."""
    return ";;".join(lines("undocumented.txt")).split(";;")


def questions() -> list[str]:
    return [question for fact in written_questions() for question in fact.questions] + undocumented()


@cache
def answered_questions() -> list[tuple[Fact, str]]:
    """Those for which the answer was found."""
    asked = [(fact, question) for fact in written_questions() for question in fact.questions]
    return [(fact, question) for fact, question in asked if any(each.tells(fact) for each in retrieved(question))]


@cache
def _retrieved() -> dict[str, list[Passage]]:
    """A line is `[question, [title, text], ...]`."""
    found = map(json.loads, lines("retrieved.jsonl"))
    return {heard(question): [Passage(title, text) for title, text in passages] for question, *passages in found}


def retrieved(question: str) -> list[Passage]:
    """What a worker found for it; `python -m training.retrieved` asks anew."""
    return _retrieved().get(heard(question), [])


def heard(question: str) -> str:
    """Without what differs where people type the same."""
    return question.lower().rstrip("?!. ")
