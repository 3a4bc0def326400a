"""What becomes of requests when the device fails: only whom it concerns hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.errors import InferenceError
from inference.generation import Finish, Priority, Sampling, Terms
from inference.kvcache.host_cache import Entry
from inference.llama import LlamaContext
from inference.model import ChatModel
from inference.prompt import CacheScope, ChatMessage
from inference.request import Request
from tests.inference.machine import GREEDY, VOCABULARY, Machine, expected, request

POISON = VOCABULARY + 1
SYSTEM = ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 3)
QUESTIONS = (
    "Who are you?",
    "What can you do?",
    "Tell me a joke.",
    "Who made you?",
    "Write a poem.",
    "Are you a human?",
)
WIDE = EngineConfig(parallel=8, resident=2, prefill_tokens_first=16, prefill_tokens_alone=16)


def streaming(machine: Machine, count: int) -> list[Request]:
    """So many requests that get a token in each step."""
    requests = [request([n % VOCABULARY, n], 50) for n in range(count)]
    machine.add(*requests)
    while any(not r.decodes for r in requests):
        machine.step()
    return requests


def test_a_request_counts_its_steps_and_who_else_was_in_them() -> None:
    machine = Machine(WIDE)
    alone = streaming(machine, 1)[0]
    assert (alone.prefill_steps.count, alone.decode_steps.count) == (1, 0)
    machine.add(other := request([n % VOCABULARY for n in range(40)], 50))
    machine.step()
    machine.step()
    assert (other.prefill_steps.count, other.decode_steps.count) == (2, 0), "40 tokens are two chunks and a rest"
    machine.step()
    assert (other.prefill_steps.count, other.prefill_steps.batch) == (3, 2.0)
    machine.finish(alone, other)
    assert alone.decode_steps.count == len(alone.generated) - 1 < alone.decode_steps.requests


def test_a_token_out_of_reach_is_not_taken_beside_others_that_may_be() -> None:
    machine = Machine(WIDE)
    free, kept = request([1, 2, 3]), request([1, 2, 3])
    (first, *_) = expected(free)
    kept.sampler = Sampler(GREEDY.without([first]))
    assert kept.sampler.takes_most_likely, "or a step of both would not take the tokens of all at once"
    machine.add(free, kept)
    machine.finish(free, kept)
    assert free.generated == expected(free)
    assert kept.generated[0] != first and first not in kept.generated


def test_of_a_failed_step_only_the_request_that_is_to_blame_ends() -> None:
    machine = Machine(WIDE)
    others = streaming(machine, 6)
    machine.backend.poison = POISON
    machine.add(poisonous := request([1, 2, POISON]))
    before = [len(r.generated) for r in others]
    machine.step()
    assert (poisonous.finish, poisonous.generated) == (Finish.ERROR, [])
    assert [len(r.generated) for r in others] == [count + 1 for count in before], "the same step gave them their token"
    machine.finish(*others)
    assert [r.generated for r in others] == [expected(r) for r in others]


def test_several_that_are_to_blame_end_and_nobody_else() -> None:
    machine = Machine(WIDE)
    others = streaming(machine, 4)
    machine.backend.poison = POISON
    machine.add(*(poisonous := [request([n, POISON]) for n in range(3)]))
    machine.finish(*poisonous, *others)
    assert {r.finish for r in poisonous} == {Finish.ERROR}
    assert [r.generated for r in others] == [expected(r) for r in others]


def test_a_step_that_fails_once_costs_nobodys_answer() -> None:
    machine = Machine(WIDE)
    requests = streaming(machine, 5)
    machine.backend.fail_next = True
    machine.finish(*requests)
    assert not machine.backend.fail_next
    assert [r.generated for r in requests] == [expected(r) for r in requests]


def test_a_prompt_goes_on_where_it_stood_before_a_failed_step() -> None:
    machine = Machine(WIDE)
    (stream,) = streaming(machine, 1)
    machine.add(long := request([1] * 100))
    machine.step()
    machine.backend.fail_next = True
    machine.finish(long, stream)
    assert (long.generated, stream.generated) == (expected(long), expected(stream))
    assert sum(machine.backend.steps) == 100 + 2 + 49 + 2, "no token was computed twice"


def test_what_cannot_go_back_after_a_failed_step_ends_and_nobody_else() -> None:
    machine = Machine(WIDE, rewinds=False)
    requests = streaming(machine, 4)
    machine.backend.fail_next = True  # after the first two of four
    machine.finish(*requests)
    assert [r.finish for r in requests] == [Finish.ERROR] * 2 + [Finish.LENGTH] * 2
    assert [r.generated for r in requests[2:]] == [expected(r) for r in requests[2:]]


def test_a_deterministic_answer_is_not_disturbed_by_a_failed_step() -> None:
    machine = Machine(WIDE)
    machine.add(exact := request([1] * 20, 20, exact=True))
    streaming(machine, 3)
    machine.backend.fail_next = True
    machine.finish(exact)
    assert exact.generated == expected(exact)


def test_a_state_that_does_not_fit_is_told_as_not_cached() -> None:
    machine = Machine()
    prompt = [1] * 100
    machine.add(first := request(prompt, 1))
    machine.finish(first)
    for slot in range(len(machine.backend.cells)):
        machine.scheduler.slots.release(slot, [])
    machine.scheduler.slots.parked.put(Entry(tuple(prompt), CacheScope(""), machine.backend.save(0)))
    machine.backend.refuse_next = True
    machine.add(again := request(prompt, 1))
    machine.finish(again)
    assert again.generated == expected(again)
    assert again.miss is not None
    assert (again.cached_tokens, again.miss.cached, again.miss.seen) == (0, 0, 96)
    assert machine.totals == {"prompt_tokens": 200, "cached_tokens": 0}


def test_a_prompt_that_lost_its_place_tells_what_was_cached_when_it_came() -> None:
    machine = Machine(EngineConfig(parallel=1, resident=1, prefill_tokens_alone=16))
    machine.add(batch := request([1] * 80, 9, priority=Priority.BATCH))
    for _ in range(3):
        machine.step()
    machine.add(urgent := request([4] * 5, 1, priority=Priority.INTERACTIVE))
    machine.finish(urgent, batch)
    assert machine.totals == {"prompt_tokens": 80 + 5, "cached_tokens": 0}
    assert (batch.cached_tokens, batch.miss and batch.miss.cached) == (0, 0)
    assert sum(machine.backend.steps) == 80 + 5 + 8, "what it had computed was there again"


async def test_on_the_real_device_a_failed_step_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, failed = LlamaContext.decode, 0

    def half(context: LlamaContext, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """One step in two with several requests breaks off half way."""
        nonlocal failed
        if len(chunks) > 2 and failed % 2 == 0:
            failed += 1
            decode(context, chunks[: len(chunks) // 2])
            raise InferenceError("half way")
        failed += len(chunks) > 2
        return decode(context, chunks)

    model = await asyncio.to_thread(ChatModel.load, EngineConfig(context=512, resident=0, threads=1))
    await model.start()

    async def say(question: str) -> list[int]:
        prompt = model.encode(model.render([SYSTEM, ChatMessage("user", question)]))
        generation = model.generate(prompt, Sampling(temperature=0, max_tokens=24), Terms(salt=question))
        async for _ in generation:
            pass
        return generation.ids

    alone = [await say(question) for question in QUESTIONS]
    monkeypatch.setattr(LlamaContext, "decode", half)
    together = await asyncio.gather(*map(say, QUESTIONS))
    await model.close()
    assert together == alone
    assert failed > 10
