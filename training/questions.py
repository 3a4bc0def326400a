"""Questions with passages: about documents of users, the project's own documentation, and invented things."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

from retrieval.chunking import fitted, passage_title, pieces
from retrieval.loaders import markdown
from training.functions import typed
from training.passages import TOKEN_CHARS, Fact, Passage, prompt, readings
from training.values import DATA, MIXTURE, POOLS, Chooser, capital, lines, lowered

DOCS = Path(__file__).parent.parent / "docs"
NOT_FOR_USERS = ("LOG", "HISTORY", "ARCHITECTURE")
NEIGHBOURS = 4  # readings on each side in the file: of the same document or subject
SETTING = re.compile(
    r"^\| `(?P<flag>--[a-z-]+)` \| `(?P<variable>\w+)` \| (?P<default>.*?) \| (?P<meaning>.*?) \|$", re.M
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The user's message with its passages, and the answer with citations."""

    text: str
    answer: str
    question: str


def ask(choose: Chooser) -> Asked:
    """A question with its passages in any order: some answer it, or none does."""
    if choose.chance("readings"):
        told, question, answer = about_reading(choose)
        return Asked(prompt(told, typed(choose, question)), answer, question)
    if choose.chance("found"):
        return about_found(choose)
    own = choose.chance("own")
    about = _own(choose) if own else invented(choose)
    fact = choose.pick(about.facts)
    beside = [_beside(choose, about) if own else invented(choose) for _ in range(choose.count("passages") - 1)]
    others = [each for each in beside if not each.tells(fact)]
    rest = tuple(each for each in about.facts if each is not fact)
    question = choose.pick(fact.questions)
    if choose.chance("unanswerable"):
        if own:  # others of the documentation may tell it in other words
            told = [invented(choose) for _ in (about, *others)]
        else:
            told = ([_thing(about.title, rest)] if rest else []) + (others or [invented(choose)])
        return Asked(prompt(told, typed(choose, question)), choose.way("refusal"), question)
    told = choose.some([about, *others], len(others) + 1)
    source = told.index(about) + 1
    answer = f"{fact.answer} [{source}]."
    if rest and choose.chance("second"):
        question, answer = _and(choose, question, answer, choose.pick(rest), source)
    return Asked(prompt(told, typed(choose, question)), answer, question)


def _and(choose: Chooser, question: str, answer: str, fact: Fact, source: int) -> tuple[str, str]:
    """Two things asked at once."""
    second = lowered(choose.pick(fact.questions))
    return f"{question.rstrip('?')} and {second}", f"{answer} {fact.answer} [{source}]."


def about_reading(choose: Chooser) -> tuple[list[Passage], str, str]:
    """Passages, a question and its answer. Most of the passages are neighbours, which look alike."""
    read = readings()
    at = choose.randint(0, len(read) - 1)
    about, others = read[at], read[max(0, at - NEIGHBOURS) : at] + read[at + 1 : at + 1 + NEIGHBOURS]
    told = choose.some([*others, read[at - 2 * NEIGHBOURS]], choose.count("readings_told") - 1)
    fact, share, refusal = choose.pick(about.facts), choose.random(), choose.way("refusal")
    if share < MIXTURE["absent"]:
        return told or [choose.pick(others)], choose.pick(fact.questions), refusal
    place = choose.randint(0, len(told))
    before, after = told[:place], told[place:]
    if share > 1 - MIXTURE["open"]:
        return [*before, about, *after], choose.pick(about.open), refusal
    question, answer = choose.pick(fact.questions), f"{fact.answer} [{place + 1}]."
    if choose.chance("second_of_reading"):
        second = choose.pick([each for each in about.facts if each is not fact])
        question, answer = _and(choose, question, answer, second, place + 1)
    elif choose.chance("cut") and "\n" not in about.text:
        about = about.window(choose, fact, (0, 1, 2), (0, 1, 2))
    return [*before, about, *after], question, answer


def about_found(choose: Chooser) -> Asked:
    """A question about the documentation with what a worker found for it, as far as a model has time to read it."""
    fact: Fact | None
    fact, question = choose.pick(answered_questions())
    if choose.chance("undocumented"):
        fact, question = None, choose.pick(undocumented())
    found = retrieved(question)
    if not found:
        told = [_any(choose)] if choose.chance(0.5) else []
        return Asked(prompt(told, question) if told else question, choose.way("refusal"), question)
    about = next((each for each in found if fact and each.tells(fact)), found[0])
    others = [each for each in found if each is not about]
    if fact and choose.chance("wider"):
        about = (_telling(fact) or about).window(choose, fact)
    if choose.chance("beside"):
        other = _beside(choose, about)
        others = [other, *(each for each in others if each.title != other.title)]
    told, left = [about], choose.count("passage_tokens") - about.tokens
    for each in others:
        if each.tokens <= left and not (fact and each.may_tell(fact)):
            told.append(each)
            left -= each.tokens
    if choose.chance(0.8):
        choose.shuffle(told)
    answer = f"{fact.answer} [{told.index(about) + 1}]." if fact else choose.way("refusal")
    return Asked(prompt(told, typed(choose, question)), answer, question)


def distracting(choose: Chooser, question: str) -> str:
    """A question for something else, with passages that say nothing of it: those that a worker finds, if any."""
    if found := retrieved(question):
        return prompt(choose.some(found, choose.pick((1, 2, 4))), question)
    return prompt([_any(choose) for _ in range(choose.pick((1, 1, 2)))], question)


def _any(choose: Chooser) -> Passage:
    return _own(choose) if choose.chance("own") else invented(choose)


def invented(choose: Chooser) -> Passage:
    kind = choose.pick(list(_kinds()))
    name = choose.word("name")
    slug = name.lower()
    thing = choose.fill(choose.pick(POOLS[f"names of a {kind}"]), name=name)
    told = choose.some(_kinds()[kind], choose.pick((1, 2, 2, 3, 4)))
    facts = [_fact(choose.fill(line, thing=thing, slug=slug)) for line in told]
    title = choose.way("title of a passage", thing=thing, kind=capital(kind), slug=slug)
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
    return passage.window(choose, choose.pick(passage.facts)) if choose.chance("window") else passage


def _beside(choose: Chooser, passage: Passage) -> Passage:
    """Another one of the same page: the next best for most questions, and the likeliest to be confused with it."""
    chunks = [each for each in _documented() if each.page == passage.page and each.title != passage.title]
    if not chunks:
        return _own(choose)
    other = choose.pick(chunks)
    return other.window(choose, choose.pick(other.facts))


@cache
def _documented() -> list[Passage]:
    return [passage for passage in documentation() if passage.facts]


def documentation() -> Iterator[Passage]:
    """The pages for users, in the chunks that retrieval finds, each with the questions that its text answers."""
    for path in sorted(each for each in DOCS.glob("*.md") if each.stem not in NOT_FOR_USERS):
        document = markdown.load(path.read_bytes(), path.name)
        for chunk in fitted(document, pieces(document), lambda text: len(text) // TOKEN_CHARS):
            said = " ".join(chunk.text.split())
            facts = [fact for fact in written_questions() if fact.sentence in said]
            for setting in SETTING.finditer(chunk.text):
                facts += [_fact(line.format(**setting.groupdict())) for line in lines("settings.txt")]
            yield Passage(passage_title(document.title, chunk.heading), chunk.text, tuple(facts))


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
