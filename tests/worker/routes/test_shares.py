"""Links to conversations: what they show, to whom, and that they end."""

from __future__ import annotations

from typing import Any

from tests.worker.answering import get, post
from tests.worker.harness import Client
from tests.worker.routes.test_conversations import URL, said


async def opened(client: Client, path: str, status: int = 200) -> Any:
    """As somebody without credentials."""
    address = f"/v1/shared/{path.partition('#')[2]}"
    async with client.get(address, headers={"Authorization": "", "Cookie": ""}) as answer:
        assert answer.status == status
        return await answer.json()


async def test_a_link_shows_the_messages_of_then_and_no_more(client: Client) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "of a tool"}
    items = [said("Why?"), output, said("Because.", "assistant"), said("hidden", "system")]
    id = (await post(client, URL, {"items": items, "metadata": {"title": "T", "note": "mine"}}))["id"]
    assert (await get(client, f"{URL}/{id}/share"))["shared_at"] is None
    shared = await post(client, f"{URL}/{id}/share", {})
    await post(client, f"{URL}/{id}/items", {"items": [said("later")]})
    seen = await opened(client, shared["path"])
    assert [(message["role"], message["text"]) for message in seen["messages"]] == [
        ("user", "Why?"),
        ("assistant", "Because."),
    ]
    assert seen["title"] == "T"
    assert "mine" not in str(seen)
    told = await get(client, f"{URL}/{id}/share")
    assert told["shared_at"] is not None
    assert told["path"] is None


async def test_a_link_keeps_to_the_version_that_was_shared(client: Client) -> None:
    id = (await post(client, URL, {"items": [said("first")]}))["id"]
    await post(client, f"{URL}/{id}/branch", {"after": None})
    await post(client, f"{URL}/{id}/items", {"items": [said("second")]})
    shared = await post(client, f"{URL}/{id}/share", {})
    first = (await get(client, f"{URL}/{id}/items?include[]=firsttoken:versions"))["data"][0]["firsttoken_versions"][0]
    await post(client, f"{URL}/{id}/branch", {"item_id": first})
    assert [message["text"] for message in (await opened(client, shared["path"]))["messages"]] == ["second"]


async def test_a_link_ends_when_it_is_revoked_replaced_or_its_conversation_deleted(client: Client) -> None:
    id = (await post(client, URL, {"items": [said("a")]}))["id"]
    first, second = [(await post(client, f"{URL}/{id}/share", {}))["path"] for _ in range(2)]
    await opened(client, first, 401)
    async with client.delete(f"{URL}/{id}/share") as answer:
        assert (await answer.json())["shared_at"] is None
    await opened(client, second, 401)
    third = (await post(client, f"{URL}/{id}/share", {}))["path"]
    async with client.delete(f"{URL}/{id}"):
        await opened(client, third, 401)


async def test_nobody_shares_what_is_not_theirs(client: Client) -> None:
    await post(client, f"{URL}/conv_of_others/share", {}, 404)
    await get(client, f"{URL}/conv_of_others/share", 404)
    await opened(client, "#not a token", 404)
