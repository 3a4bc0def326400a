"""A remote model over a scripted network: which engine is asked, what its answers mean, and what is tried elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agents.step import StepSpans
from inference.bundled import CHAT_MODEL
from inference.errors import EnginesAway, InferenceError, PromptTooLong, QueueFull, Refused
from inference.generation import Delta, Due, Finish, Sampling, Terms
from inference.prompt import ChatMessage
from inference.remote import remote_generation, remote_model
from inference.remote.fleet import EngineInfo
from inference.remote.remote_model import RemoteModel
from inference.remote.transport import Answer, Receiver
from inference.trace import Trace

URLS = ("http://one", "http://two")
VLLM = json.dumps({"data": [{"id": "demo", "max_model_len": 512}]}).encode()
PROMPT = list(range(300, 400))
GREEDY = Sampling(temperature=0, max_tokens=5)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}\n\n'
END = USAGE + b"data: [DONE]\n\n"


def tokens(*ids: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    return b"data: " + json.dumps({"request_id": "r", "choices": [choice]}).encode() + b"\n\n"


def error(status: int, code: str = "server_error", **more: Any) -> Answer:
    return Answer(status, json.dumps({"error": {"message": "no", "code": code, **more}}).encode(), 2.0)


@dataclass
class Post:
    url: str
    body: dict[str, Any]
    receiver: Receiver
    traceparent: str = ""
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Network:
    """`away` are engines that nobody reaches, `hanging` those that say nothing; requests wait in `posts` for what the
    test lets happen."""

    away: set[str] = field(default_factory=set)
    hanging: set[str] = field(default_factory=set)
    looks: Counter[str] = field(default_factory=Counter)
    posts: list[Post] = field(default_factory=list)

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Post:
        self.posts.append(Post(url, json.loads(body), receiver, traceparent))
        return self.posts[-1]

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        self.looks[url] += 1
        if url in self.away:
            raise ConnectionRefusedError("nobody")
        if url in self.hanging:
            await asyncio.Event().wait()
        return Answer(200, VLLM if path == "/v1/models" else b"")

    def close(self) -> None:
        pass

    @property
    def last(self) -> Post:
        return self.posts[-1]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
async def model(network: Network) -> AsyncIterator[RemoteModel]:
    model = RemoteModel.load(CHAT_MODEL, URLS, network, lambda salt: f"digest of {len(salt)}")
    await model.start()
    yield model
    await model.close()


@contextmanager
def watching(model: RemoteModel) -> Iterator[None]:
    task = asyncio.create_task(model.watch(lambda: None))
    try:
        yield
    finally:
        task.cancel()


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_stream_of_vllm_becomes_an_answer(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, GREEDY, Terms(salt="tenant"))
    assert network.last.body["token_ids"] == PROMPT and network.last.body["cache_salt"] == "digest of 6"
    received: list[Delta] = []
    network.last.receiver.begun()
    await generation.admitted()
    streaming = asyncio.create_task(generation.stream(received.append))
    await asyncio.sleep(0)
    network.last.receiver.received(tokens(350) + tokens(351, 352))
    assert [delta.tokens for delta in received] == [3]  # what waits together comes as one, and at once
    network.last.receiver.received(tokens(353, 2, finish="stop") + END)
    await streaming
    assert (generation.ids, generation.finish) == ([350, 351, 352, 353], Finish.STOP)
    assert (generation.facts.cached_tokens, generation.facts.miss) == (64, None)  # why no more was is not known
    assert network.last.closed
    assert model.stats()["cached_tokens_total"] == 64 and model.context_length == 512


async def test_tokens_without_more_are_an_answer_too(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, replace(GREEDY, max_tokens=9))
    received: list[Delta] = []
    streaming = asyncio.create_task(generation.stream(received.append))
    await asyncio.sleep(0)
    for ids in ((350,), (351, 352), (353, 2)):  # what ends a turn is not said
        network.last.receiver.generated(ids)
    network.last.receiver.received(tokens(finish="stop") + END)
    await streaming
    assert (generation.ids, [delta.tokens for delta in received]) == ([350, 351, 352, 353], [1, 2, 1])
    stamps = generation.facts.stamps
    assert stamps.first_token_ns <= stamps.last_token_ns and generation.facts.hops[-1].tokens == 4


async def test_an_answer_has_no_more_tokens_than_it_may_and_none_behind_its_end(
    model: RemoteModel, network: Network
) -> None:
    generation = model.generate(PROMPT, GREEDY)
    for ids in ((350,), (351, 352), (353, 354, 355), (356,)):
        network.last.receiver.generated(ids)
    assert (generation.ids, generation.finish) == ([350, 351, 352, 353, 354], Finish.LENGTH)

    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.generated((350,))
    network.last.receiver.received(tokens(351, 2, finish="stop"))
    network.last.receiver.generated((352,))
    assert (generation.ids, generation.finish) == ([350, 351], Finish.STOP)


async def test_tokens_that_another_worker_had_are_none_that_this_one_got(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, GREEDY, Terms(written=(350, 351)))
    network.last.receiver.generated((352,))
    generation.cancel()
    assert generation.ids == [350, 351, 352]
    assert model.stats()["generated_tokens_total"] == 1


@pytest.mark.parametrize("ids", [(), (350, 10**6)])
async def test_tokens_that_are_none_end_the_answer(model: RemoteModel, network: Network, ids: tuple[int, ...]) -> None:
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.generated((350,))
    network.last.receiver.generated(ids)
    with pytest.raises(InferenceError, match="malformed answer"):
        await generation.stream(lambda _: None)
    assert network.last.closed


async def test_what_died_before_it_told_anything_is_begun_elsewhere(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, Sampling(seed=1, max_tokens=5))
    first = network.last
    first.receiver.lost("refused", reached=False)
    assert network.last.url != first.url and network.last.body == first.body
    assert model.stats()["engines_up"] == 1
    network.last.receiver.begun()
    await generation.admitted()


OWN = b'data: {"choices":[{"token_ids":[350]}],"usage":{},"firsttoken":{"queue_ms":2.0,"prefill_ms":3.0}}\n\n'
TOOK = b'data: {"choices":[],"firsttoken":{"drafted":0,"accepted":0,"finish":"length","engine_ms":7.5}}\n\n'


async def test_a_step_at_engines_elsewhere_has_the_spans_of_each(model: RemoteModel, network: Network) -> None:
    trace = Trace(attributes={"span_id": "5" * 16})
    generation = model.generate(PROMPT, Sampling(temperature=0, max_tokens=2), Terms(traceparent=trace.traceparent))
    spans = StepSpans(trace, generation, lambda: None)
    network.last.receiver.lost("killed", reached=True)
    network.last.receiver.begun()
    await asyncio.sleep(0.01)
    network.last.receiver.received(OWN)
    spans.prefilled()
    assert [span.name for span in trace.spans] == ["connect", "queue", "prefill"]
    connect, queue, prefill = trace.spans
    assert connect.attributes == {"retries": 1, "retry_reason": "lost: killed"}
    assert (connect.start_ns, connect.end_ns) == (generation.facts.stamps.submitted_ns, queue.start_ns)
    assert (round(queue.duration_ms, 3), round(prefill.duration_ms, 3)) == (2.0, 3.0)
    network.last.receiver.received(tokens(351, finish="length") + TOOK + END)
    spans.decoded()
    first, second = (span for span in trace.spans if span.name == "engine")
    assert first.attributes == {"engine": network.posts[0].url, "tokens": 0, "error.type": "lost: killed"}
    told = {name: second.attributes[name] for name in ("engine", "tokens", "queue_ms", "prefill_ms", "engine_ms")}
    assert told == {"engine": network.last.url, "tokens": 2, "queue_ms": 2.0, "prefill_ms": 3.0, "engine_ms": 7.5}
    assert first.lane == second.lane == "engine" and first.end_ns <= second.start_ns
    assert {post.traceparent for post in network.posts} == {f"00-{trace.id}-{'5' * 16}-01"}


async def test_without_durations_of_the_engine_the_prompt_was_read_since_it_took_the_request(
    model: RemoteModel, network: Network
) -> None:
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.begun()
    network.last.receiver.received(tokens(350))
    stamps = generation.facts.stamps
    assert stamps.submitted_ns < generation.facts.hops[0].taken_ns <= stamps.arrived_ns == stamps.admitted_ns


@pytest.mark.parametrize("how", ["lost", "aborted", "stopping"])
async def test_an_answer_goes_on_from_its_exact_tokens(model: RemoteModel, network: Network, how: str) -> None:
    generation = model.generate(PROMPT, GREEDY)
    receiver = network.last.receiver
    receiver.received(tokens(350, 351))
    if how == "lost":
        receiver.lost("killed", reached=True)
    elif how == "aborted":
        receiver.received(tokens(finish="abort"))
    else:
        receiver.received(b'data: {"error":{"message":"shutting down","code":503}}\n\n')
    assert len(network.posts) == 2 and network.posts[0].url != network.last.url
    assert network.last.body["token_ids"] == [*PROMPT, 350, 351]
    assert network.last.body["sampling_params"]["max_tokens"] == 3
    network.last.receiver.received(tokens(352, finish="stop") + END)
    assert [delta.tokens async for delta in generation] == [1, 1, 1]
    assert (generation.ids, generation.prompt_tokens, generation.moves) == ([350, 351, 352], len(PROMPT), 1)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(temperature=0, presence_penalty=0.5),
        Sampling(temperature=0, repeat_penalty=1.1),
        Sampling(temperature=0, grammar=object()),  # type: ignore[arg-type]
    ],
)
async def test_an_answer_that_would_become_another_one_fails_with_its_half_unless_an_engine_is_ours(
    model: RemoteModel, network: Network, sampling: Sampling
) -> None:
    generation = model.generate(PROMPT, sampling)
    network.last.receiver.received(tokens(350))
    network.last.receiver.lost("killed", reached=True)
    with pytest.raises(InferenceError, match="in the middle"):
        await generation.stream(lambda delta: None)
    assert (generation.ids, generation.finish, len(network.posts)) == ([350], Finish.ERROR, 1)

    for upstream in model._fleet.upstreams:
        upstream.facts, upstream.away = EngineInfo(512, ours=True), None
    generation = model.generate(PROMPT, sampling)
    network.last.receiver.received(tokens(350))
    network.last.receiver.lost("killed", reached=True)
    assert network.last.body["token_ids"] == [*PROMPT, 350]
    assert network.last.body["firsttoken"]["written"] == 1
    before = network.posts[-2].body["sampling_params"]["max_tokens"]
    assert network.last.body["sampling_params"]["max_tokens"] == before - 1


async def test_a_begun_answer_waits_for_an_engine_that_comes_back_and_is_full_at_first(
    model: RemoteModel, network: Network
) -> None:
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.received(tokens(350))
    network.away.update(URLS)
    network.last.receiver.lost("killed", reached=True)
    network.last.receiver.lost("refused", reached=False)  # at the other one
    await model.start()
    assert (len(network.posts), model.failed, generation.finish) == (2, "no engine is reachable", None)
    network.away.clear()
    await model.start()
    network.last.receiver.refused(error(429, "rate_limit_exceeded"))
    network.last.receiver.refused(error(429, "rate_limit_exceeded"))
    assert generation.finish is None  # it has said something: it waits for room
    await model.start()
    assert network.last.body["token_ids"] == [*PROMPT, 350]
    network.last.receiver.received(tokens(351, finish="stop") + END)
    assert generation.ids == [350, 351] and not model._going


async def test_who_has_seen_nothing_yet_waits_a_moment_for_an_engine_that_was_just_begun(
    model: RemoteModel, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.away = {URLS[0]}
    await model.start()
    generation = model.generate(PROMPT, GREEDY)
    network.away = {URLS[1]}
    network.last.receiver.refused(error(503, "shutting_down"))
    assert generation.finish is None and model.failed
    with watching(model):
        await until(lambda: network.last.url == URLS[0])
    network.last.receiver.begun()
    await generation.admitted()

    monkeypatch.setattr(remote_generation, "UNSEEN_S", 0.0)
    refused = model.generate(PROMPT, GREEDY)
    network.last.receiver.refused(error(503, "shutting_down"))
    with pytest.raises(EnginesAway, match="status 503"):
        await refused.admitted()


async def test_who_was_let_in_and_has_no_token_yet_waits_as_an_answer_does(
    model: RemoteModel, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_generation, "UNSEEN_S", 0.0)
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.begun()
    await generation.admitted()  # its client has the head of a stream now
    network.away.update(URLS)
    network.last.receiver.lost("killed", reached=True)
    network.last.receiver.lost("refused", reached=False)  # at the other one
    await model.start()  # by now who has seen nothing would have been refused
    assert model.stats()["running"] + model.stats()["waiting"] == 1
    network.away.clear()
    await model.start()
    network.last.receiver.refused(error(429, "rate_limit_exceeded"))
    network.last.receiver.refused(error(429, "rate_limit_exceeded"))
    await model.start()
    network.last.receiver.received(tokens(350, finish="stop") + END)
    assert (generation.ids, generation.finish) == ([350], Finish.STOP)


async def test_an_answer_whose_time_is_over_is_sent_on_by_no_look(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.begun()
    network.last.receiver.lost("killed", reached=True)  # it is at the other one now
    generation._give_up_at = asyncio.get_running_loop().time()
    network.last.receiver.lost("killed", reached=True)
    generation.resume()  # in the same moment, before any timer
    assert (generation.finish, len(network.posts)) == (Finish.ERROR, 2)


async def test_an_engine_whose_machine_is_gone_holds_up_no_look_at_others(model: RemoteModel, network: Network) -> None:
    network.hanging, network.away = {URLS[0]}, {URLS[1]}
    await model._look(model._fleet.upstreams[1])
    assert model.stats()["engines_up"] == 1
    network.away = set()
    with watching(model):
        await until(lambda: model.stats()["engines_up"] == 2)


async def test_looks_at_an_engine_that_is_away_send_nobody_to_one_that_is_full(
    model: RemoteModel, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.away = {URLS[0]}
    await model.start()
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.received(tokens(350))
    network.last.receiver.refused(error(429, "rate_limit_exceeded"))
    monkeypatch.setattr(remote_model, "LOOK_AGAIN_S", 0.001)
    network.looks.clear()
    with watching(model):
        await until(lambda: network.looks[URLS[0]] > 5)
    assert (len(network.posts), generation.finish) == (1, None)


async def test_an_answer_does_not_wait_for_ever_and_takes_no_more_than_a_few_engines_along(
    model: RemoteModel, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_generation, "STRANDED_S", 0.0)
    waiting = model.generate(PROMPT, GREEDY)
    network.last.receiver.received(tokens(350))
    for _ in URLS:
        network.last.receiver.lost("killed", reached=True)
    with pytest.raises(EnginesAway):
        await waiting.stream(lambda delta: None)

    monkeypatch.undo()
    deadly = model.generate(PROMPT, GREEDY)
    network.last.receiver.received(tokens(350))
    for _ in range(remote_generation.LOSSES_MAX):
        assert deadly.finish is None
        network.last.receiver.lost("it crashed", reached=True)
        await model.start()
    network.last.receiver.lost("it crashed", reached=True)
    assert deadly.finish is Finish.ERROR


async def test_an_answer_that_progresses_goes_on_however_many_engines_are_replaced(
    model: RemoteModel, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_generation, "PROGRESS_TOKENS", 1)
    generation = model.generate(PROMPT, GREEDY)
    written = [350 + moves for moves in range(remote_generation.LOSSES_MAX + 1)]
    for token in written:
        network.last.receiver.received(tokens(token))
        network.last.receiver.lost("it was replaced", reached=True)
        await model.start()
    assert (generation.ids, generation.finish) == (written, None)
    generation.cancel()


async def test_what_is_wrong_with_a_request_is_not_tried_elsewhere(model: RemoteModel, network: Network) -> None:
    answers: list[tuple[Answer, type[InferenceError]]] = [
        (error(429, "rate_limit_exceeded"), QueueFull),
        (error(400, "context_length_exceeded"), PromptTooLong),
        (error(400, "invalid_value", param="token_ids[3]"), Refused),
        (Answer(418, b"<html>"), Refused),
    ]
    for answer, kind in answers:
        generation = model.generate(PROMPT, GREEDY)
        network.last.receiver.refused(answer)
        with pytest.raises(kind) as refused:
            await generation.admitted()
        assert refused.value.status == answer.status and getattr(refused.value, "retry_after_s", 2.0) == 2.0
    assert len(network.posts) == len(answers) and model.stats()["engines_up"] == 2


async def test_what_is_found_wrong_with_a_request_behind_the_head_of_an_answer_is_told_as_it_is(
    model: RemoteModel, network: Network
) -> None:
    generation = model.generate(PROMPT, GREEDY)
    network.last.receiver.begun()
    network.last.receiver.received(b'data: {"error":{"message":"out of vocabulary","param":null,"code":400}}\n\n')
    with pytest.raises(Refused, match="out of vocabulary") as refused:
        await generation.stream(lambda delta: None)
    assert refused.value.status == 400 and len(network.posts) == 1


async def test_without_a_tenant_no_salt_is_told(network: Network) -> None:
    model = RemoteModel.load(CHAT_MODEL, URLS, network, lambda salt: salt)
    await model.start()
    for salt in ("", "tenant"):
        model.generate(PROMPT, GREEDY, Terms(salt=salt))
    assert [post.body.get("cache_salt") for post in network.posts] == [None, "tenant"]
    await model.close()


async def test_only_engines_of_others_are_told_what_ours_know(model: RemoteModel, network: Network) -> None:
    grammar = model.prepare('start: "<tool_call>"')
    asked = Sampling(temperature=0, top_logprobs=3, grammar=grammar)
    model.generate(PROMPT, asked)
    others = network.last.body["sampling_params"]
    assert (others["stop_token_ids"], others["logprobs"]) == ([0, 2], 4)
    assert "<[3]>" in others["structured_outputs"]["grammar"]
    model.generate(PROMPT, Sampling(top_logprobs=20, top_p=0))
    others = network.last.body["sampling_params"]
    assert others["logprobs"] == 20 and 0 < others["top_p"] < 1e-5  # vLLM takes no more, and no 0

    for upstream in model._fleet.upstreams:
        upstream.facts = EngineInfo(512, ours=True)
    model.generate(PROMPT, asked)
    ours = network.last.body["sampling_params"]
    assert "stop_token_ids" not in ours and ours["logprobs"] == 3
    assert ours["structured_outputs"] == {"grammar": 'start: "<tool_call>"'}


async def test_an_engine_is_told_where_other_prompts_may_go_on(model: RemoteModel, network: Network) -> None:
    prompt = model.encode(model.render([ChatMessage("system", "Be kind."), ChatMessage("user", "Hello")]))
    model.generate(prompt, Sampling())
    told = network.last.body["firsttoken"]["boundaries"]
    assert told == list(prompt.boundaries) and 0 < told[-1] < len(prompt)


async def test_a_full_engine_passes_a_request_on_and_stays_in_use(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, GREEDY)
    for _ in URLS:
        network.last.receiver.refused(error(503, "overloaded"))
    with pytest.raises(QueueFull) as refused:
        await generation.admitted()
    assert (refused.value.status, refused.value.retry_after_s, len(network.posts)) == (503, 2.0, 2)
    assert model.stats()["engines_up"] == 2


async def test_without_any_engine_turns_are_refused_at_once_until_one_is_back(
    model: RemoteModel, network: Network
) -> None:
    network.away = set(URLS)
    await model.start()
    assert model.failed == "no engine is reachable"
    for ask in (lambda: model.generate(PROMPT, GREEDY), lambda: model.expect(Due())):
        with pytest.raises(EnginesAway):
            ask()
    assert model.prefill_ahead(PROMPT) is None and network.posts == []
    network.away = {URLS[0]}
    await model.start()
    assert model.generate(PROMPT, GREEDY).upstream is not None
    assert model.stats()["engines_up"] == 1


async def test_streams_of_an_engine_that_hangs_go_on_elsewhere(model: RemoteModel, network: Network) -> None:
    generation = model.generate(PROMPT, GREEDY)
    hanging = network.last

    async def silent(url: str, path: str, timeout_s: float) -> Answer:
        if url == hanging.url:
            raise TimeoutError
        return Answer(200, VLLM)

    network.get = silent  # type: ignore[method-assign]
    for _ in range(3):
        assert len(network.posts) == 1
        await model.start()
    assert hanging.closed and network.last.url != hanging.url and generation.moves == 1


async def test_an_answer_that_waits_for_engines_that_hang_goes_on_when_they_are_back(
    model: RemoteModel, network: Network
) -> None:
    generation, get = model.generate(PROMPT, GREEDY), network.get
    network.last.receiver.received(tokens(350))

    async def silent(url: str, path: str, timeout_s: float) -> Answer:
        raise TimeoutError

    network.get = silent  # type: ignore[method-assign]
    for _ in range(remote_model.MISSES_MAX + remote_generation.LOSSES_MAX + 1):
        await model.start()
        assert generation.finish is None
    network.get = get  # type: ignore[method-assign]
    await model.start()
    network.last.receiver.received(tokens(351, finish="stop") + END)
    assert (generation.ids, generation.finish) == ([350, 351], Finish.STOP)


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", tokens(10**6), b"data: {}" + b"x" * 2**21])
async def test_a_request_to_engines_that_say_what_none_says_fails(
    model: RemoteModel, network: Network, data: bytes
) -> None:
    generation = model.generate(PROMPT, GREEDY)
    for count in (1, 2):
        assert len(network.posts) == count and generation.finish is None
        network.last.receiver.received(data)
    with pytest.raises(InferenceError, match="malformed answer"):
        await generation.stream(lambda delta: None)
    assert network.last.closed


async def test_who_leaves_closes_the_connection_even_after_its_own_error(model: RemoteModel, network: Network) -> None:
    def broken(delta: Delta) -> None:
        raise RuntimeError("broken")

    generation = model.generate(PROMPT, GREEDY)
    streaming = asyncio.create_task(generation.stream(broken))
    await asyncio.sleep(0)
    network.last.receiver.received(tokens(350))
    with pytest.raises(RuntimeError):
        await streaming
    before = network.last.closed
    generation.cancel()
    assert (before, network.last.closed, model.stats()["running"]) == (False, True, 0)
