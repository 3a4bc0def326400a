"""A generator that needs nothing but this file: the real one reads what `python -m training prose` has mined."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from training.batches import Split
from training.bundle import bundled_vocabulary
from training.conversations import lexicon
from training.conversations.generator import Generator
from training.prose import Prose

WORDS = lexicon.NOUNS[:120]
MINED = [
    (
        f"manual-{i}",
        [f"The {word} of part {i} is kept in the {other} box.", f"A {other} holds {i + 2} {word} parts."],
    )
    for i, (word, other) in enumerate(zip(WORDS[:60], WORDS[40:100], strict=True))
]
OWN = [("Handbook > Lamps", ["The lamp of the handbook is red."])]


def generator(seed: str = "a seed", split: Split = "train") -> Generator:
    return Generator(seed, split, Prose(WORDS, MINED, OWN))


@pytest.fixture(params=["train", "test"])
def invented(request: pytest.FixtureRequest) -> Generator:
    """Of both splits."""
    return generator(split=request.param)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return bundled_vocabulary().tokenizer()
