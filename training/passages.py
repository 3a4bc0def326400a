"""Passages as retrieval gives them, with questions: invented things, and the project's own documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agents.prompt import numbered
from retrieval.chunking import passage_title, split
from retrieval.loaders import markdown
from retrieval.passage import Passage as Retrieved
from training.functions import lowered
from training.values import DATA, POOLS, Chooser, Kind

DOCS = Path(__file__).parent.parent / "docs"
NOT_FOUND = "I could not find that in the documents."
REFUSALS = POOLS["refusal"]
SENTENCE_WORDS = range(5, 45)
PASSAGES = (1, 1, 2, 2, 3, 3, 4)
UNANSWERABLE_SHARE = 0.25
OWN_SHARE = 0.25  # of the passages that are asked about; the others are invented
UNQUOTABLE = re.compile(r"\||```|^(?: {4}|\t)", re.MULTILINE)  # tables and code: no sentences to copy
FOUND_SHARE = 0.4  # of the questions come with the passages that a worker found for them
UNDOCUMENTED_SHARE = 0.22  # of these have no answer in the documentation
WINDOW_SHARE = 0.7  # of our own passages are cut to some sentences, as retrieval does
SENTENCES = re.compile(r"(?<=[a-z`)])\. (?=[A-Z`])")
NAMING = re.compile(
    r"(?:(?:With )?[Tt]he (?:flag|option|setting|command) )?`((?:--|firsttoken |GET |POST |DELETE )[^`]+)` "
)
FLAG_ASKED = POOLS["asked of a flag"]
NAMED_ASKED = POOLS["asked of a command"]
SETTING = re.compile(r"^\| `(--[a-z-]+)` \| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence without its full stop, and questions that it answers."""

    sentence: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    title: str
    text: str
    facts: tuple[Fact, ...]

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


def prompt(passages: Sequence[Passage], question: str) -> str:
    return f"Passages:\n{numbered(enumerate((each.retrieved for each in passages), 1))}\n\nQuestion: {question}"


class Library:
    """What can be asked about."""

    def __init__(self) -> None:
        self.own = [passage for passage in documentation() if passage.facts]

    def ask(self, choose: Chooser) -> Asked:
        """A question with its passages in any order: some answer it, or none does."""
        if choose.chance(FOUND_SHARE):
            return self._found(choose)
        about = self._passage(choose)
        others = [self._passage(choose, about) for _ in range(choose.pick(PASSAGES) - 1)]
        others = [other for other in others if other.text != about.text]
        fact = choose.pick(about.facts)
        question = choose.pick(fact.questions)
        if choose.chance(UNANSWERABLE_SHARE):
            rest = tuple(each for each in about.facts if each is not fact)
            told = [Passage(about.title, shown(rest), rest)] if rest and about.text == shown(about.facts) else []
            told += [invented(choose) for _ in others or (1,)] if about in self.own else others or [invented(choose)]
            if all(fact.sentence not in each.text for each in told):
                return Asked(prompt(told, written(choose, question)), choose.pick(REFUSALS), question)
        about = window(choose, about, fact)
        told = [about, *others]
        choose.random.shuffle(told)
        answer = f"{fact.sentence} [{told.index(about) + 1}]."
        further = [each for each in about.facts if each is not fact]
        if further and choose.chance(0.12):
            second = choose.pick(further)
            question = f"{question.rstrip('?')} and {lowered(choose.pick(second.questions))}"
            answer += f" {second.sentence} [{told.index(about) + 1}]."
        return Asked(prompt(told, written(choose, question)), answer, question)

    def _found(self, choose: Chooser) -> Asked:
        """A question about the documentation with what a worker found for it, and now and then something beside it."""
        fact: Fact | None
        fact, question = choose.pick(answered_questions())
        if choose.chance(UNDOCUMENTED_SHARE):
            fact, question = None, choose.pick(undocumented())
        about = [each for each in retrieved(question) if fact and each.tells(fact)]
        others = [each for each in retrieved(question) if each not in about]
        kept = about[:1] + choose.some(others, len(others) if choose.chance(0.6) else choose.between(0, len(others)))
        told = [each for each in retrieved(question) if each in kept]
        if not told and choose.chance(0.5):
            return Asked(question, choose.pick(REFUSALS), question)
        if choose.chance(0.25) or not told:
            told.append(self._passage(choose))
        if choose.chance(0.4):
            choose.random.shuffle(told)
        where = f" [{told.index(about[0]) + 1}]." if about else ""
        answer = _capital(fact.sentence) + where if fact else choose.pick(REFUSALS)
        return Asked(prompt(told, written(choose, question)), answer, question)

    def distracting(self, choose: Chooser, question: str) -> str:
        """A question for something else, with passages that say nothing of it: those that a worker finds, if any."""
        if found := retrieved(question):
            return prompt(choose.some(found, choose.pick((1, 2, 4))), question)
        return prompt([self._passage(choose) for _ in range(choose.pick((1, 1, 2)))], question)

    def _passage(self, choose: Chooser, beside: Passage | None = None) -> Passage:
        """One more, of the kind of `beside`."""
        if beside in self.own if beside else choose.chance(OWN_SHARE):
            found = choose.pick(self.own)
            return window(choose, found, choose.pick(found.facts)) if beside else found
        return invented(choose)


