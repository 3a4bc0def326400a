"""Drafts change how fast an answer comes, never what it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.bundled import DRAFT_MODEL, EMBEDDER
from inference.config import EngineConfig
from inference.cost import StepCost
from inference.drafter import CATCH_UP_TOKENS_MAX, Drafter
from inference.engine import Engine
from inference.errors import InferenceError, ModelNotLoaded
from inference.grammar import json_grammar
from inference.handle import Handle
from inference.model import ChatModel
from inference.sequence import ChatMessage, Finish, Sampling
from inference.speculate import PRIOR, Acceptance, DraftLength, Stream
from inference.testing import ScriptedBackend, scripted_token

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
    engine = Engine(backend, PIECES, frozenset(), CONFIG, Drafter(draft_backend))
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
    assert 0.5 < engine.speculation.accepted / engine.speculation.drafted < 0.9
    assert len(backend.steps) < 7 * 30 / 3 / 1.5  # three at a time, well over one token a step


async def test_an_answer_ends_where_it_would_without_drafts(engine: Engine) -> None:
    for count in range(1, 9):
        handle = engine.submit([count, 5], replace(GREEDY, max_tokens=count))
        assert (await text(handle), handle.finish) == (expected([count, 5], count), Finish.LENGTH)


async def test_a_stop_string_inside_an_accepted_draft_ends_the_answer(engine: Engine) -> None:
    whole = expected([3, 1], 30)
    for at in range(2, 10):
        stop = whole[at : at + 3]
        handle = engine.submit([3, 1], replace(GREEDY, stop=(stop,)))
        assert (await text(handle), handle.finish) == (whole[: whole.index(stop)], Finish.STOP)


async def test_the_next_turn_finds_the_cache_as_the_answer_left_it(engine: Engine) -> None:
    first = engine.submit([9, 9], GREEDY)
    await text(first)
    prompt = [9, 9, *first.ids, 4]
    second = engine.submit(prompt, GREEDY)
    assert await text(second) == expected(prompt, 30)
    assert second.cached_tokens >= 2 + 29


async def test_a_cancelled_stream_leaves_the_others_alone(engine: Engine) -> None:
    endless = engine.submit([1], replace(GREEDY, max_tokens=290))
    other = engine.submit([2], GREEDY)
    async for _ in endless:
        break
    endless.cancel()
    assert await text(other) == expected([2], 30)


async def test_a_full_context_ends_the_answer(engine: Engine) -> None:
    handle = engine.submit([1] * 290, replace(GREEDY, max_tokens=100))
    assert (await text(handle), handle.finish) == (expected([1] * 290, 10), Finish.LENGTH)


async def test_a_draft_model_that_fails_costs_no_answer(engine: Engine, draft_backend: ScriptedBackend) -> None:
    draft_backend.fail_next = True
    assert await text(engine.submit([1, 2], GREEDY)) == expected([1, 2], 30)
    assert engine.failed is None


async def test_a_failed_step_of_the_model_forgets_no_draft(engine: Engine, backend: ScriptedBackend) -> None:
    await text(engine.submit([1, 2], GREEDY))
    backend.fail_next = True
    with pytest.raises(InferenceError):
        await text(engine.submit([1, 2, 3], GREEDY))
    assert await text(engine.submit([1, 2, 3], GREEDY)) == expected([1, 2, 3], 30)


# --- the choice of the length ---


def costs(row_s: float, more_s: float, draft_s: float) -> DraftLength:
    """A step costs `row_s` for its first row and `more_s` for each further one; the drafter `draft_s` a row."""
    length = DraftLength(8)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        length.cost.observe(rows, row_s + (rows - 1) * more_s)
        length.draft_cost.observe(rows, draft_s)
    return length


def stream(per_token: float, generated: int = 1000, missing: int = 1) -> Stream:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.observe(1, int(np.random.default_rng(_).random() < per_token))
    return Stream(acceptance, generated, missing)


def settled(length: DraftLength, streams: list[Stream]) -> Counter[int]:
    for _ in range(20):
        length.choose(streams)
    return Counter(length.choose(streams) for _ in range(200))


def test_long_drafts_where_rows_are_free_and_the_draft_is_good() -> None:
    assert settled(costs(1.0, 0.0, 0.01), [stream(0.95)]).most_common(1)[0][0] >= 6


def test_no_drafts_where_rows_cost_as_much_as_steps() -> None:
    chosen = settled(costs(1.0, 1.0, 0.1), [stream(0.7)])
    assert chosen[0] >= 195  # and a trial now and then


def test_shorter_drafts_for_a_worse_draft_model() -> None:
    good = settled(costs(1.0, 0.1, 0.05), [stream(0.95)]).most_common(1)[0][0]
    poor = settled(costs(1.0, 0.1, 0.05), [stream(0.5)]).most_common(1)[0][0]
    assert 0 < poor < good


def test_a_short_answer_is_not_worth_reading_a_long_prompt_for() -> None:
    length = costs(1.0, 0.05, 0.05)
    length.draft_cost.observe(1000, 50.0)
    assert settled(length, [stream(0.8, generated=5, missing=1000)])[0] == 200
    assert settled(length, [stream(0.8, generated=500, missing=1000)])[0] < 10


def test_nothing_is_drafted_before_the_cost_of_a_step_is_known() -> None:
    length = DraftLength(8, cost=StepCost())
    assert length.choose([stream(0.9)]) == 0


def test_acceptance_starts_at_a_belief_and_follows_what_happens() -> None:
    acceptance = Acceptance()
    assert acceptance.per_token == pytest.approx(PRIOR)
    for _ in range(50):
        acceptance.observe(4, 1)
    assert acceptance.per_token == pytest.approx(0.5, abs=0.01)  # one right, one wrong each time
    assert (acceptance.drafted, acceptance.accepted) == (200, 50)


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


async def test_sampled_answers_of_the_bundled_pair_have_the_distribution_of_the_model_alone(
    pair: tuple[ChatModel, ChatModel],
) -> None:
    """Chi-square over the fourth token of 400 answers each at temperature 1.5, other seeds on each side."""
    counts = []
    for model, first_seed in zip(pair, (0, 10_000), strict=True):
        samplings = [Sampling(temperature=1.5, max_tokens=5, seed=first_seed + n) for n in range(400)]
        answers = await _in_turns(model, samplings)
        counts.append(Counter(answer[3] if len(answer) > 3 else -1 for answer in answers))
    tokens = [token for token in counts[0] | counts[1] if counts[0][token] + counts[1][token] >= 10]
    table = np.array([[count[token] for token in tokens] + [400 - sum(count[t] for t in tokens)] for count in counts])
    table = table[:, table.sum(axis=0) > 0]
    halves = table.sum(axis=0) / 2
    chi_square = float((((table - halves) ** 2) / halves).sum())
    freedom = table.shape[1] - 1
    # Five standard deviations of chi-square (mean f, variance 2f) and some: passed by luck only if truly different.
    assert freedom >= 5
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


async def _in_turns(model: ChatModel, samplings: list[Sampling]) -> list[list[int]]:
    answers = []
    for start in range(0, len(samplings), 8):  # as many as run at once; the queue is bounded
        answers += await asyncio.gather(*(ids(model, "tell me about it", s) for s in samplings[start : start + 8]))
    return answers


PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada Lovelace", "Grace Hopper"]}, "age": {"enum": [36, "unknown"]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_a_grammar_penalties_a_stop_string_logprobs_and_cancelling_go_together_with_drafts(
    pair: tuple[ChatModel, ChatModel],
) -> None:
    """Four streams at once, one of which leaves in the middle: the others are what they are without drafts."""
    grammar = json_grammar(PERSON)
    held = Sampling(temperature=0, max_tokens=40, grammar=grammar, frequency_penalty=0.4, repeat_penalty=1.1)
    samplings = [
        replace(held, top_logprobs=3),
        replace(held, stop=('"age"',), presence_penalty=0.5),
        replace(held, grammar=None, stop=("the",), top_logprobs=1),
    ]
    for model in pair:
        model.prepare(grammar)
    plain, drafting = [await _beside_one_that_leaves(model, samplings) for model in pair]
    for (ids, text, finish, logprobs), sampling, alone in zip(drafting, samplings, plain, strict=True):
        assert (ids, text, finish) == alone[:3]
        assert logprobs == pytest.approx(alone[3], abs=0.1)  # a row among others differs in its last bits
        assert len(logprobs) == (0 if sampling.top_logprobs is None else len(ids))
    assert [text.count('"age"') for _, text, _, _ in plain[:2]] == [1, 0]


Said = tuple[list[int], str, Finish | None, list[float]]


async def _beside_one_that_leaves(model: ChatModel, samplings: list[Sampling]) -> list[Said]:
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))

    async def say(sampling: Sampling, tokens_max: int = 1000) -> Said:
        generation, text, logprobs = model.generate(prompt, sampling), "", list[float]()
        async for delta in generation:
            text += delta.text
            logprobs += [told.logprob for told in delta.logprobs]
            if len(generation.ids) >= tokens_max:
                generation.cancel()
        return generation.ids, text, generation.finish, logprobs

    *said, left = await asyncio.gather(*map(say, samplings), say(replace(samplings[0], max_tokens=400, stop=()), 5))
    assert left[2] in (Finish.CANCELLED, Finish.STOP)
    return said


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ModelNotLoaded, match="vocabularies differ"):
        ChatModel.load(EngineConfig(draft_path=EMBEDDER))
