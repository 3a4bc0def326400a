"""Log probabilities of prompts: those of all tokens but the first, however the prompt is computed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.generation import Finish, Priority, Sampling, Terms
from inference.request import Handle
from inference.trace import now_ns
from tests.scripted import ScriptedBackend, scripted_token

VOCABULARY = 26
CONFIG = EngineConfig(parallel=2, resident=2)
PIECES = [bytes([65 + token]) for token in range(VOCABULARY)]
SCORED = Sampling(temperature=0, max_tokens=1, top_logprobs=1, scores_prompt=True)
LONG = [n * 7 % VOCABULARY for n in range(10 * CONFIG.outputs_max)]  # far more rows than a step has logits for


@asynccontextmanager
async def engine_of(backend: ScriptedBackend, ends: frozenset[int] = frozenset()) -> AsyncIterator[Engine]:
    engine = Engine(backend, PIECES, ends, CONFIG)
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


def a_backend() -> ScriptedBackend:
    return ScriptedBackend(slots=CONFIG.slots, context=100_000, rows_max=1024, vocabulary=VOCABULARY)


async def scores(handle: Handle) -> list[tuple[int, int]]:
    """Each token, and the likeliest one in its place."""
    async for _ in handle:
        pass
    return [(own, likeliest) for (own, _), (likeliest, _) in handle.facts.scores]


def expected(prompt: list[int]) -> list[tuple[int, int]]:
    return [(prompt[at], scripted_token(prompt[:at], VOCABULARY)) for at in range(1, len(prompt))]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("prompt", [[3], [3, 1], LONG], ids=["one", "two", "long"])
async def test_a_prompt_is_scored_in_full(prompt: list[int], deterministic: bool) -> None:
    async with engine_of(a_backend()) as engine:
        handle = engine.submit(prompt, replace(SCORED, deterministic=deterministic))
        assert await scores(handle) == expected(prompt)


async def test_a_cached_prompt_is_computed_again_because_the_cache_has_no_logits() -> None:
    async with engine_of(a_backend()) as engine:
        await scores(engine.submit(LONG, replace(SCORED, scores_prompt=False)))
        handle = engine.submit(LONG, SCORED)
        assert (await scores(handle), handle.facts.cached_tokens) == (expected(LONG), 0)


async def test_what_was_scored_is_cached_for_others() -> None:
    async with engine_of(a_backend()) as engine:
        await scores(engine.submit(LONG, SCORED))
        other = engine.submit(LONG, replace(SCORED, scores_prompt=False))
        assert (await scores(other), other.facts.cached_tokens) == ([], len(LONG))


async def test_prompts_are_scored_beside_each_other_and_beside_streams() -> None:
    async with engine_of(a_backend()) as engine:
        stream = engine.submit([5], Sampling(temperature=0, max_tokens=50))
        prompts = [LONG, LONG[5:], [1, 2, 3]]
        told = await asyncio.gather(*(scores(engine.submit(prompt, SCORED)) for prompt in prompts))
        assert told == [expected(prompt) for prompt in prompts]
        await scores(stream)
        assert stream.finish is Finish.LENGTH


@dataclass
class Gated(ScriptedBackend):
    """Stops at its third step until it is let on."""

    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        if len(self.steps) == 2:
            self.reached.set()
            self.open.wait()
        return super().decode(chunks)


async def test_a_preempted_prompt_is_scored_once() -> None:
    backend = Gated(slots=CONFIG.slots, context=100_000, rows_max=1024, vocabulary=VOCABULARY)
    async with engine_of(backend) as engine:
        slow = [engine.submit([n, *LONG], SCORED, Terms(priority=Priority.BATCH)) for n in range(CONFIG.parallel)]
        await asyncio.to_thread(backend.reached.wait)
        urgent = engine.submit([9], Sampling(temperature=0, max_tokens=5), Terms(priority=Priority.INTERACTIVE))
        backend.open.set()
        await scores(urgent)
        assert engine.totals["preempted"] == 1
        assert [await scores(each) for each in slow] == [expected([n, *LONG]) for n in range(CONFIG.parallel)]


async def test_without_an_answer_only_the_prompt_is_scored() -> None:
    async with engine_of(a_backend()) as engine:
        handle = engine.submit(LONG, replace(SCORED, max_tokens=0))
        assert await scores(handle) == expected(LONG)
        assert (handle.ids, handle.finish) == ([], Finish.LENGTH)


async def test_the_token_that_ends_an_answer_is_scored_like_the_prompt() -> None:
    end = scripted_token([3, 1], VOCABULARY)
    async with engine_of(a_backend(), frozenset([end])) as engine:
        handle = engine.submit([3, 1], SCORED)
        deltas = [delta async for delta in handle]
        assert [len(delta.logprobs) for delta in deltas] == [1] and deltas[0].tokens == 0
        plain = engine.submit([3, 1], replace(SCORED, scores_prompt=False))
        assert [delta async for delta in plain] == []


async def test_a_prompt_that_ends_before_it_is_scored_leaves_what_it_has() -> None:
    async with engine_of(a_backend()) as engine:
        handle = engine.submit(LONG, SCORED, Terms(deadline_ns=now_ns()))
        assert (await scores(handle), handle.finish) == ([], Finish.DEADLINE)
