"""Shared conversations as their owners and as their visitors see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agents.message import Message
from agents.store import SharedConversation

PAGE = "/shared#"  # the token stands behind the mark, so that browsers send it to nobody else


def share_object(conversation_id: str, shared_at: datetime | None, token: str | None = None) -> dict[str, Any]:
    """`path` is the address of the link on this worker: told once, when it is made."""
    return {
        "object": "conversation.share",
        "conversation": conversation_id,
        "shared_at": shared_at and int(shared_at.timestamp()),
        "path": token and PAGE + token,
    }


def shared_object(shared: SharedConversation) -> dict[str, Any]:
    """The texts alone: what they cite stays with its owner."""
    return {
        "object": "shared_conversation",
        "title": shared.title,
        "shared_at": int(shared.shared_at.timestamp()),
        "messages": [
            {"role": item.role, "text": item.text, "status": item.status}
            for item in shared.items
            if isinstance(item, Message)
        ],
    }
