"""Conversations as callers see and write them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from agents.store import Conversation
from worker.wire import limits
from worker.wire.items import InputItem
from worker.wire.options import Metadata
from worker.wire.strict import Strict

Items = Annotated[list[InputItem], Field(max_length=limits.ITEMS_ADD_MAX)]


class ConversationCreate(Strict):
    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Strict):
    metadata: Metadata | None


class ItemsCreate(Strict):
    items: Annotated[Items, Field(min_length=1)]


def conversation_object(conversation: Conversation) -> dict[str, Any]:
    """`firsttoken_updated_at`: when something was last said, by which our own list is ordered."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
        "firsttoken_updated_at": int(conversation.updated_at.timestamp()),
    }


def deleted_object(conversation_id: str) -> dict[str, Any]:
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
