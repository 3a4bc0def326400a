"""What a worker of the tests gives a prompt is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

import agents.agent
import agents.opener
import worker.start
from inference.generation import Due
from inference.trace import now_ns
from retrieval.config import RetrievalConfig
from tests.agents.turns import asked
from tests.patient_worker import PASSAGE_TOKENS, be_patient


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    be_patient()
    yield
    patch.stopall()


@pytest.mark.parametrize("token_s", [1e-4, 1.0, None], ids=["fast", "slow", "not measured yet"])
def test_a_prompt_gets_as_many_passages_however_fast_it_is_read(token_s: float | None) -> None:
    turn = asked("Which?", due=Due(now_ns() + 10**9))
    for module in (agents.agent, agents.opener):
        assert module.passage_tokens_max(turn, now_ns(), token_s) == PASSAGE_TOKENS
        assert module.passage_tokens_max(asked("Which?"), now_ns(), token_s) is None, "without a target"


def test_a_search_has_time_for_all_of_its_stages() -> None:
    config: RetrievalConfig = vars(worker.start)["RetrievalConfig"]()
    assert min(config.embed_ms, config.search_ms, config.rerank_ms, config.join_ms) >= 60_000
