"""The engine's thread and its promises to the event loop, on a scripted device."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.scheduler import AHEAD_TOKENS_MIN
from inference.errors import EmptyPrompt, EngineStopped, InferenceError, PromptTooLong, QueueFull, UnknownToken
from inference.generation import Finish, Sampling, Terms
from inference.request import Handle
from inference.trace import now_ns
from tests.scripted import ScriptedBackend, scripted_token

CONFIG = EngineConfig(parallel=2, resident=2, queue_max=2, queue_tokens_max=100)
GREEDY = Sampling(temperature=0, max_tokens=5)
ENDLESS = Sampling(temperature=0, max_tokens=10**9)
PIECES = [bytes([65 + token]) for token in range(26)]
LONG = [n % 26 for n in range(64)]


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(slots=CONFIG.slots, context=100_000, rows_max=1024, vocabulary=26)


@pytest.fixture
async def engine(backend: ScriptedBackend) -> AsyncIterator[Engine]:
    engine = Engine(backend, PIECES, frozenset(), CONFIG)
    engine.start()
    yield engine
    await asyncio.to_thread(engine.close)


async def text(handle: Handle) -> str:
    return "".join([delta.text async for delta in handle])


async def first_delta(handle: Handle) -> None:
    async for _ in handle:
        return


def held_beyond(backend: ScriptedBackend, tokens: int, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once it has read more than so many tokens of a prompt, the device computes nothing until this is set."""
    go_on, decode = threading.Event(), backend.decode

    def held(chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        if any(chunk.position + len(chunk.tokens) > tokens for chunk in chunks):
            assert go_on.wait(60)
        return decode(chunks)

    monkeypatch.setattr(backend, "decode", held)
    return go_on


def expected(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(scripted_token(tokens, 26))
    return b"".join(PIECES[token] for token in tokens[len(prompt) :]).decode()


async def test_tokens_come_back_as_text_with_their_stamps(engine: Engine) -> None:
    handle = engine.submit([1, 2, 3], GREEDY)
    assert await text(handle) == expected([1, 2, 3], 5)
    assert (handle.finish, handle.prompt_tokens, len(handle.ids)) == (Finish.LENGTH, 3, 5)
    stamps = handle.facts.stamps
    order = [stamps.submitted_ns, stamps.admitted_ns, stamps.prefilled_ns, stamps.first_token_ns, stamps.last_token_ns]
    assert order == sorted(order) and order[0] > 0


async def test_concurrent_requests_get_their_own_text(engine: Engine) -> None:
    prompts = [[1], [2], [3]]
    handles = [engine.submit(prompt, GREEDY) for prompt in prompts]
    assert await asyncio.gather(*map(text, handles)) == [expected(prompt, 5) for prompt in prompts]


async def test_where_a_step_takes_all_cores_the_tokens_of_the_last_one_are_delivered_before_it(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.request.DELIVERY_S", 60.0)
    backend.crowded, decode = True, backend.decode
    delivered = list[bool]()

    def observed(chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        positions = [chunk.position for chunk in chunks if len(chunks) == 2]
        delivered.extend(at <= len(handle.ids) for at, handle in zip(positions, handles, strict=False))
        return decode(chunks)

    monkeypatch.setattr(backend, "decode", observed)
    handles = [engine.submit([token], Sampling(temperature=0, max_tokens=500)) for token in (1, 2)]
    await asyncio.gather(*map(text, handles))
    assert len(delivered) >= 900 and all(delivered)


async def test_requests_that_come_together_begin_together(engine: Engine) -> None:
    """A thread that was awake anyway, which is seldom, takes the first one alone."""
    steps = list[int]()
    while len(steps) < 5 and 1 not in steps:
        before = engine.totals["steps"]
        first = engine.submit([1, 2, 3], replace(GREEDY, max_tokens=1))
        time.sleep(0.02)  # noqa: ASYNC251 - an idle engine that the first one had woken would have computed it by now
        second = engine.submit([4, 5, 6], replace(GREEDY, max_tokens=1))
        assert await text(first) + await text(second) == expected([1, 2, 3], 1) + expected([4, 5, 6], 1)
        steps.append(engine.totals["steps"] - before)
    assert steps[-1] == 1, steps


async def test_an_end_token_ends_the_turn_and_is_not_text(backend: ScriptedBackend) -> None:
    end = scripted_token([1], 26)
    engine = Engine(backend, PIECES, frozenset([end]), CONFIG)
    engine.start()
    handle = engine.submit([1], GREEDY)
    assert (await text(handle), handle.finish, handle.ids) == ("", Finish.STOP, [])
    await asyncio.to_thread(engine.close)


async def test_a_cancelled_generation_stops_at_the_next_step(engine: Engine, backend: ScriptedBackend) -> None:
    handle = engine.submit([1], ENDLESS)
    await first_delta(handle)
    handle.cancel()
    cancelled_at = len(backend.steps)
    await text(handle)
    assert handle.finish is Finish.CANCELLED
    assert len(backend.steps) <= cancelled_at + 2  # the one in flight, and one that had been planned
    assert (engine.running, engine.stats()["resident"]) == (0, 1)


async def test_a_waiting_request_can_be_cancelled(engine: Engine) -> None:
    running = [engine.submit([n], ENDLESS) for n in (1, 2)]
    waiting = engine.submit([3], GREEDY)
    await first_delta(running[0])
    waiting.cancel()
    assert (await text(waiting), waiting.finish) == ("", Finish.CANCELLED)
    for handle in running:
        handle.cancel()


async def test_a_full_queue_refuses_with_a_time_to_come_back(engine: Engine) -> None:
    handles = [engine.submit([n], ENDLESS) for n in (1, 2)]
    for handle in handles:
        await first_delta(handle)
    handles += [engine.submit([n], ENDLESS) for n in (3, 4)]
    with pytest.raises(QueueFull) as refused:
        engine.submit([5], GREEDY)
    assert refused.value.retry_after_s > 0
    for handle in handles:
        handle.cancel()


async def test_who_waits_knows_its_place_and_who_runs_has_none(engine: Engine) -> None:
    running = [engine.submit([n], ENDLESS) for n in (1, 2)]
    for handle in running:
        await first_delta(handle)
    first, second = (engine.submit([n], GREEDY) for n in (3, 4))
    while True:  # the thread takes them in
        if (first.queue_position, second.queue_position) == (1, 2):
            break
        await asyncio.sleep(0)
    assert [handle.queue_position for handle in running] == [None, None]
    assert (first.read_tokens, running[0].read_tokens) == (None, None)  # one waits, the other answers
    running[0].cancel()
    assert await text(first)
    assert first.queue_position is first.read_tokens is None
    running[1].cancel()


async def test_whose_prompt_is_read_knows_how_much_of_it_is(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = held_beyond(backend, 2_500, monkeypatch)
    handle = engine.submit([n % 26 for n in range(5_000)], GREEDY)
    while True:
        if read := handle.read_tokens:  # the first step
            break
        await asyncio.sleep(0)
    assert handle.queue_position is None and read <= 2_500 < handle.prompt_tokens
    go_on.set()
    assert await text(handle) and handle.read_tokens is None


async def test_a_prompt_that_leaves_no_room_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptTooLong, match="has 100000 tokens"):
        engine.submit([1] * 100_000, GREEDY)


async def test_an_empty_prompt_is_refused_as_empty(engine: Engine) -> None:
    with pytest.raises(EmptyPrompt):
        engine.submit([], GREEDY)


@pytest.mark.parametrize("token", [-1, 26, 9_999_999])
async def test_a_bias_for_a_token_that_the_model_lacks_is_refused_and_harms_nobody(engine: Engine, token: int) -> None:
    with pytest.raises(UnknownToken, match=f"token {token}"):
        engine.submit([1], Sampling(temperature=0, max_tokens=5, logit_bias={0: 1.0, token: 1.0}))
    assert await text(engine.submit([1, 2, 3], GREEDY)) == expected([1, 2, 3], 5)


async def test_a_full_context_ends_the_generation() -> None:
    engine = Engine(ScriptedBackend(4, context=10, rows_max=1024, vocabulary=26), PIECES, frozenset(), CONFIG)
    engine.start()
    handle = engine.submit([1] * 8, ENDLESS)
    await text(handle)
    assert (handle.finish, len(handle.ids)) == (Finish.LENGTH, 2)
    await asyncio.to_thread(engine.close)


async def test_a_failed_step_fails_its_requests_and_nobody_later(engine: Engine, backend: ScriptedBackend) -> None:
    backend.fail_next = True
    failed = engine.submit([1, 2], GREEDY)
    with pytest.raises(InferenceError, match="scripted failure"):
        await text(failed)
    assert failed.finish is Finish.ERROR
    assert await text(engine.submit([1, 2], GREEDY)) == expected([1, 2], 5)


async def test_a_conversation_that_cannot_be_parked_harms_nobody(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(slot: int) -> NDArray[np.uint8]:
        loop.call_soon_threadsafe(tried.set)
        raise InferenceError("no state")

    monkeypatch.setattr("inference.engine.engine.REST_AFTER_S", 0.01)
    monkeypatch.setattr(backend, "save", refuse)
    engine = Engine(backend, PIECES, frozenset(), CONFIG)
    engine.start()
    await text(engine.submit(LONG, GREEDY))
    await tried.wait()
    again = engine.submit([*LONG, 1], GREEDY)
    assert await text(again) == expected([*LONG, 1], 5)
    assert (engine.failed, again.facts.cached_tokens) == (None, len(LONG))
    await asyncio.to_thread(engine.close)


async def test_a_token_that_cannot_be_drawn_fails_its_request_alone(engine: Engine) -> None:
    other = engine.submit([2], Sampling(temperature=0, max_tokens=500))
    await first_delta(other)
    nonsense: Any = "more"
    with pytest.raises(InferenceError, match="no token could be sampled"):
        await text(engine.submit([1], Sampling(presence_penalty=nonsense)))
    assert await text(other)
    assert other.finish is Finish.LENGTH


async def test_closing_ends_what_runs_with_an_error(backend: ScriptedBackend) -> None:
    engine = Engine(backend, PIECES, frozenset(), CONFIG)
    engine.start()
    handles = [engine.submit([n], ENDLESS) for n in (1, 2)]
    await first_delta(handles[0])
    await asyncio.to_thread(engine.close)
    for handle in handles:
        with pytest.raises(EngineStopped):
            await text(handle)
    with pytest.raises(EngineStopped):
        engine.submit([1], GREEDY)


async def test_an_engine_that_breaks_tells_everybody(engine: Engine, backend: ScriptedBackend) -> None:
    handle = engine.submit([1], ENDLESS)
    await first_delta(handle)
    backend.cells.clear()  # the device lost its memory: its own assertions fail
    with pytest.raises(EngineStopped):
        await text(handle)
    assert engine.failed
    with pytest.raises(EngineStopped, match="failed"):
        engine.submit([1], GREEDY)


async def test_an_engine_that_breaks_tells_everybody_whatever_state_it_is_in(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [engine.submit([token], ENDLESS) for token in (1, 2)]
    for handle in running:
        await first_delta(handle)
    waiting = engine.submit([3], GREEDY)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("out of order")

    for name in ("admit", "remove"):  # nor can a request leave it
        monkeypatch.setattr(engine._scheduler, name, broken)
    for handle in (*running, waiting):
        with pytest.raises(EngineStopped, match="out of order"):
            await text(handle)
    assert (engine.failed, engine.running, engine.waiting) == ("the engine failed: out of order", 0, 0)
    assert waiting.queue_position is None


async def test_a_request_ends_at_its_deadline_with_what_there_is(engine: Engine) -> None:
    handle = engine.submit([1], ENDLESS, Terms(deadline_ns=now_ns() + 20_000_000))
    said = await text(handle)
    assert handle.finish is Finish.DEADLINE
    assert said == expected([1], len(handle.ids))


async def test_a_deadline_also_ends_what_still_waits(engine: Engine) -> None:
    running = [engine.submit([token], ENDLESS) for token in (1, 2)]
    for handle in running:
        await first_delta(handle)
    late = engine.submit([3], GREEDY, Terms(deadline_ns=now_ns()))
    assert (await text(late), late.finish, late.facts.stamps.admitted_ns) == ("", Finish.DEADLINE, 0)


async def test_a_queue_holds_so_many_tokens_of_prompts(engine: Engine) -> None:
    running = [engine.submit([token], ENDLESS) for token in (1, 2)]
    for handle in running:
        await first_delta(handle)
    long = engine.submit([3] * 500, GREEDY)  # an empty queue takes it
    with pytest.raises(QueueFull, match="prompts of 500 tokens"):
        engine.submit([4], GREEDY)
    long.cancel()
    assert await text(long) == ""
    engine.submit([4], GREEDY)


async def test_a_prompt_goes_on_where_its_beginning_was_read_ahead(engine: Engine, backend: ScriptedBackend) -> None:
    ahead = engine.prefill_ahead(LONG)
    assert ahead is not None
    assert await text(ahead) == ""
    assert (ahead.finish, ahead.ids, ahead.facts.cached_tokens) == (Finish.LENGTH, [], 0)
    asked = engine.submit([*LONG, 1, 2], GREEDY)
    assert await text(asked) == expected([*LONG, 1, 2], 5)
    assert asked.facts.cached_tokens == len(LONG)
    assert backend.steps[:2] == [len(LONG), 2]
    assert (engine.totals["ahead_tokens"], engine.totals["prompt_tokens"]) == (len(LONG), len(LONG) + 2)


async def test_a_prompt_takes_over_from_reading_that_is_not_done(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = [n % 26 for n in range(50_000)]  # some hundred steps
    is_asked = held_beyond(backend, len(beginning) // 2, monkeypatch)
    running = engine.submit([25], ENDLESS)
    await first_delta(running)
    ahead = engine.prefill_ahead(beginning)
    assert ahead is not None
    async for _ in running:
        if ahead.facts.stamps.admitted_ns:
            break
    asked = engine.submit([*beginning, 1], GREEDY)
    is_asked.set()
    assert await text(asked) == expected([*beginning, 1], 5)
    running.cancel()
    await text(running)
    assert (await text(ahead), ahead.finish) == ("", Finish.CANCELLED)
    assert 0 < asked.facts.cached_tokens < len(beginning)
    computed = sum(backend.steps) - len(running.ids)
    assert len(beginning) + 1 <= computed < len(beginning) + 10, "no token was computed twice"


async def test_what_is_cached_is_not_read_again(engine: Engine, backend: ScriptedBackend) -> None:
    await text(engine.submit([*LONG, *LONG], GREEDY))
    steps = len(backend.steps)
    again = engine.prefill_ahead([*LONG, *LONG[:-1], 0])
    assert again is not None
    assert (await text(again), again.finish, len(backend.steps)) == ("", Finish.CANCELLED, steps)


@pytest.mark.parametrize("tokens", [7, 31], ids=["a greeting", "a short question with its answer"])
async def test_what_is_short_is_worth_reading_ahead(engine: Engine, tokens: int) -> None:
    await text(engine.submit(LONG, GREEDY))
    ahead = engine.prefill_ahead([*LONG, 0, *LONG[: tokens - 1]])
    assert ahead is not None and await text(ahead) == ""
    assert (ahead.finish, engine.totals["ahead_tokens"]) == (Finish.LENGTH, tokens)


@pytest.mark.parametrize("tokens", [AHEAD_TOKENS_MIN - 1, 100_000])
async def test_what_is_shorter_or_does_not_fit_is_not_read_ahead(engine: Engine, tokens: int) -> None:
    assert engine.prefill_ahead([1] * tokens) is None


async def test_nothing_is_read_ahead_where_somebody_would_wait_for_it(engine: Engine) -> None:
    running = [engine.submit([n], ENDLESS) for n in range(CONFIG.parallel)]
    await asyncio.gather(*map(first_delta, running))
    assert engine.prefill_ahead(LONG) is None
    for handle in running:
        handle.cancel()


async def test_what_is_read_ahead_keeps_nobody_from_reading_on(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = held_beyond(backend, 0, monkeypatch)
    shorter = engine.prefill_ahead(LONG)
    longer = engine.prefill_ahead([*LONG, *LONG])  # while the shorter one waits
    assert shorter is not None and longer is not None
    assert (engine.waiting + engine.running, engine.ahead) == (2, 2)
    go_on.set()
    await asyncio.gather(text(shorter), text(longer))
    assert (longer.finish, engine.ahead, engine.totals["ahead_tokens"]) == (Finish.LENGTH, 0, 2 * len(LONG))


async def test_reading_ahead_gives_its_place_up(
    engine: Engine, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = [n % 26 for n in range(90_000)]
    are_asked, are_answered = [held_beyond(backend, tokens, monkeypatch) for tokens in (45_000, 85_000)]
    ahead = engine.prefill_ahead(beginning)
    assert ahead is not None
    turns = [engine.submit([n], GREEDY) for n in range(CONFIG.parallel)]
    are_asked.set()
    assert await asyncio.gather(*map(text, turns)) == [expected([n], 5) for n in range(CONFIG.parallel)]
    assert ahead.finish is None
    ahead.cancel()
    are_answered.set()
    assert await text(ahead) == ""


async def test_a_state_that_does_not_fit_costs_time_and_nobodys_answer(backend: ScriptedBackend) -> None:
    engine = Engine(backend, PIECES, frozenset(), EngineConfig(parallel=2, resident=0))
    backend.slots = 2
    engine.start()
    returning = list(range(26)) * 4
    for prompt in (returning, [1] * 90, [2] * 90):  # the last two take its slot
        await text(engine.submit(prompt, GREEDY))
    neighbour = engine.submit([3], GREEDY)
    backend.refuse_next = True
    handle = engine.submit([*returning, 5], GREEDY)
    assert await text(handle) == expected([*returning, 5], 5)
    assert await text(neighbour) == expected([3], 5)
    facts = handle.facts
    assert (backend.refuse_next, facts.cached_tokens, facts.miss and facts.miss.cached) == (False, 0, 0)
    assert engine.totals["cached_tokens"] == 0
    await asyncio.to_thread(engine.close)


@dataclass
class Forgetful(ScriptedBackend):
    """Cannot save a state while `is_short`."""

    is_short: bool = True
    refused: threading.Event = field(default_factory=threading.Event)

    def save(self, slot: int) -> NDArray[np.uint8]:
        if self.is_short:
            self.refused.set()
            raise InferenceError("no memory for a state")
        return super().save(slot)


async def test_a_conversation_that_could_not_be_parked_once_is_parked_when_its_slot_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.engine.engine.REST_AFTER_S", 0.01)
    backend = Forgetful(slots=1, context=1000, rows_max=1024, vocabulary=26)
    engine = Engine(backend, PIECES, frozenset(), EngineConfig(parallel=1, resident=0))
    engine.start()
    conversation = [1] * 90
    await text(engine.submit(conversation, GREEDY))
    assert await asyncio.to_thread(backend.refused.wait, 60)
    backend.is_short = False
    await text(engine.submit([2] * 90, GREEDY))
    back = engine.submit([*conversation, 3], GREEDY)
    assert await text(back) == expected([*conversation, 3], 5)
    assert back.facts.cached_tokens == 90
    await asyncio.to_thread(engine.close)


async def test_an_engine_without_work_lets_its_device_rest_and_uses_it_again(
    backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested = threading.Event()
    monkeypatch.setattr("inference.engine.engine.REST_AFTER_S", 0.01)
    monkeypatch.setattr(backend, "rest", rested.set)
    engine = Engine(backend, PIECES, frozenset(), CONFIG)
    engine.start()
    for _ in range(2):
        await text(engine.submit(LONG, GREEDY))
        assert await asyncio.to_thread(rested.wait, 60)
        rested.clear()
    await asyncio.to_thread(engine.close)


async def test_a_conversation_that_cannot_be_saved_costs_the_next_one_nothing() -> None:
    backend = Forgetful(slots=2, context=1000, rows_max=1024, vocabulary=26)
    engine = Engine(backend, PIECES, frozenset(), EngineConfig(parallel=1, resident=1))
    engine.start()
    system = [1] * 90
    for tail in (2, 3):
        await text(engine.submit([*system, *[tail] * 90], GREEDY))
    third = engine.submit([*system, *[4] * 90], GREEDY)
    assert await text(third) == expected([*system, *[4] * 90], 5)
    assert (backend.refused.is_set(), third.facts.cached_tokens) == (True, 90)
    await asyncio.to_thread(engine.close)


async def test_a_conversation_returns_while_the_one_that_makes_room_for_it_takes_its_memory(
    backend: ScriptedBackend,
) -> None:
    config = EngineConfig(parallel=1, resident=0, parked_bytes_max=500)  # one conversation
    engine = Engine(backend, PIECES, frozenset(), config)
    backend.slots = 1
    engine.start()
    for token in (1, 2, 1):
        prompt = [token] * 90
        assert await text(engine.submit(prompt, GREEDY)) == expected(prompt, 5)
    assert engine.stats()["restored_total"] == 1
    await asyncio.to_thread(engine.close)


class Undecided(ScriptedBackend):
    """Logits that make any token possible, and follow from the last two tokens."""

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        return np.random.default_rng(list(prefix[-2:])).normal(0, 2, self.vocabulary).astype(np.float32)


async def test_a_seeded_answer_is_the_same_whatever_is_computed_beside_it() -> None:
    config = EngineConfig(parallel=8, resident=0)
    backend = Undecided(config.slots, context=100, rows_max=config.rows_max, vocabulary=2000)
    engine = Engine(backend, [b"a"] * 2000, frozenset(), config)
    engine.start()
    usual = Sampling(temperature=1, max_tokens=20, seed=1)
    samplings = [
        usual,
        usual,
        replace(usual, seed=2),
        replace(usual, temperature=0),
        replace(usual, temperature=0.7, top_p=0.9),
        replace(usual, temperature=1.5, top_k=40, min_p=0.01),
        replace(usual, temperature=0, frequency_penalty=0.5),
        replace(usual, temperature=0, top_logprobs=2, logit_bias={3: 4.0}),
    ]

    async def ids(sampling: Sampling) -> list[int]:
        handle = engine.submit([1, 2], sampling)
        await text(handle)
        return handle.ids

    alone = [await ids(sampling) for sampling in samplings]
    together = await asyncio.gather(*map(ids, samplings))
    greedy = await asyncio.gather(*(ids(samplings[3]) for _ in range(8)))
    await asyncio.to_thread(engine.close)
    assert together == alone
    assert greedy == [alone[3]] * 8
    assert alone[0] == alone[1] != alone[2]
