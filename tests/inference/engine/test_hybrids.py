"""Models that mix attention with recurrent layers or sliding windows compute of a prompt only what follows its last
boundary, and say what they say when they compute all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.errors import NotDeterministic
from inference.generation import Generation, Sampling, Terms
from inference.model import ChatModel
from inference.prompt import Cause, ChatMessage, Part, ToolCall
from tests.inference.families import FAMILIES
from tests.inference.hybrids import ARCHITECTURES, write_hybrid
from tests.inference.variants import TEMPLATE, write_variant

SYSTEM = ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6)
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression that the person asks about, and nothing else.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
TOOLS = [CALCULATOR]
MARKUP_MAX = 16  # tokens that a template writes between two texts
CLOSE = 0.05  # nats between computing a prompt in one piece and in several
ONE = Sampling(max_tokens=1, temperature=0, top_logprobs=20)

pytestmark = pytest.mark.any_answer("random weights say nothing; what they say is compared with itself")


def user(number: int, sentences: int = 6) -> ChatMessage:
    return ChatMessage("user", f"Number {number} says hello and asks for seeds. " * sentences)


@dataclass
class Talk:
    """A model, and prompts to it: each is computed with what is cached, then anew by a tenant of its own."""

    model: ChatModel
    strangers: int = 0

    async def ask(self, messages: Sequence[ChatMessage], salt: str = "one") -> Generation:
        prompt = self.model.encode(self.model.render(messages, TOOLS))
        self.strangers += 1
        warm, cold = [await self._answer(prompt, each) for each in (salt, f"stranger {self.strangers}")]
        assert cold[1].facts.cached_tokens == 0
        near = [abs(warm[0][token] - cold[0][token]) for token in warm[0].keys() & cold[0].keys()]
        assert len(near) > 10 and max(near) < CLOSE, "it goes on from something else than the prompt"
        return warm[1]

    async def _answer(self, prompt: Sequence[int], salt: str) -> tuple[dict[bytes, float], Generation]:
        generation = self.model.generate(prompt, ONE, Terms(salt=salt))
        deltas = [delta async for delta in generation]
        return dict(deltas[0].logprobs[0].top), generation

    async def said(self, messages: Sequence[ChatMessage], salt: str = "one") -> ChatMessage:
        """An answer of a few simple words, with its tokens as the model generated them."""
        word = self.model.tokenize("hello", add_special=False, parse_special=False)[0]
        sure = Sampling(max_tokens=40, temperature=0, logit_bias={word: 100.0})
        generation = self.model.generate(self.model.encode(self.model.render(messages, TOOLS)), sure, Terms(salt=salt))
        message = ChatMessage("assistant", "".join([delta.text async for delta in generation]))
        self.model.remember(message, generation.ids)
        return message

    def tokens(self, *messages: ChatMessage) -> int:
        return sum(self.model.count(message.content) for message in messages)


# One with windows and one with states, which the engine treats as those of the other two (what differs is in their
# layers: `tests/inference/llama/test_hybrids.py`). Not the one whose layers are those of Granite, one by one.
ASKED = ["gemma3", "qwen35", *(pytest.param(name, marks=pytest.mark.long) for name in ("granitehybrid", "lfm2"))]
assert {"nemotron_h", "gemma3", "qwen35", "granitehybrid", "lfm2"} == ARCHITECTURES.keys()


@pytest.fixture(scope="module", params=ASKED)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / f"{request.param}.gguf", request.param)


@pytest.fixture
async def talk(file: Path) -> AsyncIterator[Talk]:
    config = EngineConfig(model_path=file, context=2048, parallel=2, resident=2, threads=1, windowed=True)
    async with running(config) as model:
        yield Talk(model)


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    try:
        yield model
    finally:
        await model.close()


def computed(generation: Generation) -> int:
    return generation.prompt_tokens - generation.facts.cached_tokens


async def test_the_second_conversation_of_an_agent_computes_its_question(talk: Talk) -> None:
    await talk.ask([SYSTEM, user(1)])
    second = await talk.ask([SYSTEM, user(2)])
    assert computed(second) <= talk.tokens(user(2)) + MARKUP_MAX
    stats = talk.model.stats()
    assert stats["checkpoints_used_total"] == 1
    assert 0 < stats["checkpoint_bytes"] <= 256 * 2**20


async def test_a_turn_that_goes_on_computes_what_is_new_and_an_edit_of_it_no_more(talk: Talk) -> None:
    messages = [SYSTEM, user(1)]
    messages.append(await talk.said(messages))
    third = await talk.ask([*messages, user(3)])
    edited = await talk.ask([*messages, user(4)])
    for generation, question in ((third, user(3)), (edited, user(4))):
        assert computed(generation) <= talk.tokens(question) + MARKUP_MAX
        assert generation.facts.prefill_steps.count == 1, "no step of its own for the markup behind the question"


async def test_an_answer_is_generated_again_without_a_step_for_its_prompt(talk: Talk) -> None:
    messages = [SYSTEM, user(1)]
    first = await talk.ask(messages)
    again = await talk.ask(messages)
    assert first.facts.cached_tokens == 0
    assert (computed(again), again.facts.prefill_steps.count) == (0, 0)
    prompt, answers = talk.model.encode(talk.model.render(messages, TOOLS)), []
    for _ in range(3):
        generation = talk.model.generate(prompt, Sampling(max_tokens=90, temperature=0, top_logprobs=0))
        answers.append([delta.logprobs[0].logprob async for delta in generation])
    assert computed(generation) == 0
    for answer in answers[1:]:
        assert answer == pytest.approx(answers[0], abs=CLOSE), "it goes on from another state"


async def test_a_branch_from_an_earlier_question_computes_from_there(talk: Talk) -> None:
    messages = [SYSTEM, user(1)]
    for number in (2, 3):
        messages += [await talk.said(messages), user(number)]
    await talk.ask(messages)
    branch = await talk.ask([*messages[:3], user(5)])
    old = await talk.ask([*messages, ChatMessage("assistant", "no"), user(6)])
    assert computed(branch) <= talk.tokens(user(5)) + MARKUP_MAX
    assert computed(old) <= talk.tokens(user(6)) + 2 * MARKUP_MAX, "the branch has left the conversation as it was"


async def test_what_comes_back_from_a_tool_is_all_that_is_computed_whatever_ran_meanwhile(talk: Talk) -> None:
    call = ChatMessage("assistant", "", (ToolCall("calculator", '{"expression": "12 * 7"}'),))
    messages = [SYSTEM, user(1), call, ChatMessage("tool", "84 is the result of it. " * 10)]
    await talk.ask(messages[:2])
    for number in range(2, 8):  # more than there are slots
        await talk.ask([ChatMessage("system", f"Other instructions {number}. " * 30), user(number)])
    back = await talk.ask(messages)
    assert computed(back) <= talk.tokens(messages[3]) + talk.model.count(call.tool_calls[0].arguments) + 3 * MARKUP_MAX


async def test_no_tenant_goes_on_from_what_another_said(talk: Talk) -> None:
    await talk.ask([SYSTEM, user(1)])
    assert (await talk.ask([SYSTEM, user(1)], salt="two")).facts.cached_tokens == 0


async def test_what_the_platform_says_is_computed_once_for_all_tenants(talk: Talk) -> None:
    prompt = talk.model.encode(talk.model.render([SYSTEM, user(1)], TOOLS))
    talk.model.share(prompt[: prompt.boundaries[-1]])
    await talk.said([SYSTEM, user(1)])
    generation = talk.model.generate(
        talk.model.encode(talk.model.render([SYSTEM, user(2)], TOOLS)), ONE, Terms(salt="two")
    )
    async for _ in generation:
        pass
    assert computed(generation) <= talk.tokens(user(2)) + MARKUP_MAX


async def test_a_text_that_is_cached_without_a_state_is_told_as_such(talk: Talk) -> None:
    question = user(1, sentences=20)
    await talk.ask([SYSTEM, question])
    messages = [SYSTEM, ChatMessage("user", question.content[: len(question.content) // 2] + "but of what kind?")]
    other = await talk.ask(messages)
    segments = talk.model.render(messages, TOOLS)
    verdict = talk.model.verdict(segments, talk.model.encode(segments), other)
    assert verdict is not None
    assert (verdict.segment, verdict.cause) == (Part.QUESTION, Cause.NO_CHECKPOINT)
    assert verdict.cached == other.facts.cached_tokens > 0


async def test_a_turn_whose_thoughts_are_dropped_is_computed_from_behind_its_question(tmp_path: Path) -> None:
    plain, path = write_hybrid(tmp_path / "plain.gguf", "qwen35"), tmp_path / "thinking.gguf"
    write_variant(plain, path, {TEMPLATE: FAMILIES["Qwen 3.5"]})
    async with running(EngineConfig(model_path=path, context=2048, parallel=2, resident=2, threads=1)) as model:
        talk = Talk(model)
        await talk.said([SYSTEM, user(1)])  # a thought, as far as the template knows
        answer = ChatMessage("assistant", "Hello to you too.")
        after = await talk.ask([SYSTEM, user(1), answer, user(2)])
        assert computed(after) <= talk.tokens(answer, user(2)) + 3 * MARKUP_MAX


async def test_after_a_restart_a_new_conversation_goes_on_from_what_others_have_shared(tmp_path: Path) -> None:
    path = write_hybrid(tmp_path / "model.gguf", "qwen35")
    config = EngineConfig(model_path=path, context=2048, parallel=2, resident=2, threads=1, disk_folder=tmp_path)
    for numbers in ((1, 2, 3), (4,)):
        async with running(config) as model:
            last = [await Talk(model, 9 * number).ask([SYSTEM, user(number)]) for number in numbers][-1]
    assert last.facts.cached_tokens > last.prompt_tokens / 2


async def test_after_a_restart_a_conversation_is_taken_up_where_it_parts_from_what_was_said(tmp_path: Path) -> None:
    path = write_hybrid(tmp_path / "model.gguf", "qwen35")
    config = EngineConfig(model_path=path, context=2048, parallel=2, resident=2, threads=1, disk_folder=tmp_path)
    messages = [SYSTEM, user(1)]
    async with running(config) as model:
        messages.append(await Talk(model).said(messages))
        await Talk(model, 9).ask([*messages, user(2)])
    for number, begins in enumerate((messages, [SYSTEM]), start=3):  # edited; another conversation of the agent
        async with running(config) as model:
            talk = Talk(model, 10 * number)
            assert computed(await talk.ask([*begins, user(number)])) <= talk.tokens(user(number)) + MARKUP_MAX
            assert model.stats()["disk_read_total"] == 1
    async with running(config) as model:
        assert computed(await Talk(model, 50).ask([*messages, user(2)])) == 0, "the same question again"


async def test_a_model_whose_state_drops_no_token_gets_no_drafts_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_hybrid(tmp_path / "lfm2.gguf", "lfm2")
    config = EngineConfig(model_path=path, context=512, parallel=1, resident=1, threads=1, draft_path=DRAFT_MODEL)
    async with running(config) as model:
        await Talk(model).said([user(1)])
        assert model.stats()["drafted_total"] == 0
    assert "gets no drafts: its recurrent state" in caplog.text


async def test_who_wants_the_same_bytes_is_told_that_windows_are_in_the_way(tmp_path: Path) -> None:
    path = write_hybrid(tmp_path / "gemma3.gguf", "gemma3")
    config = EngineConfig(model_path=path, context=512, parallel=1, resident=0, threads=1, windowed=True)
    async with running(config) as model:
        with pytest.raises(NotDeterministic, match="--kv-windows all"):
            model.generate(model.encode(model.render([user(1)])), Sampling(deterministic=True))


async def test_a_model_with_windows_takes_drafts_of_which_it_drops_those_that_are_wrong(tmp_path: Path) -> None:
    path = write_hybrid(tmp_path / "gemma3.gguf", "gemma3")
    config = EngineConfig(model_path=path, context=2048, parallel=1, resident=1, threads=1, lookup=True, windowed=True)
    said = []
    for drafts in (3, 0):
        async with running(replace(config, draft_min=drafts, draft_max=drafts)) as model:
            prompt = model.encode(model.render([SYSTEM, user(1)], TOOLS))
            words = model.tokenize("hello seeds", add_special=False, parse_special=False)
            two = dict.fromkeys((words[0], words[-1]), 100.0)  # in an order that nothing foresees
            generation = model.generate(prompt, Sampling(max_tokens=60, temperature=1, seed=1, logit_bias=two))
            async for _ in generation:
                pass
            said.append(generation.ids)
            stats = model.stats()
            assert (stats["drafted_total"] > stats["accepted_total"]) == (drafts > 0)
    assert said[0] == said[1]
