"""The model that plays the task of the benchmark by heart, and the table that comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.agent_loop.__main__ import table
from benchmarks.agent_loop.actor import actor, successors
from benchmarks.agent_loop.loops import Watch, together
from benchmarks.agent_loop.task import CALLS, STEPS, turn
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.model import ChatModel
from inference.prompt import ChatMessage


async def test_the_actor_says_its_part_of_every_step(tmp_path: Path) -> None:
    model = ChatModel.load(EngineConfig(model_path=actor(tmp_path), parallel=1, context=4096))
    await model.start()
    messages = [ChatMessage("user", "What is there?")]
    for step in range(STEPS + 1):
        prompt = model.encode(model.render(messages))
        said = [delta.text async for delta in model.generate(prompt, Sampling(max_tokens=99, temperature=0))]
        assert "".join(said) == "".join(turn(step))
        messages += [ChatMessage("assistant", "".join(said)), ChatMessage("user", "Go on.")]
    await model.close()


def test_no_token_is_followed_by_two() -> None:
    followed = [token for token, _ in successors()]
    assert len(followed) == len(set(followed))


def test_a_step_is_as_many_calls_as_the_task_has() -> None:
    assert ["".join(turn(step)).count("<tool_call>") for step in range(STEPS + 1)] == [CALLS] * STEPS + [0]


async def test_calls_run_together_keep_their_order() -> None:
    async def say(word: str) -> str:
        return word

    assert await together([say("one"), say("two")]) == ["one", "two"]


def test_a_task_that_stopped_half_way_does_not_count() -> None:
    with pytest.raises(RuntimeError, match="1 steps"):
        Watch(answer_s=1.0, prefilled=[7]).told()


def test_a_ratio_is_taken_within_a_round() -> None:
    told = table(
        {"ours": [{"ms": 10.0}, {"ms": 30.0}, {"ms": 5.0}], "theirs": [{"ms": 20.0}, {"ms": 60.0}, {"ms": 5.0}]}
    )
    assert told.splitlines()[2] == "| ms | 10.0 | 20.0 (0.50) |"
