"""What the benchmarks say to models, and how they listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from benchmarks.engine import prompts
from benchmarks.engine.drafts import measured, quoting
from benchmarks.engine.measures import CHARACTER_MS, CHARACTERS, THROUGHPUT, TTFT
from benchmarks.engine.prompts import Message
from benchmarks.engine.synthetic import BLOCK, HEAD, SHAPES, VOCABULARY, Shape, quantised, vocabulary
from benchmarks.engine.target import Listener
from benchmarks.engine.workloads import CHATS, LONG_TTFT, cold, interrupted, returning, warm


class Echo:
    """Says the same word again and again, and keeps what it was told."""

    name = "echo"

    def __init__(self) -> None:
        self.told: list[list[Message]] = []

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        self.told.append(list(messages))
        for _ in range(min(max_tokens, 200)):
            yield " bada"


class Mute(Echo):
    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        for _ in range(0):
            yield ""


def test_every_word_is_one_token_of_the_vocabulary() -> None:
    tokens, merges = vocabulary()
    assert len(tokens) == len(set(tokens)) == VOCABULARY
    made = {merge.replace(" ", "") for merge in merges}
    assert {"\u0120" + word for word in prompts.words("any", 50).split()} <= made <= set(tokens)


def test_prompts_repeat_for_a_seed_and_differ_for_another() -> None:
    assert prompts.words("a", 60) == prompts.words("a", 60) != prompts.words("b", 60)
    assert len(prompts.words("a", 60).split()) == 60


def test_clients_share_the_system_prompt_and_nothing_else() -> None:
    asked = prompts.shared("a", 8)
    assert len({said[0] for said in asked}) == 1
    assert len({said[1].content.split()[0] for said in asked}) > 1
    assert len({said[1] for said in asked}) == 8


async def test_a_cold_prompt_was_never_said_before() -> None:
    echo = Echo()
    await cold(2).run(echo, "first")
    await cold(2).run(echo, "second")
    systems = [said[0].content for said in echo.told]
    assert systems[0] == systems[1] != systems[2] == systems[3]


async def test_warm_clients_are_measured_after_their_first_question() -> None:
    echo = Echo()
    numbers = await warm(4, 3).run(echo, "first")
    assert len(echo.told) == 4 + 12
    assert numbers[THROUGHPUT] > 0 and numbers[TTFT] > 0


async def test_conversations_return_with_all_that_was_said() -> None:
    echo = Echo()
    await returning(3, 30, 5).run(echo, "first")
    assert [len(said) for said in echo.told] == [1, 1, 1, 3, 3, 3]
    assert echo.told[3][0] == echo.told[0][0]
    assert echo.told[3][1] == Message("assistant", " bada" * 8)


async def test_a_target_that_says_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="echo said nothing"):
        await Listener().listen(Mute(), [], 4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes_fit_the_format(shape: Shape) -> None:
    assert shape.width % HEAD == 0 and shape.width % BLOCK == 0 and shape.feed_forward % BLOCK == 0


def test_weights_have_the_spread_that_was_asked_for() -> None:
    blocks = quantised(np.random.default_rng(1), 64, 256, 0.5).reshape(64, 8, 34)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    weights = blocks[..., 2:].view(np.int8) * scale
    assert weights.std() == pytest.approx(0.5, rel=0.05)


class Chatting(Echo):
    """Chats go on until they are hung up on; a long prompt is answered at once."""

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        self.told.append(list(messages))
        for _ in range(max_tokens):
            await asyncio.sleep(0)
            yield " bada"


async def test_a_long_prompt_comes_when_all_chats_run_and_they_end_with_it() -> None:
    chatting = Chatting()
    numbers = await interrupted().run(chatting, "first")
    assert len(chatting.told) == CHATS + 1
    assert len(chatting.told[-1]) == 1
    assert numbers[LONG_TTFT] > 0


def test_the_speed_of_drafts_is_that_of_the_text_however_it_arrives() -> None:
    one_by_one = Listener(1.0, ["ab"] * 5, [2.0, 3.0, 4.0, 5.0, 6.0])
    together = Listener(1.0, ["ab", "abab", "abab"], [2.0, 4.0, 6.0])
    assert measured([one_by_one]) == measured([together]) == {CHARACTERS: 2.0, CHARACTER_MS: 500.0, TTFT: 1000.0}


async def test_questions_to_quote_repeat_for_a_seed_and_differ_for_another() -> None:
    echo = Echo()
    for seed in ("first", "first", "second"):
        await quoting("a tool result", 1, 1).run(echo, seed)
    first, again, second = (said[0].content for said in echo.told)
    assert first == again != second
