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
from retrieval.cut import sentences
from retrieval.loaders import markdown
from retrieval.passage import Passage as Retrieved
from training import readings
from training.functions import typed
from training.values import DATA, POOLS, Chooser, capital, lines, lowered

DOCS = Path(__file__).parent.parent / "docs"
NOT_FOR_USERS = ("LOG", "HISTORY", "ARCHITECTURE")
PASSAGES = (1, 1, 2, 2, 3, 3, 4)
PASSAGE_TOKENS = (70, 90, 110, 110, 110, 130, 160, 240, 400)  # in a prompt: what there is time for, mostly 110
TOKEN_CHARS = 4  # about
READINGS_SHARE = 0.3  # of the questions are about documents of users
FOUND_SHARE = 0.5  # of the other questions come with the passages that a worker found for them
UNDOCUMENTED_SHARE = 0.22  # of these have no answer in the documentation
OWN_SHARE = 0.3  # of the other questions are about passages of the documentation; the rest are invented
UNANSWERABLE_SHARE = 0.25
SECOND_SHARE = 0.12  # of these questions ask for two things
WINDOW_SHARE = 0.7  # of our own passages are cut to some sentences, as retrieval does
WIDER_SHARE = 0.5  # of the found passages that answer have other sentences around the one that does
BESIDE_SHARE = 0.3  # of what is found has another passage of the same page beside it
KEYS = re.compile(r"`[^`]+`|\d[\d,.]*")
SETTING = re.compile(
    r"^\| `(?P<flag>--[a-z-]+)` \| `(?P<variable>\w+)` \| (?P<default>.*?) \| (?P<meaning>.*?) \|$", re.M
)


@dataclass(frozen=True, slots=True)
class Fact:
    """What a passage says, without its full stop, and questions that it answers: mostly in the same words."""

    sentence: str
    questions: tuple[str, ...]
    retold: str = ""  # the answer, where the passage has a table, code, or no whole sentence

    @property
    def answer(self) -> str:
        return self.retold or capital(self.sentence)


@dataclass(frozen=True, slots=True)
class Passage:
    title: str
    text: str
    facts: tuple[Fact, ...] = ()

    def tells(self, fact: Fact) -> bool:
        return fact.sentence in " ".join(self.text.split())

    def may_tell(self, fact: Fact) -> bool:
        """Whether it has the sentence, or all commands and numbers of the answer: other words may say the same."""
        keys = set(KEYS.findall(fact.answer))
        return self.tells(fact) or (bool(keys) and keys <= set(KEYS.findall(self.text)))

    @property
    def page(self) -> str:
        return self.title.split(" > ")[0]

    @property
    def tokens(self) -> int:
        return (len(self.title) + len(self.text)) // TOKEN_CHARS

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
    if choose.chance(READINGS_SHARE):
        found, question, answer = readings.ask(choose)
        told = [Passage(each.title, each.text) for each in found]
        return Asked(prompt(told, typed(choose, question)), answer, question)
    if choose.chance(FOUND_SHARE):
        return _found(choose)
    own = choose.chance(OWN_SHARE)
    about = _own(choose) if own else invented(choose)
    fact = choose.pick(about.facts)
    beside = (_beside(choose, about) if own else invented(choose) for _ in range(choose.pick(PASSAGES) - 1))
    others = [each for each in beside if not each.tells(fact)]
    rest = tuple(each for each in about.facts if each is not fact)
    question = choose.pick(fact.questions)
    if choose.chance(UNANSWERABLE_SHARE):
        if own:  # others of the documentation may tell it in other words
            told = [invented(choose) for _ in (about, *others)]
        else:
            told = ([_thing(about.title, rest)] if rest else []) + (others or [invented(choose)])
        return Asked(prompt(told, typed(choose, question)), choose.pick(POOLS["refusal"]), question)
    told = choose.some([about, *others], len(others) + 1)
    source = f"[{told.index(about) + 1}]"
    answer = f"{fact.answer} {source}."
    if rest and choose.chance(SECOND_SHARE):
        second = choose.pick(rest)
        question = f"{question.rstrip('?')} and {lowered(choose.pick(second.questions))}"
        answer += f" {second.answer} {source}."
    return Asked(prompt(told, typed(choose, question)), answer, question)


def _found(choose: Chooser) -> Asked:
    """A question about the documentation with what a worker found for it, as far as a model has time to read it."""
    fact: Fact | None
    fact, question = choose.pick(answered_questions())
    if choose.chance(UNDOCUMENTED_SHARE):
        fact, question = None, choose.pick(undocumented())
    found = retrieved(question)
    if not found:
        told = [_any(choose)] if choose.chance(0.5) else []
        return Asked(prompt(told, question) if told else question, choose.pick(POOLS["refusal"]), question)
    about = next((each for each in found if fact and each.tells(fact)), found[0])
    others = [each for each in found if each is not about]
    if fact and choose.chance(WIDER_SHARE):
        about = _window(choose, _telling(fact) or about, fact)
    if choose.chance(BESIDE_SHARE):
        other = _beside(choose, about)
        others = [other, *(each for each in others if each.title != other.title)]
    told = _read_in_time(choose, about, (each for each in others if not (fact and each.may_tell(fact))))
    if choose.chance(0.8):
        choose.random.shuffle(told)
    answer = f"{fact.answer} [{told.index(about) + 1}]." if fact else choose.pick(POOLS["refusal"])
    return Asked(prompt(told, typed(choose, question)), answer, question)


