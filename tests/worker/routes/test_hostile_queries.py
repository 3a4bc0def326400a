"""Anything at all as a query: an answer, or a refusal that names the parameter, never a 500."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from yarl import URL

from migrations.pool import Database
from tests.worker.answering import answering, get, post
from tests.worker.harness import Client
from worker.routes.ops import SECONDS_MAX, WINDOW_S_MAX
from worker.wire.options import INCLUDABLE

VALUES = ("%00", "%ED%A0%80", "-1", "nan", "inf", "9" * 400, "x" * 201, "resp_%00", "1")
NAMES = ("start", "surface", "tenant", "key", "worker", "status", "against_key", "q", "after", "slower_ms", "limit")
STRETCHES = (
    (0, 0.001),
    (0, WINDOW_S_MAX),
    (SECONDS_MAX - WINDOW_S_MAX, SECONDS_MAX),
    (SECONDS_MAX - 1, SECONDS_MAX),
    (SECONDS_MAX - 1, SECONDS_MAX + 1),
)


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "Hello.") as client:
        yield client


@pytest.mark.parametrize("view", ["summary", "series", "comparison", "traces"])
async def test_whatever_is_asked_for_is_told_or_refused(client: Client, view: str) -> None:
    asked = [f"{name}={value}" for name in NAMES for value in VALUES]
    for start, end in STRETCHES:
        asked += [f"start={start}&end={end}", f"start=0&end=60&against_start={start}&against_end={end}"]
    for query in asked:
        async with client.get(URL(f"/ops/api/{view}?{query}", encoded=True)) as answer:
            assert answer.status in (200, 400), (query, await answer.text())


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/v1/responses/{response}", "stream=maybe", "stream"),
        ("/v1/responses/{response}", "include[]=everything", "include"),
        ("/v1/responses/{response}", "include=file_search_call.results&include=", "include"),
        ("/v1/responses/{response}/input_items", "include=everything", "include"),
        ("/v1/conversations", "pinned=1", "pinned"),
        ("/v1/conversations/{conversation}/items", "include[]=everything", "include"),
        ("/v1/conversations/{conversation}/items/{item}", "include[]=firsttoken:versions", "include"),
        ("/v1/files/file_0/content", "form=html", "form"),
    ],
)
async def test_what_a_query_cannot_mean_is_refused_by_its_name(
    client: Client, path: str, query: str, param: str
) -> None:
    conversation = (await post(client, "/v1/conversations", {}))["id"]
    response = (await post(client, "/v1/responses", {"input": "x", "conversation": conversation}))["id"]
    item = (await get(client, f"/v1/conversations/{conversation}/items"))["data"][0]["id"]
    asked = path.format(response=response, conversation=conversation, item=item)
    assert (await get(client, f"{asked}?{query}", 400))["error"]["param"] == param


async def test_what_the_contract_can_include_is_taken(client: Client) -> None:
    response = (await post(client, "/v1/responses", {"input": "x"}))["id"]
    asked = "&".join(f"include[]={value}" for value in INCLUDABLE)
    assert (await get(client, f"/v1/responses/{response}?stream=false&{asked}"))["id"] == response
