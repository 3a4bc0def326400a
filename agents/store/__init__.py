"""Conversations and responses in Postgres: all SQL of this package, one resource a file."""

from __future__ import annotations

from agents.store.conversations import Conversation, ConversationStore, Page
from agents.store.idempotency import IdempotencyStore
from agents.store.queue import Job, QueueStore
from agents.store.responses import ResponseRecord, ResponseStore
from agents.store.running import Batch, Chapter, RunningStore, Taken

__all__ = [
    "Batch",
    "Chapter",
    "Conversation",
    "ConversationStore",
    "IdempotencyStore",
    "Job",
    "Page",
    "QueueStore",
    "ResponseRecord",
    "ResponseStore",
    "RunningStore",
    "Taken",
]
