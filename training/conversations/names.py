"""Names and values made up at random. What must not be learnt by heart is split by a hash: training and evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from training.batches import Split
from training.conversations import lexicon

T = TypeVar("T")
HELD_OUT_SHARE = 10  # one word in so many is for the evaluation
BLENDS_SHARE = 0.3  # of the words, in training
COMPOUNDS_SHARE = 0.5  # of the blends begin with a whole held-out word
PIECE_RANGE = (2, 5)  # letters of a word that a blend takes

_CONSONANTS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def held_out(word: str) -> bool:
    """Whether only the evaluation may use this word. Stable: it depends on nothing but the word."""
    return zlib.crc32(word.lower().encode()) % HELD_OUT_SHARE == 0


class Names:
    """Everything random comes from here. `words` are frequent words in lower case."""

    def __init__(self, seed: str, split: Split, words: Sequence[str]) -> None:
        self.random = random.Random(f"{seed}/{split}")
        self._test = split == "test"
        everything = [word.lower() for word in (*words, *lexicon.NOUNS, *lexicon.CITIES, *lexicon.FIRST)]
        self._whole = [word for word in everything if word.isalpha()]
        self._others = [word for word in self._whole if held_out(word) != self._test]
        self._words = self._mine(words)
        self._nouns = self._mine(lexicon.NOUNS)
        self._attributes = self._mine([f"{a} {g}" for a in lexicon.ADJS for g in lexicon.GENERIC] + lexicon.GENERIC)
        self._cities = self._mine(lexicon.CITIES)
        self._first = self._mine(lexicon.FIRST)

    def _mine(self, words: Sequence[str]) -> list[str]:
        return [word for word in words if held_out(word) == self._test]

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random.random() * len(options))]

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def number(self, most: int | None = None) -> int:
        return self.random.randint(1, most or self.pick([9, 20, 99, 500, 9999]))

    def decimal(self) -> float:
        return round(self.random.random() * self.pick([10, 100, 1000]) + 0.1, self.pick([1, 1, 2]))

    def syllables(self) -> str:
        """A word that no language has, 4 to 10 letters."""
        while True:
            parts = range(self.random.randint(2, 3))
            word = "".join(self.pick(lexicon.ON) + self.pick(lexicon.VO) + self.pick(lexicon.CO) for _ in parts)
            if 4 <= len(word) <= 10 and held_out(word) == self._test:
                return word

    def blend(self) -> str:
        """A new word out of two: the beginning of one, or all of a held-out one, and the end of another. So no token is
        new to a model that has learnt, as those would be of which only held-out words are made."""
        while True:
            first, last = (self.random.randint(*PIECE_RANGE) for _ in range(2))
            compound = self.chance(COMPOUNDS_SHARE)
            begun = self.pick(self._others) if compound else self.pick(self._whole)[:first]
            word = begun + self.pick(self._whole)[-last:]
            if held_out(word) == self._test:
                return word

    def proper(self) -> str:
        return (self.blend() if self._blends() else self.syllables()).capitalize()

    def word(self) -> str:
        return self.blend() if self._blends() else self.pick(self._words)

    def _blends(self) -> bool:
        """The evaluation has whole words only."""
        return not self._test and self.chance(BLENDS_SHARE)

    def phrase(self, least: int = 2, most: int = 4) -> str:
        return " ".join(self.word() for _ in range(self.random.randint(least, most)))

    def title(self) -> str:
        return self.phrase(2, 4).capitalize()

    def noun(self) -> str:
        chance = self.random.random()
        return self.pick(self._nouns) if chance < 0.6 else self.word() if chance < 0.92 else self.syllables()

    def attribute(self) -> str:
        return self.pick(self._attributes)

    def city(self) -> str:
        return self.pick(self._cities) if self.chance(0.6) else self.proper()

    def first_name(self) -> str:
        return self.pick(self._first) if self.chance(0.6) else self.proper()

    def person(self) -> str:
        return self.first_name() if self.chance(0.3) else f"{self.first_name()} {self.proper()}"

    def company(self) -> str:
        return self.proper() + (f" {self.pick(lexicon.SUFFIX)}" if self.chance(0.6) else "")

    def product(self) -> str:
        name, chance = self.proper(), self.random.random()
        if chance < 0.4:
            return f"{name} {self.pick(lexicon.THING)}"
        if chance < 0.6:
            return f"{name} {self.pick(lexicon.THING)} {self.number(90)}{self.pick(['', '', 'X', '0', 'S'])}"
        return f"{name} {self.pick('XRTZKQ')}-{self.number(99)}" if chance < 0.75 else name

    def code(self) -> str:
        def letters(n: int) -> str:
            return "".join(self.pick(_CONSONANTS) for _ in range(n))

        def digits(n: int) -> str:
            return "".join(self.pick("0123456789") for _ in range(n))

        few = self.random.randint(3, 5)
        return self.pick(
            [
                f"{letters(2)}-{digits(4)}",
                f"{letters(3)}-{digits(few)}",
                f"{letters(1)}{digits(few)}",
                f"{letters(2)}{digits(2)}-{letters(1)}{digits(2)}",
            ]
        )

    def date(self) -> str:
        r, chance = self.random, self.random.random()
        if chance < 0.4:
            return f"{r.randint(2019, 2031)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
        return f"{self.pick(lexicon.MONTHS)} {r.randint(1, 28)}" if chance < 0.7 else self.pick(lexicon.DAYS)

    def time(self) -> str:
        return f"{self.random.randint(0, 23):02d}:{self.pick([0, 15, 30, 45, self.random.randint(0, 59)]):02d}"

    def email(self) -> str:
        return f"{self.syllables()}@{self.syllables()}{self.pick(['.com', '.org', '.net', '.example'])}"

    def value(self) -> str | int | float:
        """Anything that a tool may return or a document may state."""
        texts: list[Callable[[], str]] = [
            self.code,
            self.date,
            self.time,
            self.word,
            lambda: self.phrase(2, 2),
            self.proper,
            self.person,
            self.city,
        ]
        numbers: list[Callable[[], float]] = [self.number, self.decimal]
        return self.pick(texts)() if self.chance(0.8) else self.pick(numbers)()
