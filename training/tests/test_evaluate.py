"""The evaluation runs the bundled model through the platform's engine, free and held to a grammar."""

from __future__ import annotations

import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from training.cases import CATEGORIES
from training.evaluate import acceptance, evaluate, table
from training.tests.conftest import generator

FEW = [category for category in CATEGORIES if category.name in ("built-in tool, one call", "small talk")]


@pytest.mark.parametrize("held", [False, True])
async def test_what_the_bundled_model_can_do_is_counted(held: bool) -> None:
    scores = await evaluate(CHAT_MODEL, generator(split="test"), 8, held=held, categories=FEW)
    tools = scores.shares["built-in tool, one call", "right tools"]
    assert tools.of == 8
    assert tools.right >= 6
    assert (("small talk", "exact") in scores.shares) is not held  # without tools there is nothing to hold it to
    assert len(list(table(scores, None))) == 2 + len(scores.shares)


async def test_what_went_wrong_can_be_looked_at() -> None:
    scores = await evaluate(CHAT_MODEL, generator(split="test"), 8, categories=CATEGORIES[1:2])
    exact = scores.shares["unseen tool, one call", "names and arguments exact"]
    assert len({(wrong.expected) for wrong in scores.wrong}) == exact.of - exact.right


async def test_the_draft_models_acceptance_is_a_share() -> None:
    accepted = await acceptance(CHAT_MODEL, DRAFT_MODEL, generator(split="test"), 1)
    assert 0.2 < accepted <= 1