def _read_in_time(choose: Chooser, about: Passage, others: Iterable[Passage]) -> list[Passage]:
    """This passage, and of the others as many as fit beside it."""
    told, left = [about], choose.pick(PASSAGE_TOKENS) - about.tokens
    for each in others:
        if each.tokens <= left:
            told.append(each)
            left -= each.tokens
    return told


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
    return _thing(capital(title), [replace(fact, sentence=capital(fact.sentence)) for fact in facts])


def _thing(title: str, facts: Iterable[Fact]) -> Passage:
    return Passage(title, f"{'. '.join(fact.sentence for fact in facts)}.", tuple(facts))


@cache
def _kinds() -> dict[str, list[str]]:
    """Of each kind of things, lines that `_fact` reads once their braces are filled."""
    parted = (line.split("|", 1) for line in sorted(lines("facts.txt")))
    return {kind: [line for _, line in of] for kind, of in groupby(parted, lambda two: two[0])}


def _fact(line: str) -> Fact:
    """A line is `sentence|question;;question`, or `sentence => answer|question;;question`."""
    said, questions = line.rsplit("|", 1)
    sentence, _, retold = said.partition(" => ")
    return Fact(sentence, tuple(questions.split(";;")), retold)


def _own(choose: Chooser) -> Passage:
    """Of the documentation: all of a chunk, or what retrieval might cut out of it."""
    passage = choose.pick(_documented())
    return _window(choose, passage, choose.pick(passage.facts)) if choose.chance(WINDOW_SHARE) else passage


def _beside(choose: Chooser, passage: Passage) -> Passage:
    """Another one of the same page: the next best for most questions, and the likeliest to be confused with it."""
    chunks = [each for each in _documented() if each.page == passage.page and each.title != passage.title]
    if not chunks:
        return _own(choose)
    other = choose.pick(chunks)
    return _window(choose, other, choose.pick(other.facts))


def _window(choose: Chooser, passage: Passage, fact: Fact) -> Passage:
    """The sentence of the fact with some of its neighbours; tables and code stay whole."""
    spans = sentences(passage.text)
    at = next(
        (i for i, (start, end) in enumerate(spans) if replace(passage, text=passage.text[start:end]).tells(fact)), None
    )
    if at is None:
        return passage
    first, last = max(0, at - choose.pick((0, 1, 1, 2, 3))), min(len(spans) - 1, at + choose.pick((0, 0, 1, 2)))
    cut = replace(passage, text=passage.text[spans[first].start : spans[last].end])
    return replace(cut, facts=tuple(each for each in passage.facts if cut.tells(each)))


@cache
def _documented() -> list[Passage]:
    return [passage for passage in documentation() if passage.facts]


def documentation() -> Iterator[Passage]:
    """The pages for users, in the chunks that retrieval finds, each with the questions that its text answers."""
    for path in sorted(each for each in DOCS.glob("*.md") if each.stem not in NOT_FOR_USERS):
        document = markdown.load(path.read_bytes(), path.name)
        for chunk in split(document, lambda text: len(text) // TOKEN_CHARS):
            passage = Passage(passage_title(document.title, chunk.heading), chunk.text)
            said = " ".join(chunk.text.split())
            facts = [fact for fact in written_questions() if fact.sentence in said]
            for setting in SETTING.finditer(chunk.text):
                facts += [_fact(line.format(**setting.groupdict())) for line in lines("settings.txt")]
            yield replace(passage, facts=tuple(facts))


@cache
def _telling(fact: Fact) -> Passage | None:
    return next((each for each in _documented() if fact in each.facts), None)


@cache
def written_questions() -> list[Fact]:
    """Of the documentation, with what people ask."""
    return [_fact(line) for path in sorted(DATA.glob("documentation*.txt")) for line in lines(path.name)]


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
def known() -> dict[str, list[Passage]]:
    """What was found for each question. A line is `[question, [title, text], ...]`."""
    found = map(json.loads, lines("retrieved.jsonl"))
    return {heard(question): [Passage(title, text) for title, text in passages] for question, *passages in found}


def retrieved(question: str) -> list[Passage]:
    """What a worker found for it; `python -m training.retrieved` asks for new ones."""
    return known().get(heard(question), [])


def heard(question: str) -> str:
    """Without what differs where people type the same."""
    return question.lower().rstrip("?!. ")
