"""Thoughts that are ended: at their limit or when somebody asks, by the mark that the template closes them with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.reasoning_budget import ReasoningBudget
from inference.engine.sampler import Sampler
from inference.errors import UnknownToken
from inference.generation import ReasoningLimit, Sampling, Terms
from inference.grammar.constraint import Vocabulary
from inference.request import Handle
from tests.scripted import ScriptedBackend, scripted_token

PIECES = [bytes([65 + token]) for token in range(26)]
PROMPT = [1, 2, 3]
OTHER = [5, 2, 3]
CLOSE = (25, 24, 25)  # ZYZ: no answer of the scripted device happens to contain it
OPENED = ReasoningLimit("QXQ", "ZYZ", CLOSE, begun=True)


@asynccontextmanager
async def engine_with(end_tokens: Collection[int]) -> AsyncIterator[Engine]:
    config = EngineConfig(parallel=2, resident=2)
    backend = ScriptedBackend(slots=config.slots, context=100_000, rows_max=1024, vocabulary=26)
    engine = Engine(backend, PIECES, frozenset(end_tokens), config)
    engine.start()
    yield engine
    await asyncio.to_thread(engine.close)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engine_with(()) as engine:
        yield engine


def greedy(limit: ReasoningLimit | None, tokens: int = 9) -> Sampling:
    return Sampling(temperature=0, max_tokens=tokens, reasoning_limit=limit)


def limited(tokens: int | None, *, begun: bool = True) -> ReasoningLimit:
    return ReasoningLimit(OPENED.open, OPENED.close, CLOSE, begun, tokens)


def drawn(prompt: list[int], ids: list[int], count: int) -> list[int]:
    """What the device goes on with."""
    ids = list(ids)
    for _ in range(count):
        ids.append(scripted_token([*prompt, *ids], 26))
    return ids


async def ids_of(handle: Handle) -> list[int]:
    await handle.stream(lambda _: None)
    return handle.ids


@pytest.mark.parametrize("tokens", [0, 1, 4])
async def test_a_thought_ends_exactly_at_its_limit_and_the_answer_goes_on_from_the_mark(
    engine: Engine, tokens: int
) -> None:
    thought = drawn(PROMPT, [], tokens)
    expected = drawn(PROMPT, [*thought, *CLOSE], 9 - tokens - len(CLOSE))
    assert await ids_of(engine.submit(PROMPT, greedy(limited(tokens)))) == expected


async def test_streams_beside_it_are_not_touched(engine: Engine) -> None:
    others = [engine.submit(PROMPT, greedy(limit)) for limit in (None, limited(None), limited(2, begun=False))]
    ended = engine.submit(PROMPT, greedy(limited(2)))
    plain = drawn(PROMPT, [], 9)
    assert [await ids_of(handle) for handle in others] == [plain] * 3
    assert (await ids_of(ended))[2:5] == list(CLOSE)


async def test_whoever_waits_may_end_it_while_it_runs(engine: Engine) -> None:
    """However often that is asked for: behind the mark, the device goes on by itself."""
    handle = engine.submit(PROMPT, greedy(limited(None), 10**9))
    text = ""
    async for delta in handle:
        text += delta.text
        handle.end_reasoning()
        if "ZYZ" in text[:-5]:
            handle.cancel()
    behind = text.index("ZYZ") + len(CLOSE)
    assert handle.ids[: behind + 5] == drawn(PROMPT, handle.ids[:behind], 5)


@pytest.mark.parametrize("ends", [CLOSE, (*CLOSE, 1, 2, 3)])  # what the answer begins with may have marks, too
async def test_an_answer_that_goes_on_elsewhere_knows_what_was_thought(engine: Engine, ends: tuple[int, ...]) -> None:
    sampling = greedy(replace(limited(4), ends=ends), 12)
    whole = await ids_of(engine.submit(PROMPT, sampling))
    assert tuple(whole[4 : 4 + len(ends)]) == ends
    for written in range(1, len(whole)):
        assert await ids_of(engine.submit(PROMPT, sampling, Terms(written=whole[:written]))) == whole


async def test_an_answer_begins_behind_a_thought_that_was_ended() -> None:
    thought = drawn(OTHER, [], 4)
    end = scripted_token([*OTHER, *thought, *CLOSE], 26)
    assert end not in thought
    async with engine_with({end}) as engine:
        whole = await ids_of(engine.submit(OTHER, greedy(limited(4), 12)))
        assert whole[:7] == [*thought, *CLOSE] and len(whole) > 7 and whole[7] != end
        for written in range(1, len(whole)):
            assert await ids_of(engine.submit(OTHER, greedy(limited(4), 12), Terms(written=whole[:written]))) == whole


def test_a_model_that_ends_its_thought_may_end_its_turn() -> None:
    budget = ReasoningBudget(limited(4), PIECES, frozenset({1}))
    for written in range(6):
        budget.due(spell("AZYZBC")[:written])
        assert not budget.banned(spell("AZYZBC")[:written])


async def test_a_mark_of_another_vocabulary_is_refused(engine: Engine) -> None:
    with pytest.raises(UnknownToken):
        engine.submit(PROMPT, greedy(ReasoningLimit("Q", "Z", (26,), True, 1)))


def spell(text: str) -> list[int]:
    return [ord(character) - 65 for character in text]


@pytest.mark.parametrize(
    ("limit", "told", "due"),
    [
        (limited(3, begun=False), "ABCDEFG", None),  # it does not think
        (limited(3, begun=False), "ABQXQAB", None),
        (limited(3, begun=False), "ABQXQABC", CLOSE[0]),
        (limited(3), "ABZYZCDEFG", None),  # it has ended its thought
        (limited(2), "AZYZBQXQ", CLOSE[0]),  # a second thought within what was left
        (limited(None), "ABCDEFG", None),
    ],
)
def test_only_a_thought_counts_that_is_open(limit: ReasoningLimit, told: str, due: int | None) -> None:
    assert ReasoningBudget(limit, PIECES).due(spell(told)) == due


def test_marks_within_longer_tokens_are_found() -> None:
    pieces = [b"ab<th", b"ink>c", b"d</think", b">", b"x"]
    budget = ReasoningBudget(ReasoningLimit("<think>", "</think>", (2, 3), tokens=2), pieces)
    assert budget.due([0, 1]) is None
    assert budget.due([0, 1, 4]) is None
    assert [budget.due([0, 1, 4, 4]), budget.due([0, 1, 4, 4, 2])] == [2, 3]
    assert budget.due([0, 1, 4, 4, 2, 3, 4, 4, 4]) is None


def test_a_grammar_that_does_not_allow_the_mark_is_kept() -> None:
    sampling = Sampling(temperature=0)
    grammar = Vocabulary(PIECES, frozenset({0})).compile('start: "BC"')
    sampler = Sampler(sampling, grammar.start())
    row = np.zeros(26, np.float32)
    assert sampler.draw(row, due=25) == 1
    assert sampler.draw(row, due=2) == 2