def written(choose: Chooser, question: str) -> str:
    return choose.pick(
        (
            *[question] * 6,
            lowered(question),
            question.rstrip("?"),
            lowered(question).rstrip("?"),
            f"Can you tell me: {lowered(question)}",
        )
    )


def shown(facts: Sequence[Fact]) -> str:
    return f"{'. '.join(fact.sentence for fact in facts)}." if facts else ""


@cache
def attributes() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    kinds: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for line in (DATA / "facts.txt").read_text().splitlines():
        kind, sentence, questions = line.split("|", 2)
        kinds.setdefault(kind, []).append((sentence, tuple(questions.split(";;"))))
    return kinds


def invented(choose: Chooser) -> Passage:
    kind = choose.pick(list(attributes()))
    name = "".join(choose.some(POOLS["syllable"], choose.pick((1, 2)))).capitalize() + choose.pick(POOLS["ending"])
    person = f"{choose.pick(POOLS['first'])} {choose.pick(POOLS['last'])}"
    thing = choose.pick(POOLS[f"names of a {kind}"]).format(name, n=choose.between(2, 900), person=person)
    told = choose.some(attributes()[kind], choose.pick((1, 2, 2, 3, 4)))
    facts = []
    for sentence, questions in told:
        values = _values(choose) | {"thing": thing, "slug": name.lower()}
        facts.append(Fact(_capital(sentence.format(**values)), tuple(q.format(**values) for q in questions)))
    title = choose.pick(
        (thing, thing, f"{thing} guide", f"{kind.capitalize()} > {thing}", f"{name.lower()}.md", "Handbook")
    )
    return Passage(_capital(title), shown(facts), tuple(facts))


def _values(choose: Chooser) -> dict[str, str]:
    drawn = {name: choose.some(values, 2) for name, values in POOLS.items()}
    drawn |= {name: [Kind(f"@{name}").said(choose).words for _ in range(2)] for name in ("time", "person", "date")}
    return {
        **{name: first for name, (first, *_) in drawn.items()},
        **{f"{name}2": rest[0] for name, (_, *rest) in drawn.items() if rest},
        "price": f"{choose.between(2, 400)}{choose.pick(('', '', '.50', '.90', '.25'))}",
        "small": str(choose.between(2, 60)),
        "number": choose.pick((str(choose.between(80, 9999)), f"{choose.between(1000, 90000):,}")),
        "year": str(choose.between(1650, 2023)),
        "file": choose.pick(POOLS["configuration"]).format(choose.pick(POOLS["syllable"])),
        "error": f"{choose.pick(POOLS['syllable']).upper()}_{choose.between(1, 99):02d}",
        "version": f"{choose.between(1, 9)}.{choose.between(0, 20)}",
    }


