"""What a request takes of the engine: the share of each step that its rows had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.engine.executor import _charge, _charge_drafting
from inference.generation import Sampling, Spent
from inference.model import ChatModel


def work(rows: int, outputs: int = 1) -> Any:
    return SimpleNamespace(request=SimpleNamespace(spent=Spent()), tokens=[0] * rows, sampled=outputs)


def test_a_step_is_divided_by_rows() -> None:
    prompt, stream = work(9), work(1)
    assert _charge([prompt, stream], 1000) == 100
    assert (prompt.request.spent.engine_ns, stream.request.spent.engine_ns) == (900, 100)
    assert stream.request.spent.speculation_ns == 0


def test_making_drafts_is_paid_by_those_who_have_one_and_is_overhead() -> None:
    plain, drafted = work(1), work(4, outputs=4)
    _charge_drafting([plain, drafted], 600)
    assert (plain.request.spent.engine_ns, drafted.request.spent.engine_ns) == (0, 600)
    assert drafted.request.spent.speculation_ns == 600
    _charge_drafting([plain], 600)  # nothing was drafted
    assert plain.request.spent.engine_ns == 0


@pytest.mark.any_answer("only the time is looked at")
async def test_answers_share_what_the_engine_took() -> None:
    model = ChatModel.load(EngineConfig(model_path=CHAT_MODEL, parallel=4))
    await model.start()
    try:
        before_ns = model._engine.totals["decode_ns"]
        generations = [
            model.generate(list(range(10, 40 + each)), Sampling(temperature=0, max_tokens=8, ignore_eos=True))
            for each in range(3)
        ]
        for generation in generations:
            await generation.stream(lambda _: None)
        took_ns = sum(generation.facts.spent.engine_ns for generation in generations)
        device_ns = model._engine.totals["decode_ns"] - before_ns
        assert 0.99 * device_ns <= took_ns <= device_ns
        assert all(generation.facts.spent.speculation_ns == 0 for generation in generations)
    finally:
        await model.close()
