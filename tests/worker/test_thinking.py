"""Thinking within a budget: of the request by the names that clients have for it, of the operator, and until somebody
asks for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agents.definition import Surface
from inference.generation import Delta
from migrations.pool import Database
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.answering import MODEL, answering, get, post, stream
from tests.worker.harness import SECRET, Client
from tests.worker.sharing import colleagues, response_id_of
from worker.auth.keys import Keys
from worker.config import Config
from worker.runs.record import Targets

THINKS = "<tool_call> {% generation %} </think>"  # enough of a template to tell the dialect
REPLY = "<think>\nHm, this is a long thought about it.\n</think>\n\nYes."
THOUGHT = "Hm, this is a long thought about it."
HELLO: Any = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Any] = {"/v1/responses": {"input": "x"}, "/v1/chat/completions": {"messages": HELLO}}


class WaitingModel(ScriptedModel):
    """Thinks about nothing else until somebody wants the answer."""

    def generate(self, *args: Any, **options: Any) -> ScriptedGeneration:
        generation = super().generate(*args, **options)
        wanted, told, end = asyncio.Event(), generation.stream, generation.end_reasoning

        async def stream(receive: Callable[[Delta], None]) -> None:
            await wanted.wait()
            await told(receive)

        def end_reasoning() -> None:
            end()
            wanted.set()

        generation.stream, generation.end_reasoning = stream, end_reasoning  # type: ignore[method-assign]
        return generation


def thinker() -> ScriptedModel:
    return ScriptedModel([REPLY], name=MODEL, chat_template=THINKS)


async def trace_of(client: Client, response_id: str) -> Any:
    (found,) = (await get(client, f"/ops/api/traces?q={response_id}"))["data"]
    return await get(client, f"/ops/api/traces/{found['id']}")


@asynccontextmanager
async def clients(client: Client) -> AsyncIterator[tuple[AsyncOpenAI, AsyncAnthropic]]:
    url, key = str(client.make_url("/")).rstrip("/"), client.session.headers["Authorization"].split()[-1]
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as openai,
        AsyncAnthropic(base_url=url, api_key=key) as ours,
    ):
        yield openai, ours


async def test_the_official_clients_limit_a_thought_each_by_its_own_name(database: Database) -> None:
    async with answering(database, model=thinker()) as client, clients(client) as (openai, anthropic):
        for budget in ({"reasoning_budget": 2}, {"thinking_token_budget": 2}):
            said: Any = await openai.chat.completions.create(model=MODEL, messages=HELLO, extra_body=budget)
            message = said.choices[0].message
            assert message.content == "Yes." and 0 < len(message.reasoning_content) < len(THOUGHT)
        for limit in ({"reasoning": {"max_tokens": 2}}, {"reasoning_budget": 2}):
            told = await openai.responses.create(model=MODEL, input="hello", extra_body=limit)
            assert told.output_text == "Yes."
            thought = told.output[0]
            assert thought.type == "reasoning" and thought.content is not None
            assert 0 < len(thought.content[0].text) < len(THOUGHT)
        answer = await anthropic.messages.create(
            model=MODEL, max_tokens=100, messages=HELLO, thinking={"type": "enabled", "budget_tokens": 2}
        )
        reasoning, text = answer.content
        assert reasoning.type == "thinking" and 0 < len(reasoning.thinking) < len(THOUGHT)
        assert text.type == "text" and text.text == "Yes."


@pytest.mark.parametrize("path", BODIES)
async def test_without_a_budget_there_is_no_limit_and_with_none_there_is_no_thought(
    database: Database, path: str
) -> None:
    async with answering(database, model=thinker()) as client:
        for budget, shown in ((None, True), (-1, True), (0, False)):
            body = {**BODIES[path], "reasoning_budget": budget}
            text = str(await post(client, path, body))
            assert (THOUGHT in text, "Yes." in text) == (shown, True)


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/v1/responses", {"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ("/v1/responses", {"reasoning_budget": -2}, "reasoning_budget"),
        ("/v1/chat/completions", {"thinking_token_budget": "many"}, "thinking_token_budget"),
        ("/v1/messages", {"max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": -1}}, "budget_tokens"),
    ],
)
async def test_a_budget_that_is_none_is_refused_by_its_name(
    database: Database, path: str, more: Any, param: str
) -> None:
    async with answering(database, model=thinker()) as client:
        error = (await post(client, path, {"messages": HELLO, **BODIES.get(path, {}), **more}, 400))["error"]
    assert param in (error.get("param") or error["message"])


async def test_a_thought_in_a_channel_of_its_own_ends_at_its_limit_too(database: Database) -> None:
    reply = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    model = ScriptedModel([reply], name=MODEL, chat_template="<tool_call> {% generation %} <|channel|>")
    async with answering(database, model=model) as client:
        for budget, whole in ((2, False), (-1, True)):
            told = await post(client, "/v1/responses", {"input": "x", "reasoning_budget": budget})
            thought, answer = [item["content"][0]["text"] for item in told["output"]]
            assert (thought == THOUGHT, answer) == (whole, "Yes.")


async def test_the_operator_limits_the_thoughts_of_all(database: Database) -> None:
    config = Config(thought_tokens=2)
    async with answering(database, model=thinker(), config=config) as client:
        most, less = [
            (await post(client, "/v1/responses", {"input": "x", "reasoning_budget": budget}))["output"]
            for budget in (50, 0)
        ]
    assert most[1]["content"][0]["text"] == less[1]["content"][0]["text"] == "Yes."
    assert len(less[0]["content"][0]["text"]) < len(most[0]["content"][0]["text"]) < len(THOUGHT)


async def test_whoever_waits_may_have_the_answer_now(database: Database) -> None:
    model = WaitingModel([REPLY], name=MODEL, chat_template=THINKS)
    async with answering(database, model=model) as client:
        async with client.post("/v1/responses", json={"input": "x", "stream": True}) as running:
            id = response_id_of(await running.content.readuntil(b"}\n\n"))
            keys = Keys(database, SECRET)
            key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "other"))[1]
            stranger = {"Authorization": f"Bearer {key}"}
            async with client.post(f"/v1/responses/{id}/answer_now", headers=stranger) as refused:
                assert refused.status == 404
            told = await post(client, f"/v1/responses/{id}/answer_now", {}, 202)
            rest = await running.text()
        assert told == {"object": "response.answer_now", "response": id}
        assert THOUGHT not in rest and "Yes." in rest
        await post(client, f"/v1/responses/{id}/answer_now", {}, 202)  # without effect
        assert (await get(client, f"/v1/responses/{id}"))["status"] == "completed"
        assert (await trace_of(client, id))["attributes"]["firsttoken.answer_now"] is True
        await post(client, "/v1/responses/resp_0/answer_now", {}, 404)


async def test_the_answer_may_be_asked_for_at_another_worker(database: Database) -> None:
    model = WaitingModel([REPLY], name=MODEL, chat_template=THINKS)
    async with (
        colleagues(database, model) as (client, other),
        client.post("/v1/responses", json={"input": "x", "stream": True}) as running,
    ):
        id = response_id_of(await running.content.readuntil(b"}\n\n"))
        await post(other, f"/v1/responses/{id}/answer_now", {}, 202)
        rest = await running.text()
    assert THOUGHT not in rest and "Yes." in rest


async def test_a_trace_tells_how_long_the_thought_of_a_step_was(database: Database) -> None:
    async with answering(database, model=thinker()) as client:
        told = await post(client, "/v1/responses", {"input": "x", "reasoning_budget": 2})
        trace = await trace_of(client, told["id"])
    (decode,) = [span for span in trace["spans"] if span["name"] == "decode"]
    assert decode["attributes"]["reasoning_tokens"] == told["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert "firsttoken.answer_now" not in trace["attributes"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("target_ms", "share"), [(60_000, 1), (1e-3, 0)])
async def test_the_first_text_of_the_answer_has_a_time_and_a_target_of_its_own(
    database: Database, path: str, target_ms: float, share: float
) -> None:
    targets = Targets().with_those_of({"embedded": Surface(first_answer_ms=target_ms)})
    async with answering(database, model=thinker(), targets=targets) as client:
        for streamed in (False, True):
            body = BODIES[path]
            await (stream if streamed else post)(client, path, body)
        summary = await get(client, "/ops/api/summary")
    rows = {row["name"]: row["turns"] for row in summary["spans"]}
    assert rows["first_answer"] == rows["first_token"] == 2
    assert summary["ttfa_ms"]["p50"] >= summary["ttft_ms"]["p50"] > 0
    assert (summary["judged"], summary["within_target"]) == (2, 2 * share)
    (row,) = summary["surfaces"]
    assert row["target"]["ttfa_ms"] == target_ms
