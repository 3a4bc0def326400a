from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from agents.errors import HistoryTooLong, InvalidTurn, NotFound
from agents.message import FunctionCall, FunctionCallOutput, Item, Message, new_id
from agents.store import ConversationStore, ResponseRecord, ResponseStore
from agents.store.conversations import HISTORY_ITEMS_MAX, Order, append_items
from migrations.pool import Database
from tests.agents.turns import user
from worker.runs.continuation import Batch
from worker.runs.running_store import RunningStore


@pytest.fixture
def conversations(database: Database) -> ConversationStore:
    return ConversationStore(database)


def numbered(count: int) -> list[Item]:
    return [user(f"message {number}") for number in range(count)]


def record(text: str, *, after: ResponseRecord | None = None, conversation_id: str | None = None) -> ResponseRecord:
    return ResponseRecord(
        new_id("resp"),
        "completed",
        {"object": "response", "note": text, "output": []},
        datetime.now(UTC),
        datetime.now(UTC),
        (user(f"ask {text}"),),
        (Message("assistant", f"answer {text}"),),
        conversation_id,
        after.id if after else None,
    )


async def save(running: RunningStore, tenant_id: UUID, record: ResponseRecord) -> None:
    """From its beginning to its end."""
    await running.begin(tenant_id, replace(record, status="in_progress"), worker=1)
    await running.finish(tenant_id, record, 1, Batch(record.id, (), -1))
    await running.append(tenant_id, Batch(record.id, (), -1, last=True), 1)


