"""Prompts of any length from made-up words, each a single token of the synthetic vocabulary; and questions with
passages of our documentation, for models that can read. Deterministic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engine.synthetic import WORDS
from deploy.setup import ROOT

SYSTEM_TOKENS = 400
TAIL_TOKENS = 60
PASSAGES, PASSAGE_CHARS = 5, (300, 600)  # of a question; together some 500 tokens
GUIDE = (
    "You answer questions about a program from passages of its documentation. Cite each passage that you use as [1]."
)


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


def asked(seed: str) -> tuple[Message, Message]:
    """A question about passages, as our prompts have it in its own turn and in later ones: without the passages."""
    pages = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    short, long = PASSAGE_CHARS
    paragraphs = [" ".join(text.split()) for text in pages.split("\n\n") if short <= len(text) <= long]
    found = random.Random(seed).sample(paragraphs, PASSAGES)
    numbered = "\n".join(f"[{number}] Documentation: {text}" for number, text in enumerate(found, 1))
    question = f"What does the documentation say about this: {found[-1][:40]}?"
    return Message("user", f"Passages:\n{numbered}\n\nQuestion: {question}"), Message("user", question)
