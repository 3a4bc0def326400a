"""Prompts of any length from made-up words, each a single token of the synthetic vocabulary. Deterministic."""

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
    """`count` words, each preceded by a space. Texts with different seeds differ from the first word on."""
    return "".join(" " + word for word in random.Random(seed).choices(WORDS, k=count))


def shared(seed: str, clients: int, tail_tokens: int = TAIL_TOKENS) -> list[list[Message]]:
    """One prompt per client: the same system prompt for all, and a question of its own."""
    system = Message("system", words(seed, SYSTEM_TOKENS))
    return [[system, Message("user", words(f"{seed}/{i}", tail_tokens))] for i in range(clients)]


def alone(seed: str, tokens: int) -> list[Message]:
    """A prompt that shares no prefix with any other."""
    return [Message("user", words(seed, tokens))]


def continued(history: Sequence[Message], answer: str, seed: str, tokens: int) -> list[Message]:
    """The next turn of a conversation."""
    return [*history, Message("assistant", answer), Message("user", words(seed, tokens))]
