"""The stores of responses. Property tests here run beside everything else on a busy machine: how long one example takes
says nothing."""

from __future__ import annotations

import pytest
from hypothesis import settings

from agents.store import ResponseStore
from migrations.pool import Database
from worker.runs.running_store import RunningStore

settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


@pytest.fixture
def responses(database: Database) -> ResponseStore:
    return ResponseStore(database)


@pytest.fixture
def running(database: Database) -> RunningStore:
    return RunningStore(database)
