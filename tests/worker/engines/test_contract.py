"""What a chat model promises, wherever its tokens are computed: in this process, in one of an engine, in one that
speaks vLLM's wire alone, or by vLLM, whose answers were recorded. `make test-vllm` asks a real one for the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import pytest

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.errors import (
    GrammarFailed,
    InvalidSchema,
    NotDeterministic,
    PromptTooLong,
    QueueFull,
    Refused,
    UnknownToken,
)
from inference.generation import Delta, Finish, ReasoningLimit, Sampling, Terms
from inference.grammar.calls import CallableFunction, tool_grammar
from inference.grammar.schema import json_grammar
from inference.llama import has_gpu
from inference.model import ChatModel
from inference.prompt import Cause, ChatMessage, Segment
from inference.remote.remote_generation import RemoteGeneration
from inference.remote.remote_model import RemoteModel
from inference.request import Handle
from inference.trace import now_ns
from tests.engines import reaching
from tests.inference.test_hostile_schemas import MANY_WAYS_TO_SKIP
from tests.vllm.recorded import replaying
from tests.worker.engines.conftest import QUEUE, STREAMS, TOKEN
from tests.worker.engines.plain import PlainTransport
from worker.engines.exchange import EngineTransport

Model: TypeAlias = ChatModel | RemoteModel

GREEDY = Sampling(temperature=0, max_tokens=24)
ENDLESS = Sampling(max_tokens=1500, temperature=0, logit_bias={0: -100, 2: -100})
ASK = [
    ChatMessage("system", "You are a helpful assistant of a small shop that sells garden tools and seeds. " * 6),
    ChatMessage("user", "what is 12 times 7"),
]
LONG = [replace(ASK[0], content=ASK[0].content * 5), ASK[1]]  # vLLM on a CPU caches blocks of 128 tokens
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
}
pytestmark = pytest.mark.any_answer("it is about how an answer is made and told, whatever it says")


@pytest.fixture(scope="module")
async def inside() -> AsyncIterator[ChatModel]:
    config = EngineConfig(parallel=STREAMS, resident=4, queue_max=QUEUE, threads=1)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    yield model
    await model.close()


@pytest.fixture(scope="module")
async def outside(address: str) -> AsyncIterator[RemoteModel]:
    async with reaching(address, token=TOKEN) as model:
        yield model


@pytest.fixture(params=["inside", "outside"])
async def model(request: pytest.FixtureRequest, inside: ChatModel, outside: RemoteModel, address: str) -> Model:
    """At rest: what the test before has left may still hold a place."""
    chosen: Model = inside if request.param == "inside" else outside
    await rest(chosen, address)
    return chosen


@pytest.fixture(scope="module")
async def plain(address: str) -> AsyncIterator[RemoteModel]:
    transport = PlainTransport(EngineTransport(TOKEN))
    model = await asyncio.to_thread(RemoteModel.load, CHAT_MODEL, [address], transport, "another salt of {}".format)
    await model.start()
    yield model
    await model.close()


@pytest.fixture(scope="module")
async def vllm() -> AsyncIterator[RemoteModel]:
    """What a server of vLLM with the bundled model answered, told again."""
    async with replaying() as url:
        load = (CHAT_MODEL, [url], EngineTransport(), "salt of {}".format)
        model = await asyncio.to_thread(RemoteModel.load, *load)
        await model.start()
        yield model
        await model.close()


@pytest.fixture(params=["inside", "outside", "plain", "vllm"])
async def any_model(
    request: pytest.FixtureRequest,
    inside: ChatModel,
    outside: RemoteModel,
    plain: RemoteModel,
    vllm: RemoteModel,
    address: str,
) -> Model:
    models: dict[str, Model] = {"inside": inside, "outside": outside, "plain": plain, "vllm": vllm}
    chosen = models[request.param]
    if chosen is not vllm:
        await rest(chosen, address)
    return chosen


def is_for_any(test: object) -> bool:
    """Whether it is a promise that vLLM makes, too."""
    return callable(test) and not {"any_model", "vllm"}.isdisjoint(getattr(test, "__annotations__", ()))


def prompt_of(model: Model, messages: Sequence[ChatMessage] = ASK) -> list[int]:
    return model.encode(model.render(messages))


async def read(generation: Handle | RemoteGeneration) -> list[Delta]:
    deltas: list[Delta] = []
    await generation.admitted()
    await generation.stream(deltas.append)
    return deltas


async def asked(model: Model, prompt: list[int], salt: str) -> Handle | RemoteGeneration:
    """An answer to its end."""
    generation = model.generate(prompt, GREEDY, Terms(salt=salt))
    await read(generation)
    return generation


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def told(model: Model, address: str, name: str) -> float:
    """A number of the engine: those of one in another process are scraped."""
    if isinstance(model, ChatModel):
        return float(model.stats()[name])
    body = (await EngineTransport(TOKEN).get(address, "/metrics", 5)).body
    return float(
        next(line.split()[1] for line in body.splitlines() if line.startswith(f"firsttoken_engine_{name} ".encode()))
    )


async def rest(model: Model, address: str) -> None:
    """Return when the engine computes nothing."""
    async with asyncio.timeout(60):
        while True:
            if not (await told(model, address, "running") or await told(model, address, "waiting")):
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def busy(model: Model, streams: int) -> AsyncIterator[None]:
    """While so many answers are being made, or wait for it."""
    async with AsyncExitStack() as stack:
        for number in range(streams):
            generation = model.generate(prompt_of(model), ENDLESS, Terms(salt=f"busy {number}"))
            stack.callback(generation.cancel)
            await generation.admitted()
        yield


async def test_the_same_question_gives_the_same_tokens_and_text_everywhere(inside: ChatModel, any_model: Model) -> None:
    assert prompt_of(inside) == prompt_of(any_model)
    here, there = (each.generate(prompt_of(each), GREEDY, Terms(salt="same")) for each in (inside, any_model))
    texts = [text_of(await read(generation)) for generation in (here, there)]
    assert texts[0] == texts[1] != "" and here.ids == there.ids
    assert here.finish is there.finish
    assert there.prompt_tokens == here.prompt_tokens


async def test_a_prediction_changes_nothing_but_what_is_drafted(model: Model) -> None:
    """How much is drafted depends on what it saves, and may be nothing."""
    first = model.generate(prompt_of(model), GREEDY)
    await read(first)
    predicted = model.generate(prompt_of(model), GREEDY, Terms(prediction=first.ids))
    await read(predicted)
    told, drafts = predicted.facts.predicted, predicted.facts.acceptance
    assert predicted.ids == first.ids
    assert (told.accepted, told.accepted + told.rejected) == (drafts.accepted, drafts.drafted)
    assert told.rejected == 0 and first.facts.acceptance.drafted == 0


async def test_a_greedy_answer_goes_on_behind_what_is_written_as_it_went_on(any_model: Model) -> None:
    await goes_on(any_model, replace(GREEDY, max_tokens=12, logit_bias={0: -100, 2: -100}))


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, temperature=1.0, seed=7),
        replace(GREEDY, temperature=0.8, seed=7, top_p=0.9, top_k=40),
        replace(GREEDY, repeat_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
    ],
    ids=["seed", "nucleus", "penalties"],
)
async def test_an_answer_goes_on_behind_what_is_written_as_it_went_on(model: Model, sampling: Sampling) -> None:
    await goes_on(model, replace(sampling, logit_bias={0: -100, 2: -100}))


async def test_an_answer_that_is_held_to_a_schema_goes_on_within_it(model: Model) -> None:
    await goes_on(model, Sampling(temperature=0, max_tokens=60, grammar=model.prepare(json_grammar(PERSON))))


async def goes_on(model: Model, sampling: Sampling) -> None:
    whole = model.generate(prompt_of(model), sampling, Terms(salt="a"))
    text = text_of(await read(whole))
    for count in (1, len(whole.ids) // 2, len(whole.ids) - 1):
        rest = model.generate(prompt_of(model), sampling, Terms(salt="a", written=whole.ids[:count]))
        told = "".join(model.text_pieces(whole.ids[:count]))
        assert told + text_of(await read(rest)) == text
        assert (rest.ids, rest.finish, rest.prompt_tokens) == (whole.ids, whole.finish, whole.prompt_tokens)
        assert rest.facts.cached_tokens <= rest.prompt_tokens
    assert "".join(model.text_pieces(whole.ids, over=True)) == text


async def test_what_is_cached_is_told_and_belongs_to_one_tenant(model: Model) -> None:
    segments = model.render(ASK)
    prompt = model.encode(segments)
    first, again, other = [await asked(model, prompt, salt) for salt in ("one", "one", "two")]
    assert [first.facts.cached_tokens, again.facts.cached_tokens, other.facts.cached_tokens] == [0, len(prompt), 0]
    verdict = model.verdict(segments, prompt, other)
    assert verdict is not None and verdict.cause is Cause.FIRST_USE


async def test_a_prompt_is_cached_for_its_tenant_alone(any_model: Model) -> None:
    prompt = prompt_of(any_model, LONG)
    first, again, other = [await asked(any_model, prompt, f"cached {salt}") for salt in ("one", "one", "two")]
    assert again.facts.cached_tokens > len(prompt) // 2
    assert first.facts.cached_tokens == other.facts.cached_tokens < len(prompt) // 8


async def test_the_stamps_are_in_order(any_model: Model) -> None:
    generation = any_model.generate(prompt_of(any_model), GREEDY, Terms(salt="stamps"))
    await read(generation)
    stamps = generation.facts.stamps
    order = [stamps.submitted_ns, stamps.admitted_ns, stamps.prefilled_ns, stamps.first_token_ns, stamps.last_token_ns]
    assert order == sorted(order) and 0 < order[0] < order[-1] <= now_ns()


async def test_an_answer_stays_within_its_schema(any_model: Model) -> None:
    sampling = Sampling(max_tokens=200, seed=1, grammar=any_model.prepare(json_grammar(PERSON)))
    generation = any_model.generate(prompt_of(any_model), sampling)
    assert json.loads(text_of(await read(generation))).keys() == {"name", "age"}


async def test_an_answer_whose_schema_proves_too_much_fails_by_it_wherever_it_is_computed(model: Model) -> None:
    sampling = replace(GREEDY, grammar=model.prepare(json_grammar(MANY_WAYS_TO_SKIP)))
    with pytest.raises(GrammarFailed, match="too many ways"):
        await read(model.generate(prompt_of(model), sampling))


async def test_a_thought_ends_at_its_limit(model: Model) -> None:
    ends = tuple(model.tokenize("</think>", add_special=False, parse_special=True))
    limited = replace(GREEDY, reasoning_limit=ReasoningLimit("<think>", "</think>", ends, begun=True, tokens=3))
    free, held = [text_of(await read(model.generate(prompt_of(model), each))) for each in (GREEDY, limited)]
    thought, mark, answer = held.partition("</think>")
    assert mark and answer and free.startswith(thought) and free != thought


async def test_whoever_waits_may_end_a_thought_wherever_it_is_computed(model: Model) -> None:
    ends = tuple(model.tokenize("</think>", add_special=False, parse_special=True))
    thinking = replace(GREEDY, reasoning_limit=ReasoningLimit("<think>", "</think>", ends, begun=True))
    free = text_of(await read(model.generate(prompt_of(model), GREEDY)))
    generation, said = model.generate(prompt_of(model), thinking), ""
    async for delta in generation:
        said += delta.text
        generation.end_reasoning()
    thought, mark, answer = said.partition("</think>")
    assert mark and answer and free.startswith(thought) and "</think>" not in answer


async def test_a_forced_call_is_a_call(any_model: Model) -> None:
    grammar = tool_grammar([CallableFunction("save_person", PERSON, strict=True)], required=True, calls_max=1)
    sampling = Sampling(max_tokens=200, seed=1, grammar=any_model.prepare(grammar))
    text = text_of(await read(any_model.generate(prompt_of(any_model), sampling)))
    assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"] == "save_person"


async def test_an_answer_that_may_call_calls_as_its_schema_says(model: Model) -> None:
    await may_call(model)


async def test_an_answer_of_vllm_that_may_call_calls_as_its_schema_says(vllm: RemoteModel) -> None:
    await may_call(vllm)


async def may_call(model: Model) -> None:
    grammar = model.prepare(tool_grammar([CallableFunction("save_person", PERSON, strict=True)]))
    (mark,) = model.encode([Segment("<tool_call>", trusted=True)])
    sampling = Sampling(max_tokens=48, temperature=0, logit_bias={mark: 100}, grammar=grammar)
    text = text_of(await read(model.generate(prompt_of(model), sampling)))
    call, _, _ = text.removeprefix("<tool_call>").partition("</tool_call>")
    assert json.loads(call)["arguments"].keys() == {"name", "age"}


async def test_a_grammar_behind_a_mark_holds_what_follows_it(model: Model) -> None:
    mark = "<tool_call>"
    sampling = Sampling(
        max_tokens=6,
        temperature=0,
        logit_bias=dict.fromkeys(model.encode([Segment(mark, trusted=True)]), 100),
        grammar=model.prepare(f'start: "{mark}" "Rosebud"', mark),
    )
    generation = model.generate(prompt_of(model), sampling)
    assert text_of(await read(generation)).startswith(f"{mark}Rosebud")


async def test_a_mark_of_several_tokens_is_known_by_its_text(model: Model) -> None:
    free = text_of(await read(model.generate(prompt_of(model), GREEDY)))
    mark = free[: free.index(" ", 8)]
    grammar = model.prepare(f'start: before "!"\nbefore[lazy]: /(?s:.*)/ {json.dumps(mark)}', mark)
    held = text_of(await read(model.generate(prompt_of(model), replace(GREEDY, grammar=grammar))))
    assert model.count(mark) > 1 and held == f"{mark}!" != free


async def test_a_schema_that_is_none_is_refused_before_anything_is_asked(model: Model) -> None:
    with pytest.raises(InvalidSchema):
        model.prepare("start: nothing")


async def test_log_probabilities_are_those_of_the_tokens(any_model: Model) -> None:
    deltas = await read(any_model.generate(prompt_of(any_model), replace(GREEDY, max_tokens=4, top_logprobs=2)))
    told = [logprob for delta in deltas for logprob in delta.logprobs]
    assert len(told) == sum(delta.tokens for delta in deltas) == 4
    assert b"".join(each.token for each in told).decode() == text_of(deltas)
    for each in told:  # greedy: the token is the most likely one
        assert each.top[0] == (each.token, each.logprob) and each.top[1][1] <= each.logprob <= 0


async def test_alternatives_are_the_most_likely_tokens_whatever_was_drawn(any_model: Model) -> None:
    sampling = Sampling(temperature=2, seed=3, max_tokens=8, top_logprobs=3, logit_bias={0: -100, 2: -100})
    deltas = await read(any_model.generate(prompt_of(any_model), sampling))
    told = [logprob for delta in deltas for logprob in delta.logprobs]
    assert any(each.logprob < each.top[-1][1] for each in told)  # drawn, but none of the most likely
    for each in told:
        likely = [logprob for _, logprob in each.top]
        assert likely == sorted(likely, reverse=True) and len(likely) == 3
        assert each.logprob >= likely[-1] or each.token not in dict(each.top)


async def test_each_token_that_ends_a_turn_ends_the_answer(any_model: Model) -> None:
    for token in (0, 2):
        generation = any_model.generate(prompt_of(any_model), replace(GREEDY, logit_bias={token: 100}))
        assert text_of(await read(generation)) == ""
        assert (generation.ids, generation.finish) == ([], Finish.STOP)


async def test_the_limit_of_tokens_ends_the_answer(any_model: Model) -> None:
    generation = any_model.generate(prompt_of(any_model), replace(GREEDY, max_tokens=3))
    await read(generation)
    assert (generation.finish, len(generation.ids)) == (Finish.LENGTH, 3)


async def test_a_deadline_ends_the_answer_with_what_there_is(any_model: Model) -> None:
    generation = any_model.generate(prompt_of(any_model), ENDLESS, Terms(deadline_ns=now_ns() + 400_000_000))
    await read(generation)
    assert generation.finish is Finish.DEADLINE and len(generation.ids) < ENDLESS.max_tokens


async def test_a_cancelled_answer_costs_the_engine_nothing_more(model: Model, address: str) -> None:
    before = await told(model, address, "generated_tokens_total")
    generation = model.generate(prompt_of(model), ENDLESS, Terms(salt="cancel"))
    async for _ in generation:
        break
    generation.cancel()
    async for _ in generation:
        pass
    assert generation.finish is Finish.CANCELLED
    await rest(model, address)
    assert await told(model, address, "generated_tokens_total") - before < ENDLESS.max_tokens / 2


async def test_an_answer_that_is_cancelled_ends_at_once(any_model: Model) -> None:
    generation = any_model.generate(prompt_of(any_model), ENDLESS, Terms(salt="ends"))
    async for _ in generation:
        generation.cancel()
    assert generation.finish is Finish.CANCELLED and len(generation.ids) < ENDLESS.max_tokens / 2


async def test_a_full_queue_refuses_before_the_first_event(model: Model) -> None:
    async with busy(model, STREAMS + QUEUE):
        with pytest.raises(QueueFull) as refused:
            await model.generate(prompt_of(model), GREEDY).admitted()
        assert refused.value.retry_after_s > 0


async def test_what_vllm_refuses_behind_the_head_of_its_answer_is_refused_as_it_says(vllm: RemoteModel) -> None:
    with pytest.raises(Refused, match="out of vocabulary") as refused:
        await read(vllm.generate([10**6], GREEDY))
    assert refused.value.status == 400


async def test_an_engine_that_is_not_known_to_be_ours_gets_no_deterministic_requests(plain: RemoteModel) -> None:
    with pytest.raises(NotDeterministic):
        plain.generate(prompt_of(plain), Sampling(deterministic=True))


async def test_what_no_engine_could_compute_is_refused(model: Model) -> None:
    with pytest.raises(PromptTooLong):
        await model.generate([5] * model.context_length, GREEDY).admitted()
    with pytest.raises(UnknownToken):
        await model.generate([5], replace(GREEDY, logit_bias={10**6: 1.0})).admitted()


async def test_a_deterministic_answer_is_the_same_beside_others(model: Model) -> None:
    exact = Sampling(max_tokens=8, temperature=1.0, seed=7, deterministic=True)
    if has_gpu():  # which computes a row otherwise in other company, and says so
        with pytest.raises(NotDeterministic):
            await model.generate(prompt_of(model), exact).admitted()
        return
    alone = model.generate(prompt_of(model), exact)
    await read(alone)
    other = model.generate(prompt_of(model), ENDLESS, Terms(salt="beside"))
    beside = model.generate(prompt_of(model), exact)
    await read(beside)
    other.cancel()
    assert alone.ids == beside.ids


async def test_what_was_read_ahead_is_cached(model: Model) -> None:
    prompt = prompt_of(model)
    ahead = model.prefill_ahead(prompt[:90], salt="ahead")
    assert ahead is not None
    async for _ in ahead:
        pass
    generation = model.generate(prompt, GREEDY, Terms(salt="ahead"))
    await read(generation)
    assert generation.facts.cached_tokens == 90


async def test_what_the_platform_says_is_cached_for_all_tenants(model: Model) -> None:
    messages = [replace(ASK[0], content="Only the platform says this, to all of them. " * 8), ASK[1]]
    prompt = prompt_of(model, messages)
    model.share(prompt[:80])
    assert [(await asked(model, prompt, salt)).facts.cached_tokens for salt in ("three", "four")] == [0, 80]


async def test_what_a_reader_raises_is_raised_to_it_alone(any_model: Model) -> None:
    def broken(delta: Delta) -> None:
        raise RuntimeError("the reader broke")

    generation = any_model.generate(prompt_of(any_model), GREEDY)
    with pytest.raises(RuntimeError, match="the reader broke"):
        await generation.stream(broken)
    generation.cancel()
    assert text_of(await read(any_model.generate(prompt_of(any_model), GREEDY)))
