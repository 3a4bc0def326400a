"""Rows that are quickly learnt: tokens up a scale, each one above the last, or tokens once more; and what goes wrong on
request."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from training.batches import LEARNT, PROMPT, Split

LOWEST, TONES = 100, 32


@dataclass(frozen=True, slots=True)
class Scales:
    """A source. `breaks` makes rows fail, as a fault in the generator would."""

    breaks: bool = False

    def __call__(self, seed: str, split: Split) -> _Rows:
        return _Rows(random.Random(f"{seed}/{split}"), self.breaks)


@dataclass(frozen=True, slots=True)
class _Rows:
    random: random.Random
    breaks: bool

    def row(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        if self.breaks:
            raise RuntimeError("a fault in the generator")
        start, size = self.random.randrange(TONES), length - 5
        return [LOWEST + (start + i) % TONES for i in range(size)], [PROMPT] * 2 + [LEARNT] * (size - 2)


@dataclass(frozen=True, slots=True)
class Echoes:
    """A source of rows whose second half is to be what the first was."""

    def __call__(self, seed: str, split: Split) -> _Echoes:
        return _Echoes(random.Random(f"{seed}/{split}"))


@dataclass(frozen=True, slots=True)
class _Echoes:
    random: random.Random

    def row(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        heard = self.random.sample(range(LOWEST, LOWEST + TONES), min(TONES, length // 2))
        return heard * 2, [PROMPT] * len(heard) + [LEARNT] * len(heard)
