"""Deterministic requests: the same prompt and seed give the same tokens whatever else runs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.errors import NotDeterministic
from inference.generation import Priority, Sampling, Terms
from inference.llama import LlamaContext, LlamaModel
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.request import Handle
from tests.scripted import ScriptedBackend

RUNS = [10, pytest.param(30, marks=pytest.mark.long)]
PROMPT_TOKENS, BITE = 400, 16
EXACT = Sampling(max_tokens=12, temperature=1.0, seed=7, deterministic=True)
QUESTION = [ChatMessage("system", "You are a helpful assistant."), ChatMessage("user", "Tell me about the sea. " * 6)]
Row = NDArray[np.float32]


async def ids(generation: Handle) -> tuple[int, ...]:
    async for _ in generation:
        pass
    return tuple(generation.ids)


@pytest.mark.cpu
@pytest.mark.parametrize("runs", RUNS)
async def test_one_prompt_gives_one_answer_many_times_under_load(runs: int) -> None:
    config = EngineConfig(parallel=4, resident=2, prefill_tokens_first=16)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    prompt = model.encode(model.render(QUESTION))
    chance = random.Random(1)

    async def disturb() -> None:
        """Others come and go, with prompts that begin like ours, or not."""
        while True:
            cut = chance.randrange(2, len(prompt))
            other = [*prompt[:cut], *(chance.randrange(300, 2000) for _ in range(chance.randrange(1, 60)))]
            await ids(model.generate(other, Sampling(max_tokens=chance.randrange(1, 12))))
            longer = Sampling(max_tokens=1, deterministic=True)
            await ids(model.generate(other, longer))

    others = [asyncio.create_task(disturb()) for _ in range(2)]
    answers = {await ids(model.generate(prompt, EXACT)) for _ in range(runs)}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    alone = await ids(model.generate(prompt, EXACT))
    await model.close()
    assert answers == {alone}


@pytest.mark.cpu
def test_a_prompt_computed_apart_has_the_same_logits_beside_streams_to_the_last_bit() -> None:
    weights = LlamaModel.load(EngineConfig().model_path)
    context = LlamaContext(weights, slots=3, context=512, rows_max=64, threads=1)
    chance = random.Random(3)
    tokens = [[chance.randrange(300, 4000) for _ in range(PROMPT_TOKENS)] for _ in range(2)]
    streams = [[chance.randrange(300, 4000) for _ in range(PROMPT_TOKENS)] for _ in range(2)]

    def computed(prompt: list[int], *, beside: bool) -> tuple[list[Row], list[Row]]:
        """Logits behind the whole prompt, and those of two streams, one on either side of it."""
        ends: list[Row] = []
        told: list[Row] = []
        for slot in range(3):
            context.truncate(slot, 0)
        for start in range(0, PROMPT_TOKENS, BITE):
            at = start // BITE
            rows = [Chunk(slot, at, [stream[at]]) for slot, stream in zip((0, 2), streams, strict=True)]
            chunk = Chunk(1, start, prompt[start : start + BITE], apart=beside)
            logits = context.decode([rows[0], chunk, rows[1]] if beside else [chunk]).copy()
            ends.append(logits[len(logits) // 2])
            told.extend([logits[0], logits[2]] if beside else context.decode(rows).copy())
        return ends, told

    for prompt in tokens:
        for with_others, alone in zip(computed(prompt, beside=True), computed(prompt, beside=False), strict=True):
            assert np.array_equal(with_others, alone)
    context.close()
    weights.close()


@pytest.mark.cpu
async def test_an_answer_just_generated_leads_on_like_one_that_is_read() -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=2, resident=2))
    await model.start()
    question = model.encode(model.render(QUESTION))
    for seed in range(3):
        wild = replace(EXACT, temperature=2.0, seed=seed)
        answer = await ids(model.generate(question, replace(wild, max_tokens=60), Terms(salt="talking")))
        prompt = [*question, *answer, *range(500, 510)]
        talking, reading = [
            await ids(model.generate(prompt, wild, Terms(salt=salt))) for salt in ("talking", f"new {seed}")
        ]
        assert talking == reading
    await model.close()


@pytest.mark.cpu
async def test_an_answer_that_lost_its_place_goes_on_as_it_began_to_the_last_bit() -> None:
    config = EngineConfig(parallel=1, resident=1, context=1024, threads=1)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    question = model.encode(model.render([ChatMessage("user", "Tell me about the sea. " * 20)]))
    wild = replace(EXACT, temperature=2.0, max_tokens=100, top_logprobs=1)
    alone = [delta.logprobs async for delta in model.generate(question, wild)]
    answer, said = model.generate(question, wild, Terms(priority=Priority.BATCH)), []
    async for delta in answer:
        said.append(delta.logprobs)
        if len(said) % 20 == 1:
            await ids(model.generate([*range(500, 560)], Sampling(max_tokens=2), Terms(priority=Priority.INTERACTIVE)))
    assert model.stats()["preempted_total"]
    await model.close()
    assert said == alone


async def test_a_device_that_cannot_promise_it_refuses() -> None:
    config = EngineConfig(parallel=2, resident=0)
    backend = ScriptedBackend(slots=2, context=100, rows_max=100, exact=False)
    engine = Engine(backend, [b"a"] * 50, frozenset(), config)
    engine.start()
    with pytest.raises(NotDeterministic):
        engine.submit([1, 2], EXACT)
    await asyncio.to_thread(engine.close)
