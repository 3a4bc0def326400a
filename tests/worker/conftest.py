"""A signed-in client of a new tenant, and the model that answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering
from tests.worker.harness import Client


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["Hello."], name=MODEL)


@pytest.fixture
async def client(database: Database, model: ScriptedModel) -> AsyncIterator[Client]:
    async with answering(database, model=model) as client:
        yield client
