"""Passages as retrieval gives them, with the questions that they answer or leave open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from agents.prompt import numbered
from retrieval.compress import sentences
from retrieval.passage import Passage as Retrieved
from training.values import Chooser, capital, lines

TOKEN_CHARS = 4  # about
KEYS = re.compile(r"`[^`]+`|\d[\d,.]*")


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
    open: tuple[str, ...] = ()  # questions of its subject that it does not answer

    def tells(self, fact: Fact) -> bool:
        return fact.sentence in " ".join(self.text.split())

    def may_tell(self, fact: Fact) -> bool:
        """Whether it has the sentence, or all commands and numbers of the answer: other words may say the same."""
        keys = set(KEYS.findall(fact.answer))
        return self.tells(fact) or (bool(keys) and keys <= set(KEYS.findall(self.text)))

    def window(
        self, choose: Chooser, fact: Fact, before: Sequence[int] = (0, 1, 1, 2, 3), after: Sequence[int] = (0, 0, 1, 2)
    ) -> Passage:
        """The sentence of the fact with some of its neighbours; tables and code stay whole."""
        spans = sentences(self.text)
        told = (at for at, (start, end) in enumerate(spans) if replace(self, text=self.text[start:end]).tells(fact))
        if (at := next(told, None)) is None:
            return self
        first, last = max(0, at - choose.pick(before)), min(len(spans) - 1, at + choose.pick(after))
        cut = replace(self, text=self.text[spans[first].start : spans[last].end])
        return replace(cut, facts=tuple(each for each in self.facts if cut.tells(each)))

    @property
    def page(self) -> str:
        return self.title.split(" > ")[0]

    @property
    def tokens(self) -> int:
        return (len(self.title) + len(self.text)) // TOKEN_CHARS

    @property
    def retrieved(self) -> Retrieved:
        return Retrieved("", "", "", self.title, self.text, 0, len(self.text), 0, 1.0)


def prompt(passages: Sequence[Passage], question: str) -> str:
    """As the product puts them."""
    return f"Passages:\n{numbered(enumerate((each.retrieved for each in passages), 1))}\n\nQuestion: {question}"


@cache
def readings() -> list[Passage]:
    """Of documents as users bring them. A block of the file is `=== title`, the text, then lines
    `? question;;question => answer` and `! open;;open`."""
    return [_reading(*block.split("\n")) for block in "\n".join(lines("readings.txt"))[4:].split("\n=== ")]


def _reading(title: str, *told: str) -> Passage:
    asked = [line[2:].split(" => ") for line in told if line.startswith("? ")]
    left = [question for line in told if line.startswith("! ") for question in line[2:].split(";;")]
    text = "\n".join(line for line in told if not line.startswith(("? ", "! ")))
    facts = (Fact(answer, tuple(questions.split(";;")), answer) for questions, answer in asked)
    return Passage(title, text.strip(), tuple(facts), tuple(left))
