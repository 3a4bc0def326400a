"""Versions of a conversation: gone back to, chosen, counted, and never mixed up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from agents.errors import ConversationBusy, InvalidTurn, NotFound
from agents.message import Message, new_id
from agents.store import ConversationStore, ResponseRecord, ResponseStore
from agents.store.conversations import VERSIONS_MAX
from migrations.pool import Database
from tests.agents.turns import user
from worker.runs.continuation import Batch
from worker.runs.running_store import RunningStore


@pytest.fixture
def conversations(database: Database) -> ConversationStore:
    return ConversationStore(database)


async def texts(conversations: ConversationStore, tenant_id: UUID, id: str) -> list[str]:
    return [item.text for item in await conversations.history(tenant_id, id) if isinstance(item, Message)]


async def test_what_is_asked_after_going_back_is_another_version(
    conversations: ConversationStore, tenant_id: UUID
) -> None:
    a, b, c, other = (user(text) for text in ("a", "b", "c", "other"))
    id = (await conversations.create(tenant_id, items=[a, b, c])).id
    await conversations.versions.rewind(tenant_id, id, after=a.id)
    assert await texts(conversations, tenant_id, id) == ["a"]
    await conversations.add_items(tenant_id, id, [other])
    assert await texts(conversations, tenant_id, id) == ["a", "other"]
    listed = await conversations.list_items(tenant_id, id, order="asc")
    assert listed.data == (a, other)
    ids = [item.id for item in (a, b, c, other)]
    assert await conversations.versions.of(tenant_id, ids) == {b.id: [b.id, other.id], other.id: [b.id, other.id]}
    await conversations.versions.choose(tenant_id, id, b.id)
    assert await texts(conversations, tenant_id, id) == ["a", "b", "c"]
    await conversations.add_items(tenant_id, id, [user("d")])
    assert await texts(conversations, tenant_id, id) == ["a", "b", "c", "d"]


async def test_going_back_to_the_beginning_makes_another_first_item(
    conversations: ConversationStore, tenant_id: UUID
) -> None:
    first, second = user("first"), user("second")
    id = (await conversations.create(tenant_id, items=[first])).id
    await conversations.versions.rewind(tenant_id, id, after=None)
    assert await conversations.history(tenant_id, id) == ()
    await conversations.add_items(tenant_id, id, [second])
    assert await conversations.versions.of(tenant_id, [second.id]) == {second.id: [first.id, second.id]}


async def test_a_version_is_chosen_with_the_newest_of_what_follows_it(
    conversations: ConversationStore, tenant_id: UUID
) -> None:
    a, b, c = user("a"), user("b"), user("c")
    id = (await conversations.create(tenant_id, items=[a, b, c])).id
    await conversations.versions.rewind(tenant_id, id, after=b.id)
    await conversations.add_items(tenant_id, id, [user("newer c")])
    await conversations.versions.rewind(tenant_id, id, after=None)
    await conversations.add_items(tenant_id, id, [user("other")])
    await conversations.versions.choose(tenant_id, id, a.id)
    assert await texts(conversations, tenant_id, id) == ["a", "b", "newer c"]


async def test_a_deleted_item_leaves_no_hole_in_any_version(conversations: ConversationStore, tenant_id: UUID) -> None:
    a, b, c = user("a"), user("b"), user("c")
    id = (await conversations.create(tenant_id, items=[a, b, c])).id
    await conversations.versions.rewind(tenant_id, id, after=b.id)
    await conversations.add_items(tenant_id, id, [user("other c")])
    await conversations.delete_item(tenant_id, id, b.id)
    assert await texts(conversations, tenant_id, id) == ["a", "other c"]
    await conversations.versions.choose(tenant_id, id, c.id)
    assert await texts(conversations, tenant_id, id) == ["a", "c"]


async def test_versions_of_one_item_are_bounded(conversations: ConversationStore, tenant_id: UUID) -> None:
    id = (await conversations.create(tenant_id)).id
    for number in range(VERSIONS_MAX):
        await conversations.versions.rewind(tenant_id, id, after=None)
        await conversations.add_items(tenant_id, id, [user(str(number))])
    with pytest.raises(InvalidTurn, match=f"{VERSIONS_MAX} versions"):
        await conversations.versions.rewind(tenant_id, id, after=None)
    assert await texts(conversations, tenant_id, id) == [str(VERSIONS_MAX - 1)]


async def test_only_what_is_on_the_path_can_be_gone_back_to(conversations: ConversationStore, tenant_id: UUID) -> None:
    a, b = user("a"), user("b")
    id = (await conversations.create(tenant_id, items=[a, b])).id
    await conversations.versions.rewind(tenant_id, id, after=a.id)
    with pytest.raises(InvalidTurn, match="another version"):
        await conversations.versions.rewind(tenant_id, id, after=b.id)


async def test_nobody_chooses_in_another_tenants_conversation(
    conversations: ConversationStore, tenant_id: UUID
) -> None:
    item = user("mine")
    id = (await conversations.create(tenant_id, items=[item])).id
    with pytest.raises(NotFound):
        await conversations.versions.choose(uuid4(), id, item.id)
    with pytest.raises(NotFound):
        await conversations.versions.rewind(uuid4(), id, after=None)
    other = (await conversations.create(tenant_id)).id
    with pytest.raises(NotFound):
        await conversations.versions.choose(tenant_id, other, item.id)


async def test_an_answer_being_made_stays_on_the_path_where_it_was_asked(
    conversations: ConversationStore, database: Database, tenant_id: UUID
) -> None:
    item = user("first")
    id = (await conversations.create(tenant_id, items=[item])).id
    running, record = RunningStore(database), answered("again", id)
    await running.begin(tenant_id, replace(record, status="in_progress", completed_at=None), worker=1)
    with pytest.raises(ConversationBusy):
        await conversations.versions.rewind(tenant_id, id, after=None)
    await running.finish(tenant_id, record, 1, Batch(record.id, (), -1))
    await conversations.versions.rewind(tenant_id, id, after=None)


async def test_a_chain_of_responses_follows_the_version_in_which_it_began(
    conversations: ConversationStore, database: Database, tenant_id: UUID
) -> None:
    a, b = user("a"), user("b")
    id = (await conversations.create(tenant_id, items=[a, b])).id
    running, record = RunningStore(database), answered("first", id)
    await running.begin(tenant_id, replace(record, status="in_progress"), worker=1)
    await running.finish(tenant_id, record, 1, Batch(record.id, (), -1))
    await conversations.versions.rewind(tenant_id, id, after=a.id)
    await conversations.add_items(tenant_id, id, [user("other")])
    history = await ResponseStore(database).history(tenant_id, record.id)
    assert [item.text for item in history if isinstance(item, Message)] == ["a", "b", "ask first", "answer first"]


def answered(text: str, conversation_id: str) -> ResponseRecord:
    body = {"object": "response", "output": []}
    asked, said, now = (user(f"ask {text}"),), (Message("assistant", f"answer {text}"),), datetime.now(UTC)
    return ResponseRecord(new_id("resp"), "completed", body, now, now, asked, said, conversation_id)
