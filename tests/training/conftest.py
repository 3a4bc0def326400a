"""A generator that needs nothing but this file: the real one reads what `python -m training prose` has mined."""

from __future__ import annotations

import pytest

from training.conversations.generator import Generator
from training.conversations.names import Split

WORDS = """
able about above access account across active actual address adjust advance after again against agree alarm album
allow almost alone along already alter always amber among amount anchor answer apple april arctic argue arrow artist
aside aspect atlas author autumn awake bakery balance bamboo banner barrel basket battle beach before begin behind
believe bench berry beyond bicycle bird blanket blossom board border bottle branch brave bread breeze brick bridge
bright bronze brush bubble bucket budget build bundle butter button cabin cable camera candle canyon carbon carpet
castle cedar cement center chance change chapter cheese cherry choose circle citrus clever cliff clock cloud coast
""".split()
MINED = [
    (f"manual-{i}", [f"The {word} of part {i} is kept in the {other} drawer.", f"A {other} may hold {i + 2} {word} parts."])
    for i, (word, other) in enumerate(zip(WORDS[:60], WORDS[40:100], strict=True))
]


def generator(seed: str = "a seed", split: Split = "train") -> Generator:
    return Generator(seed, split, WORDS, MINED)


@pytest.fixture(params=["train", "test"])
def invented(request: pytest.FixtureRequest) -> Generator:
    """Of both splits."""
    return generator(split=request.param)
