"""Passages with questions about them, as retrieval gives them: the heart of what the model learns of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from training.conversations.facts import ATTRIBUTES, Fact, attributes, capital, entity, fact, facts
from training.conversations.names import Names
from training.conversations.prose import Document, question

NOT_FOUND = "I could not find that in the documents."
COUNTS = (1, 2, 2, 3, 3, 3, 4, 5)  # passages in a prompt, as shares
PROSE_SHARE = 0.35  # of the passages are real sentences
SAME_THING_SHARE = 0.2  # of the prompts are several passages about one thing
ALIKE_SHARE = 0.35  # of the prompts tell the same of several things, as a collection of documents does
UNANSWERABLE_SHARE = 0.33
DOUBLE_SHARE = 0.2  # questions that take two sentences
ATTEMPTS = 12  # to ask something that the passages do not answer


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its answer: each sentence with its citation, or that there is none."""

    question: str
    answer: str

    @property
    def answerable(self) -> bool:
        return self.answer != NOT_FOUND


@dataclass(frozen=True, slots=True)
class Passage:
    """`facts` is empty for real sentences."""

    title: str
    sentences: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    bulleted: bool = False

    @property
    def text(self) -> str:
        return "\n".join(f"- {s}." for s in self.sentences) if self.bulleted else f"{'. '.join(self.sentences)}."


@dataclass(frozen=True, slots=True)
class _Candidate:
    number: int
    sentence: str
    question: str

    @property
    def cited(self) -> str:
        return f"{self.sentence} [{self.number}]."


@dataclass(slots=True)
class Passages:
    """What stands before a question, and everything that can be asked about it."""

    names: Names
    prose: Sequence[Document]
    kind: str
    thing: str
    passages: list[Passage] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # sentences that were an answer: the next question is about another
    untold: list[str] = field(default_factory=list)  # questions that are answered for the other things alone

    @property
    def numbered(self) -> str:
        return "\n".join(f"[{i}] {passage.title}: {passage.text}" for i, passage in enumerate(self.passages, 1))

    def prompt(self, question: str) -> str:
        return f"Passages:\n{self.numbered}\n\nQuestion: {question}"

    def answerable(self) -> list[_Candidate]:
        """One question for each fact, and for each real sentence that says something of its own."""
        sentences = [sentence for passage in self.passages for sentence in passage.sentences]
        found = []
        for number, passage in enumerate(self.passages, 1):
            found += [_Candidate(number, f.statement, self.names.pick(f.questions)) for f in passage.facts]
            for sentence in () if passage.facts else passage.sentences:
                others = [other for other in sentences if other != sentence]
                if asked := question(self.names, sentence, others):
                    found.append(_Candidate(number, sentence, asked))
        asked_once = {c.question: [d for d in found if d.question == c.question] for c in found}
        return [same[0] for same in asked_once.values() if len(same) == 1]

    @property
    def exhausted(self) -> bool:
        return all(c.sentence in self.told for c in self.answerable())

    def ask(self, *, answerable: bool | None = None, double: bool | None = None) -> Asked:
        """None leaves it to chance."""
        names = self.names
        candidates = [c for c in self.answerable() if c.sentence not in self.told]
        if answerable is None:
            answerable = not names.chance(UNANSWERABLE_SHARE)
        if not answerable or not candidates:
            return Asked(self._unanswered(), NOT_FOUND)
        if double is None:
            double = names.chance(DOUBLE_SHARE)
        if double and len(candidates) > 1:
            first, second = names.random.sample(candidates, 2)
            self.told |= {first.sentence, second.sentence}
            joint = names.pick((" and ", ", and ", "? And "))
            later = second.question[0].lower() + second.question[1:]
            return Asked(f"{first.question}{joint}{later}", f"{first.cited} {second.cited}")
        one = names.pick(candidates)
        self.told.add(one.sentence)
        return Asked(one.question, one.cited)

    def _unanswered(self) -> str:
        """A near miss: another attribute of the same thing, the same of another thing, or another document."""
        names = self.names
        if self.untold and names.chance(0.8):
            return names.pick(self.untold)
        text = self.numbered.lower()
        known = {q for passage in self.passages for fact in passage.facts for q in fact.questions}
        for _ in range(ATTEMPTS):
            chance = names.random.random()
            if chance < 0.75:
                kind = self.kind if chance < 0.6 else names.pick(list(ATTRIBUTES))
                thing = self.thing if kind == self.kind and names.chance(0.55) else entity(names, kind)
                asked = names.pick(facts(names, kind, thing, 1)[0].questions)
                if asked not in known and not self._about_the_same(asked):
                    return asked
            else:
                other = names.pick(names.pick(self.prose).sentences)
                if (about := question(names, other, [text])) is not None:
                    return about
        return f"What is the {names.attribute()} of {names.proper()}"

    def _about_the_same(self, asked: str) -> bool:
        return any(asked in fact.questions for passage in self.passages for fact in passage.facts)


