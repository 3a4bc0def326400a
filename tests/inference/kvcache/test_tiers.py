"""The tiers of the KV cache on the real model: conversations leave, come back and outlive the worker unchanged."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from inference.attention import Attention
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.generation import Finish, Generation, Sampling, Terms, TokenLogprob
from inference.kvcache.disk import DiskTier, Found
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry
from inference.kvcache.tiers import WAIT_S_MAX, Arrivals
from inference.model import ChatModel
from inference.prompt import CacheScope, Cause, ChatMessage, ToolCall
from inference.request import Request
from inference.tokenizer import TextStream
from tests.inference.modes import COVERING

GREEDY = Sampling(temperature=0, max_tokens=5)
CONTEXT = 512
SYSTEM = ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6)
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
BYTES_PER_TOKEN = 3084  # of the model's KV cache, with what its state tells of a cell
# Between a token's log-likelihood alone and among others: only deterministic answers are the same to the last bit.
TOLERANCE = 0.2
KEPT_MIN = 100  # tokens: all of SYSTEM, and not by chance


SMALL = EngineConfig(context=CONTEXT, parallel=2, resident=0)
S = 10**9
ENTRY = Entry(tuple(range(200)), CacheScope(""), np.zeros(1, np.uint8))


@asynccontextmanager
async def running(folder: Path | None, config: EngineConfig = SMALL) -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, replace(config, disk_folder=folder))
    await model.start()
    try:
        yield model
    finally:
        await model.close()


def conversations_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.state"))


def conversation(number: int) -> list[ChatMessage]:
    return [SYSTEM, ChatMessage("user", f"Number {number} says hello. " * 8)]


async def ask(model: ChatModel, messages: list[ChatMessage], salt: str = "") -> Generation:
    generation = model.generate(model.encode(model.render(messages)), GREEDY, Terms(salt=salt))
    async for _ in generation:
        pass
    return generation


async def test_a_conversation_returns_after_a_restart_and_only_its_last_token_is_computed(tmp_path: Path) -> None:
    async with running(tmp_path) as model:
        before = await ask(model, conversation(1))
    async with running(tmp_path) as model:
        after = await ask(model, conversation(1))
        stranger = await ask(model, conversation(1), salt="another tenant")
        assert model.stats()["disk_read_total"] == 1
    assert after.ids == before.ids
    assert after.facts.cached_tokens == after.prompt_tokens - 1
    assert (stranger.facts.cached_tokens, stranger.ids) == (0, before.ids)


async def generate(model: ChatModel, messages: list[ChatMessage]) -> tuple[str, Generation]:
    prompt = model.encode(model.render(messages, [CALCULATOR]))
    generation = model.generate(prompt, replace(GREEDY, max_tokens=60))
    return "".join([delta.text async for delta in generation]), generation


async def calculated(model: ChatModel, messages: list[ChatMessage]) -> tuple[list[ChatMessage], int]:
    """The conversation after a call, its result and an answer, and how many tokens it has then."""
    text, generation = await generate(model, messages)
    name, arguments = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>")).values()
    call = ChatMessage("assistant", "", (ToolCall(name, json.dumps(arguments)),))
    model.remember(call, generation.ids)
    messages = [*messages, call, ChatMessage("tool", "84")]
    text, generation = await generate(model, messages)
    answer = ChatMessage("assistant", text)
    model.remember(answer, generation.ids)
    return [*messages, answer], generation.prompt_tokens + len(generation.ids)


async def test_the_turn_after_a_tool_call_and_a_restart_computes_only_what_is_new(tmp_path: Path) -> None:
    config = replace(SMALL, context=1024)
    async with running(tmp_path, config) as model:
        messages, tokens = await calculated(model, [SYSTEM, ChatMessage("user", "what is 12 * 7")])
    question = [*messages, ChatMessage("user", "thank you")]
    async with running(tmp_path, config) as model:
        _, after = await generate(model, question)
        segments = model.render(question, [CALCULATOR])
        verdict = model.verdict(segments, model.encode(segments), after)
    assert after.facts.cached_tokens >= tokens - 1  # the last one was drawn, and computed only if more followed
    assert verdict is not None and verdict.cause is Cause.FIRST_USE


async def test_after_a_crash_the_first_turn_computes_only_its_question(tmp_path: Path) -> None:
    async with running(tmp_path / "kv") as model:
        cold, *_ = [await ask(model, conversation(number)) for number in (1, 2, 3)]
        while not model.stats()["disk_written_total"]:  # noqa: ASYNC110  # once it is known what they share
            await asyncio.sleep(0.05)
        shutil.copytree(tmp_path / "kv", tmp_path / "crashed")
    assert len(conversations_in(tmp_path / "crashed")) == 1
    async with running(tmp_path / "crashed") as model:
        first = await ask(model, [SYSTEM, ChatMessage("user", "hello")])
        again = await ask(model, conversation(1))
        assert model.stats()["disk_damaged_total"] == 0
    assert first.facts.cached_tokens >= KEPT_MIN > first.prompt_tokens - first.facts.cached_tokens
    assert again.ids == cold.ids


async def test_conversations_that_share_their_beginning_keep_it_once_and_come_back_over_a_restart(
    tmp_path: Path,
) -> None:
    talks = [[SYSTEM, ChatMessage("user", f"Number {number} says hello. " * 16)] for number in range(6)]
    async with running(tmp_path) as model:
        cold = [await ask(model, talk) for talk in talks]
        stats = model.stats()
        again = [await ask(model, talk) for talk in talks]
        assert model.stats()["restored_total"]
    async with running(tmp_path) as model:
        after = [await ask(model, talk) for talk in talks]
    assert [each.ids for each in again] == [each.ids for each in after] == [each.ids for each in cold]
    assert all(each.facts.cached_tokens == each.prompt_tokens - 1 for each in after)
    parked_tokens = sum(each.prompt_tokens for each in cold[: int(stats["parked"])])
    assert int(stats["parked"]) >= 4 and int(stats["parked_bytes"]) < 0.7 * BYTES_PER_TOKEN * parked_tokens


async def read_shared(model: ChatModel, salt: str) -> int:
    """How many tokens were computed for a prefix that all tenants share."""
    prefix = model.encode(model.render(conversation(1)))[:KEPT_MIN]
    model.share(prefix)
    reading = model.prefill_ahead(prefix, salt=salt)
    assert reading is not None
    before = model.stats()["ahead_tokens_total"]
    await reading.stream(lambda _: None)
    return int(model.stats()["ahead_tokens_total"] - before)


async def test_after_a_crash_nothing_that_all_tenants_share_is_computed_again(tmp_path: Path) -> None:
    config = replace(SMALL, parked_bytes_max=0)  # nothing is left to be written at the close, like in a crash
    async with running(tmp_path, config) as model:
        assert await read_shared(model, "one tenant") == KEPT_MIN
        cold = await ask(model, conversation(1), salt="another tenant")
        assert await read_shared(model, "another tenant") == 0
    assert len(conversations_in(tmp_path)) == 1, "it is written for all of them, once"
    async with running(tmp_path) as model:
        assert await read_shared(model, "a third tenant") == 0
        after = await ask(model, conversation(1), salt="another tenant")
        assert model.stats()["disk_read_total"] == 1
    assert (after.facts.cached_tokens, after.ids) == (KEPT_MIN, cold.ids)


async def test_what_is_no_longer_shared_by_all_is_read_for_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as model:
        await read_shared(model, "one tenant")
    async with running(tmp_path) as model:
        after = await ask(model, conversation(1), salt="one tenant")
        assert (after.facts.cached_tokens, model.stats()["disk_read_total"]) == (0, 0)


async def test_another_layout_of_the_cache_takes_nothing_over(tmp_path: Path) -> None:
    streams = replace(SMALL, kv_layout="streams")  # a GPU has one pool of cells, if nobody says otherwise
    async with running(tmp_path, streams) as model:
        await ask(model, conversation(1))
    async with running(tmp_path, replace(streams, parallel=3)) as model:  # a stream more
        await ask(model, conversation(1))
        assert model.stats()["disk_read_total"] == 0


@dataclass(slots=True)
class Answer:
    """A token and the two most_likely at its place, one after the other."""

    told: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None

    def agrees(self, alone: Answer) -> bool:
        """Whether it goes like what the model says alone, or leaves that where two tokens are about as likely."""
        for mine, theirs in zip(self.told, alone.told, strict=False):
            if mine.token != theirs.token:
                (_, first), (_, second) = theirs.top
                return first - second < TOLERANCE
            if abs(mine.logprob - theirs.logprob) > TOLERANCE:
                return False
        return self.finish is Finish.CANCELLED or len(self.told) == len(alone.told)


@pytest.mark.parametrize("mode", COVERING)
async def test_many_times_what_the_cells_hold_gives_the_answers_of_an_idle_model(
    tmp_path: Path, mode: Attention
) -> None:
    """Random arrivals and cancels; two slots, memory for a few conversations, the rest on disk."""
    chance = random.Random(4)
    count = 6
    _, layout, _, flash = mode.flags.split()
    small = replace(SMALL, kv_layout=layout, flash_attention=flash)

    async def visit(model: ChatModel, number: int, leaves_after: int | None = None) -> Answer:
        prompt = model.encode(model.render(conversation(number)))
        generation, answer = model.generate(prompt, replace(GREEDY, top_logprobs=2), Terms(salt=str(number))), Answer()
        async for delta in generation:
            answer.told += delta.logprobs
            if leaves_after is not None and len(generation.ids) >= leaves_after:
                generation.cancel()
        answer.finish = generation.finish
        return answer

    async with running(None, replace(small, resident=4)) as idle:
        alone = {number: await visit(idle, number) for number in range(count)}
    async with running(tmp_path, replace(small, parked_bytes_max=2**20)) as model:

        async def arrive(number: int) -> None:
            await asyncio.sleep(chance.random() / 10)
            answer = await visit(model, number, chance.choice([None, None, 0, 3]))
            assert answer.agrees(alone[number])

        visits, stats = 0, model.stats()
        while visits < 2 or not all(stats[f"{way}_total"] for way in ("disk_written", "disk_read", "restored")):
            await asyncio.gather(*(arrive(number) for number in chance.sample(range(count), count)))
            visits, stats = visits + 1, model.stats()
    assert (stats["waiting"], stats["running"], stats["disk_damaged_total"]) == (0, 0, 0)


async def test_the_costs_of_the_tiers_are_told() -> None:
    async with running(None, replace(SMALL, parallel=1)) as model:
        for number in (1, 2, 1, 2):
            await ask(model, conversation(number), salt=str(number))
        stats = model.stats()
    assert float(stats["parked_bytes_per_token"]) > 0
    assert 0 < float(stats["restore_ratio"]) < 1


def request() -> Request:
    return Request([*range(200), 7], 5, Sampler(Sampling()), TextStream([]), CacheScope(""))


class SlowDisk(DiskTier):
    """Has the first 192 tokens of every prompt, and hands them over when the test says so."""

    def __init__(self) -> None:
        self.readings: list[Future[Entry | None]] = []
        self.looks = 0

    def match(self, tokens: Sequence[int], scope: CacheScope) -> Found | None:
        self.looks += 1
        return Found("name", 192, scope)

    def read(self, found: Found) -> Future[Entry | None]:
        self.readings.append(Future())
        return self.readings[-1]


def test_a_request_waits_until_its_beginning_is_read() -> None:
    disk, one = SlowDisk(), request()
    arrivals = Arrivals(disk)
    assert arrivals.hold(one, held=0, token_s=0.01, now_ns=0) is not None
    assert (arrivals.ready(0), arrivals.read(), arrivals.requests) == ([], [], [one])
    disk.readings[0].set_result(ENTRY)
    assert (arrivals.ready(0), arrivals.read(), arrivals.requests) == ([one], [ENTRY], [])


def test_it_waits_no_longer_than_computing_would_take_and_what_comes_late_is_kept() -> None:
    disk, one = SlowDisk(), request()
    arrivals = Arrivals(disk)
    arrivals.hold(one, held=92, token_s=0.01, now_ns=0)
    assert arrivals.wait_s(0) == 1.0
    assert (arrivals.ready(S - 1), arrivals.ready(S)) == ([], [one])
    disk.readings[0].set_result(ENTRY)
    assert arrivals.read() == [ENTRY]
    assert arrivals.wait_s(S) is None


def test_there_is_a_bound_however_slow_the_model() -> None:
    arrivals = Arrivals(SlowDisk())
    arrivals.hold(request(), held=0, token_s=10.0, now_ns=0)
    assert arrivals.wait_s(0) == WAIT_S_MAX


def test_what_memory_holds_is_not_read() -> None:
    disk = SlowDisk()
    assert Arrivals(disk).hold(request(), held=192 - PARK_TOKENS_MIN + 1, token_s=0.01, now_ns=0) is None
    assert disk.readings == []


def test_what_memory_hardly_lacks_is_not_even_looked_for() -> None:
    disk, one = SlowDisk(), request()
    assert Arrivals(disk).hold(one, held=len(one.prompt) - PARK_TOKENS_MIN, token_s=0.01, now_ns=0) is None
    assert disk.looks == 0


def test_one_reading_serves_all_who_want_it() -> None:
    disk = SlowDisk()
    arrivals = Arrivals(disk)
    both = [request(), request()]
    for each in both:
        arrivals.hold(each, held=0, token_s=0.01, now_ns=0)
    disk.readings[0].set_result(None)  # the file was damaged
    assert (len(disk.readings), arrivals.ready(0), arrivals.read()) == (1, both, [])


def test_who_leaves_is_forgotten() -> None:
    arrivals, one = Arrivals(SlowDisk()), request()
    arrivals.hold(one, held=0, token_s=0.01, now_ns=0)
    assert [arrivals.leave(each) for each in (one, request())] == [True, False]
    assert (arrivals.requests, arrivals.wait_s(0)) == ([], None)
