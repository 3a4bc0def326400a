"""/v1/conversations: made, filled, listed, renamed, deleted."""

from __future__ import annotations

from typing import Any

import pytest
from yarl import URL as Url

from agents.store.conversations import BEGINNING_CHARS_MAX
from tests.worker.answering import get, post
from tests.worker.harness import Client

URL = "/v1/conversations"


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


async def test_a_conversation_begins_with_items_and_metadata(client: Client) -> None:
    made = await post(client, URL, {"items": [said("a"), said("b", "assistant")], "metadata": {"title": "T"}})
    assert (made["object"], made["metadata"]) == ("conversation", {"title": "T"})
    assert await get(client, f"{URL}/{made['id']}") == made
    items = (await get(client, f"{URL}/{made['id']}/items?order=asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == ["a", "b"]


async def test_a_conversation_may_begin_with_an_empty_body(client: Client) -> None:
    async with client.post(URL) as answer:
        assert (await answer.json())["metadata"] == {}


async def test_metadata_is_replaced(client: Client) -> None:
    made = await post(client, URL, {"metadata": {"a": "1"}})
    assert (await post(client, f"{URL}/{made['id']}", {"metadata": {"b": "2"}}))["metadata"] == {"b": "2"}


async def test_a_deleted_conversation_is_gone(client: Client) -> None:
    made = await post(client, URL, {})
    async with client.delete(f"{URL}/{made['id']}") as answer:
        assert await answer.json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    await get(client, f"{URL}/{made['id']}", 404)


async def test_items_are_read_page_by_page(client: Client) -> None:
    made = await post(client, URL, {"items": [said(str(n)) for n in range(5)]})
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = await get(client, f"{URL}/{made['id']}/items?{query}")
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        query = f"limit=2&after={page['last_id']}"
    assert seen == ["4", "3", "2", "1", "0"]


async def test_items_are_added_read_and_deleted(client: Client) -> None:
    id = (await post(client, URL, {}))["id"]
    added = await post(client, f"{URL}/{id}/items", {"items": [said("a"), said("b")]})
    item = added["data"][0]
    assert await get(client, f"{URL}/{id}/items/{item['id']}") == item
    async with client.delete(f"{URL}/{id}/items/{item['id']}") as answer:
        assert (await answer.json())["id"] == id
    await get(client, f"{URL}/{id}/items/{item['id']}", 404)


async def test_a_conversation_goes_on_when_a_call_was_deleted_and_its_result_is_left(client: Client) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "2"}
    id = (await post(client, URL, {"items": [said("a"), call, result]}))["id"]
    called = (await get(client, f"{URL}/{id}/items?order=asc"))["data"][1]["id"]
    async with client.delete(f"{URL}/{id}/items/{called}") as answer:
        assert answer.status == 200
    body = {"conversation": id, "input": "b"}
    assert (await post(client, "/v1/responses", body))["status"] == "completed"
    refused = await post(client, "/v1/responses", {**body, "input": [result]}, 400)
    assert refused["error"]["param"] == "input"


async def test_a_list_tells_the_first_question_where_there_is_no_title(client: Client) -> None:
    items = [said("Be brief.", "system"), said("How high is it? " * 20)]
    titled = await post(client, URL, {"items": items, "metadata": {"title": "Heights"}})
    silent, asked = await post(client, URL, {}), await post(client, URL, {"items": items})
    told = {each["id"]: each.get("firsttoken_beginning") for each in (await get(client, URL))["data"]}
    assert told[asked["id"]].startswith("How high is it? How high") and len(told[asked["id"]]) == BEGINNING_CHARS_MAX
    assert told[titled["id"]] is None and told[silent["id"]] is None


async def test_pinned_conversations_can_be_listed_alone(client: Client) -> None:
    pinned = await post(client, URL, {"metadata": {"firsttoken:pinned": "true"}})
    await post(client, URL, {})
    assert [entry["id"] for entry in (await get(client, f"{URL}?pinned=true"))["data"]] == [pinned["id"]]


async def test_the_list_is_the_tenants_own_and_newest_first(client: Client) -> None:
    made = [(await post(client, URL, {}))["id"] for _ in range(3)]
    page = await get(client, f"{URL}?limit=2")
    assert [entry["id"] for entry in page["data"]] == [made[2], made[1]]
    assert page["has_more"]
    rest = await get(client, f"{URL}?limit=2&after={page['last_id']}")
    assert [entry["id"] for entry in rest["data"]] == [made[0]]
    assert not rest["has_more"]


@pytest.mark.parametrize(
    ("query", "todo"),
    [
        ("limit=x", "it must be a number from 1 to 100."),
        ("order=up", "'asc' or 'desc'"),
        ("after=a%20b", "use the id of the last entry received."),
        ("after=%00", "use the id of the last entry received."),
        ("before=item_1", "paged forwards"),
    ],
)
async def test_a_wrong_query_is_refused_by_the_name_of_its_parameter(client: Client, query: str, todo: str) -> None:
    id = (await post(client, URL, {}))["id"]
    error = (await get(client, f"{URL}/{id}/items?{query}", 400))["error"]
    assert error["param"] == query.split("=")[0] and todo in error["message"]


async def test_what_is_neither_true_nor_false_is_refused(client: Client) -> None:
    error = (await get(client, f"{URL}?pinned=1", 400))["error"]
    assert (error["param"], error["message"]) == ("pinned", "Invalid 'pinned': it must be true or false.")


@pytest.mark.parametrize("id", ["conv_0", "%00", "..%2F..", "a" * 200, "%F0%9F%98%80"])
async def test_what_was_never_given_out_is_a_404(client: Client, id: str) -> None:
    for path in (
        f"{URL}/{id}",
        f"{URL}/{id}/items",
        f"/v1/responses/{id}",
        f"/v1/files/{id}",
        f"/v1/vector_stores/{id}",
    ):
        url = Url(f"http://{client.host}:{client.port}{path}", encoded=True)
        async with client.session.get(url) as answer:
            assert answer.status == 404, path
            assert (await answer.json())["error"]["type"] == "not_found_error"


async def test_a_question_asked_again_is_a_version_that_can_be_chosen(client: Client) -> None:
    id = (await post(client, URL, {"items": [said("a"), said("b")]}))["id"]
    first, second = (await get(client, f"{URL}/{id}/items?order=asc"))["data"]
    assert (await post(client, f"{URL}/{id}/branch", {"after": first["id"]}))["id"] == id
    other = (await post(client, f"{URL}/{id}/items", {"items": [said("other")]}))["data"][0]
    listed = (await get(client, f"{URL}/{id}/items?order=asc&include[]=firsttoken:versions"))["data"]
    assert [item["firsttoken_versions"] for item in listed] == [[first["id"]], [second["id"], other["id"]]]
    await post(client, f"{URL}/{id}/branch", {"item_id": second["id"]})
    assert [item["id"] for item in (await get(client, f"{URL}/{id}/items"))["data"]] == [second["id"], first["id"]]
    await post(client, f"{URL}/{id}/branch", {"after": None})
    assert (await get(client, f"{URL}/{id}/items"))["data"] == []


@pytest.mark.parametrize("body", [{}, {"item_id": None}, {"item_id": "a", "after": "b"}, {"after": "no id"}])
async def test_a_branch_is_one_item(client: Client, body: dict[str, Any]) -> None:
    id = (await post(client, URL, {}))["id"]
    await post(client, f"{URL}/{id}/branch", body, 400)


async def test_items_of_nowhere_are_not_found(client: Client) -> None:
    id = (await post(client, URL, {}))["id"]
    await post(client, f"{URL}/{id}/branch", {"item_id": "msg_none"}, 404)
    await post(client, f"{URL}/conv_none/branch", {"after": None}, 404)


async def test_a_search_tells_what_it_found(client: Client) -> None:
    id = (await post(client, URL, {"items": [said("About the aurora borealis")]}))["id"]
    (found,) = (await get(client, f"{URL}/search?query=auro"))["data"]
    assert found["id"] == id
    assert found["firsttoken_excerpt"]["marks"] == [[10, 16]]
    for query in ("", "?query=", f"?query={'x' * 201}", "?query=%00", "?query=a&limit=0"):
        await get(client, f"{URL}/search{query}", 400)


async def test_a_conversation_is_exported_for_people_and_for_programs(client: Client) -> None:
    items = [said("Why?"), said("Because.", "assistant")]
    id = (await post(client, URL, {"items": items, "metadata": {"title": "T"}}))["id"]
    async with client.get(f"{URL}/{id}/export") as answer:
        assert await answer.text() == "# T\n\n## Question\n\nWhy?\n\n## Answer\n\nBecause.\n"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{id}.md"'
    told = await get(client, f"{URL}/{id}/export?format=json")
    assert [item["role"] for item in told["items"]] == ["user", "assistant"]
    await get(client, f"{URL}/{id}/export?format=pdf", 400)
