"""One request, followed from the socket to the last byte through every span."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

TEN_SPANS = {
    "edge", "auth", "hydrate", "assemble", "tokenize", "queue", "prefill", "first_token", "decode", "flush",
}  # fmt: skip
RETRIEVAL = ["open", "embed", "search", "fuse", "rerank", "read", "compress"]
TOOLS = [{"type": f"firsttoken:{name}"} for name in ("calculator", "current_time", "convert_units")]
# What may lie between two spans before the first token: a few wake-ups of the event loop on a busy machine.
GAPS_MS_MAX = 5.0
GAPS_SHARE_MAX = 0.1  # of all that time, where the machine is so busy that everything takes several times as long
ENGINE = "firsttoken_engine_"
ANY_ANSWER = pytest.mark.any_answer("its spans are looked at, whatever it says")
TURNS_MAX = 5  # of which one is seldom interrupted: what takes time without a span does so in each of them

Json = dict[str, Any]


class Answer:
    """A streamed response: its headers, its events, its trace."""

    def __init__(self, headers: Mapping[str, str], events: list[Json]) -> None:
        self.headers = headers
        self.events = events
        self.trace: Json = next(e["trace"] for e in events if e["type"] == "firsttoken:trace")
        self.spans: list[Json] = self.trace["spans"]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def span(self, name: str) -> Json:
        return next(span for span in self.spans if span["name"] == name)

    def named(self, name: str) -> list[Json]:
        return [span for span in self.spans if span["name"] == name]


async def ask(server: Mapping[str, Any], body: Json, headers: Mapping[str, str] | None = None) -> Answer:
    headers = {"Authorization": f"Bearer {server['api_key']}", **(headers or {})}
    own = ["firsttoken:sources", "firsttoken:trace"]
    body = {"model": "demo-chat", "stream": True, "temperature": 0, "include": own, **body}
    async with (
        aiohttp.ClientSession() as http,
        http.post(server["url"] + "/v1/responses", json=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        lines = (await answer.text()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return Answer(answer.headers, events)


async def new_conversation(server: Mapping[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(server["url"] + "/v1/conversations", json={}, headers=headers) as answer,
    ):
        return str((await answer.json())["id"])


@pytest.fixture(scope="module")
async def answer(server: Mapping[str, Any]) -> Answer:
    return await second_turn(server)


async def second_turn(server: Mapping[str, Any]) -> Answer:
    """That of a conversation about the documents."""
    conversation = await new_conversation(server)
    await ask(server, {"conversation": conversation, "input": "hello"})
    search = {"type": "file_search", "vector_store_ids": ["docs"]}
    question = "What is the default port of the worker?"
    return await ask(server, {"conversation": conversation, "input": question, "tools": [search]})


@ANY_ANSWER
async def test_every_span_of_a_turn_is_there_and_the_stages_of_retrieval_under_theirs(answer: Answer) -> None:
    names = [span["name"] for span in answer.spans]
    assert set(names) >= TEN_SPANS | {"retrieve", *RETRIEVAL}
    retrieve = names.index("retrieve")
    assert [span["name"] for span in answer.spans if span["parent"] == retrieve] == RETRIEVAL


@ANY_ANSWER
async def test_up_to_the_first_token_the_spans_tile_the_wall_clock(server: Mapping[str, Any]) -> None:
    told = []
    for _ in range(TURNS_MAX):
        gaps, end = gaps_of(await second_turn(server))
        if gaps < max(GAPS_MS_MAX, GAPS_SHARE_MAX * end):
            return
        told.append(f"{gaps:.2f} ms of {end:.2f} ms")
    pytest.fail(f"{', '.join(told)} belong to no span")


def gaps_of(answer: Answer) -> tuple[float, float]:
    """Milliseconds between the spans up to the first token, which do not overlap, and all of the time until then."""
    end = answer.span("first_token")["start_ms"] + answer.span("first_token")["duration_ms"]
    main = [s for s in answer.spans if s["lane"] == "main" and s["parent"] is None and s["start_ms"] < end]
    main.sort(key=lambda span: span["start_ms"])
    at, gaps = 0.0, 0.0
    for span in main:
        if span["name"] in ("decode", "flush"):  # of tokens that first_token brings to the socket, maybe all of them
            continue
        gaps += max(0.0, span["start_ms"] - at)
        overlap = at - span["start_ms"]
        assert overlap < 0.5, f"{span['name']} begins {overlap:.2f} ms before the span before it ends"
        at = max(at, span["start_ms"] + span["duration_ms"])
    assert at == pytest.approx(end, abs=0.01)
    assert answer.trace["ttft_ms"] == pytest.approx(end, abs=0.5)
    return gaps, end


@ANY_ANSWER
async def test_the_trace_tells_what_the_prompt_cache_did(answer: Answer) -> None:
    attributes = answer.span("prefill")["attributes"]
    usage = answer.events[-1]["response"]["usage"]
    assert attributes["cached_tokens"] > 0  # the turn before
    assert attributes["new_tokens"] + attributes["cached_tokens"] == usage["input_tokens"]
    assert attributes["cached_tokens"] == usage["input_tokens_details"]["cached_tokens"]


@ANY_ANSWER
async def test_sources_are_known_before_the_first_token_and_the_trace_before_the_end(answer: Answer) -> None:
    types = answer.types
    assert types.index("firsttoken:sources") < types.index("response.output_text.delta")
    assert types[-2:] == ["firsttoken:trace", "response.completed"]


@ANY_ANSWER
async def test_the_header_has_the_stages_that_were_over_when_it_was_sent(answer: Answer) -> None:
    timing = answer.headers["Server-Timing"]
    assert all(f"{name};dur=" in timing for name in ("auth", "hydrate"))


async def test_a_tool_call_is_a_span_beside_the_steps_and_the_second_step_prefills_only_what_is_new(
    server: Mapping[str, Any],
) -> None:
    answer = await ask(server, {"input": "what is 12 * 7", "tools": TOOLS})
    assert len(answer.named("tool:calculator")) == 1
    first, second = answer.named("prefill")
    prompt = first["attributes"]["new_tokens"] + first["attributes"]["cached_tokens"]
    generated = answer.named("decode")[0]["attributes"]["tokens"]
    # The newest token is never in the cache; everything before it is reused.
    assert second["attributes"]["cached_tokens"] >= prompt + generated - 1
    assert "84" in answer.events[-1]["response"]["output"][-1]["content"][0]["text"]


async def test_an_inbound_trace_is_joined_and_found_again_by_the_operator(server: Mapping[str, Any]) -> None:
    trace_id = secrets.token_hex(16)
    parent = f"00-{trace_id}-{secrets.token_hex(8)}-01"
    answer = await ask(server, {"input": "hello"}, {"traceparent": parent})
    assert answer.trace["id"].startswith(trace_id)  # several requests may belong to one trace
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    url = f"{server['url']}/ops/api/traces/{answer.trace['id']}"
    async with aiohttp.ClientSession() as http:
        while True:  # written in batches after the answer; the test's own timeout ends a worker that never does
            async with http.get(url, headers=headers) as stored:
                if stored.status == 200:
                    found = await stored.json()
                    break
            await asyncio.sleep(0.05)
    assert [span["name"] for span in found["spans"]] == [span["name"] for span in answer.spans]
    assert found["ttft_ms"] == pytest.approx(answer.trace["ttft_ms"])


async def test_metrics_count_the_turn(server: Mapping[str, Any]) -> None:
    await ask(server, {"input": "hello"})
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession() as http, http.get(server["url"] + "/metrics", headers=headers) as metrics:
        text = await metrics.text()
    assert "time_to_first_token" in text
    assert 'span="prefill"' in text


def works_for(shop: str) -> str:
    """Instructions of some hundred tokens, with which no other test begins."""
    return f"You work for the shop {shop}. " + "Be brief, friendly and precise. " * 20


@ANY_ANSWER
async def test_the_beginning_of_the_prompt_is_read_while_the_documents_are_searched(server: dict[str, Any]) -> None:
    tools = [{"type": "file_search", "vector_store_ids": ["docs"]}]
    question = {"input": "What is the default port?", "instructions": works_for("Alder"), "tools": tools}
    answer = await ask(server, question)
    ahead, retrieve, prefill = answer.span("prefill_prefix"), answer.span("retrieve"), answer.span("prefill")
    assert ahead["lane"] == "prefix"
    later = max(ahead["start_ms"], retrieve["start_ms"])
    assert all(later < each["start_ms"] + each["duration_ms"] for each in (ahead, retrieve)), "one waits for the other"
    assert 0 < ahead["attributes"]["new_tokens"] <= prefill["attributes"]["cached_tokens"]
    usage = answer.events[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == ahead["attributes"]["cached_tokens"]


async def test_a_conversation_that_was_warmed_has_its_beginning_in_the_cache(server: dict[str, Any]) -> None:
    asked = {"instructions": works_for("Birch"), "tools": TOOLS}
    conversation, before = await new_conversation(server), await numbers(server)
    beginning = 200  # tokens of these instructions; an earlier answer, read behind its end, is shorter
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server['url']}/v1/conversations/{conversation}/warm", json=asked, headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["status"]) == (202, "reading")
    async with asyncio.timeout(60):
        while (await numbers(server))["ahead_tokens_total"] < before["ahead_tokens_total"] + beginning:
            pass
    turn = await ask(server, {**asked, "conversation": conversation, "input": "Hello!"})
    assert turn.span("prefill")["attributes"]["new_tokens"] < 20
    assert turn.span("prefill")["attributes"]["cached_tokens"] > 100


@ANY_ANSWER
async def test_a_question_that_stood_still_before_it_is_sent_costs_no_prefill(server: dict[str, Any]) -> None:
    asked = {
        "model": "demo-chat",
        "input": "What is the default port?",
        "instructions": works_for("Cedar"),
        "tools": [{"type": "file_search", "vector_store_ids": ["docs"]}, *TOOLS],
    }
    before = await numbers(server)
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server['url']}/v1/conversations/warm", json=asked, headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["status"]) == (202, "reading")
    async with asyncio.timeout(60):
        while True:
            now = await numbers(server)
            if now["ahead_tokens_total"] > before["ahead_tokens_total"] and not now["running"] + now["waiting"]:
                break
    turn = await ask(server, asked)
    assert turn.span("prefill")["attributes"]["new_tokens"] == 0
    assert turn.span("retrieve")["attributes"]["read_tokens"] == turn.span("prefill")["attributes"]["cached_tokens"]


async def numbers(server: Mapping[str, Any]) -> dict[str, float]:
    """Those of the engine, all of one moment."""
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession() as http, http.get(f"{server['url']}/metrics", headers=headers) as answer:
        lines = (await answer.text()).splitlines()
    own = (line.removeprefix(ENGINE).split() for line in lines if line.startswith(ENGINE) and "{" not in line)
    return {name: float(value) for name, value in own}
