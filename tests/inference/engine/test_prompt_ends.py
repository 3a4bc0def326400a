"""A prompt that was answered before is answered again without a step: its first token is drawn from the logits that are
kept of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.sampler import Sampler
from inference.errors import InferenceError
from inference.generation import Priority, Sampling, Stamps
from inference.kvcache.checkpoints import CHECKPOINT_SHARE
from inference.kvcache.host_cache import INDEX_TOKEN_BYTES, PARK_TOKENS_MIN
from inference.kvcache.slots import SHARED_PREFILL_MIN
from inference.prompt import Miss
from inference.request import Request
from tests.inference.machine import CONFIG, CONTEXT, GREEDY, VOCABULARY, Machine, expected, request
from tests.scripted import ScriptedBackend

PROMPT = [n % VOCABULARY for n in range(SHARED_PREFILL_MIN + 13)]
REWINDS = pytest.mark.parametrize("rewinds", [True, False], ids=["plain", "recurrent"])


def answered(machine: Machine, asked: Request) -> int:
    """The prompt tokens that its answer took."""
    before = sum(machine.backend.steps)
    machine.add(asked)
    machine.finish(asked)
    assert asked.generated == expected(asked)
    return sum(machine.backend.steps) - before - (len(asked.generated) - 1)


@REWINDS
@pytest.mark.parametrize("tokens", [3, 100], ids=["in its slot", "in another slot"])
def test_the_same_prompt_is_answered_again_without_computing_any_of_it(rewinds: bool, tokens: int) -> None:
    machine = Machine(rewinds=rewinds)
    assert answered(machine, request(PROMPT, tokens)) == len(PROMPT)
    for again in [request(PROMPT, 4), request(PROMPT, 1), request(PROMPT, 2)]:
        assert answered(machine, again) == 0
        assert (again.cached_tokens, again.miss, again.prefill_steps.count) == (len(PROMPT), Miss(len(PROMPT), 32), 0)
    assert answered(machine, request(PROMPT, 5, exact=True)) == len(PROMPT), "it is computed in another way"
    for prompt in (PROMPT, [1]):
        answered(machine, request(prompt, 5, exact=True))
        assert answered(machine, request(prompt, 5, exact=True)) == 0
    assert answered(machine, request(PROMPT, 5, "another tenant")) == len(PROMPT)


def test_a_state_is_kept_where_an_answer_goes_on_from_one_that_ended_at_once() -> None:
    machine = Machine(rewinds=False)
    machine.add(ahead := request(PROMPT, 0, priority=Priority.AHEAD))
    machine.finish(ahead)
    checkpoints = machine.scheduler.slots.checkpoints
    assert len(checkpoints) == 0, "the slot still has it"
    for _ in range(3):
        assert answered(machine, request(PROMPT, 80)) == 0
        assert len(checkpoints) == 1


def test_a_turn_goes_on_from_the_end_of_a_prompt_if_its_answer_is_told_in_other_words() -> None:
    machine = Machine(rewinds=False)
    answered(machine, asked := request(PROMPT, 80))
    other = [*PROMPT, (asked.generated[0] + 1) % VOCABULARY, *[1] * 40]
    assert answered(machine, request(other)) == len(other) - len(PROMPT)
    assert answered(machine, request(PROMPT)) == 0


@pytest.mark.parametrize("tokens", [1, 80])
def test_a_conversation_that_left_its_slot_is_answered_again_from_the_end_of_its_prompt(tokens: int) -> None:
    machine = Machine(EngineConfig(parallel=1, resident=0, prefill_tokens_alone=16), rewinds=False)
    prompt = [n % VOCABULARY for n in range(PARK_TOKENS_MIN + 1)]
    assert answered(machine, request(prompt, tokens)) == len(prompt)
    answered(machine, request([4, *prompt], 80))
    assert answered(machine, request(prompt, 80)) == 0


def test_a_state_that_is_known_gets_the_logits_of_a_prompt_that_ends_there() -> None:
    machine = Machine(rewinds=False)
    machine.add(ahead := request(PROMPT, 0, priority=Priority.AHEAD))
    machine.finish(ahead)
    answered(machine, request([*PROMPT, *[1] * 50], 80))  # goes on from it, so its state is kept
    assert answered(machine, request(PROMPT, 80)) == len(PROMPT), "the logits are not known there"
    assert answered(machine, request(PROMPT, 80)) == 0


def test_a_prompt_whose_state_was_not_kept_is_computed_once_an_answer_has_moved_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(replace(CONFIG, parked_bytes_max=0), rewinds=False)
    computed = [answered(machine, request(PROMPT, tokens)) for tokens in (1, 1, 80, 80)]
    assert computed == [len(PROMPT), 0, 0, len(PROMPT)]
    assert not caplog.text


@REWINDS
def test_it_is_answered_again_while_the_first_answer_is_written(rewinds: bool) -> None:
    machine = Machine(rewinds=rewinds)
    machine.add(first := request(PROMPT, 50))
    while len(first.generated) < 3:
        machine.step()
    machine.add(second := request(PROMPT, 9))
    plan = machine.plan()
    assert second.generated == expected(second)[:1], "before the step"
    assert [(work.request, len(work.tokens)) for work in plan.work] == [(first, 1), (second, 1)]


def test_of_answers_to_one_prompt_that_are_asked_for_together_one_computes_it() -> None:
    machine = Machine()
    answers = [request(PROMPT, 9) for _ in range(3)]
    machine.add(*answers)
    machine.finish(*answers)
    assert [each.generated for each in answers] == [expected(each) for each in answers]
    assert sum(machine.backend.steps) == len(PROMPT) + 3 * (9 - 1)


@REWINDS
def test_a_prompt_that_was_prefilled_ahead_is_answered_without_a_step_as_well(rewinds: bool) -> None:
    machine = Machine(rewinds=rewinds)
    machine.add(ahead := request(PROMPT, 0, priority=Priority.AHEAD))
    machine.finish(ahead)
    assert answered(machine, request(PROMPT, 80)) == 0
    assert answered(machine, request(PROMPT, 3)) == 0


def test_what_is_drawn_from_is_the_same_whatever_is_asked_of_it() -> None:
    machine, (likely, *_) = Machine(), expected(request(PROMPT))
    for _ in range(2):
        told = request(PROMPT, 1)
        told.sampler = Sampler(replace(GREEDY, top_logprobs=2))
        barred = request(PROMPT, 1)
        barred.sampler = Sampler(GREEDY.without([likely]))
        machine.add(told, barred)
        machine.finish(told, barred)
        [said] = told.sampler.logprobs_of([b"%d" % token for token in range(VOCABULARY)])
        assert (told.generated, said.token, said.logprob > -0.1) == ([likely], b"%d" % likely, True)
        assert barred.generated != [likely]
    assert sum(machine.backend.steps) == len(PROMPT)


def test_what_needs_more_than_the_first_token_computes_it() -> None:
    machine = Machine()
    answered(machine, request(PROMPT))
    scored = request(PROMPT, 1)
    scored.scores_top = 0
    machine.add(scored)
    machine.step()
    machine.add(again := request(PROMPT, 1))
    machine.step()
    assert (again.generated, scored.generated) == (expected(again), []), "it does not wait for one that takes longer"
    machine.finish(scored)
    assert (scored.cached_tokens, len(scored.scores)) == (0, len(PROMPT) - 1)
    machine.add(silent := request(PROMPT, 0))
    machine.finish(silent)
    assert silent.generated == []
    resumed = request(PROMPT)
    resumed.generated += expected(resumed)[:2]
    machine.add(resumed)
    machine.finish(resumed)
    assert resumed.generated == expected(resumed)


def test_one_that_computes_more_of_the_same_prompt_is_not_waited_for() -> None:
    machine = Machine()
    answered(machine, request(PROMPT))
    answered(machine, request([*PROMPT, 1, 1], 1))  # in the same slot
    scored = request(PROMPT, 1)
    scored.scores_top = 0
    machine.add(scored)
    machine.step()
    machine.add(again := request(PROMPT, 1))
    machine.step()
    assert (again.generated, again.cached_tokens, scored.generated) == (expected(again), len(PROMPT) - 1, [])


def test_an_answer_that_lost_its_slot_goes_on_behind_what_it_has_written() -> None:
    machine = Machine(EngineConfig(parallel=1, resident=1, prefill_tokens_alone=64))
    answered(machine, request(PROMPT))
    machine.add(batch := request(PROMPT, 9, priority=Priority.BATCH))
    while len(batch.generated) < 4:
        machine.step()
    answered(machine, request([1, 1, 1], 3, priority=Priority.INTERACTIVE))
    machine.finish(batch)
    assert batch.generated == expected(batch)


@pytest.mark.parametrize("tokens", [1, 3], ids=["in its slot", "kept"])
def test_a_state_that_cannot_be_brought_back_costs_a_prefill(tokens: int) -> None:
    machine = Machine(rewinds=False)
    answered(machine, request(PROMPT, tokens))

    def refuses(*_: object) -> None:
        raise InferenceError("scripted refusal")

    with pytest.MonkeyPatch.context() as patch:
        machine.add(again := request(PROMPT))
        patch.setattr(machine.tiers, "place", refuses)
        machine.step()
        assert not again.generated
    machine.finish(again)
    assert (again.generated, again.cached_tokens) == (expected(again), 0)
    assert answered(machine, request(PROMPT)) == 0


def test_a_failed_step_leaves_the_ends_of_its_prompts_as_they_are() -> None:
    machine = Machine()
    prompts = [request([first, *PROMPT[:4]], 2) for first in range(3)]
    machine.backend.fail_next = True
    machine.add(*prompts)
    machine.finish(*prompts)
    for prompt in prompts:
        again = request(prompt.prompt, 3)
        assert answered(machine, again) == 0


@REWINDS
def test_the_logits_at_the_ends_of_prompts_are_told_as_memory(rewinds: bool) -> None:
    """A recurrent model that goes on has them among its checkpoints, whose memory is told apart."""
    machine = Machine(rewinds=rewinds)
    stats = machine.tiers.stats(None)
    assert (stats["prompt_end_bytes"], stats["checkpoint_bytes"]) == (0, 0)
    answered(machine, request(PROMPT, 80))
    stats, row_bytes = machine.tiers.stats(None), 4 * VOCABULARY
    assert stats["prompt_end_bytes"] == (row_bytes if rewinds else 0)
    assert rewinds or stats["checkpoint_bytes"] > row_bytes


def test_the_states_at_the_ends_of_prompts_stay_within_their_bytes() -> None:
    one = 4 * (len(PROMPT) + VOCABULARY) + INDEX_TOKEN_BYTES * len(PROMPT)  # of the scripted device
    limit = int(2.5 * one)
    machine = Machine(replace(CONFIG, parked_bytes_max=int(limit / CHECKPOINT_SHARE)), rewinds=False)
    prompts = [request([first, *PROMPT[1:]], 80) for first in (2, 3, 4)]
    for prompt in prompts:
        answered(machine, prompt)
    assert machine.scheduler.slots.checkpoints.bytes == 2 * one
    computed = [answered(machine, request(each.prompt, 1)) for each in reversed(prompts)]
    assert computed == [0, 0, len(PROMPT)], "the oldest one went"


def test_a_state_larger_than_its_share_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(replace(CONFIG, parked_bytes_max=100), rewinds=False)
    answered(machine, request(PROMPT))
    assert machine.scheduler.slots.checkpoints.bytes == 0
    monkeypatch.setattr(machine.backend, "checkpoint", None)
    answered(machine, request([1, *PROMPT]))


class Gate(ScriptedBackend):
    """Each step waits until it is let through; the test waits until one has come."""

    def __init__(self) -> None:
        super().__init__(CONFIG.slots, CONTEXT, CONFIG.rows_max, VOCABULARY)
        self.come, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.is_open = False

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        self.come.release()
        assert self.is_open or self.go.acquire(timeout=60)
        return super().decode(chunks)


async def test_it_is_known_as_soon_as_its_answer_is_told() -> None:
    engine = Engine(
        ScriptedBackend(CONFIG.slots, CONTEXT, CONFIG.rows_max, VOCABULARY), [b"a"] * VOCABULARY, frozenset(), CONFIG
    )
    engine.start()
    for cached in (0, len(PROMPT)):
        handle = engine.submit(PROMPT, Sampling(temperature=0, max_tokens=1))
        assert [delta.text async for delta in handle if delta.text] == ["a"]
        assert handle.facts.cached_tokens == cached
    await asyncio.to_thread(engine.close)


async def test_its_first_token_does_not_wait_for_the_step_of_others() -> None:
    backend = Gate()
    engine = Engine(backend, [b"a"] * VOCABULARY, frozenset(), CONFIG)
    engine.start()

    async def step() -> None:
        """Let the step go on, until the next one is computed."""
        backend.go.release()
        assert await asyncio.to_thread(backend.come.acquire, timeout=60)

    first = engine.submit(PROMPT, Sampling(temperature=0, max_tokens=2))
    assert await asyncio.to_thread(backend.come.acquire, timeout=60)
    for _ in range(3):
        await step()
    engine.submit([1, 1], Sampling(temperature=0, max_tokens=100))
    backend.go.release()
    assert [delta.text async for delta in first] == ["a", "a"]
    assert await asyncio.to_thread(backend.come.acquire, timeout=60)
    steps, again = len(backend.steps), engine.submit(PROMPT, Sampling(temperature=0, max_tokens=2))
    await step()
    told = await anext(aiter(again))
    assert (told.text, len(backend.steps)) == ("a", steps + 1), "the next one is still held"
    stamps: Stamps = again.facts.stamps
    order = [stamps.submitted_ns, stamps.admitted_ns, stamps.prefilled_ns, stamps.first_token_ns]
    assert order == sorted(order) and order[0] > 0
    assert (again.facts.cached_tokens, again.prompt_tokens) == (len(PROMPT), len(PROMPT))
    backend.is_open = True
    backend.go.release()
    await asyncio.to_thread(engine.close)
    assert engine.failed is None, "a step was held for a minute"
