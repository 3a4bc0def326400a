"""Whatever the layout of the KV cache: sharing, parking and drafts hold, and answers are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inference.attention import ALL, AUTO, Attention, attention
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.llama import LlamaContext, LlamaModel
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.provisioning import speed
from inference.provisioning.doctor import Level, attention_finding
from inference.provisioning.isolated_process import RunFailed
from inference.provisioning.memory import Footprint, Proportions
from inference.provisioning.speed import Pace, fastest

SYSTEM = ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6)
# Each has an answer that is clear by seven nats, so that no mode's rounding decides.
QUESTIONS = ["Who are you?", "Tell me a joke.", "What can you do?", "Hello!"]
SAID = ChatMessage("assistant", "Alright. What would you like to do next?")
GREEDY = Sampling(temperature=0, max_tokens=16)
STREAMS = attention("streams", "off", gpu=False)


def test_each_device_has_its_usual_attention_and_each_half_of_it_can_be_chosen() -> None:
    assert attention(AUTO, AUTO, gpu=False) == Attention(unified=False, flash=False)
    assert attention(AUTO, AUTO, gpu=True) == Attention(unified=False, flash=True)
    assert attention("unified", AUTO, gpu=True) == Attention(unified=True, flash=True)
    measured = Attention(unified=True, flash=True)
    assert attention(AUTO, AUTO, gpu=False, measured=measured) == measured
    assert attention("streams", AUTO, gpu=False, measured=measured) == STREAMS
    assert attention("unified", "off", gpu=False).flags == "--kv-layout unified --flash-attention off"


def asked(question: str) -> list[ChatMessage]:
    """A conversation long enough to be worth its parking."""
    return [SYSTEM, ChatMessage("user", f"{question} " * 8), SAID, ChatMessage("user", question)]


async def loaded(config: EngineConfig) -> ChatModel:
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    return model


async def said(on: ChatModel, talk: Sequence[ChatMessage]) -> str:
    return "".join([delta.text async for delta in on.generate(on.encode(on.render(talk)), GREEDY)])


Answers = Callable[[Sequence[ChatMessage]], Awaitable[str]]


@pytest.fixture(scope="module")
async def plainly() -> AsyncIterator[Answers]:
    """What a model says that shares, parks and drafts nothing, each conversation once."""
    plain = await loaded(EngineConfig(parallel=1, threads=1, resident=0, parked_bytes_max=0))
    known: dict[tuple[ChatMessage, ...], str] = {}

    async def plainly(talk: Sequence[ChatMessage]) -> str:
        if (key := tuple(talk)) not in known:
            known[key] = await said(plain, talk)
        return known[key]

    yield plainly
    await plain.close()


@pytest.mark.parametrize("mode", ALL, ids=str)
async def test_sharing_parking_and_drafts_hold_in_every_mode(mode: Attention, plainly: Answers) -> None:
    """Three slots for four conversations: each comes back from memory, and all begin with one prompt."""
    _, layout, _, flash = mode.flags.split()
    config = EngineConfig(
        draft_path=DRAFT_MODEL,
        draft_min=2,
        draft_max=2,
        parallel=2,
        threads=1,
        resident=1,
        kv_layout=layout,
        flash_attention=flash,
    )
    model = await loaded(config)
    talks = [asked(question) for question in QUESTIONS]
    for _ in range(2):
        answers = await asyncio.gather(*(said(model, talk) for talk in talks))
        for talk, answer in zip(talks, answers, strict=True):
            assert answer == await plainly(talk)
            talk += [ChatMessage("assistant", answer), ChatMessage("user", "What is your name?")]
    stats = model.stats()
    assert int(stats["cached_tokens_total"]) > 0.5 * int(stats["prompt_tokens_total"])
    assert int(stats["restored_total"]) > 0 and int(stats["accepted_total"]) > 0
    await model.close()


async def test_a_quantised_cache_takes_half_the_memory_and_conversations_come_back_to_it() -> None:
    config = EngineConfig(parallel=1, threads=1, resident=0, kv_type="q8_0")
    model, roomy = await asyncio.gather(loaded(config), loaded(replace(config, resident=4)))
    for question in QUESTIONS[:2] * 2:  # one slot: each comes back from memory
        assert await said(model, asked(question)) == await said(roomy, asked(question))
    assert int(model.stats()["restored_total"]) > 0
    await asyncio.gather(model.close(), roomy.close())


def test_q8_0_states_are_as_large_as_foretold() -> None:
    weights = LlamaModel.load(CHAT_MODEL)
    flash = Attention(unified=False, flash=True)
    context = LlamaContext(weights, slots=1, context=512, rows_max=256, threads=1, attention=flash, kv_type="q8_0")
    context.decode([Chunk(0, 0, [5] * 200)])
    config = EngineConfig(parallel=1, resident=0, context=512, kv_type="q8_0")
    foretold = Footprint.of(Proportions.of(weights), config).kv_cache / 512
    assert context.save(0).nbytes / 200 == pytest.approx(foretold, rel=0.03)  # the state adds a header and positions
    context.close()
    weights.close()


def pace(mode: Attention, *milliseconds: float) -> Pace:
    return Pace(mode, dict(zip(["1 stream", "8 streams"], milliseconds, strict=True)))


def test_a_unified_cache_is_chosen_only_where_it_is_clearly_faster() -> None:
    unified = Attention(unified=True, flash=True)
    assert fastest([pace(unified, 4.8, 9.5), pace(STREAMS, 5, 10)]).attention == STREAMS
    assert fastest([pace(unified, 4, 8), pace(STREAMS, 5, 10)]).attention == unified


def test_a_mode_that_is_clearly_slower_than_another_is_a_warning_with_the_flags_to_set() -> None:
    flash = Attention(unified=False, flash=True)
    close, far = [pace(STREAMS, 5, 10), pace(flash, 4.8, 9)], [pace(STREAMS, 5, 10), pace(flash, 4, 5)]
    assert attention_finding(close, STREAMS).level is Level.OK
    finding = attention_finding(far, STREAMS)
    assert finding.level is Level.WARNING and "--kv-layout streams --flash-attention on" in finding.todo
    assert fastest(far) is far[1]


def test_a_kind_that_crashes_is_left_out_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = ALL[3]

    def run(_path: Path, kinds: Sequence[Attention], **_: object) -> list[Pace]:
        if crashing in kinds:
            raise RunFailed("killed by SIGSEGV", crashed=True)
        return [pace(kind, 5, 10) for kind in kinds]

    monkeypatch.setattr(speed, "isolated_attention_paces", run)
    paces = speed.isolated_paces(CHAT_MODEL, threads=1, gpu_layers=-1)
    assert [each.attention for each in paces] == ALL[:3]
    told = attention_finding(paces, STREAMS)
    assert told.level is Level.OK and f"{crashing} | crashes on this machine" in " ".join(told.text.split())
    problem = attention_finding(paces, crashing)
    assert problem.level is Level.PROBLEM and "--kv-layout" in problem.todo


@pytest.mark.parametrize(("crashed", "tries"), [(True, 1 + len(ALL)), (False, 1)])
def test_where_nothing_can_be_measured_the_first_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, crashed: bool, tries: int
) -> None:
    tried: list[Sequence[Attention]] = []

    def run(_path: Path, kinds: Sequence[Attention], **_: object) -> None:
        tried.append(kinds)
        raise RunFailed(f"reason {len(tried)}", crashed=crashed)

    monkeypatch.setattr(speed, "isolated_attention_paces", run)
    with pytest.raises(RunFailed, match="reason 1"):
        speed.isolated_paces(CHAT_MODEL, threads=1, gpu_layers=-1)
    assert len(tried) == tries
