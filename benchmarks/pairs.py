"""Compares two ways of doing the same in alternation: a busy machine slows both, and ratios are taken pair by pair."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from benchmarks.engine.synthetic import WORDS
from inference.language_model import LanguageModel

Way = TypeVar("Way")
Measured = TypeVar("Measured")


async def pairs(
    ways: tuple[Way, Way], measure: Callable[[Way], Awaitable[Measured]], rounds: int
) -> list[tuple[Measured, Measured]]:
    """The measurements of both ways, by round, after one warm-up round."""
    measured = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        ran = {at: await measure(ways[at]) for at in order}
        measured.append((ran[0], ran[1]))
    return measured[1:]


def unread(model: LanguageModel, draw: random.Random, tokens: int) -> str:
    """A text of this many tokens that is in no other prompt."""
    words: list[str] = []
    while (missing := tokens - model.count(" ".join(words))) > 0:
        words += draw.choices(WORDS, k=max(1, missing // 5))
    return " ".join(words)
