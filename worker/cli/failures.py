"""Errors that a person can act on: a command that ends with one prints a line. Anything else is a bug and keeps its
traceback."""

from __future__ import annotations

import asyncpg

from agents.errors import AgentError
from inference.errors import InferenceError
from migrations.embedded import EmbeddedPostgresError
from migrations.pool import DATABASE_AWAY, UnsafeRole
from migrations.runner import MigrationError
from retrieval.errors import RetrievalError
from worker.errors import StartError

FAILURES = (
    StartError,
    EmbeddedPostgresError,
    MigrationError,
    UnsafeRole,
    InferenceError,
    RetrievalError,
    AgentError,
    asyncpg.PostgresError,
    *DATABASE_AWAY,
)
