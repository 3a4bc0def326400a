"""Conversations and responses in Postgres: all SQL of this package, one resource a file."""

from __future__ import annotations

from agents.store.conversations import Conversation, ConversationStore, Page
from agents.store.responses import ResponseRecord, ResponseStore

__all__ = [
    "Conversation",
    "ConversationStore",
    "Page",
    "ResponseRecord",
    "ResponseStore",
]
