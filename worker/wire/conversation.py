"""Conversations as clients see and write them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from agents.store import Conversation, Found
from worker.wire import limits
from worker.wire.items import InputItem
from worker.wire.options import Metadata
from worker.wire.strict import Id, Strict

Items = Annotated[list[InputItem], Field(max_length=limits.ITEMS_ADD_MAX)]


class ConversationCreate(Strict):
    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Strict):
    metadata: Metadata | None


class ItemsCreate(Strict):
    items: Annotated[Items, Field(min_length=1)]


class BranchChoice(Strict):
    """`item_id`: an item of the version to switch to; `after`: the item to go back to, or null for the beginning."""

    item_id: Id | None = None
    after: Id | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1 or (self.item_id is None and "after" not in self.model_fields_set):
            raise ValueError("give either item_id or after")
        return self


def conversation_object(conversation: Conversation) -> dict[str, Any]:
    """`firsttoken_updated_at`: the time of the last message, by which our own list is sorted. `firsttoken_beginning`:
    in that list, the first question of conversations without a title."""
    beginning = {"firsttoken_beginning": conversation.beginning} if conversation.beginning else {}
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
        "firsttoken_updated_at": int(conversation.updated_at.timestamp()),
        **beginning,
    }


def found_object(found: Found) -> dict[str, Any]:
    """`firsttoken_excerpt`: of the message that matches, with the positions of the words in it."""
    excerpt = found.excerpt and {
        "item_id": found.excerpt.item_id,
        "text": found.excerpt.text,
        "marks": found.excerpt.marks,
    }
    return {**conversation_object(found.conversation), "firsttoken_excerpt": excerpt}


def deleted_object(conversation_id: str) -> dict[str, Any]:
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
