"""A handbook of things that do not exist, so that no model can know the answers from its training.

Each thing has a document that states some of the facts of its kind. Questions about the other facts have no answer.
Names and values are drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

STATED = 4  # facts per thing; its kind has more
STEMS = ("bel cor dra fen gal hul jor kem lun mar nov", "ost pel quil ras sul tov ulm vey wix yar zem")
ENDINGS = ("a", "en", "is", "or", "um", "ick", "ay", "eld")
NAMED = ("Agda", "Bruno", "Celia", "Dario", "Edda", "Fabio", "Greta", "Hanno", "Ilse", "Jonas", "Karla", "Lino")
COLOURS = ["amber", "crimson", "emerald", "indigo", "ivory", "lilac", "ochre", "scarlet", "teal", "violet"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@dataclass(frozen=True, slots=True)
class Fact:
    """The wording of a fact and of its question; `value` names the set that its value is drawn from."""

    told: str
    asked: str
    value: str


KINDS = {
    "ferry": [
        Fact("The {thing} carries {value} passengers.", "How many passengers does the {thing} carry?", "number"),
        Fact("The {thing} leaves at {value} in the morning.", "When does the {thing} leave in the morning?", "time"),
        Fact("The captain of the {thing} is {value}.", "Who is the captain of the {thing}?", "person"),
        Fact("A ticket for the {thing} costs {value} crowns.", "What does a ticket for the {thing} cost?", "number"),
        Fact("The hull of the {thing} is {value}.", "What colour is the hull of the {thing}?", "colour"),
        Fact("The {thing} does not sail on {value}.", "On which day does the {thing} not sail?", "day"),
    ],
    "museum": [
        Fact("The {thing} opens at {value}.", "When does the {thing} open?", "time"),
        Fact("The {thing} shows {value} paintings.", "How many paintings does the {thing} show?", "number"),
        Fact("The director of the {thing} is {value}.", "Who is the director of the {thing}?", "person"),
        Fact("The {thing} is closed on {value}.", "On which day is the {thing} closed?", "day"),
        Fact("The door of the {thing} is {value}.", "What colour is the door of the {thing}?", "colour"),
        Fact("The {thing} was founded in {value}.", "When was the {thing} founded?", "year"),
    ],
    "pump": [
        Fact("The {thing} weighs {value} kilograms.", "How much does the {thing} weigh?", "number"),
        Fact("The {thing} moves {value} litres an hour.", "How much does the {thing} move in an hour?", "number"),
        Fact("The engineer of the {thing} is {value}.", "Who is the engineer of the {thing}?", "person"),
        Fact("The {thing} is serviced on {value}.", "On which day is the {thing} serviced?", "day"),
        Fact("The lever of the {thing} is {value}.", "What colour is the lever of the {thing}?", "colour"),
        Fact("The {thing} was built in {value}.", "When was the {thing} built?", "year"),
    ],
    "bakery": [
        Fact("The {thing} bakes {value} loaves a day.", "How many loaves does the {thing} bake in a day?", "number"),
        Fact("The {thing} opens at {value}.", "When does the {thing} open?", "time"),
        Fact("The owner of the {thing} is {value}.", "Who is the owner of the {thing}?", "person"),
        Fact("The {thing} is closed on {value}.", "On which day is the {thing} closed?", "day"),
        Fact("The sign of the {thing} is {value}.", "What colour is the sign of the {thing}?", "colour"),
        Fact("The oven of the {thing} dates from {value}.", "From which year is the oven of the {thing}?", "year"),
    ],
}


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `value` is None if no document states the answer; `file` is the document of the thing."""

    question: str
    file: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Handbook:
    documents: dict[str, str]  # Markdown, by file name
    answerable: list[Case]
    unanswerable: list[Case]

    def write(self, folder: Path) -> None:
        folder.mkdir()
        for name, text in self.documents.items():
            (folder / name).write_text(text, "utf-8")


def handbook(cases: int, seed: int = 0) -> Handbook:
    """A handbook with `cases` answerable questions and as many unanswerable ones."""
    random = Random(seed)
    kinds = list(KINDS)
    spare = len(KINDS[kinds[0]]) - STATED
    things = -(-cases // min(STATED, spare))  # enough for the rarer kind of question
    names = list(_names(random, things))
    documents: dict[str, str] = {}
    told: list[Case] = []
    untold: list[Case] = []
    for number, name in enumerate(names):
        kind = kinds[number % len(kinds)]
        thing, file = f"{name} {kind}", f"{name.lower()}-{kind}.md"
        facts = random.sample(KINDS[kind], len(KINDS[kind]))
        values = [_value(fact.value, random) for fact in facts[:STATED]]
        pairs = list(zip(facts, values, strict=False))
        sentences = [fact.told.format(thing=thing, value=value) for fact, value in pairs]
        documents[file] = f"# The {thing}\n\n{' '.join(sentences)}\n"
        told += [Case(fact.asked.format(thing=thing), file, value) for fact, value in pairs]
        untold += [Case(fact.asked.format(thing=thing), file, None) for fact in facts[STATED:]]
    return Handbook(documents, random.sample(told, cases), random.sample(untold, cases))


def _names(random: Random, count: int) -> Iterator[str]:
    """Invented names that differ in more than the ending."""
    first, second = (syllables.split() for syllables in STEMS)
    for stem in random.sample([one + other for one in first for other in second], count):
        yield (stem + random.choice(ENDINGS)).capitalize()


def _value(kind: str, random: Random) -> str:
    match kind:
        case "number":
            return str(random.randint(12, 980))
        case "year":
            return str(random.randint(1820, 2020))
        case "time":
            return f"{random.randint(5, 11)}:{random.choice((10, 15, 20, 30, 40, 45, 50))}"
        case "person":
            return f"{random.choice(NAMED)} {next(_names(random, 1))}"
        case "colour":
            return random.choice(COLOURS)
        case _:
            return random.choice(DAYS)
