"""What workers need of a vLLM server, held against a real one: `make test-vllm`.

VLLM_URL is its address, and VLLM_MODEL a GGUF file with the same weights and vocabulary, which is computed here beside
it; VLLM_TOKEN its token, if it wants one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.core import ChatMessage, Delta, Finish, Generation, Sampling
from inference.errors import NotDeterministic
from inference.grammar.schema import json_grammar
from inference.model import ChatModel
from inference.remote.remote_model import RemoteModel
from inference.trace import now_ns
from worker.engines.exchange import EngineTransport

pytestmark = [pytest.mark.vllm, pytest.mark.any_answer("it is about how an answer is made and told, whatever it says")]

GREEDY = Sampling(temperature=0, max_tokens=24)
ASK = [ChatMessage("system", "You are a helpful assistant. " * 30), ChatMessage("user", "what is 12 times 7")]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}


def given(name: str) -> str:
    assert name in os.environ, f"set {name}: see the top of {Path(__file__).name}"
    return os.environ[name]


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[RemoteModel]:
    path = Path(given("VLLM_MODEL"))
    transport, digest = EngineTransport(os.environ.get("VLLM_TOKEN")), "salt of {}".format
    model = await asyncio.to_thread(RemoteModel.load, path, [given("VLLM_URL")], transport, digest)
    await model.start()
    assert model.failed is None, model.away
    yield model
    await model.close()


@pytest.fixture(scope="module")
async def inside() -> AsyncIterator[ChatModel]:
    config = EngineConfig(model_path=Path(given("VLLM_MODEL")), parallel=2)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    yield model
    await model.close()


def prompt_of(model: RemoteModel | ChatModel) -> list[int]:
    return model.encode(model.render(ASK))


async def text_of(generation: Generation) -> str:
    deltas: list[Delta] = []
    await generation.admitted()
    await generation.stream(deltas.append)
    return "".join(delta.text for delta in deltas)


async def test_greedy_answers_have_the_same_tokens_as_here(model: RemoteModel, inside: ChatModel) -> None:
    there, here = (each.generate(prompt_of(each), GREEDY) for each in (model, inside))
    assert await text_of(there) == await text_of(here)
    assert there.ids == here.ids and there.finish is here.finish


async def test_a_prompt_is_cached_for_its_tenant_alone(model: RemoteModel) -> None:
    generations = []
    for salt in ("one", "one", "two"):
        generations.append(model.generate(prompt_of(model), GREEDY, salt=f"{salt} {now_ns() // 10**12}"))
        await text_of(generations[-1])
    first, again, other = (generation.cached_tokens for generation in generations)
    assert again > len(prompt_of(model)) // 2 and (first, other) == (0, 0)


async def test_an_answer_stays_within_its_schema(model: RemoteModel) -> None:
    sampling = Sampling(max_tokens=60, temperature=0, grammar=model.prepare(json_grammar(PERSON)))
    assert json.loads(await text_of(model.generate(prompt_of(model), sampling))).keys() == {"name"}


async def test_stop_strings_and_limits_end_an_answer(model: RemoteModel) -> None:
    whole = await text_of(model.generate(prompt_of(model), GREEDY))
    stopped = model.generate(prompt_of(model), Sampling(temperature=0, max_tokens=24, stop=(whole[4:7],)))
    assert await text_of(stopped) == whole[: whole.index(whole[4:7])]
    short = model.generate(prompt_of(model), Sampling(temperature=0, max_tokens=3))
    await text_of(short)
    assert (len(short.ids), short.finish) == (3, Finish.LENGTH)


async def test_a_deadline_and_a_cancellation_end_it_at_once(model: RemoteModel) -> None:
    endless = Sampling(temperature=0, max_tokens=400, ignore_eos=True)
    late = model.generate(prompt_of(model), endless, deadline_ns=now_ns() + 300_000_000)
    await text_of(late)
    assert late.finish is Finish.DEADLINE
    left = model.generate(prompt_of(model), endless)
    async for _ in left:
        left.cancel()
    assert left.finish is Finish.CANCELLED and len(left.ids) < 400


async def test_log_probabilities_are_those_of_the_tokens(model: RemoteModel) -> None:
    deltas: list[Delta] = []
    generation = model.generate(prompt_of(model), Sampling(temperature=0, max_tokens=4, top_logprobs=2))
    await generation.stream(deltas.append)
    told = [logprob for delta in deltas for logprob in delta.logprobs]
    assert len(told) == len(generation.ids) and all(each.logprob <= 0 for each in told)


async def test_what_it_cannot_promise_is_refused(model: RemoteModel) -> None:
    with pytest.raises(NotDeterministic):
        model.generate(prompt_of(model), Sampling(deterministic=True))
