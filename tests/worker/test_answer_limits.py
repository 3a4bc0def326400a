"""The longest answer: as long as its request asks for, unless the worker, an agent, a key or a surface sets less."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering
from tests.worker.harness import Client
from worker.config import Config

LONG = "word " * 3000  # more than the token budget of the agent loop
MESSAGES = [{"role": "user", "content": "talk"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "talk"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "talk", "max_tokens": 20_000},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 20_000},
}
apis = pytest.mark.parametrize("path", APIS)
CUT = "firsttoken:cut"


async def asked(client: Client, path: str, *, stream: bool, **more: Any) -> tuple[dict[str, Any], str | None]:
    """The answer, or the last event of its stream that says how it ended; and the header that says so."""
    async with client.post(path, json={**APIS[path], **more, "stream": stream}) as answer:
        assert answer.status == 200, await answer.text()
        header = answer.headers.get("X-Firsttoken-Cut")
        if not stream:
            return await answer.json(), header
        lines = [
            line.removeprefix("data: ") for line in (await answer.text()).split("\n") if line.startswith("data: {")
        ]
    events = [orjson.loads(line) for line in lines]
    return next(event for event in reversed(events) if ending(event)[0] is not None), header


def ending(told: dict[str, Any]) -> tuple[str | None, str | None]:
    """Why the answer ended: in the words of its API, and in ours."""
    if choices := told.get("choices"):
        return choices[0]["finish_reason"], choices[0].get(CUT)
    if "stop_reason" in told or "stop_reason" in told.get("delta", ()):
        return told.get("delta", told)["stop_reason"], told.get(CUT)
    details = told.get("response", told).get("incomplete_details") or {}
    return details.get("reason"), details.get(CUT)


IN_ITS_WORDS = {
    "/v1/responses": "max_output_tokens",
    "/v1/chat/completions": "length",
    "/v1/completions": "length",
    "/v1/messages": "max_tokens",
}


def talking(config: Config | None = None) -> dict[str, Any]:
    return {"model": ScriptedModel([LONG], name=MODEL, piece_chars=1), "config": config}


@apis
async def test_an_answer_is_as_long_as_its_model_makes_it(database: Database, path: str) -> None:
    async with answering(database, **talking()) as client:
        told, header = await asked(client, path, stream=False)
    assert ending(told)[0] in (None, "stop", "end_turn") and header is None
    assert orjson.dumps(told).count(b"word") == 3000


@apis
@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_of_the_worker_is_told(database: Database, path: str, *, stream: bool) -> None:
    async with answering(database, **talking(Config(answer_tokens=5))) as client:
        told, header = await asked(client, path, stream=stream)
    assert ending(told) == (IN_ITS_WORDS[path], "server.tokens")
    assert header == (None if stream else "server.tokens")


@apis
async def test_a_time_limit_is_told(database: Database, path: str) -> None:
    async with answering(database, **talking(Config(answer_s=1e-6))) as client:
        told, header = await asked(client, path, stream=False)
    assert ending(told) == (IN_ITS_WORDS[path], "server.seconds")
    assert header == "server.seconds"


@apis
@pytest.mark.parametrize("stream", [False, True])
async def test_the_length_that_was_asked_for_needs_no_words_of_ours(
    database: Database, path: str, *, stream: bool
) -> None:
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    async with answering(database, **talking(Config(answer_tokens=5))) as client:
        told, header = await asked(client, path, stream=stream, **{name: 5})
    assert (ending(told), header) == ((IN_ITS_WORDS[path], None), None)
