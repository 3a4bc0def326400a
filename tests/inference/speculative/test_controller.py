"""Drafts change how fast an answer comes, never what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.errors import InferenceError
from inference.generation import Finish, Sampling
from inference.grammar.schema import json_grammar
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.request import Handle
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX, DraftModel
from tests.scripted import ScriptedBackend, scripted_token

VOCABULARY = 26
CONFIG = EngineConfig(draft_path=DRAFT_MODEL, parallel=3, resident=2, draft_min=4, draft_max=4)
GREEDY = Sampling(temperature=0, max_tokens=30)
PIECES = [bytes([65 + token]) for token in range(VOCABULARY)]


class Forgetful(ScriptedBackend):
    """Foresees the model's token three times out of four."""

    def _logits(self, prefix: list[int]) -> NDArray[np.float32]:  # type: ignore[override] # a list is what it gets
        token = scripted_token(prefix, VOCABULARY)
        row = np.zeros(VOCABULARY, np.float32)
        row[(token + 1) % VOCABULARY if len(prefix) % 4 == 0 else token] = 5.0
        return row


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(CONFIG.slots, context=300, rows_max=CONFIG.rows_max, vocabulary=VOCABULARY)


@pytest.fixture
def draft_backend() -> ScriptedBackend:
    return Forgetful(CONFIG.slots, context=300, rows_max=CATCH_UP_TOKENS_MAX, vocabulary=VOCABULARY)


@pytest.fixture
async def engine(backend: ScriptedBackend, draft_backend: ScriptedBackend) -> AsyncIterator[Engine]:
    engine = Engine(backend, PIECES, frozenset(), CONFIG, DraftModel(draft_backend))
    engine.start()
    yield engine
    await asyncio.to_thread(engine.close)


async def text(handle: Handle) -> str:
    return "".join([delta.text async for delta in handle])


