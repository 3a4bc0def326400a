"""Passages of documents as users bring them, with questions that they answer, and others that they leave open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from retrieval.cut import sentences as spans
from training.values import POOLS, Chooser, lines, lowered

PASSAGES = (1, 1, 1, 2, 2, 2, 3, 4)
NEIGHBOURS = 4  # on each side in the file: of the same document or subject
ABSENT_SHARE, OPEN_SHARE = 0.11, 0.14  # of the questions come without their passage, or are not answered by it
SECOND_SHARE = 0.1  # of the others ask for two things
CUT_SHARE = 0.5  # of the passages in one paragraph are cut to some sentences


@dataclass(frozen=True, slots=True)
class Fact:
    """Wordings of a question, and its answer without the full stop."""

    questions: list[str]
    answer: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A passage. The questions in `open` are of its subject, and it does not answer them."""

    title: str
    text: str
    facts: list[Fact]
    open: list[str]

    def cut(self, choose: Chooser, fact: Fact) -> Reading:
        """The sentence that answers, with some of its neighbours; all of it where no single sentence does."""
        sentences = [self.text[start:end] for start, end in spans(self.text)]
        at = next((i for i, sentence in enumerate(sentences) if fact.answer in sentence), None)
        if at is None or "\n" in self.text:
            return self
        return replace(self, text=" ".join(sentences[max(0, at - choose.between(0, 2)) : at + choose.between(1, 3)]))


def ask(choose: Chooser) -> tuple[list[Reading], str, str]:
    """Passages, a question and its answer. Most of the passages are neighbours, which look alike."""
    at = choose.between(0, len(read()) - 1)
    about, others = read()[at], read()[max(0, at - NEIGHBOURS) : at] + read()[at + 1 : at + 1 + NEIGHBOURS]
    told = choose.some([*others, read()[at - 2 * NEIGHBOURS]], choose.pick(PASSAGES) - 1)
    fact, share, refusal = choose.pick(about.facts), choose.random.random(), choose.pick(POOLS["refusal"])
    if share < ABSENT_SHARE:
        return told or [choose.pick(others)], choose.pick(fact.questions), refusal
    place = choose.between(0, len(told))
    if share > 1 - OPEN_SHARE:
        return [*told[:place], about, *told[place:]], choose.pick(about.open), refusal
    question, answer = choose.pick(fact.questions), f"{fact.answer} [{place + 1}]."
    if choose.chance(SECOND_SHARE):
        second = choose.pick([each for each in about.facts if each is not fact])
        question = f"{question.rstrip('?')} and {lowered(choose.pick(second.questions))}"
        answer += f" {second.answer} [{place + 1}]."
    elif choose.chance(CUT_SHARE):
        about = about.cut(choose, fact)
    return [*told[:place], about, *told[place:]], question, answer


@cache
def read() -> list[Reading]:
    """A block of the file is `=== title`, the text, then lines `? question;;question => answer` and `! open;;open`."""
    return [_reading(*block.split("\n")) for block in "\n".join(lines("readings.txt"))[4:].split("\n=== ")]


def _reading(title: str, *told: str) -> Reading:
    asked = [line[2:].split(" => ") for line in told if line.startswith("? ")]
    left = [question for line in told if line.startswith("! ") for question in line[2:].split(";;")]
    text = "\n".join(line for line in told if not line.startswith(("? ", "! ")))
    return Reading(title, text.strip(), [Fact(texts.split(";;"), answer) for texts, answer in asked], left)


def questions() -> list[str]:
    return [question for each in read() for question in (*each.open, *(q for f in each.facts for q in f.questions))]
