"""Conversations and responses in Postgres: all SQL of this package, one resource per file."""

from __future__ import annotations

from agents.store.conversation_search import ConversationSearch, Found
from agents.store.conversations import Conversation, ConversationStore, Page
from agents.store.responses import ResponseRecord, ResponseStore
from agents.store.shares import SharedConversation, ShareStore

__all__ = [
    "Conversation",
    "ConversationSearch",
    "ConversationStore",
    "Found",
    "Page",
    "ResponseRecord",
    "ResponseStore",
    "ShareStore",
    "SharedConversation",
]