def expected(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(scripted_token(tokens, VOCABULARY))
    return b"".join(PIECES[token] for token in tokens[len(prompt) :]).decode()


async def test_drafts_save_steps_and_change_no_token(engine: Engine, backend: ScriptedBackend) -> None:
    prompts = [[n, n, *range(20)] for n in range(7)]
    answers = await asyncio.gather(*(text(engine.submit(prompt, GREEDY)) for prompt in prompts))
    assert answers == [expected(prompt, 30) for prompt in prompts]
    stats = engine.speculation.stats()
    assert 0.5 < stats["accepted_total"] / stats["drafted_total"] < 0.9
    assert len(backend.steps) < 7 * 30 / 3 / 1.5  # three at a time, well over one token a step


async def test_an_answer_ends_where_it_would_without_drafts(engine: Engine) -> None:
    for count in range(1, 9):
        handle = engine.submit([count, 5], replace(GREEDY, max_tokens=count))
        assert (await text(handle), handle.finish) == (expected([count, 5], count), Finish.LENGTH)


async def test_the_next_turn_finds_the_cache_as_the_answer_left_it(engine: Engine) -> None:
    first = engine.submit([9, 9], GREEDY)
    await text(first)
    prompt = [9, 9, *first.ids, 4]
    second = engine.submit(prompt, GREEDY)
    assert await text(second) == expected(prompt, 30)
    assert second.facts.cached_tokens >= 2 + 29


async def test_a_cancelled_stream_leaves_the_others_alone(engine: Engine) -> None:
    endless = engine.submit([1], replace(GREEDY, max_tokens=290))
    other = engine.submit([2], GREEDY)
    async for _ in endless:
        break
    endless.cancel()
    assert await text(other) == expected([2], 30)


async def test_acceptance_is_told_by_position(engine: Engine) -> None:
    await text(engine.submit([7, 7], GREEDY))
    stats = engine.speculation.stats()
    drafted, accepted = stats["drafted_by_position_total"], stats["accepted_by_position_total"]
    assert list(drafted) == list(accepted) == ["1", "2", "3", "4"]
    assert (sum(drafted.values()), sum(accepted.values())) == (stats["drafted_total"], stats["accepted_total"])
    assert all(accepted[position] <= drafted[position] for position in drafted)
    assert accepted["1"] > accepted["4"] == 0  # one of four is wrong
    assert sorted(accepted.values(), reverse=True) == list(accepted.values())  # nothing counts behind a wrong token


async def test_an_answer_fills_the_context_to_its_end_and_the_next_one_is_drafted(engine: Engine) -> None:
    for length in range(285, 300):
        handle = engine.submit([1] * length, replace(GREEDY, max_tokens=100))
        assert (await text(handle), handle.finish) == (expected([1] * length, 300 - length), Finish.LENGTH)
        drafted = engine.speculation.stats()["drafted_total"]
        assert await text(engine.submit([length], GREEDY)) == expected([length], 30)
        assert engine.speculation.stats()["drafted_total"] > drafted


async def test_a_stream_at_its_end_takes_no_draft_from_the_others(engine: Engine) -> None:
    ends, goes_on = engine.submit([1] * 296, replace(GREEDY, max_tokens=100)), engine.submit([2], GREEDY)
    answers = [*await asyncio.gather(text(ends), text(goes_on))]
    assert answers == [expected([1] * 296, 4), expected([2], 30)]
    assert (ends.finish, goes_on.facts.acceptance.accepted > 10) == (Finish.LENGTH, True)


async def test_a_drafter_with_a_shorter_context_drafts_to_its_own_end(backend: ScriptedBackend) -> None:
    draft_backend = Forgetful(CONFIG.slots, context=40, rows_max=CATCH_UP_TOKENS_MAX, vocabulary=VOCABULARY)
    engine = Engine(backend, PIECES, frozenset(), CONFIG, DraftModel(draft_backend))
    engine.start()
    long = engine.submit([5] * 20, replace(GREEDY, max_tokens=60))
    assert await text(long) == expected([5] * 20, 60)
    assert 0 < long.facts.acceptance.drafted < 40 and engine.failed is None
    await asyncio.to_thread(engine.close)


async def test_a_draft_model_that_fails_costs_no_answer_and_is_asked_again(
    engine: Engine, draft_backend: ScriptedBackend
) -> None:
    draft_backend.fail_next = True
    assert await text(engine.submit([1, 2], replace(GREEDY, max_tokens=250))) == expected([1, 2], 250)
    assert engine.speculation.stats()["drafted_total"] > 100
    assert engine.failed is None


async def test_an_exact_stream_is_not_read_by_the_drafter(engine: Engine, draft_backend: ScriptedBackend) -> None:
    assert await text(engine.submit([1, 2], replace(GREEDY, deterministic=True))) == expected([1, 2], 30)
    assert not draft_backend.steps


async def test_a_failed_step_of_the_model_forgets_no_draft(engine: Engine, backend: ScriptedBackend) -> None:
    await text(engine.submit([1, 2], GREEDY))
    backend.fail_next = True
    with pytest.raises(InferenceError):
        await text(engine.submit([1, 2, 3], GREEDY))
    assert await text(engine.submit([1, 2, 3], GREEDY)) == expected([1, 2, 3], 30)


# --- a model whose distribution is known ---

# Each token is a step from the one before it, and steps are thrown like this die: what the engine draws can be compared
# with it whatever the CPU computes, and a row that is read for the wrong place draws other steps.
DIE = np.array([0.1, 0.2, 0.05, 0.4, 0.08, 0.1, 0.04, 0.03])
FACES, TEMPERATURE = len(DIE), 2.5


class Die(ScriptedBackend):
    """Finds the next step as likely as DIE says at TEMPERATURE; as a drafter, it foresees the likeliest."""

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        row: NDArray[np.float32] = np.roll(TEMPERATURE * np.log(DIE), prefix[-1]).astype(np.float32)
        return row


@pytest.fixture
async def die() -> AsyncIterator[Engine]:
    model, draft = (
        Die(CONFIG.slots, context=300, rows_max=rows, vocabulary=FACES)
        for rows in (CONFIG.rows_max, CATCH_UP_TOKENS_MAX)
    )
    engine = Engine(model, PIECES[:FACES], frozenset(), CONFIG, DraftModel(draft))
    engine.start()
    yield engine
    await asyncio.to_thread(engine.close)


async def test_sampled_answers_with_drafts_have_the_distribution_of_the_model(die: Engine) -> None:
    samplings = [Sampling(temperature=TEMPERATURE, max_tokens=250, seed=seed) for seed in range(16)]
    handles = [die.submit([0], sampling) for sampling in samplings]
    await asyncio.gather(*map(text, handles))
    steps = np.concatenate([np.diff([0, *handle.ids]) % FACES for handle in handles])
    assert len(steps) == 16 * 250
    thrown = DIE * len(steps)
    chi_square = float(((np.bincount(steps, minlength=FACES) - thrown) ** 2 / thrown).sum())
    freedom = FACES - 1  # chi-square has this mean and twice it as variance
    assert chi_square < freedom + 3 * np.sqrt(2 * freedom)
    stats = die.speculation.stats()
    drafted, accepted = stats["drafted_by_position_total"]["1"], stats["accepted_by_position_total"]["1"]
    assert drafted > 1000 and accepted / drafted == pytest.approx(DIE.max(), abs=0.05)  # as often as it is thrown


# --- the bundled pair ---


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[tuple[ChatModel, ChatModel]]:
    """Without and with the draft model."""
    plain = await asyncio.to_thread(ChatModel.load, EngineConfig())
    drafting = await asyncio.to_thread(ChatModel.load, EngineConfig(draft_path=DRAFT_MODEL, draft_min=3, draft_max=3))
    for model in (plain, drafting):
        await model.start()
    yield plain, drafting
    for model in (plain, drafting):
        await model.close()


async def ids(model: ChatModel, question: str, sampling: Sampling) -> list[int]:
    generation = model.generate(model.encode(model.render([ChatMessage("user", question)])), sampling)
    async for _ in generation:
        pass
    return generation.ids


async def test_greedy_answers_of_the_bundled_pair_are_those_of_the_model_alone(
    pair: tuple[ChatModel, ChatModel],
) -> None:
    plain, drafting = pair
    sampling = Sampling(temperature=0, max_tokens=60)
    questions = ["who are you", "what can you do", "tell me a joke", "hello", "thanks", "do you work offline"]
    alone = [await ids(plain, question, sampling) for question in questions]
    assert await asyncio.gather(*(ids(drafting, question, sampling) for question in questions)) == alone
    stats = drafting.stats()
    assert float(stats["accepted_total"]) > 0.3 * float(stats["drafted_total"]) > 0


# Between a log probability alone and among others: rows that are computed together are rounded otherwise, which makes
# a tenth of a nat with AVX2. A wrong row is off by several.
TOLERANCE_NATS = 0.3
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada Lovelace", "Grace Hopper"]}, "age": {"enum": [36, "unknown"]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_a_grammar_penalties_logprobs_and_cancelling_go_together_with_drafts(
    pair: tuple[ChatModel, ChatModel],
) -> None:
    """Four streams at once, one of which leaves in the middle: the others are what they are without drafts."""
    sampling = Sampling(temperature=0, max_tokens=40, frequency_penalty=0.4, repeat_penalty=1.1)
    samplings = [
        replace(sampling, top_logprobs=3),
        replace(sampling, presence_penalty=0.5),
        replace(sampling, top_logprobs=1),
    ]
    plain, drafting = [await _beside_one_that_leaves(model, _holding_two(model, samplings)) for model in pair]
    for (ids, text, finish, logprobs), sampling, alone in zip(drafting, samplings, plain, strict=True):
        assert (ids, text, finish) == alone[:3]
        assert logprobs == pytest.approx(alone[3], abs=TOLERANCE_NATS)
        assert len(logprobs) == (0 if sampling.top_logprobs is None else len(ids))
    assert [text.count('"age"') for _, text, _, _ in plain[:2]] == [1, 1]


Said = tuple[list[int], str, Finish | None, list[float]]


def _holding_two(model: ChatModel, samplings: list[Sampling]) -> list[Sampling]:
    grammar = model.prepare(json_grammar(PERSON))
    return [*(replace(sampling, grammar=grammar) for sampling in samplings[:2]), *samplings[2:]]


async def _beside_one_that_leaves(model: ChatModel, samplings: list[Sampling]) -> list[Said]:
    prompt = model.encode(model.render([ChatMessage("user", "I am Grace, 36 years old.")]))

    async def say(sampling: Sampling, tokens_max: int = 1000) -> Said:
        generation, text, logprobs = model.generate(prompt, sampling), "", list[float]()
        async for delta in generation:
            text += delta.text
            logprobs += [told.logprob for told in delta.logprobs]
            if len(generation.ids) >= tokens_max:
                generation.cancel()
        return generation.ids, text, generation.finish, logprobs

    *said, left = await asyncio.gather(*map(say, samplings), say(replace(samplings[0], max_tokens=400), 5))
    assert left[2] in (Finish.CANCELLED, Finish.STOP)
    return said