def passages(names: Names, prose: Sequence[Document], count: int | None = None) -> Passages:
    kind = names.pick(list(ATTRIBUTES))
    made = Passages(names, prose, kind, entity(names, kind))
    if names.chance(ALIKE_SHARE) and count != 1:
        return _alike(made, count or names.pick((2, 3, 4, 5, 5)))
    same_thing = names.chance(SAME_THING_SHARE)
    for _ in range(count or names.pick(COUNTS)):
        if names.chance(PROSE_SHARE):
            made.passages.append(_real(names, prose))
            continue
        of_kind = kind if names.chance(0.6) else names.pick(list(ATTRIBUTES))
        thing = made.thing if same_thing or not made.passages else entity(names, of_kind)
        made.passages.append(_invented(names, prose, kind if thing == made.thing else of_kind, thing))
    names.random.shuffle(made.passages)
    return made


def _alike(made: Passages, count: int) -> Passages:
    """Things of one kind, of each of which some of the same is told."""
    names, kind = made.names, made.kind
    things = list(dict.fromkeys([made.thing, *(entity(names, kind) for _ in range(count - 1))]))
    shared = attributes(names, kind, names.pick((3, 4, 5, 6)))
    in_order = names.chance(0.5)
    for thing in things:
        chosen = sorted(names.random.sample(range(len(shared)), names.random.randint(2, min(4, len(shared)))))
        if not in_order:
            names.random.shuffle(chosen)
        told = [fact(names, shared[number], thing) for number in chosen]
        made.passages.append(Passage(capital(thing), tuple(each.statement for each in told), tuple(told)))
        known = {question for each in told for question in each.questions}
        others = [names.pick(fact(names, each, thing).questions) for each in shared]
        made.untold += [question for question in others if question not in known]
    names.random.shuffle(made.passages)
    return made


def _real(names: Names, prose: Sequence[Document]) -> Passage:
    document = names.pick(prose)
    start = names.random.randint(0, max(0, len(document.sentences) - 3))
    title = names.pick((document.title, document.title, f"{document.title}.txt", f"{document.title} manual"))
    return Passage(title, document.sentences[start : start + names.random.randint(1, 3)])


def _invented(names: Names, prose: Sequence[Document], kind: str, thing: str) -> Passage:
    told = facts(names, kind, thing, names.pick((1, 2, 2, 3, 4)))
    sentences = [fact.statement for fact in told]
    if names.chance(0.15):
        sentences.insert(names.random.randint(0, len(sentences)), names.pick(names.pick(prose).sentences))
    named = capital(thing)
    title = names.pick(
        (
            named,
            named,
            named + names.pick((" guide", " notes", " overview", ".md", " FAQ")),
            f"{named} > {capital(names.word())}",
            names.pick(("Handbook", "Notes", "Manual", "FAQ", capital(names.word()))),
        )
    )
    return Passage(title, tuple(sentences), tuple(told), bulleted=len(sentences) > 1 and names.chance(0.1))


def asked(names: Names, question: str) -> str:
    """The question as somebody types it."""
    text = names.pick(
        ("{}", "{}", "{}", "{}", "{}", "please tell me: {}", "can you tell me: {}", "I want to know: {}")
    ).format(question)
    text = text[0].lower() + text[1:] if names.chance(0.2) else text
    return text + ("?" if names.chance(0.9) else "")
