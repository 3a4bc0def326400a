"""Who asks to wait is told where it stands, on every transport, and nobody else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agents import step
from inference.generation import ANY_TERMS, Delta, Forecast, Sampling, Terms
from migrations.pool import Database
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.answering import MODEL, answering
from tests.worker.harness import Client
from worker.config import Config

USER = {"role": "user", "content": "hi"}
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hi"},
    "/v1/chat/completions": {"messages": [USER], "n": 2},
    "/v1/completions": {"prompt": "hi", "n": 2},
    "/v1/messages": {"messages": [USER], "max_tokens": 50},
}
WAIT = {"x-firsttoken-late": "wait"}
TURNS = 20  # of the event loop: enough for somebody to look where it stands


class QueuedGeneration(ScriptedGeneration):
    """The third that waits, then the second, then its prompt is read, and then it answers."""

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for self.queue_position, self.read_tokens in ((3, None), (2, None), (None, 0), (None, 1), (None, None)):
            for _ in range(TURNS):
                await asyncio.sleep(0)
        async for delta in super().__aiter__():
            yield delta


class QueuedModel(ScriptedModel):
    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        generation = QueuedGeneration(self.replies[0], len(prompt), sampling, self.piece_chars)
        generation.facts.forecast = Forecast(60.0, 0.0)
        return generation


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "POSITION_AFTER_S", 0.0)
    monkeypatch.setattr(step, "POSITION_EVERY_S", 0.0)


async def told(client: Client, path: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    body = {**BODIES[path], "stream": True}
    async with client.post(path, json=body, headers=headers) as answer:
        lines = (await answer.read()).splitlines()
    return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


@pytest.mark.parametrize("path", BODIES)
async def test_who_asks_to_wait_is_told_its_place_and_when_it_has_changed(database: Database, path: str) -> None:
    async with answering(database, model=QueuedModel(["Hello."], name=MODEL)) as client:
        events = await told(client, path, WAIT)
    places = [each if path == "/v1/responses" else each["firsttoken:queued"] for each in events if is_place(each)]
    assert [each["place"] for each in places] == [3, 2, 0, 0]
    assert [each.get("read_tokens") for each in places] == [None, None, 0, 1]
    assert places[-1]["prompt_tokens"] >= 1 and "prompt_tokens" not in places[0]
    assert all(50_000 < each["expected_ms"] <= 60_000 for each in places)
    assert not is_place(events[-1])


def is_place(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "firsttoken:queued" or "firsttoken:queued" in event


@pytest.mark.parametrize("path", BODIES)
async def test_nobody_else_is_told(database: Database, path: str) -> None:
    async with answering(database, model=QueuedModel(["Hello."], name=MODEL), config=Config(late="wait")) as client:
        for headers in ({}, {"x-firsttoken-late": "refuse"}):
            assert not any(map(is_place, await told(client, path, headers)))


async def test_the_trace_has_the_place_that_it_had(database: Database) -> None:
    async with answering(database, model=QueuedModel(["Hello."], name=MODEL)) as client:
        body = {"input": "hi", "include": ["firsttoken:trace"], "stream": True}
        async with client.post("/v1/responses", json=body, headers=WAIT) as answer:
            lines = (await answer.read()).splitlines()
    [trace] = [
        orjson.loads(line[6:])["trace"] for line in lines if b'"firsttoken:trace"' in line and line[:5] == b"data:"
    ]
    [queue] = [span for span in trace["spans"] if span["name"] == "queue"]
    assert queue["attributes"]["place"] == 3


async def test_official_clients_read_on_over_it(database: Database) -> None:
    async with answering(database, model=QueuedModel(["Hello."], name=MODEL)) as client:
        url, key = (
            str(client.make_url("/")).rstrip("/"),
            client.session.headers["Authorization"].removeprefix("Bearer "),
        )
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers=WAIT) as openai:
            messages: Any = [USER]
            chunks = await openai.chat.completions.create(model=MODEL, messages=messages, stream=True)
            said = [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
            async with openai.responses.stream(model=MODEL, input="hi") as events:
                answer = await events.get_final_response()
        async with (
            AsyncAnthropic(base_url=url, api_key=key, default_headers=WAIT) as anthropic,
            anthropic.messages.stream(model=MODEL, max_tokens=50, messages=messages) as stream,
        ):
            message = await stream.get_final_text()
    assert ("".join(said), answer.output_text, message) == ("Hello.", "Hello.", "Hello.")
