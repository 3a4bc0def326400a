"""A real worker and servers that misbehave, asked as a suite asks them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from worker.cli.evals.eval_client import EvalClient
from worker.cli.evals.eval_runner import Judge
from worker.cli.evals.graders import grade
from worker.cli.evals.suite import Case, Defaults
from worker.errors import StartError


def case(**asked: Any) -> Case:
    return Case.model_validate({"input": "Hello!", **asked}).with_defaults(Defaults(max_tokens=60), "x")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@asynccontextmanager
async def serving(*answers: web.Response) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server of somebody else's that gives these answers, one after another, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "other"}]})

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        answer = answers[min(len(asked), len(answers)) - 1]
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)  # each goes out once

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def stream(*chunks: dict[str, Any]) -> web.Response:
    body = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    return web.Response(body=body, content_type="text/event-stream")


def said(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


@pytest.mark.any_answer("what is said is not looked at, only that it is told whole")
async def test_a_worker_tells_its_answer_its_passages_and_what_they_took(
    server: dict[str, Any], http: aiohttp.ClientSession
) -> None:
    client = EvalClient(http, server["url"], server["api_key"])
    await client.check()
    assert client.model == "demo-chat"
    searched = await client.ask(case(input="How is a model quantised?", stores=["docs"], expect={"pattern": "."}))
    assert searched.error is None
    assert searched.text
    assert all(found.file and found.text for found in searched.found)
    took = searched.took
    assert took.first_ms and took.total_ms and 0 < took.first_ms <= took.total_ms
    assert took.input_tokens and took.output_tokens
    asked = case(input="How is a model quantised?", stores=["docs"], expect={"finds": [{"file": "models.md"}]})
    found = await client.ask(asked)
    assert not found.text and 5 <= len(found.found) <= 10
    assert found.took.output_tokens is None


async def test_calls_are_told_with_their_arguments(server: dict[str, Any], http: aiohttp.ClientSession) -> None:
    client = EvalClient(http, server["url"], server["api_key"], "demo-chat")
    tools = [
        {
            "name": "calculator",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "The arithmetic expression"}},
                "required": ["expression"],
            },
        }
    ]
    calls = [{"name": "calculator", "arguments": {"expression": "127 * 49"}}]
    asked = case(input="What is 127 * 49?", tools=tools, expect={"calls": calls})
    assert grade(asked, await client.ask(asked)) == {"calls": 1.0}


async def test_who_cannot_be_asked_is_told_before_the_first_case(
    server: dict[str, Any], http: aiohttp.ClientSession
) -> None:
    with pytest.raises(StartError, match=r"there is no model nothing\. It serves: demo-chat"):
        await EvalClient(http, server["url"], server["api_key"], "nothing").check()
    with pytest.raises(StartError, match="status 401"):
        await EvalClient(http, server["url"], "ft_wrong").check()
    with pytest.raises(StartError, match="there is no response"):
        await EvalClient(http, "http://127.0.0.1:9", "").check()


async def test_another_server_needs_chat_completions_alone(http: aiohttp.ClientSession) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    pieces = [
        {"index": 0, "function": {"name": "f", "arguments": '{"a"'}},
        {"index": 1, "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ]
    reply = stream(said(content="He"), said(content="llo"), *(said(tool_calls=[each]) for each in pieces), usage)
    async with serving(reply) as (url, asked):
        client = EvalClient(http, url, "")
        await client.check()
        answer = await client.ask(case(instructions="Greet.", expect={"exact": "Hello"}))
    assert (answer.text, [(call.name, call.arguments) for call in answer.calls]) == (
        "Hello",
        [("f", '{"a":1}'), ("g", "{}")],
    )
    assert (answer.took.input_tokens, answer.took.output_tokens, answer.took.engine_ms) == (7, 2, None)
    assert asked[0]["messages"] == [{"role": "system", "content": "Greet."}, {"role": "user", "content": "Hello!"}]


async def test_a_busy_server_is_asked_again_and_a_broken_one_is_no_answer(http: aiohttp.ClientSession) -> None:
    busy = web.json_response({"error": {"message": "later"}}, status=503, headers={"Retry-After": "0"})
    async with serving(busy, stream(said(content="Hi"))) as (url, asked):
        assert (await EvalClient(http, url, "", "other").ask(case(expect={"exact": "Hi"}))).text == "Hi"
        assert len(asked) == 2
    for broken, reason in (
        (web.json_response({"error": {"message": "it\nbroke"}}, status=500), "status 500: it broke"),
        (stream({"error": {"message": "half way"}}), "half way"),
        (web.Response(body=b"data: {nothing}\n\n"), "JSONDecodeError"),
    ):
        async with serving(broken) as (url, _):
            answer = await EvalClient(http, url, "", "other").ask(case(expect={"exact": "Hi"}))
        assert answer.error is not None
        assert reason in answer.error


@pytest.mark.parametrize(
    "chunk",
    [
        [],
        {"choices": [5]},
        {"choices": [], "usage": 5},
        said(tool_calls=[{"index": 10**12, "function": {"name": "x"}}]),
        said(tool_calls=[{"index": -1, "function": {"name": "x"}}]),
        said(content=5),
    ],
    ids=["a list", "no choice", "no usage", "a far call", "a call before the first", "no text"],
)
async def test_what_no_server_says_is_no_answer_and_no_verdict(http: aiohttp.ClientSession, chunk: Any) -> None:
    async with serving(stream(chunk)) as (url, _):
        client = EvalClient(http, url, "")
        await client.check()
        assert (await client.ask(case(expect={"exact": "Hi"}))).error
        with suppress(StartError):
            assert await client.decide("judge", "this", {}, 10) == {}


async def test_a_judge_decides_and_one_that_says_nothing_finds_nothing_true(http: aiohttp.ClientSession) -> None:
    judged = case(expect={"judge": "It greets."})
    for text, worth in (('{"reason": "It does.", "verdict": "yes"}', 1.0), ('{"verdict": "no"}', 0.0), ("Well,", 0.0)):
        async with serving(stream(said(content=text))) as (url, asked):
            client = EvalClient(http, url, "", "other")
            answer = await client.ask(judged)
            assert await Judge(client).judged(judged, answer) == worth
        assert "Criterion:\nIt greets." in asked[1]["messages"][1]["content"]
        assert asked[1]["response_format"]["json_schema"]["strict"]
