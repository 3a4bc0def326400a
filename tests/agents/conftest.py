"""The stores of responses."""

from __future__ import annotations

import pytest

from agents.store import ResponseStore
from migrations.pool import Database
from worker.runs.running_store import RunningStore


@pytest.fixture
def responses(database: Database) -> ResponseStore:
    return ResponseStore(database)


@pytest.fixture
def running(database: Database) -> RunningStore:
    return RunningStore(database)
