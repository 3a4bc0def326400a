"""Prompts for the models: made-up words, each one token of the synthetic vocabulary. Deterministic, any length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.synthetic import WORDS

SYSTEM_TOKENS = 400
TAIL_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


def words(seed: str, count: int) -> str:
    """That many words, each with a space before it; another seed differs from the first word on."""
    return "".join(" " + word for word in random.Random(seed).choices(WORDS, k=count))


def shared(seed: str, clients: int, tail_tokens: int = TAIL_TOKENS) -> list[list[Message]]:
    """A prompt for each client: one system prompt for all, a question of its own for each."""
    system = Message("system", words(seed, SYSTEM_TOKENS))
    return [[system, Message("user", words(f"{seed}/{i}", tail_tokens))] for i in range(clients)]


def alone(seed: str, tokens: int) -> list[Message]:
    """A prompt that shares no prefix with any other."""
    return [Message("user", words(seed, tokens))]


def continued(history: Sequence[Message], answer: str, seed: str, tokens: int) -> list[Message]:
    """The next turn of a conversation."""
    return [*history, Message("assistant", answer), Message("user", words(seed, tokens))]
