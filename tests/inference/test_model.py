"""The real engine on the bundled model: batching, sharing and cancelling change nothing but time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from agents.prompt import before_question
from inference.backend import Chunk
from inference.bundled import EMBEDDER
from inference.config import EngineConfig
from inference.errors import InferenceError, ModelNotLoaded
from inference.generation import Finish, Sampling, Terms
from inference.llama import DecodeFailed, LlamaContext, LlamaModel
from inference.model import ChatModel
from inference.prompt import ChatMessage, ToolCall

GREEDY = Sampling(temperature=0, max_tokens=40)
SYSTEM = ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6)
QUESTIONS = ["hello", "what is 12 times 7", "thank you", "who are you", "what time is it", "tell me a joke", "bye"]


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=8, resident=4))
    await model.start()
    yield model
    await model.close()


async def cold_model() -> ChatModel:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=1, resident=0))
    await model.start()
    return model


async def ask(model: ChatModel, messages: list[ChatMessage], salt: str = "") -> tuple[list[int], int, str]:
    """Returns the generated ids, the cached tokens and the text."""
    generation = model.generate(model.encode(model.render(messages)), GREEDY, Terms(salt=salt))
    text = "".join([delta.text async for delta in generation])
    return generation.ids, generation.facts.cached_tokens, text


async def test_batched_output_equals_one_at_a_time_output(model: ChatModel) -> None:
    conversations = [[SYSTEM, ChatMessage("user", question)] for question in QUESTIONS]
    alone = [(await ask(model, c, salt=f"alone {i}"))[0] for i, c in enumerate(conversations)]
    together = await asyncio.gather(*(ask(model, c, salt=f"together {i}") for i, c in enumerate(conversations)))
    assert [ids for ids, _, _ in together] == alone
    assert len({tuple(ids) for ids in alone}) > 1  # they are not all the same answer


async def test_a_shared_prefix_gives_the_output_of_a_cold_start(model: ChatModel) -> None:
    shared = [await ask(model, [SYSTEM, ChatMessage("user", q)], salt="shared") for q in QUESTIONS]
    assert all(cached > 100 for _, cached, _ in shared[1:])
    cold = await cold_model()
    for question, (ids, _, _) in zip(QUESTIONS, shared, strict=True):
        fresh, _, _ = await ask(cold, [SYSTEM, ChatMessage("user", question)], salt=question)
        assert ids == fresh
    await cold.close()


async def test_simultaneous_prompts_share_the_prefix_that_the_first_computes(model: ChatModel) -> None:
    answers = await asyncio.gather(
        *(ask(model, [SYSTEM, ChatMessage("user", question)], salt="flock") for question in QUESTIONS)
    )
    assert sorted(cached > 100 for _, cached, _ in answers) == [False] + [True] * (len(QUESTIONS) - 1)


async def test_the_next_turn_computes_only_what_is_new(model: ChatModel) -> None:
    messages = [SYSTEM, ChatMessage("user", "hello")]
    ids, _, text = await ask(model, messages, salt="talk")
    before = len(model.encode(model.render(messages)))
    answer = ChatMessage("assistant", text)
    model.remember(answer, ids)
    _, cached, _ = await ask(model, [*messages, answer, ChatMessage("user", "thank you")], salt="talk")
    assert cached >= before + len(ids)


async def test_a_tool_call_and_its_result_extend_the_cached_prompt(model: ChatModel) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
    messages = [ChatMessage("user", "what is 12 * 7")]
    prompt = model.encode(model.render(messages, [tool]))
    generation = model.generate(prompt, GREEDY, Terms(salt="tools"))
    text = "".join([delta.text async for delta in generation])
    assert text.startswith("<tool_call>")  # the marker is visible to the parser
    call = ChatMessage("assistant", "", (ToolCall("calculator", '{"expression": "12 * 7"}'),))
    model.remember(call, generation.ids)
    longer = model.encode(model.render([*messages, call, ChatMessage("tool", "84")], [tool]))
    assert longer[: len(prompt) + len(generation.ids)] == [*prompt, *generation.ids]
    second = model.generate(longer, GREEDY, Terms(salt="tools"))
    assert "84" in "".join([delta.text async for delta in second])
    assert second.facts.cached_tokens >= len(prompt) + len(generation.ids)


async def test_conversations_that_left_their_slot_come_back_without_being_computed_again() -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=1, resident=1))
    await model.start()
    first = [[SYSTEM, ChatMessage("user", f"my name is number {n}")] for n in range(6)]
    fresh = [await ask(model, messages, salt=str(n)) for n, messages in enumerate(first)]
    again = [await ask(model, messages, salt=str(n)) for n, messages in enumerate(first)]
    assert [ids for ids, _, _ in again] == [ids for ids, _, _ in fresh]
    assert all(cached == len(model.encode(model.render(m))) - 1 for (_, cached, _), m in zip(again, first, strict=True))
    assert model.stats()["restored_total"] == 6
    await model.close()


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.cpu)])
async def test_what_was_read_ahead_gives_the_output_of_a_cold_start(model: ChatModel, exact: bool) -> None:
    prompt = model.encode(model.render([SYSTEM, ChatMessage("user", "tell me a joke")]))
    sampling = replace(GREEDY, deterministic=exact)
    salt = f"ahead {exact}"
    ahead = model.prefill_ahead(prompt[:90], salt=salt, exact=exact)
    assert ahead is not None
    assert [delta async for delta in ahead] == []
    warm = model.generate(prompt, sampling, Terms(salt=salt))
    assert [delta.text async for delta in warm] and warm.facts.cached_tokens == 90
    cold = model.generate(prompt, sampling, Terms(salt=f"cold {exact}"))
    assert [delta.text async for delta in cold] and cold.facts.cached_tokens == 0
    assert warm.ids == cold.ids


async def test_a_tenants_prompt_is_not_found_by_another(model: ChatModel) -> None:
    messages = [SYSTEM, ChatMessage("user", "my name is Alice")]
    await ask(model, messages, salt="tenant one")
    _, cached, _ = await ask(model, messages, salt="tenant two")
    assert cached == 0


async def test_what_the_platform_says_is_cached_for_all_tenants_and_what_they_say_is_not() -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=1, resident=5))
    await model.start()
    secret = [SYSTEM, ChatMessage("user", "my name is Alice")]
    common = model.encode(before_question(model.render(secret)))
    model.share(common)
    first, again, guessed = [await ask(model, secret, salt=salt) for salt in ("one", "one", "two")]
    assert again[1] == len(model.encode(model.render(secret)))
    assert again[0] == first[0]
    assert guessed[1] == len(common) > 100
    assert guessed[0] == first[0]
    edited = [ChatMessage("system", f"{SYSTEM.content} Be terse."), ChatMessage("user", "hello")]
    assert [(await ask(model, edited, salt=salt))[1] > 0 for salt in ("three", "three", "four")] == [False, True, False]
    await model.close()


async def test_cancelling_frees_the_sequence(model: ChatModel) -> None:
    generation = model.generate([5, 6, 7], Sampling(max_tokens=1500, logit_bias={0: -100, 2: -100}), Terms(salt="long"))
    async for _ in generation:
        break
    assert model.stats()["running"] == 1
    generation.cancel()
    async for _ in generation:
        pass
    assert generation.finish is Finish.CANCELLED
    assert len(generation.ids) < 1000
    assert model.stats()["running"] == 0


def test_a_file_that_is_no_model_is_refused_with_a_reason(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.gguf").write_text("hello")
    (folder / "cut.gguf").write_bytes(EMBEDDER.read_bytes()[:100_000])
    for name, reason in (("none.gguf", "no model file"), ("text.gguf", "not a GGUF"), ("cut.gguf", "could not load")):
        with pytest.raises(ModelNotLoaded, match=reason):
            LlamaModel.load(folder / name)


def test_a_model_without_chat_template_says_so() -> None:
    with pytest.raises(InferenceError, match=r"no chat template|encoder"):
        ChatModel.load(EngineConfig(model_path=EMBEDDER))


@pytest.mark.parametrize(
    ("slot", "position", "count"), [(0, 0, 0), (0, 0, 65), (2, 0, 1), (-1, 0, 1), (0, -1, 2), (0, 250, 20)]
)
def test_a_batch_that_would_abort_the_process_is_refused(slot: int, position: int, count: int) -> None:
    weights = LlamaModel.load(EngineConfig().model_path)
    context = LlamaContext(weights, slots=2, context=256, rows_max=64, threads=1)
    with pytest.raises(DecodeFailed):
        context.decode([Chunk(slot, position, [5] * count)])
    context.close()
    weights.close()


@pytest.mark.parametrize(
    ("held", "kept"), [(200, 200), (200, 77), (40, 40), (40, 13)], ids=["all", "part", "all of few", "part of few"]
)
def test_a_fork_goes_on_like_its_source(held: int, kept: int) -> None:
    weights = LlamaModel.load(EngineConfig().model_path)
    context = LlamaContext(weights, slots=3, context=256, rows_max=200, threads=1)
    context.decode([Chunk(0, 0, range(300, 300 + held))])
    context.decode([Chunk(1, 0, range(500, 600))])  # what the target held is gone afterwards
    context.fork(0, 1, kept)
    assert (context.length(0), context.length(1)) == (held, kept)
    forked = context.decode([Chunk(1, kept, [7, 8])]).copy()
    context.truncate(0, kept)
    assert np.array_equal(forked, context.decode([Chunk(0, kept, [7, 8])]))
    context.close()
    weights.close()
