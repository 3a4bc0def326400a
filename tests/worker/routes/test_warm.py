"""Somebody is about to ask: what stands before the question is read, and nothing else happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from agents.agent import Agent
from agents.definition import Surface
from agents.toolbox import Toolbox
from migrations.pool import Database
from retrieval.speculative_search import SpeculativeSearch
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, PASSAGE, ShelfRetriever, answering, double, get, post, services_with
from tests.worker.harness import SECRET, Client, serving
from tests.worker.sharing import signed_in
from worker.auth.keys import Keys
from worker.lifecycle.prewarm import TENANT_MAX

URL = "/v1/conversations"
ITEMS = [
    {"type": "message", "role": "user", "content": "Hello."},
    {"type": "message", "role": "assistant", "content": "Good day."},
]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["Yes."], name=MODEL)


async def made(client: Client) -> str:
    return str((await post(client, URL, {"items": ITEMS}))["id"])


async def test_the_next_turn_begins_with_what_was_read(client: Client, model: ScriptedModel) -> None:
    id = await made(client)
    asked = {"tools": [{"type": "firsttoken:double"}], "instructions": "Be terse."}
    told = await post(client, f"{URL}/{id}/warm", asked, 202)
    assert told == {"object": "conversation.warm", "conversation": id, "status": "reading"}
    await post(client, "/v1/responses", {**asked, "conversation": id, "input": "And now?"})
    [ahead], [prompt] = model.ahead, model.prompts
    assert prompt.startswith(ahead)
    assert "Good day." in ahead and "double" in ahead and "Be terse." in ahead
    assert len((await get(client, f"{URL}/{id}/items"))["data"]) == 4, "only the turn left something"


async def test_a_conversation_that_is_not_made_yet_can_be_warmed(client: Client, model: ScriptedModel) -> None:
    told = await post(client, f"{URL}/warm", {"instructions": "Be terse."}, 202)
    assert (told["conversation"], told["status"]) == (None, "reading")
    assert "Be terse." in model.ahead[0]


async def test_what_is_read_has_what_its_surface_says(database: Database, model: ScriptedModel) -> None:
    surfaces = {"embedded": Surface(instructions="Begin with the answer.")}
    keys = Keys(database, SECRET)
    async with serving(replace(services_with(database, model), surfaces=surfaces)) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        await post(client, f"{URL}/warm", {"instructions": "Be terse."}, 202)
        await post(client, "/v1/responses", {"instructions": "Be terse.", "input": "And now?"})
    [ahead], [prompt] = model.ahead, model.prompts
    assert "Begin with the answer." in ahead and prompt.startswith(ahead)


async def test_a_surface_may_be_named(database: Database, model: ScriptedModel) -> None:
    headers, body = {"X-Firsttoken-Surface": "voice"}, {"instructions": "Be terse."}
    services = replace(services_with(database, model), surfaces={"voice": Surface(instructions="Speak plainly.")})
    async with signed_in(database, services) as client:
        async with client.post(f"{URL}/warm", json=body, headers=headers) as answer:
            assert answer.status == 202
        async with client.post("/v1/responses", json=body | {"input": "And now?"}, headers=headers) as answer:
            assert answer.status == 200
        async with client.post(f"{URL}/warm", json=body, headers={"X-Firsttoken-Surface": "moon"}) as refused:
            assert (refused.status, (await refused.json())["error"]["param"]) == (400, "X-Firsttoken-Surface")
    [ahead], [prompt] = model.ahead, model.prompts
    assert "Speak plainly." in ahead and prompt.startswith(ahead)


async def test_one_conversation_is_read_once_at_a_time(client: Client, model: ScriptedModel) -> None:
    id = await made(client)
    statuses = [(await post(client, f"{URL}/{id}/warm", {}, 202))["status"] for _ in range(3)]
    assert statuses == ["reading", "skipped", "skipped"]
    assert len(model.ahead) == 1


async def test_a_tenant_has_few_readings_at_once_and_another_has_its_own(
    client: Client, database: Database, model: ScriptedModel
) -> None:
    ids = [await made(client) for _ in range(TENANT_MAX + 1)]
    statuses = [(await post(client, f"{URL}/{id}/warm", {}, 202))["status"] for id in ids]
    assert statuses == ["reading"] * TENANT_MAX + ["skipped"]
    keys = Keys(database, SECRET)
    key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "other"))[1]
    async with client.post(f"{URL}/warm", json={}, headers={"Authorization": f"Bearer {key}"}) as answer:
        assert (await answer.json())["status"] == "reading"


async def test_another_tenants_conversation_does_not_exist(client: Client, database: Database) -> None:
    id = await made(client)
    keys = Keys(database, SECRET)
    key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "other"))[1]
    for _ in range(2):  # and the refusal is no reading that would hide the next one
        async with client.post(f"{URL}/{id}/warm", json={}, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "conversation_not_found"


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"input": 5}, "input", 400),
        ({"conversation": "conv_1"}, "conversation", 400),
        ({"stream": True}, "stream", 400),
        ({"surprise": 1}, "surprise", 400),
        ({"tools": 5}, "tools", 400),
        ({"tools": [{"type": "firsttoken:nothing"}]}, "tools", 400),
        ({"model": "unknown"}, "model", 404),
    ],
)
async def test_what_is_wrong_is_named(client: Client, body: dict[str, Any], param: str, status: int) -> None:
    refused = await post(client, f"{URL}/warm", body, status)
    assert refused["error"]["param"] == param


async def test_a_model_that_is_busy_reads_nothing(database: Database) -> None:
    class Busy(ScriptedModel):
        def prefill_ahead(self, *args: Any, **rest: Any) -> None:
            return None

    async with answering(database, model=Busy(["Yes."], name=MODEL)) as client:
        assert (await post(client, f"{URL}/warm", {}, 202))["status"] == "skipped"


class Shelf(ShelfRetriever):
    async def prepare(self, *, tenant_id: UUID, stores: Sequence[str]) -> None:
        pass


@asynccontextmanager
async def searching(database: Database, model: ScriptedModel) -> AsyncIterator[tuple[Client, SpeculativeSearch]]:
    """A client whose worker has documents."""
    speculative_search = SpeculativeSearch(ShelfRetriever(), is_free=lambda: True)
    services = services_with(database, model)
    services = replace(
        services,
        retriever=cast(Any, Shelf()),
        speculative_search=speculative_search,
        agent=Agent(model, speculative_search, Toolbox([double])),
    )
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client, speculative_search


SEARCH = {"tools": [{"type": "file_search", "vector_store_ids": ["docs"]}, {"type": "firsttoken:double"}]}
DRAFT = {**SEARCH, "input": "Which port?"}


async def test_what_is_written_so_far_is_searched_for_and_read_for_who_sends_it(
    database: Database, model: ScriptedModel
) -> None:
    async with searching(database, model) as (client, speculative_search):
        id = await made(client)
        assert (await post(client, f"{URL}/{id}/warm", DRAFT, 202))["status"] == "reading"
        await post(client, "/v1/responses", {**DRAFT, "conversation": id})
        assert speculative_search.counts == {"used": 1, "wasted": 0, "cancelled": 0}
        [prompt], draft = model.prompts, model.ahead[1]
        assert draft == prompt, "the answer begins without a step"
        assert PASSAGE.text in draft and "Which port?" not in model.ahead[0]
        assert len((await get(client, f"{URL}/{id}/items"))["data"]) == 5


async def test_the_next_key_ends_the_reading_of_the_last_draft(database: Database, model: ScriptedModel) -> None:
    async with searching(database, model) as (client, speculative_search):
        id = await made(client)
        for count, unfinished in enumerate(("Whi", "Which one?"), 1):
            await post(client, f"{URL}/{id}/warm", {**SEARCH, "input": unfinished}, 202)
            reading = model.generations[-1]
            assert unfinished in model.ahead[-1] and reading.finish is None
            await post(client, f"{URL}/{id}/warm", SEARCH, 202)
            assert bool(reading.cancelled)
            assert speculative_search.counts == {"used": 0, "wasted": count, "cancelled": 0}


async def test_a_draft_beside_which_somebody_waits_is_not_read(database: Database, model: ScriptedModel) -> None:
    async with searching(database, model) as (client, speculative_search):
        speculative_search.is_free = lambda: False
        await post(client, f"{URL}/warm", DRAFT, 202)
        assert not any("Which port?" in prompt for prompt in model.ahead)