def texts(items: tuple[Item, ...]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


async def test_a_conversation_gives_back_what_went_in(conversations: ConversationStore, tenant_id: UUID) -> None:
    items: list[Item] = [
        user("What is 2 + 2?"),
        FunctionCall("c1", "calculator", '{"expression": "2 + 2"}'),
        FunctionCallOutput("c1", "4"),
        Message("assistant", "Four \N{GRINNING FACE}."),
    ]
    made = await conversations.create(tenant_id, {"topic": "sums"}, items)
    assert (await conversations.get(tenant_id, made.id)).metadata == {"topic": "sums"}
    assert await conversations.history(tenant_id, made.id) == tuple(items)


async def test_an_empty_conversation_has_an_empty_history(conversations: ConversationStore, tenant_id: UUID) -> None:
    made = await conversations.create(tenant_id)
    assert await conversations.history(tenant_id, made.id) == ()


async def test_a_history_that_fits_no_prompt_is_refused(conversations: ConversationStore, tenant_id: UUID) -> None:
    made = await conversations.create(tenant_id, items=numbered(HISTORY_ITEMS_MAX))
    assert len(await conversations.history(tenant_id, made.id)) == HISTORY_ITEMS_MAX
    await conversations.add_items(tenant_id, made.id, numbered(1))
    with pytest.raises(HistoryTooLong, match="Start a new one"):
        await conversations.history(tenant_id, made.id)


async def test_items_keep_the_order_in_which_they_were_added(conversations: ConversationStore, tenant_id: UUID) -> None:
    items = numbered(60)
    made = await conversations.create(tenant_id, items=items[:30])
    await conversations.add_items(tenant_id, made.id, items[30:])
    assert await conversations.history(tenant_id, made.id) == tuple(items)


async def test_items_of_two_turns_at_once_never_interleave(conversations: ConversationStore, tenant_id: UUID) -> None:
    made = await conversations.create(tenant_id)
    batches = [numbered(40) for _ in range(6)]
    await asyncio.gather(*(conversations.add_items(tenant_id, made.id, batch) for batch in batches))
    stored = await conversations.history(tenant_id, made.id)
    chunks = [list(stored[start : start + 40]) for start in range(0, 240, 40)]
    assert sorted(chunks, key=lambda chunk: chunk[0].id) == sorted(batches, key=lambda batch: batch[0].id)


async def test_pages_of_items_join_up_in_both_directions(conversations: ConversationStore, tenant_id: UUID) -> None:
    items = numbered(7)
    made = await conversations.create(tenant_id, items=items)
    cases: list[tuple[Order, list[Item]]] = [("asc", items), ("desc", items[::-1])]
    for order, expected in cases:
        seen: list[Item] = []
        more = True
        while more:
            after = seen[-1].id if seen else None
            page = await conversations.list_items(tenant_id, made.id, after=after, limit=3, order=order)
            seen += page.data
            more = page.has_more
        assert seen == expected


async def test_single_items_are_read_and_deleted(conversations: ConversationStore, tenant_id: UUID) -> None:
    items = numbered(3)
    made = await conversations.create(tenant_id, items=items)
    assert await conversations.get_item(tenant_id, made.id, items[1].id) == items[1]
    assert (await conversations.delete_item(tenant_id, made.id, items[1].id)).id == made.id
    assert await conversations.history(tenant_id, made.id) == (items[0], items[2])
    with pytest.raises(NotFound, match="no item"):
        await conversations.get_item(tenant_id, made.id, items[1].id)


async def test_items_know_the_response_that_they_belong_to(
    conversations: ConversationStore, database: Database, tenant_id: UUID
) -> None:
    added, made = numbered(2)
    conversation = await conversations.create(tenant_id, items=[added])
    async with database.tenant(tenant_id) as connection:
        await append_items(connection, tenant_id, conversation.id, [made], "resp_1")
    assert await conversations.responses_of(tenant_id, [added.id, made.id]) == {made.id: "resp_1"}


async def test_conversations_are_listed_by_their_last_activity(
    conversations: ConversationStore, tenant_id: UUID
) -> None:
    made = [await conversations.create(tenant_id) for _ in range(4)]
    await conversations.add_items(tenant_id, made[0].id, numbered(1))
    expected = [made[0].id, made[3].id, made[2].id, made[1].id]
    first = await conversations.list(tenant_id, limit=3)
    rest = await conversations.list(tenant_id, limit=3, after=first.data[-1].id)
    assert [each.id for each in (*first.data, *rest.data)] == expected
    assert (first.has_more, rest.has_more) == (True, False)


async def test_metadata_is_replaced(conversations: ConversationStore, tenant_id: UUID) -> None:
    made = await conversations.create(tenant_id, {"a": "1"})
    assert (await conversations.update(tenant_id, made.id, {"b": "2"})).metadata == {"b": "2"}


async def test_a_deleted_conversation_is_gone_with_its_items(conversations: ConversationStore, tenant_id: UUID) -> None:
    items = numbered(2)
    made = await conversations.create(tenant_id, items=items)
    await conversations.delete(tenant_id, made.id)
    for attempt in (
        conversations.get(tenant_id, made.id),
        conversations.history(tenant_id, made.id),
        conversations.list_items(tenant_id, made.id),
        conversations.get_item(tenant_id, made.id, items[0].id),
        conversations.delete(tenant_id, made.id),
    ):
        with pytest.raises(NotFound):
            await attempt


async def test_a_tenant_never_sees_anothers_conversation(
    conversations: ConversationStore, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    items = numbered(1)
    made = await conversations.create(tenant_id, items=items)
    for attempt in (
        conversations.get(other_tenant_id, made.id),
        conversations.history(other_tenant_id, made.id),
        conversations.list_items(other_tenant_id, made.id),
        conversations.get_item(other_tenant_id, made.id, items[0].id),
        conversations.update(other_tenant_id, made.id, {"mine": "now"}),
        conversations.add_items(other_tenant_id, made.id, numbered(1)),
        conversations.delete_item(other_tenant_id, made.id, items[0].id),
        conversations.delete(other_tenant_id, made.id),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert (await conversations.list(other_tenant_id)).data == ()
    assert await conversations.history(tenant_id, made.id) == tuple(items)


async def test_the_same_item_is_not_stored_twice(conversations: ConversationStore, tenant_id: UUID) -> None:
    items = numbered(1)
    made = await conversations.create(tenant_id, items=items)
    with pytest.raises(InvalidTurn, match="omit `id`"):
        await conversations.add_items(tenant_id, made.id, items)


async def test_a_response_is_kept_with_its_items(
    responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    saved = record("one")
    await save(running, tenant_id, saved)
    read = await responses.get(tenant_id, saved.id)
    assert (read.status, read.input, read.output) == ("completed", saved.input, saved.output)
    assert read.body["note"] == "one"
    assert [item["id"] for item in read.body["output"]] == [saved.output[0].id]


async def test_the_history_of_a_response_is_its_chain_oldest_first(
    responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    chain = [record("one")]
    for text in ("two", "three"):
        chain.append(record(text, after=chain[-1]))
    for each in chain:
        await save(running, tenant_id, each)
    told = ["ask one", "answer one", "ask two", "answer two", "ask three", "answer three"]
    assert texts(await responses.history(tenant_id, chain[2].id)) == told
    assert texts(await responses.history(tenant_id, chain[0].id)) == told[:2]


async def test_a_gap_in_the_chain_is_not_passed_over(
    responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    first = record("one")
    second = record("two", after=first)
    for each in (first, second):
        await save(running, tenant_id, each)
    await responses.delete(tenant_id, first.id)
    with pytest.raises(NotFound, match=first.id):
        await responses.history(tenant_id, second.id)


async def test_a_response_in_a_conversation_adds_its_items_there(
    conversations: ConversationStore, responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    made = await conversations.create(tenant_id, items=[user("before")])
    for text in ("one", "two"):
        await save(running, tenant_id, record(text, conversation_id=made.id))
    told = ["before", "ask one", "answer one", "ask two", "answer two"]
    assert texts(await conversations.history(tenant_id, made.id)) == told


async def test_a_chain_that_began_in_a_conversation_knows_what_stood_there(
    conversations: ConversationStore, responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    made = await conversations.create(tenant_id, items=[user("before")])
    inside = record("inside", conversation_id=made.id)
    later = record("later", conversation_id=made.id)
    branch = record("branch", after=inside)
    for each in (inside, later, branch):
        await save(running, tenant_id, each)
    told = ["before", "ask inside", "answer inside", "ask branch", "answer branch"]
    assert texts(await responses.history(tenant_id, branch.id)) == told


async def test_a_response_for_a_deleted_conversation_has_not_ended(
    conversations: ConversationStore, responses: ResponseStore, running: RunningStore, tenant_id: UUID
) -> None:
    made = await conversations.create(tenant_id)
    await conversations.delete(tenant_id, made.id)
    lost = record("lost", conversation_id=made.id)
    with pytest.raises(NotFound, match="no conversation"):
        await save(running, tenant_id, lost)
    assert (await responses.get(tenant_id, lost.id)).status == "in_progress"


async def test_a_tenant_never_sees_anothers_response(
    responses: ResponseStore, running: RunningStore, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    saved = record("secret")
    await save(running, tenant_id, saved)
    attempts: list[Any] = [responses.get, responses.history, responses.delete]
    for attempt in attempts:
        with pytest.raises(NotFound):
            await attempt(other_tenant_id, saved.id)
    assert (await responses.get(tenant_id, saved.id)).id == saved.id
