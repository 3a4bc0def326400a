"""What people think of an answer is kept with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from migrations.pool import Database
from tests.worker.answering import MODEL, StallingModel, answering, get, post
from tests.worker.harness import Client
from worker.runs.manager import Runs
from worker.runs.running_store import RunningStore

URL = "/v1/responses"


async def test_feedback_is_part_of_the_response_until_it_is_taken_back(client: Client) -> None:
    id = (await post(client, URL, {"input": "hello", "metadata": {"mine": "1"}}))["id"]
    told = await post(client, f"{URL}/{id}/feedback", {"rating": "down", "comment": "Too short."})
    assert (told["response"], told["rating"], told["comment"]) == (id, "down", "Too short.")
    kept = {"mine": "1", "firsttoken:rating": "down", "firsttoken:comment": "Too short."}
    assert (await get(client, f"{URL}/{id}"))["metadata"] == kept
    noted = (await get(client, f"/ops/api/traces/{id}"))["attributes"]
    assert (noted["firsttoken:rating"], noted["firsttoken:comment"]) == ("down", "Too short.")
    await post(client, f"{URL}/{id}/feedback", {"rating": None, "comment": "x"})
    assert (await get(client, f"{URL}/{id}"))["metadata"] == {"mine": "1"}


async def test_a_conversation_read_later_tells_how_its_answers_were_rated(client: Client) -> None:
    conversation = (await post(client, "/v1/conversations", {}))["id"]
    ids = [(await post(client, URL, {"input": "hello", "conversation": conversation}))["id"] for _ in range(2)]
    await post(client, f"{URL}/{ids[1]}/feedback", {"rating": "up", "comment": "Short."})
    query = "order=asc&include[]=firsttoken:feedback"
    items = (await get(client, f"/v1/conversations/{conversation}/items?{query}"))["data"]
    given = {item["firsttoken_response_id"]: item["firsttoken_feedback"] for item in items}
    assert given == {ids[0]: None, ids[1]: {"rating": "up", "comment": "Short."}}


@pytest.mark.parametrize("body", [{}, {"rating": "sideways"}, {"rating": "up", "comment": "x" * 513}])
async def test_feedback_is_up_or_down_and_short(client: Client, body: dict[str, Any]) -> None:
    await post(client, f"{URL}/resp_none/feedback", body, 400)


async def test_only_ones_own_answers_are_rated(client: Client) -> None:
    await post(client, f"{URL}/resp_of_others/feedback", {"rating": "up"}, 404)


async def test_an_answer_is_rated_when_it_is_there(database: Database) -> None:
    model = StallingModel(["Hello."], name=MODEL)
    async with answering(database, model=model) as client:
        id = (await post(client, URL, {"input": "hello", "background": True}))["id"]
        refused = await post(client, f"{URL}/{id}/feedback", {"rating": "up"}, 400)
        await post(client, f"{URL}/{id}/cancel", {})
    assert id in refused["error"]["message"]
    assert refused["error"]["param"] is None  # neither rating nor comment is at fault


async def test_who_reads_the_end_of_an_answer_finds_its_trace(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even before the worker that made it hears that the end is stored."""
    finish, find, asked, hears = RunningStore.finish, Runs.get, asyncio.Event(), asyncio.Event()

    async def finish_unheard(store: RunningStore, *end: Any) -> Any:
        successor = await finish(store, *end)
        await hears.wait()
        return successor

    def noted(runs: Runs, *named: Any) -> Any:
        asked.set()
        return find(runs, *named)

    monkeypatch.setattr(RunningStore, "finish", finish_unheard)
    async with answering(database, "Hello.") as client:
        id = (await post(client, URL, {"input": "hello", "background": True}))["id"]
        while (await get(client, f"{URL}/{id}"))["status"] != "completed":
            pass
        monkeypatch.setattr(Runs, "get", noted)
        reading = asyncio.create_task(get(client, f"/ops/api/traces/{id}"))
        await asyncio.wait([reading, asyncio.ensure_future(asked.wait())], return_when=asyncio.FIRST_COMPLETED)
        hears.set()
        assert (await reading)["response_id"] == id
