"""Passages as retrieval gives them, with questions: invented things, the project's own documentation, services."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agents.prompt import numbered
from retrieval.chunking import passage_title, split
from retrieval.loaders import markdown
from retrieval.passage import Passage as Retrieved
from training.functions import Function, lowered
from training.values import DATA, POOLS, Chooser, Kind

DOCS = Path(__file__).parent.parent / "docs"
NOT_FOUND = "I could not find that in the documents."
SENTENCE_WORDS = range(5, 45)
PASSAGES = (1, 1, 2, 2, 3, 3, 4)
UNANSWERABLE_SHARE = 0.25
OWN_SHARE, SERVICE_SHARE = 0.4, 0.12  # of the passages that are asked about; the others are invented
UNQUOTABLE = re.compile(r"\||```|^(?: {4}|\t)", re.MULTILINE)  # tables and code: no sentences to copy
WRITTEN_TIMES = 6  # as often as a question that is made by rule
GERUNDS = dict(pair.split() for pair in POOLS["gerund"])  # of the headings of the documentation
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
    """What can be asked about. `services` give passages of their own."""

    def __init__(self, services: Sequence[Function]) -> None:
        self.own = [passage for passage in documentation() if passage.facts]
        self.written = [p for p in self.own if any(fact in p.facts for fact in written_questions())]
        self.services = services

    def ask(self, choose: Chooser) -> Asked:
        """A question with its passages in any order: some answer it, or none does."""
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
                return Asked(prompt(told, written(choose, question)), NOT_FOUND, question)
        told = [about, *others]
        choose.random.shuffle(told)
        answer = f"{fact.sentence} [{told.index(about) + 1}]."
        further = [each for each in about.facts if each is not fact]
        if further and choose.chance(0.12):
            second = choose.pick(further)
            question = f"{question.rstrip('?')} and {lowered(choose.pick(second.questions))}"
            answer += f" {second.sentence} [{told.index(about) + 1}]."
        return Asked(prompt(told, written(choose, question)), answer, question)

    def distracting(self, choose: Chooser, question: str) -> str:
        """A question for something else, with passages that say nothing of it."""
        return prompt([self._passage(choose) for _ in range(choose.pick((1, 1, 2)))], question)

    def _passage(self, choose: Chooser, beside: Passage | None = None) -> Passage:
        """One more, of the kind of `beside`."""
        own = beside in self.own if beside else choose.chance(OWN_SHARE)
        if own:
            at = self.own.index(beside) + choose.between(-6, 6) if beside and choose.chance(0.6) else -1
            return self.own[at % len(self.own)] if at >= 0 else choose.pick(choose.pick((self.own, self.written)))
        if beside is None and choose.chance(SERVICE_SHARE):
            return service(choose, choose.pick(self.services))
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
    said = {
        name: Kind(f"@{name}").said(choose).words
        for name in ("time", "person", "dish", "city", "address", "language", "job", "topic")
    }
    return said | {
        "time2": Kind("@time").said(choose).words,
        "language2": choose.pick(POOLS["language"]),
        "day": choose.pick(POOLS["day"]),
        "month": choose.pick(POOLS["month"]),
        "colour": choose.pick(POOLS["colour"][:4]),
        "colour2": choose.pick(POOLS["colour"][4:]),
        "price": choose.pick(
            (str(choose.between(2, 400)), f"{choose.between(2, 90)}.{choose.pick(('50', '90', '20'))}")
        ),
        "small": str(choose.between(2, 60)),
        "number": choose.pick((str(choose.between(80, 9999)), f"{choose.between(1000, 90000):,}")),
        "year": str(choose.between(1650, 2023)),
        "radio": choose.pick(POOLS["radio"]),
        "code": choose.pick(POOLS["programming"]),
        "file": choose.pick(("/etc/{}.toml", "~/.{}rc", "config/{}.yaml", "{}.ini")).format(
            choose.pick(POOLS["syllable"])
        ),
        "command": choose.pick(POOLS["installer"]),
        "word": choose.pick(POOLS["option"]),
        "noun": choose.pick(POOLS["noun"]),
        "error": choose.pick(
            (f"E{choose.between(100, 9999)}", f"{choose.pick(POOLS['syllable']).upper()}_{choose.between(1, 99):02d}")
        ),
        "version": f"{choose.between(1, 9)}.{choose.between(0, 20)}",
    }


def service(choose: Chooser, function: Function) -> Passage:
    """The description of an operation and of its parameters."""
    title = function.name
    facts = [Fact(f"`{title}`: {lowered(function.description)}", (f"What does {title} do?", f"What is {title} for?"))]
    for p in function.parameters:
        told = Fact(
            f"`{p.name}`: {p.description.rstrip('.')}",
            (f"What is the parameter {p.name} of {title}?", f"What does {p.name} mean in {title}?"),
        )
        facts.append(told)
    return Passage(title, "\n".join(f"{fact.sentence}." for fact in facts), tuple(facts))


def documentation(folder: Path = DOCS) -> Iterator[Passage]:
    """The pages for users, in the chunks that retrieval finds, each with the questions that its text answers."""
    for path in sorted(folder.glob("*.md")):
        if path.stem in ("LOG", "HISTORY", "ARCHITECTURE"):
            continue
        document = markdown.load(path.read_bytes(), path.name)
        opened: set[str] = set()
        for chunk in split(document, lambda text: len(text) // 4):
            first = chunk.heading not in opened
            opened.add(chunk.heading)
            yield Passage(
                passage_title(document.title, chunk.heading),
                chunk.text,
                tuple(_facts(chunk.text, chunk.heading if first else "")),
            )


@cache
def written_questions() -> list[Fact]:
    """A line is `sentence|question;;question`."""
    lines = (line.rsplit("|", 1) for line in (DATA / "documentation.txt").read_text().splitlines())
    return [Fact(sentence, tuple(questions.split(";;"))) for sentence, questions in lines]


def _facts(text: str, heading: str) -> Iterator[Fact]:
    for flag, variable, default, meaning in SETTING.findall(text):
        meant = f"`{flag}`: {meaning}"
        yield Fact(
            meant,
            (
                f"What does {flag} do?",
                f"What is {flag}?",
                f"What is the flag {flag} for?",
                f"What does the setting {flag} mean?",
            ),
        )
        yield Fact(
            f"The default of `{flag}` is {default}",
            (f"What is the default of {flag}?", f"Which default does {flag} have?"),
        )
        yield Fact(f"`{variable}` is the variable of `{flag}`", (f"Which environment variable sets {flag}?",))
    flowing = " ".join(text.split())
    for fact in written_questions():
        if f"{fact.sentence}." in flowing or f"{fact.sentence}," in flowing:
            yield from [fact] * WRITTEN_TIMES
    if UNQUOTABLE.search(text):
        return
    sentences = [
        s.rstrip(".") for s in re.split(r"(?<=[a-z`)])\. (?=[A-Z`])", flowing) if len(s.split()) in SENTENCE_WORDS
    ]
    if heading and sentences and (asked := _of_heading(heading.split(" > ")[-1])):
        yield Fact(sentences[0], asked)
    for sentence in sentences:
        if asked := _of_sentence(sentence):
            yield Fact(sentence, asked)


def _of_heading(heading: str) -> tuple[str, ...]:
    word, _, rest = heading.partition(" ")
    if word in GERUNDS and rest:
        return (f"How do I {GERUNDS[word]} {rest}?", f"How can I {GERUNDS[word]} {rest}?")
    if word in ("How", "What", "Where", "When", "Which") or not heading[1:].islower():
        return ()
    return (f"Tell me about {lowered(heading)}.", f"What do I need to know about {lowered(heading)}?")


def _of_sentence(sentence: str) -> tuple[str, ...]:
    patterns = (
        (
            r"With the (?:flag|option) `(--[a-z-]+)[^`]*`",
            ("What does {} do?", "What is {} for?", "What happens with {}?"),
        ),
        (r"The (?:flag|option|setting) `(--[a-z-]+)[^`]*` ", ("What does {} do?", "What is {} for?")),
        (r"The command `([^`]+)` ", ("What does `{}` do?", "What is the command `{}` for?")),
        (r"`((?:GET|POST|DELETE) [^`]+)` ", ("What does {} do?", "What is {} for?")),
        (
            r"(?:The|A|An) ([a-z-]+(?: [a-z-]+)?) (?:is|are) (?:not )?(?:a|an|the|in|named) ",
            ("What is the {}?", "Tell me about the {}."),
        ),
        (
            r"(?:The|A) ([a-z-]+(?: [a-z-]+)?) (?:consists|contains|starts|holds|needs|takes|shows|returns) ",
            ("What about the {}?", "What does the documentation say about the {}?"),
        ),
    )
    for pattern, forms in patterns:
        if found := re.match(pattern, sentence):
            return tuple(form.format(found[1]) for form in forms)
    return ()


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