def documentation(folder: Path = DOCS) -> Iterator[Passage]:
    """The pages for users, in the chunks that retrieval finds, each with the questions that its text answers."""
    for path in sorted(folder.glob("*.md")):
        if path.stem in ("LOG", "HISTORY", "ARCHITECTURE"):
            continue
        document = markdown.load(path.read_bytes(), path.name)
        for chunk in split(document, lambda text: len(text) // 4):
            yield Passage(passage_title(document.title, chunk.heading), chunk.text, tuple(_facts(chunk.text)))


@cache
def written_questions() -> list[Fact]:
    """A line is `sentence|question;;question`."""
    lines = (line.rsplit("|", 1) for line in (DATA / "documentation.txt").read_text().splitlines())
    return [Fact(sentence, tuple(questions.split(";;"))) for sentence, questions in lines]


@cache
def undocumented() -> list[str]:
    """Questions that the documentation does not answer."""
    return re.split(r"\n|;;", (DATA / "undocumented.txt").read_text().rstrip())


def questions() -> list[str]:
    return [question for fact in written_questions() for question in fact.questions] + undocumented()


@cache
def _retrieved() -> dict[str, list[Passage]]:
    """A line is `[question, [title, text], ...]`."""
    lines = (json.loads(line) for line in (DATA / "retrieved.jsonl").read_text().splitlines())
    return {heard(question): [Passage(title, text, ()) for title, text in found] for question, *found in lines}


def retrieved(question: str) -> list[Passage]:
    """What a worker found for it; `python -m training.retrieved` asks anew."""
    return _retrieved().get(heard(question), [])


def heard(question: str) -> str:
    """Without what differs where people type the same."""
    return question.lower().rstrip("?!. ")


@cache
def answered_questions() -> list[tuple[Fact, str]]:
    """Those for which the answer was found."""
    return [
        (fact, question)
        for fact in written_questions()
        for question in fact.questions
        if any(passage.tells(fact) for passage in retrieved(question))
    ]


def window(choose: Chooser, passage: Passage, fact: Fact) -> Passage:
    """The sentence of the fact with some of its neighbours."""
    sentences = SENTENCES.split(" ".join(passage.text.split()))
    at = next((i for i, sentence in enumerate(sentences) if fact.sentence in sentence), None)
    if at is None or UNQUOTABLE.search(passage.text) or not choose.chance(WINDOW_SHARE):
        return passage
    text = ". ".join(sentences[max(0, at - choose.between(0, 2)) : at + choose.between(1, 3)]).rstrip(".") + "."
    return Passage(passage.title, text, tuple(each for each in passage.facts if each.sentence in text))


def _facts(text: str) -> Iterator[Fact]:
    """What flags, commands and routes are for."""
    for flag, variable, default, meaning in SETTING.findall(text):
        meant = f"`{flag}`: {meaning}"
        yield Fact(meant, tuple(form.format(flag) for form in FLAG_ASKED))
        asked = (f"What is the default of {flag}?", f"Which default does {flag} have?", f"default {flag}?")
        yield Fact(f"The default of `{flag}` is {default}", asked)
        yield Fact(f"`{variable}` is the variable of `{flag}`", (f"Which environment variable sets {flag}?",))
    if UNQUOTABLE.search(text):
        return
    for sentence in (each.rstrip(".") for each in SENTENCES.split(" ".join(text.split()))):
        if len(sentence.split()) in SENTENCE_WORDS and (found := NAMING.match(sentence)):
            yield Fact(sentence, tuple(form.format(found[1]) for form in NAMED_ASKED))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
