"""Every turn that was asked for counts, also those that were sent away before they began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from agents.definition import USUAL
from inference.errors import Late
from inference.generation import Due, Priority
from inference.trace import Trace
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering
from tests.worker.harness import Client, make_services
from worker.auth.principal import NOBODY, KeyLimits, Principal
from worker.config import Config
from worker.runs.ledger import Ledger
from worker.wire.chat_request import ChatRequest
from worker.wire.completion import ChatCompletion
from worker.wire.strict import parse

READ = {"prompt_cache_options": {"prewarm": True}}
USER = {"role": "user", "content": "hi"}
ROUTES: Mapping[str, dict[str, Any]] = {"/v1/responses": {"input": "hi"}, "/v1/chat/completions": {"messages": [USER]}}


class BusyModel(ScriptedModel):
    """Knows at once that an answer would be late."""

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        self.dues.append(due)
        if not due.waits:
            raise Late("too late", 1.5)


async def surface(client: Client) -> dict[str, Any]:
    async with client.get("/ops/api/summary") as answer:
        (row,) = (await answer.json())["surfaces"]
    return dict(row)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_turn_that_is_sent_away_counts_as_late(database: Database, path: str) -> None:
    model = BusyModel(["Hello."], name=MODEL)
    async with answering(database, model=model, config=Config(late="refuse")) as client:
        async with client.post(path, json=ROUTES[path]) as refused:
            assert (refused.status, refused.headers["Retry-After-Ms"]) == (503, "1500")
            assert (await refused.json())["error"]["code"] == "overloaded"
        row = await surface(client)
    assert (row["requests"], row["judged"], row["within_target"]) == (1, 1, 0)
    assert model.prompts == []


@pytest.mark.parametrize("path", ROUTES)
async def test_a_turn_over_a_cap_counts_as_late(database: Database, path: str) -> None:
    model = StallingModel(["Hello."], name=MODEL)
    async with (
        answering(database, model=model, config=Config(turns=2)) as client,
        client.post(path, json={**ROUTES[path], "stream": True}) as running,
    ):
        await running.content.readuntil(b"data:")
        async with client.post(path, json=ROUTES[path]) as refused:
            assert refused.status == 429
        row = await surface(client)
    assert (row["requests"], row["judged"], row["within_target"]) == (1, 1, 0)


@pytest.mark.parametrize("path", ROUTES)
async def test_who_prefers_to_wait_is_taken(database: Database, path: str) -> None:
    model = BusyModel(["Hello."], name=MODEL)
    async with answering(database, model=model) as client:
        async with client.post(path, json=ROUTES[path], headers={"x-firsttoken-late": "wait"}) as answer:
            assert answer.status == 200
        async with client.post(path, json=ROUTES[path], headers={"x-firsttoken-late": "never"}) as wrong:
            assert (await wrong.json())["error"]["param"] == "X-Firsttoken-Late"
    assert [due.waits for due in model.dues] == [True, True]  # before it is read, and when it is submitted
    assert {due.pace_s for due in model.dues} == {0.1}  # embedded=500/100


async def test_an_operator_may_have_all_wait(database: Database) -> None:
    model = BusyModel(["Hello."], name=MODEL)
    async with answering(database, model=model, config=Config(late="wait")) as client:
        async with client.post("/v1/responses", json={"input": "hi"}) as answer:
            assert answer.status == 200
        async with client.post("/v1/responses", json={"input": "hi"}, headers={"x-firsttoken-late": "refuse"}) as late:
            assert late.status == 503


async def test_a_prompt_that_is_only_read_is_neither_late_nor_on_time_but_counts(database: Database) -> None:
    model = ScriptedModel(["Hello."], name=MODEL)
    async with answering(database, model=model, config=Config(turns=2)) as client:
        async with client.post("/v1/responses", json={"input": "hi", **READ}) as answer:
            read = await answer.json()
        row = await surface(client)
    assert (read["status"], read["output"], read["usage"]["output_tokens"]) == ("completed", [], 0)
    assert (row["requests"], row["judged"]) == (1, 0)


@pytest.mark.parametrize(
    ("tier", "of_key", "surface", "expected"),
    [
        (None, "interactive", "chat", Priority.STANDARD),
        ("priority", "interactive", "chat", Priority.INTERACTIVE),
        ("priority", "standard", "chat", Priority.STANDARD),
        ("priority", "batch", "chat", Priority.BATCH),
        ("priority", "interactive", "batch", Priority.BATCH),
        ("flex", "interactive", "chat", Priority.BATCH),
    ],
)
async def test_a_turn_is_in_the_lowest_class_of_its_request_its_key_and_its_surface(
    database: Database, tier: str | None, of_key: str, surface: str, expected: Priority
) -> None:
    services = replace(make_services(database), surfaces=USUAL)
    principal = Principal(NOBODY, "key_1", frozenset(), "api_key", KeyLimits.model_validate({"class": of_key}))
    asked = {"messages": [USER], "service_tier": tier, "metadata": {"firsttoken:surface": surface}}
    body = parse(ChatRequest, orjson.dumps(asked))
    ledger = Ledger(services, principal, Trace(), ChatCompletion(body, MODEL))
    assert ledger.priority is ledger.applied(body.turn(NOBODY)).priority is expected
