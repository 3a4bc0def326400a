"""Searching conversations: what is found, where, and what never is."""

from __future__ import annotations

from uuid import UUID

import pytest

from agents.message import FunctionCallOutput, Message
from agents.store import ConversationSearch, ConversationStore
from agents.store.conversation_search import excerpt, prefixes
from migrations.pool import Database
from tests.agents.turns import user


@pytest.fixture
def conversations(database: Database) -> ConversationStore:
    return ConversationStore(database)


@pytest.fixture
def search(database: Database) -> ConversationSearch:
    return ConversationSearch(database)


async def test_messages_are_found_by_the_beginnings_of_all_their_words(
    conversations: ConversationStore, search: ConversationSearch, tenant_id: UUID
) -> None:
    made = await conversations.create(
        tenant_id, items=[user("Der Quantensprung der Züge"), Message("assistant", "So.")]
    )
    await conversations.create(tenant_id, items=[user("Quanten allein")])
    (found,) = await search.find(tenant_id, "züg quant", 20)
    assert found.conversation.id == made.id
    assert found.excerpt is not None
    text, marks = found.excerpt.text, found.excerpt.marks
    assert [text[start:end] for start, end in marks] == ["Quantensprung", "Züge"]


async def test_titles_are_found_without_an_excerpt_and_the_newest_comes_first(
    conversations: ConversationStore, search: ConversationSearch, tenant_id: UUID
) -> None:
    titled = await conversations.create(tenant_id, {"title": "Trains of thought"})
    said = await conversations.create(tenant_id, items=[user("Which trains?")])
    found = await search.find(tenant_id, "trains", 20)
    assert [each.conversation.id for each in found] == [said.id, titled.id]
    assert found[1].excerpt is None
    assert len(await search.find(tenant_id, "trains", 1)) == 1


async def test_neither_others_nor_what_tools_said_nor_other_versions_are_found(
    conversations: ConversationStore, search: ConversationSearch, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    await conversations.create(other_tenant_id, {"title": "secret"}, [user("secret")])
    id = (await conversations.create(tenant_id, items=[FunctionCallOutput("c", "secret"), user("secret")])).id
    await conversations.versions.rewind(tenant_id, id, after=None)
    assert await search.find(tenant_id, "secret", 20) == []


@pytest.mark.parametrize("text", ["", "…", "' & !", "\\"])
async def test_a_text_without_words_finds_nothing(search: ConversationSearch, tenant_id: UUID, text: str) -> None:
    assert await search.find(tenant_id, text, 20) == []


@pytest.mark.parametrize("text", ["a_b", "it's", "x' | 'y", "²", "a:*b", "ﬀ", "e\u0301", "w" * 5000])
async def test_no_text_breaks_the_query(search: ConversationSearch, tenant_id: UUID, text: str) -> None:
    await search.find(tenant_id, text, 20)


def test_a_query_has_few_words() -> None:
    assert prefixes("word " * 100).count(":*") == 8


def test_an_excerpt_knows_the_places_of_its_words() -> None:
    found = excerpt("msg_1", "a \x02bc\x03 d \x02e\x03")
    assert (found.text, found.marks) == ("a bc d e", ((2, 4), (7, 8)))
