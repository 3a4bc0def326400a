"""Service tiers: how urgent a turn is, and that the answer says so."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from inference.generation import Priority
from migrations.pool import Database
from tests.worker.answering import MODEL, StallingModel, answering, post, stream
from worker.wire.chat_request import ChatRequest
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import parse

CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("tier", "by_program", "by_person"),
    [
        (None, Priority.STANDARD, Priority.INTERACTIVE),
        ("auto", Priority.STANDARD, Priority.INTERACTIVE),
        ("default", Priority.STANDARD, Priority.INTERACTIVE),
        ("flex", Priority.BATCH, Priority.BATCH),
        ("priority", Priority.INTERACTIVE, Priority.INTERACTIVE),
        ("fast", Priority.INTERACTIVE, Priority.INTERACTIVE),
        ("ultrafast", Priority.INTERACTIVE, Priority.INTERACTIVE),
        ("scale", Priority.STANDARD, Priority.INTERACTIVE),
    ],
)
@pytest.mark.parametrize("of_chat", [False, True])
def test_the_tier_and_who_asks_decide_the_class(
    tier: str | None, by_program: Priority, by_person: Priority, of_chat: bool
) -> None:
    for watched, expected in ((False, by_program), (True, by_person)):
        model, body = (ChatRequest, CHAT) if of_chat else (ResponseRequest, {"input": "x"})
        assert parse(model, orjson.dumps({**body, "service_tier": tier})).priority(watched=watched) == expected


@pytest.mark.parametrize(
    ("asked", "used"), [(None, "default"), ("auto", "default"), ("flex", "flex"), ("priority", "priority")]
)
async def test_the_answer_names_the_tier_that_was_used(database: Database, asked: str | None, used: str) -> None:
    async with answering(database, "Hello.") as client:
        body: dict[str, Any] = {"input": "x", "service_tier": asked}
        assert (await post(client, "/v1/responses", body))["service_tier"] == used
        assert (await post(client, "/v1/chat/completions", {**CHAT, "service_tier": asked}))["service_tier"] == used
        events = await stream(client, "/v1/responses", body)
    assert {event["response"]["service_tier"] for event in events if "response" in event} == {used}


@pytest.mark.parametrize(
    ("asked", "standard", "batch"),
    [
        (None, None, "flex"),
        ("flex", "flex", "flex"),
        ("default", "default", "flex"),
        ("priority", "default", "flex"),
        ("ultrafast", "default", "flex"),
    ],
)
def test_a_key_gets_no_better_tier_than_its_class(asked: str | None, standard: str | None, batch: str) -> None:
    request = parse(ResponseRequest, orjson.dumps({"input": "x", "service_tier": asked}))
    assert request.entitled(Priority.INTERACTIVE) is request
    assert request.entitled(Priority.STANDARD).service_tier == standard
    assert request.entitled(Priority.BATCH).service_tier == batch


async def test_a_tier_that_does_not_exist_is_refused(database: Database) -> None:
    async with answering(database, model=StallingModel(["x"], name=MODEL)) as client:
        error = (await post(client, "/v1/responses", {"input": "x", "service_tier": "gold"}, 400))["error"]
    assert error["param"] == "service_tier"
